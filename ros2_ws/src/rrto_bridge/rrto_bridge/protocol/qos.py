"""QoS profiles. All publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['AGAIN', 'LAST_WORDS', 'STATUS', 'STREAM']

# Profile for frames and acknowledgements: best effort; `stream` sends again what is lost. The queue
# is deep enough for `stream.WINDOW` frames that arrive while a callback runs.
STREAM = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.BEST_EFFORT,
                    durability=DurabilityPolicy.VOLATILE)

# An ending process says so every `AGAIN` seconds until its peer answers, at most `LAST_WORDS`
# seconds.
AGAIN, LAST_WORDS = 0.1, 0.5
