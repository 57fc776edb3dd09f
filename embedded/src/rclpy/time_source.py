"""`use_sim_time`: clocks that follow /clock."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from rclpy._message import message_class
from rclpy.clock import ROSClock
from rclpy.clock_type import ClockType
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.time import Time

CLOCK_TOPIC = "/clock"
USE_SIM_TIME_NAME = "use_sim_time"


class TimeSource:
    """Declares the parameter on a node and feeds the attached clocks from its subscription."""

    def __init__(self, *, node: Any = None) -> None:
        self._node: Callable[[], Any] = lambda: None
        self._clocks: list[ROSClock] = []
        self._clock_sub: Any = None
        self._last_time_set = Time(clock_type=ClockType.ROS_TIME)
        self._ros_time_is_active = False
        if node is not None:
            self.attach_node(node)

    @property
    def ros_time_is_active(self) -> bool:
        """Whether the attached clocks show the time of /clock."""
        return self._ros_time_is_active

    @ros_time_is_active.setter
    def ros_time_is_active(self, enabled: bool) -> None:
        if enabled == self._ros_time_is_active:
            return
        self._ros_time_is_active = enabled
        for clock in self._clocks:
            clock._set_ros_time_is_active(enabled)
        if enabled:
            self._subscribe()
        else:
            self._unsubscribe()

    def attach_node(self, node: Any) -> None:
        """Follow the node's parameter `use_sim_time`, declared here if it is not yet."""
        from rclpy.node import Node

        if not isinstance(node, Node):
            raise TypeError("Node must be of type rclpy.node.Node")
        self.detach_node()
        self._node = weakref.ref(node)
        if not node.has_parameter(USE_SIM_TIME_NAME):
            node.declare_parameter(USE_SIM_TIME_NAME, False)
        parameter = node.get_parameter(USE_SIM_TIME_NAME)
        if parameter.type_ is Parameter.Type.BOOL:
            self.ros_time_is_active = parameter.value
        else:
            node.get_logger().error(f"parameter {USE_SIM_TIME_NAME} should be a bool")
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._changed)

    def detach_node(self) -> None:
        """Listen no more; the clocks stay where they are."""
        node = self._node()
        if node is not None:
            self._unsubscribe()
            node.remove_on_set_parameters_callback(self._check)
            node.remove_post_set_parameters_callback(self._changed)
        self._node = lambda: None

    def attach_clock(self, clock: ROSClock) -> None:
        """Have a clock follow."""
        if not isinstance(clock, ROSClock):
            raise ValueError("Only clocks with type ROS_TIME can be attached.")
        clock.set_ros_time_override(self._last_time_set)
        clock._set_ros_time_is_active(self._ros_time_is_active)
        self._clocks.append(clock)

    def clock_callback(self, msg: Any) -> None:
        """Set the attached clocks to a rosgraph_msgs/Clock."""
        self._last_time_set = Time.from_msg(msg.clock)
        for clock in self._clocks:
            clock.set_ros_time_override(self._last_time_set)

    def _get_node(self) -> Any:
        return self._node()

    def _subscribe(self) -> None:
        node = self._node()
        if node is not None and self._clock_sub is None:
            qos = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            cls = message_class("rosgraph_msgs/msg/Clock")
            self._clock_sub = node.create_subscription(cls, CLOCK_TOPIC, self.clock_callback, qos)

    def _unsubscribe(self) -> None:
        node, subscription, self._clock_sub = self._node(), self._clock_sub, None
        if node is not None and subscription is not None:
            node.destroy_subscription(subscription)

    @staticmethod
    def _check(parameters: list[Parameter]) -> Any:
        names = [p.name for p in parameters if p.type_ is not Parameter.Type.BOOL]
        wrong = USE_SIM_TIME_NAME in names
        cls = message_class("rcl_interfaces/msg/SetParametersResult")
        reason = f"{USE_SIM_TIME_NAME} parameter must be of type bool" if wrong else ""
        return cls(successful=not wrong, reason=reason)

    def _changed(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.name == USE_SIM_TIME_NAME:
                self.ros_time_is_active = parameter.value
