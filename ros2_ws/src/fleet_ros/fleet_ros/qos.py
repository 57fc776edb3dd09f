"""QoS profiles of the whole suite; each part has more in its own `qos`."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# Statuses and heartbeats: only the newest message counts, and late subscribers receive it, too.
STATUS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL)

# A subscription to statuses that come again and again: the next one replaces one that was lost. No
# writer asks it for acknowledgements, which took as much of a robot's link as the statuses.
HEARTBEAT = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                       reliability=ReliabilityPolicy.BEST_EFFORT,
                       durability=DurabilityPolicy.VOLATILE)
