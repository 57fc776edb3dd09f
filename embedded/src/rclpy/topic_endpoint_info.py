"""What a node can know about a publisher or subscription anywhere in the domain."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from rclpy.qos import HistoryPolicy, QoSProfile, qos_profile_unknown
from rclpy.type_hash import TypeHash


class TopicEndpointTypeEnum(IntEnum):
    """Publisher or subscription."""

    INVALID = 0
    PUBLISHER = 1
    SUBSCRIPTION = 2


@dataclass(kw_only=True)
class TopicEndpointInfo:
    """A publisher or subscription.

    :param topic_type: such as std_msgs/msg/String
    :param endpoint_gid: the identity that DDS gives it, 16 numbers
    :param qos_profile: what it has, also of another process
    """

    node_name: str = ""
    node_namespace: str = ""
    topic_type: str = ""
    topic_type_hash: TypeHash = field(default_factory=TypeHash)
    endpoint_type: TopicEndpointTypeEnum = TopicEndpointTypeEnum.INVALID
    endpoint_gid: list[int] = field(default_factory=list)
    qos_profile: QoSProfile = field(default_factory=lambda: qos_profile_unknown)

    def __str__(self) -> str:
        qos = self.qos_profile
        depth = f" ({qos.depth})" if qos.history is HistoryPolicy.KEEP_LAST else ""
        lines = {
            "Node name": self.node_name,
            "Node namespace": self.node_namespace,
            "Topic type": self.topic_type,
            "Topic type hash": self.topic_type_hash,
            "Endpoint type": self.endpoint_type.name,
            "GID": ".".join(f"{number:02x}" for number in self.endpoint_gid),
            "QoS profile": "",
            "  Reliability": qos.reliability.name,
            "  History (Depth)": qos.history.name + depth,
            "  Durability": qos.durability.name,
            "  Lifespan": qos.lifespan,
            "  Deadline": qos.deadline,
            "  Liveliness": qos.liveliness.name,
            "  Liveliness lease duration": qos.liveliness_lease_duration,
        }
        text = "\n".join(f"{name}: {value}" for name, value in lines.items())
        return text.replace("QoS profile: \n", "QoS profile:\n")
