"""QoS profiles, named once. Publishers and subscriptions of a topic use the same."""

from fleet_ros.qos import HEARTBEAT, STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['CHUNK', 'CONTROL', 'DIAGNOSTICS', 'HEARTBEAT', 'STATUS']

# Row chunks and their acknowledgements: the protocol itself repeats what is lost, and nothing may
# queue up behind a dead link. Deep enough for a burst that arrives while a callback runs.
CHUNK = QoSProfile(depth=512, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# Ends and receipts of transfers: few, and a peer waits for each.
CONTROL = QoSProfile(depth=16, history=HistoryPolicy.KEEP_LAST,
                     reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
