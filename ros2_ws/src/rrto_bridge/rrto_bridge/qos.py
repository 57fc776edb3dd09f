"""QoS profiles, named once. Every publisher and subscription of a topic uses the same."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# Frames: reliable and in order; the window of `stream` bounds how many are on their way.
STREAM = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

# Status for people: the newest is enough, and whoever comes late gets it too.
STATUS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL)
