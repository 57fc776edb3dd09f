"""QoS profiles of the topics of training."""

from fleet_ros.qos import HEARTBEAT, STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['CHUNK', 'CONTROL', 'DIAGNOSTICS', 'HEARTBEAT', 'ONCE', 'STATUS']

# Row chunks and their acknowledgements. They are best effort, because the protocol itself repeats
# lost chunks, and no message may queue up behind a dead link. The queue is deep enough for a burst
# that arrives while a callback runs.
CHUNK = QoSProfile(depth=512, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# Ends and receipts of transfers. Only publishers use `CONTROL`, so that every tool can subscribe.
# The nodes subscribe with `ONCE`, best effort, because the protocol itself repeats what is lost, as
# late as the link needs. DDS would ask for acknowledgements and repeat much too often on a link
# whose round trip takes seconds.
CONTROL = QoSProfile(depth=16, history=HistoryPolicy.KEEP_LAST,
                     reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)
ONCE = QoSProfile(depth=16, history=HistoryPolicy.KEEP_LAST,
                  reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
