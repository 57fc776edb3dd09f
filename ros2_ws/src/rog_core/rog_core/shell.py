"""What stands around a state machine: it passes messages to it, and carries out its actions.

The nodes, virtual time and `rog_core.loopback` do both by the functions of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .protocol.messages import (
    Ack,
    Action,
    Chunk,
    Compute,
    End,
    Notice,
    Receipt,
    RegisterRequest,
    Send,
    Stop,
    TransferMessage,
)

_METHODS = {Chunk: 'on_chunk', Ack: 'on_ack', End: 'on_end', Receipt: 'on_receipt'}


def handler(machine: Any, message: TransferMessage | RegisterRequest) -> Callable[..., Any]:
    """Return the method with which ``machine``, a `Worker` or `Server`, handles ``message``.

    The method of a server takes the name of the robot before the message.
    """
    method: Callable[..., Any] = getattr(machine, _METHODS[type(message)])
    return method


def _ignore(action: Any) -> None:
    pass


@dataclass(frozen=True)
class Shell:
    """Carries out the actions of a machine: one function for each kind, which may do nothing.

    ``send``: sends a message of a transfer. ``register``: asks a worker's server to accept it.
    """

    send: Callable[[Send], None]
    register: Callable[[RegisterRequest], None] = _ignore
    compute: Callable[[Compute], None] = _ignore
    notice: Callable[[Notice], None] = _ignore
    stop: Callable[[Stop], None] = _ignore

    def carry_out(self, actions: Iterable[Action]) -> None:
        """Carry out actions in their order."""
        for action in actions:
            if isinstance(action, Send):
                if isinstance(action.message, RegisterRequest):
                    self.register(action.message)
                else:
                    self.send(action)
            elif isinstance(action, Compute):
                self.compute(action)
            elif isinstance(action, Notice):
                self.notice(action)
            else:
                self.stop(action)
