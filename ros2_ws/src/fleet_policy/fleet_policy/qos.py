"""The QoS profiles. All publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

__all__ = ['ACTION', 'DIAGNOSTICS', 'JOINTS', 'OBSERVATION', 'STATUS']

# Only the newest message of a sensor counts, but joints may come in several messages (`JOINTS`). A
# best-effort subscription receives from reliable and from best-effort publishers.
OBSERVATION = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.BEST_EFFORT,
                         durability=DurabilityPolicy.VOLATILE)

JOINTS = QoSProfile(depth=50, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.BEST_EFFORT,
                    durability=DurabilityPolicy.VOLATILE)

# The actions go to a controller on the robot itself, so reliable delivery costs little time. If
# an action is late, the next action replaces it.
ACTION = QoSProfile(depth=1, history=HistoryPolicy.KEEP_LAST,
                    reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.VOLATILE)

DIAGNOSTICS = QoSProfile(depth=10, history=HistoryPolicy.KEEP_LAST,
                         reliability=ReliabilityPolicy.RELIABLE,
                         durability=DurabilityPolicy.VOLATILE)
