"""QoS profiles that every part of the suite uses; each part has a `qos` with its own, too."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# Status for people and heartbeats: the newest is enough, and whoever comes late gets it too.
STATUS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL)
