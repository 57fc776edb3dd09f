"""QoS profiles. All publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['LAST_WORDS', 'STATUS', 'STREAM']

# Profile for frames: reliable and in order. `stream.WINDOW` limits the number of frames in transit.
STREAM = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

# Maximum time in seconds for which an ending process waits for its peer's acknowledgement.
LAST_WORDS = 0.5
