"""QoS profiles, named once. Every publisher and subscription of a topic uses the same."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['IMAGE', 'PIECE', 'RESULT', 'STATUS']

# Pieces and acknowledgements: lost ones are sent again by `outbox`, and nothing may queue up behind
# a dead link. Deep enough for a whole window that arrives while a callback runs.
PIECE = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

RESULT = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

# Images: the newest counts, and one that is lost is not worth waiting for.
IMAGE = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)
