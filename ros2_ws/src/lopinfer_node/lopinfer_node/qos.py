"""QoS profiles of the topics; all publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['IMAGE', 'PIECE', 'RESULT', 'STATUS']

# Pieces and acknowledgements are best effort: `outbox` itself sends lost pieces again, and reliable
# messages would queue up while the link is dead. The depth is enough for a whole window of pieces
# that arrives while a callback runs.
PIECE = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

RESULT = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

# Images: only the newest image counts, so a lost image is not sent again.
IMAGE = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)
