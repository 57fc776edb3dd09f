"""Nodes whose states others can ask for and change."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import lifecycle_msgs.msg
import lifecycle_msgs.srv

from rclpy.callback_groups import CallbackGroup
from rclpy.lifecycle._machine import (
    STATES,
    TRANSITIONS,
    LifecycleState,
    RCLError,
    StateMachine,
    Transition,
    TransitionCallbackReturn,
)
from rclpy.lifecycle.managed_entity import ManagedEntity
from rclpy.lifecycle.publisher import LifecyclePublisher
from rclpy.node import Node

_CALLBACKS = {
    "configuring": "on_configure",
    "cleaningup": "on_cleanup",
    "shuttingdown": "on_shutdown",
    "activating": "on_activate",
    "deactivating": "on_deactivate",
    "errorprocessing": "on_error",
}


class LifecycleNodeMixin(ManagedEntity):
    """What makes a Node a managed one; its ``__init__`` comes after the node's.

    :param enable_communication_interface: whether others can ask for the state and change it
    :param callback_group: of the services
    """

    def __init__(
        self: Any,
        *,
        enable_communication_interface: bool = True,
        callback_group: CallbackGroup | None = None,
    ) -> None:
        if not isinstance(enable_communication_interface, bool):
            raise TypeError("enable_communication_interface must be a bool")
        # As they are now: an attribute that is assigned later is no callback, as in rclpy.
        self._callbacks = {label: getattr(self, name) for label, name in _CALLBACKS.items()}
        self._managed_entities: set[ManagedEntity] = set()
        self._state_machine = StateMachine()
        self._transition_event = self.create_publisher(
            lifecycle_msgs.msg.TransitionEvent, "~/transition_event", 10
        )
        if enable_communication_interface:
            srv = lifecycle_msgs.srv
            for kind, name, callback in (
                (srv.ChangeState, "change_state", self.__on_change_state),
                (srv.GetState, "get_state", self.__on_get_state),
                (srv.GetAvailableStates, "get_available_states", self.__on_get_states),
                (
                    srv.GetAvailableTransitions,
                    "get_available_transitions",
                    self.__on_get_transitions,
                ),
                (srv.GetAvailableTransitions, "get_transition_graph", self.__on_get_graph),
            ):
                self.create_service(kind, f"~/{name}", callback, callback_group=callback_group)

    # Transitions.

    def trigger_configure(self) -> TransitionCallbackReturn:
        """Configure the node.

        :raises RCLError: that is not possible in its state, as with all of these
        """
        return self.__change_state(self._state_machine.find(label="configure"))

    def trigger_cleanup(self) -> TransitionCallbackReturn:
        """Clean the node up."""
        return self.__change_state(self._state_machine.find(label="cleanup"))

    def trigger_shutdown(self) -> TransitionCallbackReturn:
        """Shut the node down, in whatever state it is."""
        return self.__change_state(self._state_machine.find(label="shutdown"))

    def trigger_activate(self) -> TransitionCallbackReturn:
        """Activate the node."""
        return self.__change_state(self._state_machine.find(label="activate"))

    def trigger_deactivate(self) -> TransitionCallbackReturn:
        """Deactivate the node."""
        return self.__change_state(self._state_machine.find(label="deactivate"))

    def __change_state(self, transition: Transition) -> TransitionCallbackReturn:
        before = self._state_machine.state
        self.__move(transition)
        result = self.__call_back(before)
        self.__move(self._state_machine.find(label=result.to_label()))
        if result == TransitionCallbackReturn.ERROR:
            self.__move(self._state_machine.find(label=self.__call_back(before).to_label()))
        return result

    def __call_back(self: Any, before: LifecycleState) -> TransitionCallbackReturn:
        try:
            result = self._callbacks[self._state_machine.state.label](before)
            if not isinstance(result, TransitionCallbackReturn):
                raise TypeError(f"a callback returned {result!r} and no TransitionCallbackReturn")
            return result
        except Exception:
            self.get_logger().error(f"a transition failed: {traceback.format_exc()}")
            return TransitionCallbackReturn.ERROR

    def __move(self: Any, transition: Transition) -> None:
        self._state_machine.state = transition.goal
        self._transition_event.publish(
            lifecycle_msgs.msg.TransitionEvent(
                start_state=_state(transition.start), goal_state=_state(transition.goal)
            )
        )

    # Callbacks, by default those of all managed entities up to the first that does not succeed.

    def __of_entities(self, name: str, state: LifecycleState) -> TransitionCallbackReturn:
        for entity in self._managed_entities:
            result = getattr(entity, name)(state)
            if not isinstance(result, TransitionCallbackReturn):
                raise TypeError(f"{name}() of {entity} returned no TransitionCallbackReturn")
            if result != TransitionCallbackReturn.SUCCESS:
                return result
        return TransitionCallbackReturn.SUCCESS

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Configure the managed entities; override it, as the others, to do more."""
        return self.__of_entities("on_configure", state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Clean the managed entities up."""
        return self.__of_entities("on_cleanup", state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Shut the managed entities down."""
        return self.__of_entities("on_shutdown", state)

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Activate the managed entities."""
        return self.__of_entities("on_activate", state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Deactivate the managed entities."""
        return self.__of_entities("on_deactivate", state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let the managed entities handle an error; on success the node is unconfigured again."""
        return self.__of_entities("on_error", state)

    # Entities.

    def add_managed_entity(self, entity: ManagedEntity) -> None:
        """Let an entity take part in the transitions."""
        if not isinstance(entity, ManagedEntity):
            raise TypeError("Expected a rclpy.lifecycle.ManagedEntity instance.")
        self._managed_entities.add(entity)

    def create_lifecycle_publisher(self: Any, *args: Any, **kwargs: Any) -> LifecyclePublisher:
        """Create a publisher that publishes only while the node is active."""
        if "publisher_class" in kwargs:
            raise TypeError(
                "create_publisher() got an unexpected keyword argument 'publisher_class'"
            )
        made: Any = Node.create_publisher(
            self, *args, **kwargs, publisher_class=LifecyclePublisher
        )
        assert isinstance(made, LifecyclePublisher)
        self._managed_entities.add(made)
        return made

    def destroy_lifecycle_publisher(self: Any, publisher: LifecyclePublisher) -> bool:
        """Destroy such a publisher; False when it is not this node's."""
        self._managed_entities.discard(publisher)
        return Node.destroy_publisher(self, publisher)

    # Services.

    def __on_change_state(self, request: Any, response: Any) -> Any:
        asked = request.transition
        try:
            transition = self._state_machine.find(asked.id, asked.label)
        except RCLError as error:
            self.__refuse(str(error))
            response.success = False
        else:
            response.success = self.__change_state(transition) == TransitionCallbackReturn.SUCCESS
        return response

    def __refuse(self: Any, reason: str) -> None:
        self.get_logger().warning(f"refused a change of state: {reason}")

    def __on_get_state(self, request: Any, response: Any) -> Any:
        response.current_state = _state(self._state_machine.state)
        return response

    def __on_get_states(self, request: Any, response: Any) -> Any:
        response.available_states = [_state(state) for state in STATES]
        return response

    def __on_get_transitions(self, request: Any, response: Any) -> Any:
        response.available_transitions = _descriptions(self._state_machine.available)
        return response

    def __on_get_graph(self, request: Any, response: Any) -> Any:
        response.available_transitions = _descriptions(TRANSITIONS)
        return response


class LifecycleNode(LifecycleNodeMixin, Node):
    """A node whose states others can ask for and change.

    :param enable_communication_interface: whether others can
    """

    _callbacks: dict[str, Callable[[LifecycleState], TransitionCallbackReturn]]

    def __init__(
        self, node_name: str, *, enable_communication_interface: bool = True, **kwargs: Any
    ) -> None:
        Node.__init__(self, node_name, **kwargs)
        LifecycleNodeMixin.__init__(
            self, enable_communication_interface=enable_communication_interface
        )


def _state(state: LifecycleState) -> Any:
    return lifecycle_msgs.msg.State(id=state.state_id, label=state.label)


def _descriptions(transitions: Iterable[Transition]) -> list[Any]:
    msg = lifecycle_msgs.msg
    return [
        msg.TransitionDescription(
            transition=msg.Transition(id=t.number, label=t.label),
            start_state=_state(t.start),
            goal_state=_state(t.goal),
        )
        for t in transitions
    ]
