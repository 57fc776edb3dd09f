"""QoS profiles. All publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['LAST_WORDS', 'STATUS', 'STREAM']

# Frames: reliable and in order; the window of `stream` bounds the number in transit.
STREAM = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

LAST_WORDS = 0.5   # seconds that an ending process waits for its peer's acknowledgement
