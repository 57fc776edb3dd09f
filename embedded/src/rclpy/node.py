"""Nodes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from rclpy import _args, _names
from rclpy._message import message_class
from rclpy._node_entities import NodeEntities
from rclpy._node_graph import NodeGraph, NodeNameNonExistentError
from rclpy._node_parameters import NodeParameters
from rclpy._rosout import Rosout
from rclpy.callback_groups import (
    CallbackGroup,
    MutuallyExclusiveCallbackGroup,
    ReentrantCallbackGroup,
)
from rclpy.clock import Clock, ROSClock
from rclpy.context import Context
from rclpy.exceptions import NotInitializedException
from rclpy.logging import RcutilsLogger, get_logger
from rclpy.logging_service import LoggingService
from rclpy.parameter import Parameter
from rclpy.parameter_service import ParameterService
from rclpy.qos import qos_profile_parameter_events
from rclpy.time_source import TimeSource
from rclpy.utilities import get_default_context

HIDDEN_NODE_PREFIX = "_"

__all__ = ["HIDDEN_NODE_PREFIX", "Node", "NodeNameNonExistentError"]


class Node(NodeEntities, NodeGraph, NodeParameters):
    """A named part of the ROS graph, with topics, services, timers and parameters.

    :param context: by default the default context, which rclpy.init() initialises
    :param cli_args: arguments for this node alone, as after --ros-args
    :param namespace: prefix of relative names
    :param use_global_arguments: whether the process's command line counts for this node
    :param enable_rosout: publish log messages on /rosout
    :param start_parameter_services: let others read and set parameters
    :param parameter_overrides: values that win over declared defaults and the command line
    :param allow_undeclared_parameters: setting a parameter declares it
    :param automatically_declare_parameters_from_overrides: declare all given values at once
    :param enable_logger_service: let others read and set log levels
    """

    def __init__(
        self,
        node_name: str,
        *,
        context: Context | None = None,
        cli_args: list[str] | None = None,
        namespace: str | None = None,
        use_global_arguments: bool = True,
        enable_rosout: bool = True,
        start_parameter_services: bool = True,
        parameter_overrides: list[Parameter] | None = None,
        allow_undeclared_parameters: bool = False,
        automatically_declare_parameters_from_overrides: bool = False,
        enable_logger_service: bool = False,
    ) -> None:
        self._context = get_default_context() if context is None else context
        if not self._context.ok():
            raise NotInitializedException("cannot create node")
        # A node's own arguments come before those of the process.
        self._arguments = [_args.parse(cli_args or (), in_scope=True)[0]]
        if use_global_arguments:
            self._arguments.append(self._context._arguments)
        self._set_names(node_name, namespace or "/")
        overrides: dict[str, Any] = {}
        for arguments in reversed(self._arguments):
            overrides.update(arguments.parameters_of(self.get_fully_qualified_name()))
        NodeParameters.__init__(self, overrides, parameter_overrides, allow_undeclared_parameters)
        NodeEntities.__init__(self)
        self._default_callback_group = MutuallyExclusiveCallbackGroup()
        self._rate_group = ReentrantCallbackGroup()
        self._executor_ref: Callable[[], Any] = lambda: None
        self._is_destroyed = False
        self._rosout: Rosout | None = None
        self._clock = ROSClock()
        logger_name = self.get_fully_qualified_name().strip("/").replace("/", ".")
        self._logger = get_logger(logger_name)
        self._entry = self._context.graph.add_node(self._namespace, self._name)
        with self._context.graph.batch():
            switches = self._context._arguments.switches
            if enable_rosout and switches.get("rosout-logs", True):
                self._rosout = Rosout(self, logger_name)
            self._parameter_events = self.create_publisher(
                message_class("rcl_interfaces/msg/ParameterEvent"),
                "/parameter_events",
                qos_profile_parameter_events,
            )
            if automatically_declare_parameters_from_overrides:
                self._declare_overrides()
            self._time_source = TimeSource(node=self)
            self._time_source.attach_clock(self._clock)
            reference = weakref.ref(self)
            self._clock._on_any_jump(lambda _: _timers_changed(reference))
            if enable_logger_service:
                LoggingService(self)
            if start_parameter_services:
                self._parameter_service = ParameterService(self)

    def _set_names(self, name: str, namespace: str) -> None:
        _names.validate_node_name(name)
        namespace = namespace if namespace.startswith("/") else f"/{namespace}"
        _names.validate_namespace(namespace)
        renamed = [a.node_name(name) for a in self._arguments]
        self._name = next((r for r in renamed if r is not None), name)
        moved = [a.namespace(self._name) for a in self._arguments]
        self._namespace = next((m for m in moved if m is not None), namespace)

    def _declare_overrides(self) -> None:
        cls = message_class("rcl_interfaces/msg/ParameterDescriptor")
        self.declare_parameters(
            "",
            [(n, p.value, cls()) for n, p in self._parameter_overrides.items()],
            ignore_override=True,
        )

    # What the node is.

    def get_name(self) -> str:
        """Return the node's name."""
        return self._name

    def get_namespace(self) -> str:
        """Return the node's namespace."""
        return self._namespace

    def get_fully_qualified_name(self) -> str:
        """Return namespace and name."""
        return _names.join(self._namespace, self._name)

    def get_logger(self) -> RcutilsLogger:
        """Return the node's logger."""
        return self._logger

    def get_clock(self) -> Clock:
        """Return the node's clock: ROS time."""
        return self._clock

    @property
    def context(self) -> Context:
        """The node's context."""
        return self._context

    @property
    def handle(self) -> Node:
        """The node itself: there is no other handle."""
        return self

    @property
    def default_callback_group(self) -> CallbackGroup:
        """The mutually exclusive group of everything that is created without one."""
        return self._default_callback_group

    @property
    def executor(self) -> Any:
        """The executor that the node belongs to, None when it belongs to none."""
        return self._executor_ref()

    @executor.setter
    def executor(self, new_executor: Any) -> None:
        current = self._executor_ref()
        if current is new_executor:
            return
        self._executor_ref = lambda: None
        if current is not None:
            current.remove_node(self)
        if new_executor is not None:
            self._executor_ref = weakref.ref(new_executor)
            new_executor.add_node(self)

    def _left(self, executor: Any) -> None:
        if self._executor_ref() is executor:
            self._executor_ref = lambda: None

    # Ending.

    def destroy_node(self) -> None:
        """Destroy the node with everything that belongs to it."""
        if self._is_destroyed:
            return
        self._is_destroyed = True
        executor = self.executor
        if executor is not None:
            executor.remove_node(self)
        if self._rosout is not None:
            self._rosout.close()
        with self._context.graph.batch():
            owned: list[tuple[Callable[[Any], bool], list[Any]]] = [
                (self.destroy_publisher, self._publishers),
                (self.destroy_subscription, self._subscriptions),
                (self.destroy_client, self._clients),
                (self.destroy_service, self._services),
                (self.destroy_timer, self._timers),
                (self.destroy_guard_condition, self._guards),
            ]
            for destroy, entities in owned:
                for entity in list(entities):
                    destroy(entity)
            self._context.graph.remove_node(self._entry)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy_node()

    def _publish_parameter_event(self, new: list[Any], changed: list[Any], gone: list[Any]) -> None:
        event = message_class("rcl_interfaces/msg/ParameterEvent")(
            stamp=self._clock.now().to_msg(),
            node=self.get_fully_qualified_name(),
            new_parameters=new,
            changed_parameters=changed,
            deleted_parameters=gone,
        )
        if self._context.ok():
            self._parameter_events.publish(event)


def _timers_changed(reference: Callable[[], Any]) -> None:
    node = reference()
    executor = None if node is None else node.executor
    if executor is not None:
        executor._timers_changed()
