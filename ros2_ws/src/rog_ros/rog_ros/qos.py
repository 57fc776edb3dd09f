"""QoS profiles. The publishers and subscriptions of a topic use the same profile from here."""

from fleet_ros.qos import HEARTBEAT, STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['CHUNK', 'DIAGNOSTICS', 'HEARTBEAT', 'ONCE', 'PAST', 'PAST_FLEET', 'RELAY', 'ROBOTS',
           'STATUS']

# All messages of transfers. They are best effort, because the protocol itself repeats what is lost,
# and no message may queue up behind a dead link. A reliable writer would also ask for its messages
# several times while they wait in the queue of a slow link. The profile's queue is deep enough for
# a burst that arrives while a callback runs.
CHUNK = QoSProfile(depth=512, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# Topic and profile of the statuses of all robots, which the server publishes again: so each of them
# passes the link of its robot only once. The queue is deep enough for one status of each robot.
ROBOTS = 'robots'
RELAY = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                   reliability=ReliabilityPolicy.BEST_EFFORT, durability=DurabilityPolicy.VOLATILE)

# Topics of earlier statuses, which the server sends once to who begins to listen: those of robots,
# and its own, as far as they show that something happened. They are reliable, because the server
# may know of a new subscription before that knows of the server.
PAST, PAST_FLEET = 'robots_before', 'fleet_before'
ONCE = QoSProfile(depth=256, history=HistoryPolicy.KEEP_LAST,
                  reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
