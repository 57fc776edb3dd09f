"""QoS profiles. The publishers and subscriptions of a topic use the same profile from here."""

from fleet_ros.qos import HEARTBEAT, STATUS
from rclpy.duration import Duration
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['CHUNK', 'CONTROL', 'DIAGNOSTICS', 'HEARTBEAT', 'LAST_WORDS', 'STATUS']

# Maximum time that an ending process waits until all subscribers have received its last status.
LAST_WORDS = Duration(seconds=1.0)

# Row chunks and their acknowledgements. They are best effort, because the protocol itself repeats
# lost chunks, and no message may queue up behind a dead link. The queue is deep enough for a burst
# that arrives while a callback runs.
CHUNK = QoSProfile(depth=512, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# For the messages `End` and `Receipt` of a transfer. These messages are reliable, because they are
# few and a peer waits for each.
CONTROL = QoSProfile(depth=16, history=HistoryPolicy.KEEP_LAST,
                     reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
