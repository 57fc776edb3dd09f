"""Which method of a machine takes which message of a transfer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .messages import Ack, Chunk, End, Receipt, TransferMessage
from .server import ServerMachine
from .worker import WorkerMachine

_METHODS = {Chunk: 'on_chunk', Ack: 'on_ack', End: 'on_end', Receipt: 'on_receipt'}


def handler(machine: WorkerMachine | ServerMachine, message: TransferMessage) -> Callable[..., Any]:
    """Return the machine's method for the message; a server's takes the robot's name before it."""
    method: Callable[..., Any] = getattr(machine, _METHODS[type(message)])
    return method
