"""What a node consists of: it creates and destroys it. Base of Node."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from rclpy import _names
from rclpy._message import Message
from rclpy.callback_groups import CallbackGroup
from rclpy.client import Client
from rclpy.clock import Clock
from rclpy.context import Context
from rclpy.exceptions import NoTypeSupportImportedException
from rclpy.guard_condition import GuardCondition
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile, qos_profile_services_default
from rclpy.service import Service
from rclpy.subscription import Subscription
from rclpy.timer import Rate, Timer


def _profile(qos_or_depth: QoSProfile | int) -> QoSProfile:
    if isinstance(qos_or_depth, QoSProfile):
        return qos_or_depth
    if isinstance(qos_or_depth, int):
        if qos_or_depth < 0:
            raise ValueError("history depth must be greater than or equal to zero")
        return QoSProfile(depth=qos_or_depth)
    raise TypeError(f"Expected QoSProfile or int, but received {type(qos_or_depth)!r}")


def _refuse(**options: Any) -> None:
    """Say what is missing here; silence would be worse."""
    for name, value in options.items():
        if value is not None:
            raise NotImplementedError(f"{name} needs a real ROS 2: rog-embedded has no such thing")


class NodeEntities:
    """Topics, services, timers and guard conditions of a node, and their names."""

    _context: Context
    _entry: Any
    _rosout: Any
    _arguments: list[Any]
    _name: str
    _namespace: str
    _clock: Clock
    _default_callback_group: CallbackGroup
    _rate_group: CallbackGroup

    def __init__(self) -> None:
        self._publishers: list[Publisher] = []
        self._subscriptions: list[Subscription] = []
        self._clients: list[Client] = []
        self._services: list[Service] = []
        self._timers: list[Timer] = []
        self._guards: list[GuardCondition] = []

    @property
    def executor(self) -> Any:
        """The executor that the node belongs to, None when it belongs to none."""
        raise NotImplementedError

    def _readers(self) -> list[Any]:
        return [*self._subscriptions, *self._clients, *self._services]

    @property
    def publishers(self) -> Iterator[Publisher]:
        """The node's publishers, without that of /rosout, as in rclpy."""
        hidden = None if self._rosout is None else self._rosout.publisher
        yield from (p for p in self._publishers if p is not hidden)

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
        _refuse(event_callbacks=event_callbacks, qos_overriding_options=qos_overriding_options)
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
        _refuse(
            event_callbacks=event_callbacks,
            qos_overriding_options=qos_overriding_options,
            content_filter_options=content_filter_options,
        )
        subscription = self._subscribe(msg_type, topic, callback, qos_profile, callback_group, raw)
        self._adopt(subscription, callback_group, self._subscriptions)
        return subscription

    def _subscribe(
        self,
        msg_type: Any,
        topic: str,
        callback: Callable[..., Any],
        qos_profile: QoSProfile | int,
        callback_group: CallbackGroup | None,
        raw: bool,
    ) -> Subscription:
        """Make a subscription that no executor takes from yet."""
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
        subscription._node = weakref.ref(self)
        self._context.graph.add(self._entry, [subscription._gid], [])
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self._context.graph.remove(self._entry, [subscription._gid], [])
        subscription.destroy()

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
        service.srv_name = srv_name
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
        client.srv_name = srv_name
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
        self._unsubscribe(subscription)
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
