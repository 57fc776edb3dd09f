"""Nodes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from rclpy import _args, _graph, _names
from rclpy._message import Message, message_class
from rclpy._node_parameters import NodeParameters
from rclpy._rosout import Rosout
from rclpy._time_source import TimeSource
from rclpy.callback_groups import (
    CallbackGroup,
    MutuallyExclusiveCallbackGroup,
    ReentrantCallbackGroup,
)
from rclpy.client import Client
from rclpy.clock import Clock, ROSClock
from rclpy.context import Context
from rclpy.exceptions import NotInitializedException, NoTypeSupportImportedException
from rclpy.guard_condition import GuardCondition
from rclpy.logging import RcutilsLogger, get_logger
from rclpy.parameter import Parameter
from rclpy.parameter_service import ParameterService
from rclpy.publisher import Publisher
from rclpy.qos import (
    QoSProfile,
    qos_profile_parameter_events,
    qos_profile_services_default,
)
from rclpy.service import Service
from rclpy.subscription import Subscription
from rclpy.timer import Rate, Timer
from rclpy.utilities import get_default_context

HIDDEN_NODE_PREFIX = "_"


class NodeNameNonExistentError(RuntimeError):
    """There is no node of this name."""


def _profile(qos_or_depth: QoSProfile | int) -> QoSProfile:
    if isinstance(qos_or_depth, QoSProfile):
        return qos_or_depth
    if isinstance(qos_or_depth, int):
        if qos_or_depth < 0:
            raise ValueError("history depth must be greater than or equal to zero")
        return QoSProfile(depth=qos_or_depth)
    raise TypeError(f"Expected QoSProfile or int, but received {type(qos_or_depth)!r}")


class Node(NodeParameters):
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
        self._publishers: list[Publisher] = []
        self._subscriptions: list[Subscription] = []
        self._clients: list[Client] = []
        self._services: list[Service] = []
        self._timers: list[Timer] = []
        self._guards: list[GuardCondition] = []
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
            self._time_source = TimeSource(self, self._clock)
            reference = weakref.ref(self)
            self._clock._on_change(lambda: _timers_changed(reference))
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

    def _readers(self) -> list[Any]:
        return [*self._subscriptions, *self._clients, *self._services]

    @property
    def publishers(self) -> Iterator[Publisher]:
        """The node's publishers."""
        yield from self._publishers

    @property
    def subscriptions(self) -> Iterator[Subscription]:
        """The node's subscriptions."""
        yield from self._subscriptions

    @property
    def clients(self) -> Iterator[Client]:
        """The node's clients."""
        yield from self._clients

    @property
    def services(self) -> Iterator[Service]:
        """The node's services."""
        yield from self._services

    @property
    def timers(self) -> Iterator[Timer]:
        """The node's timers."""
        yield from self._timers

    @property
    def guards(self) -> Iterator[GuardCondition]:
        """The node's guard conditions."""
        yield from self._guards

    # Names.

    def _resolve(self, name: str, only_expand: bool, is_service: bool) -> str:
        full = _names.expand(name, self._name, self._namespace, is_service)
        if only_expand:
            return full
        for arguments in self._arguments:
            target = arguments.remap(full, self._name, self._namespace, is_service)
            if target is not None:
                return target
        return full

    def resolve_topic_name(self, topic: str, *, only_expand: bool = False) -> str:
        """Return the fully qualified name, remapped unless `only_expand`."""
        return self._resolve(topic, only_expand, False)

    def resolve_service_name(self, service: str, *, only_expand: bool = False) -> str:
        """Return the fully qualified name, remapped unless `only_expand`."""
        return self._resolve(service, only_expand, True)

    # Creating and destroying.

    def _adopt(self, entity: Any, group: CallbackGroup | None, entities: list[Any]) -> None:
        """Take a new entity into the node; the executor then finds it."""
        entity._node = weakref.ref(self)
        entity.callback_group = group or self._default_callback_group
        entity.callback_group.add_entity(entity)
        entities.append(entity)
        executor = self.executor
        if executor is not None:
            executor._changed()

    def _drop(self, entity: Any, entities: list[Any]) -> bool:
        if entity not in entities:
            return False
        entities.remove(entity)
        entity._destroyed = True
        executor = self.executor
        if executor is not None:
            executor._changed()
        return True

    def _check_type(self, cls: Any) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Message)):
            raise NoTypeSupportImportedException()

    def _check_service(self, cls: Any) -> None:
        self._check_type(getattr(cls, "Request", None))
        self._check_type(getattr(cls, "Response", None))

    def create_publisher(
        self,
        msg_type: Any,
        topic: str,
        qos_profile: QoSProfile | int,
        *,
        callback_group: CallbackGroup | None = None,
        event_callbacks: Any = None,
        qos_overriding_options: Any = None,
        publisher_class: type[Publisher] = Publisher,
    ) -> Publisher:
        """Create a publisher.

        :param qos_profile: a profile, or the history depth of an otherwise default one
        """
        profile = _profile(qos_profile)
        self._check_type(msg_type)
        name = self.resolve_topic_name(topic)
        dds_topic = _names.topic_to_dds(name, profile.avoid_ros_namespace_conventions)
        publisher = publisher_class(self._context._participant, dds_topic, msg_type, name, profile)
        self._publishers.append(publisher)
        self._context.graph.add(self._entry, [], [publisher._gid])
        return publisher

    def create_subscription(
        self,
        msg_type: Any,
        topic: str,
        callback: Callable[..., Any],
        qos_profile: QoSProfile | int,
        *,
        callback_group: CallbackGroup | None = None,
        event_callbacks: Any = None,
        qos_overriding_options: Any = None,
        raw: bool = False,
        content_filter_options: Any = None,
    ) -> Subscription:
        """Create a subscription.

        :param callback: called with each message, or with message and info if it takes both
        :param qos_profile: a profile, or the history depth of an otherwise default one
        :param raw: call back with serialised bytes
        """
        if content_filter_options is not None:
            raise NotImplementedError("content filters need a real ROS 2")
        profile = _profile(qos_profile)
        self._check_type(msg_type)
        name = self.resolve_topic_name(topic)
        subscription = Subscription(
            self._context._participant,
            _names.topic_to_dds(name, profile.avoid_ros_namespace_conventions),
            msg_type,
            name,
            callback,
            callback_group,
            profile,
            raw,
        )
        self._context.graph.add(self._entry, [subscription._gid], [])
        self._adopt(subscription, callback_group, self._subscriptions)
        return subscription

    def create_service(
        self,
        srv_type: Any,
        srv_name: str,
        callback: Callable[[Any, Any], Any],
        *,
        qos_profile: QoSProfile = qos_profile_services_default,
        callback_group: CallbackGroup | None = None,
    ) -> Service:
        """Create a service; the callback gets request and response and returns the response."""
        self._check_service(srv_type)
        name = self.resolve_service_name(srv_name)
        service = Service(
            self._context._participant, srv_type, name, callback, callback_group, qos_profile
        )
        self._context.graph.add(self._entry, [service._gids[0]], [service._gids[1]])
        self._adopt(service, callback_group, self._services)
        return service

    def create_client(
        self,
        srv_type: Any,
        srv_name: str,
        *,
        qos_profile: QoSProfile = qos_profile_services_default,
        callback_group: CallbackGroup | None = None,
    ) -> Client:
        """Create a client of a service."""
        self._check_service(srv_type)
        name = self.resolve_service_name(srv_name)
        client = Client(
            self._context,
            self._context._participant,
            srv_type,
            name,
            qos_profile,
            callback_group,
        )
        self._context.graph.add(self._entry, [client._gids[0]], [client._gids[1]])
        self._adopt(client, callback_group, self._clients)
        return client

    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[[], Any] | None,
        callback_group: CallbackGroup | None = None,
        clock: Clock | None = None,
        autostart: bool = True,
    ) -> Timer:
        """Create a timer that calls back every `timer_period_sec` seconds."""
        timer = Timer(
            callback,
            callback_group,
            int(float(timer_period_sec) * 1e9),
            clock or self._clock,
            context=self._context,
            autostart=autostart,
        )
        self._adopt(timer, callback_group, self._timers)
        return timer

    def create_guard_condition(
        self, callback: Callable[[], Any], callback_group: CallbackGroup | None = None
    ) -> GuardCondition:
        """Create a guard condition: its trigger(), from any thread, runs the callback."""
        guard = GuardCondition(callback, callback_group, self._context)
        self._adopt(guard, callback_group, self._guards)
        return guard

    def create_rate(self, frequency: float, clock: Clock | None = None) -> Rate:
        """Create a rate of `frequency` per second."""
        if frequency <= 0:
            raise ValueError("frequency must be > 0")
        timer = self.create_timer(1.0 / frequency, None, self._rate_group, clock)
        return Rate(timer, context=self._context)

    def destroy_publisher(self, publisher: Publisher) -> bool:
        """Destroy a publisher; False when it is not this node's."""
        if publisher not in self._publishers:
            return False
        self._publishers.remove(publisher)
        self._context.graph.remove(self._entry, [], [publisher._gid])
        publisher.destroy()
        return True

    def destroy_subscription(self, subscription: Subscription) -> bool:
        """Destroy a subscription; False when it is not this node's."""
        if subscription not in self._subscriptions:
            return False
        self._subscriptions.remove(subscription)
        self._context.graph.remove(self._entry, [subscription._gid], [])
        subscription.destroy()
        self._entities_changed()
        return True

    def destroy_client(self, client: Client) -> bool:
        """Destroy a client; False when it is not this node's."""
        return self._destroy_pair(client, self._clients)

    def destroy_service(self, service: Service) -> bool:
        """Destroy a service; False when it is not this node's."""
        return self._destroy_pair(service, self._services)

    def _destroy_pair(self, pair: Any, pairs: list[Any]) -> bool:
        if pair not in pairs:
            return False
        pairs.remove(pair)
        self._context.graph.remove(self._entry, [pair._gids[0]], [pair._gids[1]])
        pair.destroy()
        self._entities_changed()
        return True

    def destroy_timer(self, timer: Timer) -> bool:
        """Destroy a timer; False when it is not this node's."""
        return self._drop(timer, self._timers)

    def destroy_guard_condition(self, guard: GuardCondition) -> bool:
        """Destroy a guard condition; False when it is not this node's."""
        return self._drop(guard, self._guards)

    def destroy_rate(self, rate: Rate) -> bool:
        """Destroy a rate; False when it is not this node's."""
        found = self.destroy_timer(rate._timer)
        rate.destroy()
        return found

    def _entities_changed(self) -> None:
        executor = self.executor
        if executor is not None:
            executor._changed()

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
            for destroy, entities in (
                (self.destroy_publisher, self._publishers),
                (self.destroy_subscription, self._subscriptions),
                (self.destroy_client, self._clients),
                (self.destroy_service, self._services),
                (self.destroy_timer, self._timers),
                (self.destroy_guard_condition, self._guards),
            ):
                for entity in list(entities):
                    destroy(entity)  # type: ignore[operator]
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

    # The graph.

    def get_topic_names_and_types(self, no_demangle: bool = False) -> list[tuple[str, list[str]]]:
        """Return all topics in the domain and their types."""
        return _graph.topics_and_types(self._context.graph.endpoints(), no_demangle)

    def get_service_names_and_types(self) -> list[tuple[str, list[str]]]:
        """Return all services in the domain and their types."""
        return _graph.services_and_types(self._context.graph.endpoints())

    def _endpoints_of(self, name: str, namespace: str) -> list[_graph.Endpoint]:
        found = self._context.graph.endpoints_of(name, namespace)
        if found is None:
            raise NodeNameNonExistentError(
                f"Cannot get endpoints for nonexistent node: {_names.join(namespace, name)}"
            )
        return found

    def get_publisher_names_and_types_by_node(
        self, node_name: str, node_namespace: str, no_demangle: bool = False
    ) -> list[tuple[str, list[str]]]:
        """Return the topics that a node publishes."""
        found = [e for e in self._endpoints_of(node_name, node_namespace) if e.is_writer]
        return _graph.topics_and_types(found, no_demangle)

    def get_subscriber_names_and_types_by_node(
        self, node_name: str, node_namespace: str, no_demangle: bool = False
    ) -> list[tuple[str, list[str]]]:
        """Return the topics that a node subscribes to."""
        found = [e for e in self._endpoints_of(node_name, node_namespace) if not e.is_writer]
        return _graph.topics_and_types(found, no_demangle)

    def get_service_names_and_types_by_node(
        self, node_name: str, node_namespace: str
    ) -> list[tuple[str, list[str]]]:
        """Return the services that a node offers."""
        found = self._endpoints_of(node_name, node_namespace)
        return _graph.services_and_types(
            [e for e in found if not e.is_writer and e.topic.startswith("rq/")]
        )

    def get_client_names_and_types_by_node(
        self, node_name: str, node_namespace: str
    ) -> list[tuple[str, list[str]]]:
        """Return the services that a node may call."""
        found = self._endpoints_of(node_name, node_namespace)
        return _graph.services_and_types(
            [e for e in found if e.is_writer and e.topic.startswith("rq/")]
        )

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        """Return name and namespace of every node in the domain."""
        return [(name, namespace) for name, namespace, _ in self._context.graph.nodes()]

    def get_node_names_and_namespaces_with_enclaves(self) -> list[tuple[str, str, str]]:
        """Return name, namespace and enclave of every node in the domain."""
        return self._context.graph.nodes()

    def get_node_names(self) -> list[str]:
        """Return the name of every node in the domain."""
        return [name for name, _, _ in self._context.graph.nodes()]

    def get_fully_qualified_node_names(self) -> list[str]:
        """Return the fully qualified name of every node in the domain."""
        return [_names.join(ns, name) for name, ns, _ in self._context.graph.nodes()]

    def _count(self, dds_topic: str, is_writer: bool) -> int:
        endpoints = self._context.graph.endpoints()
        return sum(e.topic == dds_topic and e.is_writer == is_writer for e in endpoints)

    def count_publishers(self, topic_name: str) -> int:
        """Return the number of publishers of a topic in the domain."""
        return self._count(_names.topic_to_dds(self._resolve(topic_name, True, False)), True)

    def count_subscribers(self, topic_name: str) -> int:
        """Return the number of subscriptions to a topic in the domain."""
        return self._count(_names.topic_to_dds(self._resolve(topic_name, True, False)), False)

    def count_clients(self, service_name: str) -> int:
        """Return the number of clients of a service in the domain."""
        return self._count(_names.request_to_dds(self._resolve(service_name, True, True)), True)

    def count_services(self, service_name: str) -> int:
        """Return the number of servers of a service in the domain."""
        return self._count(_names.request_to_dds(self._resolve(service_name, True, True)), False)

    def wait_for_node(self, fully_qualified_node_name: str, timeout: float) -> bool:
        """Wait until a node is in the graph; False after the timeout (in seconds)."""
        end = time.monotonic() + timeout
        with self._context.graph.watch() as wait:
            while fully_qualified_node_name not in self.get_fully_qualified_node_names():
                left = end - time.monotonic()
                if left <= 0 or not self._context.ok():
                    return False
                wait(left)
        return True


def _timers_changed(reference: Callable[[], Any]) -> None:
    node = reference()
    executor = None if node is None else node.executor
    if executor is not None:
        executor._timers_changed()
