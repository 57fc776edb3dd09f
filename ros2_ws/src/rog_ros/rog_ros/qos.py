"""QoS profiles, named once. Every publisher and subscription of a topic uses the same."""

from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

# Row chunks and their acknowledgements: we repeat what is lost ourselves, and nothing may queue up
# behind a dead link. Deep enough for a burst that arrives while a callback runs.
CHUNK = QoSProfile(depth=512, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# Ends and receipts of transfers: few, and each is waited for.
CONTROL = QoSProfile(depth=16, history=HistoryPolicy.KEEP_LAST,
                     reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

# Status for people and heartbeats: the newest is enough, and whoever comes late gets it too.
STATUS = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE,
                    durability=DurabilityPolicy.TRANSIENT_LOCAL)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
