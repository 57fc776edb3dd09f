"""QoS profiles of the whole suite; packages define further profiles in modules called `qos`."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# For statuses and heartbeats: only the newest message counts, and late subscribers
# receive it as well.
STATUS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL)

# For subscriptions to statuses that are sent regularly, so that the next status replaces a lost
# status. The profile is best effort: a reliable subscription would send acknowledgements, which
# need as much of a robot's link as the statuses themselves.
HEARTBEAT = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                       reliability=ReliabilityPolicy.BEST_EFFORT,
                       durability=DurabilityPolicy.VOLATILE)

# For the packets of a `fleet_link.stream.Stream`: best effort, because the stream sends again what
# is lost. The queue is deep enough for `stream.WINDOW` frames that arrive while a callback runs.
STREAM = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.BEST_EFFORT,
                    durability=DurabilityPolicy.VOLATILE)
