"""The states of a managed node and the transitions between them, as design.ros2.org draws them."""

from __future__ import annotations

import enum
from typing import NamedTuple


class LifecycleState(NamedTuple):
    """A state of a managed node."""

    label: str
    state_id: int


class TransitionCallbackReturn(enum.Enum):
    """What a callback says of its transition."""

    SUCCESS = 97
    FAILURE = 98
    ERROR = 99

    def to_label(self) -> str:
        """Return the label of the transition that follows."""
        return f"transition_{self.name.lower()}"


class RCLError(RuntimeError):
    """What was asked for is not possible in the present state."""


class Transition(NamedTuple):
    """A transition between two states."""

    number: int
    label: str
    start: LifecycleState
    goal: LifecycleState


_UNKNOWN, _UNCONFIGURED, _INACTIVE, _ACTIVE, _FINALIZED = (
    LifecycleState(label, number)
    for number, label in enumerate(("unknown", "unconfigured", "inactive", "active", "finalized"))
)
_CONFIGURING, _CLEANING, _SHUTTING, _ACTIVATING, _DEACTIVATING, _ERROR = (
    LifecycleState(label, number)
    for number, label in enumerate(
        (
            "configuring",
            "cleaningup",
            "shuttingdown",
            "activating",
            "deactivating",
            "errorprocessing",
        ),
        10,
    )
)
STATES = (
    *(_UNKNOWN, _UNCONFIGURED, _INACTIVE, _ACTIVE, _FINALIZED),
    *(_CONFIGURING, _CLEANING, _SHUTTING, _ACTIVATING, _DEACTIVATING, _ERROR),
)


def _results(
    first: int,
    state: LifecycleState,
    success: LifecycleState,
    failure: LifecycleState,
    error: LifecycleState = _ERROR,
) -> list[Transition]:
    """Where the callback of a transition leads."""
    goals = zip(TransitionCallbackReturn, (success, failure, error), strict=True)
    return [Transition(first + k, r.to_label(), state, goal) for k, (r, goal) in enumerate(goals)]


TRANSITIONS = (
    Transition(1, "configure", _UNCONFIGURED, _CONFIGURING),
    *_results(10, _CONFIGURING, _INACTIVE, _UNCONFIGURED),
    Transition(2, "cleanup", _INACTIVE, _CLEANING),
    *_results(20, _CLEANING, _UNCONFIGURED, _INACTIVE),
    Transition(3, "activate", _INACTIVE, _ACTIVATING),
    *_results(30, _ACTIVATING, _ACTIVE, _INACTIVE),
    Transition(4, "deactivate", _ACTIVE, _DEACTIVATING),
    *_results(40, _DEACTIVATING, _INACTIVE, _ACTIVE),
    Transition(5, "shutdown", _UNCONFIGURED, _SHUTTING),
    Transition(6, "shutdown", _INACTIVE, _SHUTTING),
    Transition(7, "shutdown", _ACTIVE, _SHUTTING),
    *_results(50, _SHUTTING, _FINALIZED, _FINALIZED),
    *_results(60, _ERROR, _UNCONFIGURED, _FINALIZED, _FINALIZED),
)


class StateMachine:
    """The present state of one node."""

    def __init__(self) -> None:
        self.state = _UNCONFIGURED

    @property
    def available(self) -> list[Transition]:
        """Transitions that start in the present state."""
        return [t for t in TRANSITIONS if t.start == self.state]

    def find(self, number: int = 0, label: str = "") -> Transition:
        """Return the transition from the present state with this label, or this number.

        :raises RCLError: there is none
        """
        for transition in self.available:
            if transition.label == label if label else transition.number == number:
                return transition
        raise RCLError(
            f"no transition {label or number} from {self.state.label}; possible are "
            f"{', '.join(t.label for t in self.available) or 'none'}"
        )
