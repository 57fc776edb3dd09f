"""A server inside the program's own process: for tests, and when the real one is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .client import Awaited, ClientMachine, Ticket
from .context import Context
from .perform import Performer
from .weights import Weights


class InProcess:
    """A Port whose messages are executed at once."""

    def __init__(self, machine: ClientMachine, limit: int = 1 << 40) -> None:
        self.machine = machine
        self.performer = Performer(Context(torch.device('cpu'), limit), Weights())

    def wait(self, ticket: Ticket | Awaited) -> Any:
        """Execute everything up to the ticket's item."""
        self.post()
        return self.machine.result(ticket)

    def post(self) -> None:
        """Execute what there is."""
        for message in self.machine.outgoing():
            for reply in self.performer.perform(message):
                self.machine.on_message(reply)

    def watch(self, back: Callable[[], bool]) -> None:
        """Nothing: it is never lost."""

    def close(self) -> None:
        """Nothing: there is no link."""
