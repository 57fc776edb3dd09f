"""Turn actions of the policy into messages.

If there is no action, the setting `safety` decides which messages are sent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .contract import Action, Contract
from .core.chunks import Actions
from .core.machine import ACT, HOLD, STOP, Command
from .messages import TRAJECTORY, message_class, write


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
