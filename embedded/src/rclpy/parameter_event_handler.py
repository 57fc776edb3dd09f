"""Callbacks for changes of parameters, of any node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rclpy._message import message_class
from rclpy.qos import QoSProfile, qos_profile_parameter_events


@dataclass(eq=False)
class ParameterCallbackHandle:
    """A callback for one parameter of one node; it ends when it is removed."""

    parameter_name: str
    node_name: str
    callback: Callable[[Any], Any]


@dataclass(eq=False)
class ParameterEventCallbackHandle:
    """A callback for all events; it ends when it is removed."""

    callback: Callable[[Any], Any]


class ParameterEventHandler:
    """Listens to /parameter_events for a node. What was added last is called first.

    :param node: the node whose executor runs the callbacks
    """

    def __init__(
        self,
        node: Any,
        qos_profile: QoSProfile | int = qos_profile_parameter_events,
        callback_group: Any = None,
        event_callbacks: Any = None,
        qos_overriding_options: Any = None,
        raw: bool = False,
    ) -> None:
        self.node = node
        self.qos_profile = qos_profile
        self._lock = threading.Lock()
        self._parameters: list[ParameterCallbackHandle] = []
        self._events: list[ParameterEventCallbackHandle] = []
        self.parameter_event_subscription = node.create_subscription(
            message_class("rcl_interfaces/msg/ParameterEvent"),
            "/parameter_events",
            self._on_event,
            qos_profile,
            callback_group=callback_group,
            event_callbacks=event_callbacks,
            qos_overriding_options=qos_overriding_options,
            raw=raw,
        )

    def destroy(self) -> None:
        """Listen no more."""
        self.node.destroy_subscription(self.parameter_event_subscription)

    def _on_event(self, event: Any) -> None:
        with self._lock:
            parameters, events = list(self._parameters), list(self._events)
        for handle in parameters:
            found = self.get_parameter_from_event(event, handle.parameter_name, handle.node_name)
            if found is not None:
                handle.callback(found)
        for event_handle in events:
            event_handle.callback(event)

    @staticmethod
    def get_parameter_from_event(event: Any, parameter_name: str, node_name: str) -> Any:
        """Return a node's new or changed parameter (rcl_interfaces/Parameter), None: not in it.

        :param node_name: fully qualified
        """
        if event.node != node_name:
            return None
        found = ParameterEventHandler.get_parameters_from_event(event)
        return next((p for p in found if p.name == parameter_name), None)

    @staticmethod
    def get_parameters_from_event(event: Any) -> Iterable[Any]:
        """Give all new and changed parameters of an event."""
        return chain(event.new_parameters, event.changed_parameters)

    def add_parameter_callback(
        self, parameter_name: str, node_name: str | None, callback: Callable[[Any], Any]
    ) -> ParameterCallbackHandle:
        """Call back with the parameter (rcl_interfaces/Parameter) when it is set.

        :param node_name: relative to the namespace of this handler's node; None or empty: that node
        """
        handle = ParameterCallbackHandle(parameter_name, self._resolve_path(node_name), callback)
        with self._lock:
            self._parameters.insert(0, handle)
        return handle

    def remove_parameter_callback(self, handle: ParameterCallbackHandle) -> None:
        """End what add_parameter_callback began; RuntimeError when it has ended already."""
        self._remove(self._parameters, handle)

    def add_parameter_event_callback(
        self, callback: Callable[[Any], Any]
    ) -> ParameterEventCallbackHandle:
        """Call back with every rcl_interfaces/ParameterEvent."""
        handle = ParameterEventCallbackHandle(callback)
        with self._lock:
            self._events.insert(0, handle)
        return handle

    def remove_parameter_event_callback(self, handle: ParameterEventCallbackHandle) -> None:
        """End what add_parameter_event_callback began; RuntimeError when it has ended already."""
        self._remove(self._events, handle)

    def _remove(self, handles: list[Any], handle: Any) -> None:
        with self._lock:
            if handle not in handles:
                raise RuntimeError("Callback doesn't exist")
            handles.remove(handle)

    def _resolve_path(self, node_name: str | None = None) -> str:
        if not node_name:
            return self.node.get_fully_qualified_name()
        if node_name.startswith("/"):
            return node_name
        return f"{self.node.get_namespace().rstrip('/')}/{node_name}"
