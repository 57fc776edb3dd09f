"""Turn actions of the policy into messages, and messages of a recording into actions.

If there is no action, the setting `safety` decides which messages are sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .contract import Action, Contract
from .core.chunks import Actions
from .core.machine import ACT, HOLD, STOP, Command
from .messages import TRAJECTORY, MessageError, by_name, message_class, numbers, write


class Writer:
    """Turns commands of `PolicyMachine` into messages; stores the last action."""

    def __init__(self, contract: Contract) -> None:
        self._contract = contract
        self._last: Actions | None = None
        self._stopped = False

    def messages(self, command: Command) -> list[tuple[str, Any]]:
        """Return (name of the entry, message) for each message to publish for a command."""
        if command.kind == ACT:
            self._last, self._stopped = command.values, False
        stop_again = command.kind == STOP and not self._stopped
        if command.kind not in (ACT, HOLD) and not stop_again:
            return []
        self._stopped = self._stopped or command.kind == STOP
        found, at = [], 0
        for name, entry in self._contract.actions.items():
            values = None if self._last is None else self._last[at:at + entry.count]
            at += entry.count
            if command.kind != ACT and entry.kind != 'position':
                values = np.zeros(entry.count)
            elif command.kind == STOP:
                values = None
            if values is not None:
                found.append((name, self._message(entry, values)))
        return found

    def _message(self, entry: Action, values: Actions) -> Any:
        message = message_class(entry.type)()
        numbers = np.asarray(values, np.float64) / entry.factor
        if entry.type != TRAJECTORY:
            return write(message, entry.field, entry.fields, entry.names, numbers)
        from trajectory_msgs.msg import JointTrajectoryPoint
        point = write(JointTrajectoryPoint(), entry.field, (), (), numbers)
        point.time_from_start.nanosec = int(min(1e9 / self._contract.rate, 999_999_999))
        message.joint_names, message.points = list(entry.names), [point]
        return message


def numbers_of(entry: Action, message: Any) -> Actions:
    """Return the action in a message, float32 (n,), in the policy's unit.

    Of a trajectory it is the first point.

    :raises MessageError: the message has not all numbers of the entry, or one is not finite.
    """
    holder = message
    if entry.type == TRAJECTORY:
        if not len(message.points):
            raise MessageError('must have a point')
        holder = message.points[0]
    if not entry.names:
        values = numbers(holder, entry.field, entry.fields, entry.count)
    else:
        found = by_name(message, entry.field, entry.names, holder)
        missing = [name for name in entry.names if name not in found]
        if missing:
            raise MessageError(f'must have {entry.field} of {missing[0]!r}')
        values = np.array([found[name] for name in entry.names], np.float32)
    return np.float32(entry.factor) * values
