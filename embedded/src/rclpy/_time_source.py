"""`use_sim_time`: a node's clock follows /clock."""

from __future__ import annotations

import weakref
from typing import Any

from rclpy._message import message_class
from rclpy.clock import ROSClock
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.time import Time

NAME = "use_sim_time"


class TimeSource:
    """Declares the parameter and feeds the clock of one node."""

    def __init__(self, node: Any, clock: ROSClock) -> None:
        self._node = weakref.ref(node)
        self._clock = clock
        self._subscription: Any = None
        if not node.has_parameter(NAME):
            node.declare_parameter(NAME, False)
        if node.get_parameter(NAME).value is True:
            self._follow(True)
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._changed)

    @staticmethod
    def _check(parameters: list[Parameter]) -> Any:
        wrong = [p for p in parameters if p.name == NAME and p.type_ is not Parameter.Type.BOOL]
        cls = message_class("rcl_interfaces/msg/SetParametersResult")
        reason = f"{NAME} parameter must be of type bool" if wrong else ""
        return cls(successful=not wrong, reason=reason)

    def _changed(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name == NAME:
                self._follow(parameter.value)

    def _follow(self, simulated: bool) -> None:
        node = self._node()
        if node is None or simulated == (self._subscription is not None):
            return
        if simulated:
            self._clock._set_override(0)
            qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            self._subscription = node.create_subscription(
                message_class("rosgraph_msgs/msg/Clock"), "/clock", self._on_clock, qos
            )
        else:
            node.destroy_subscription(self._subscription)
            self._subscription = None
            self._clock._set_override(None)

    def _on_clock(self, message: Any) -> None:
        self._clock.set_ros_time_override(Time.from_msg(message.clock))
