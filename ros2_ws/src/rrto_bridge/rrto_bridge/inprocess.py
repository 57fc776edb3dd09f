"""A server inside the program's own process: for tests, and when the real one is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from .client import ClientMachine
from .context import Context
from .errors import LinkError
from .perform import Performer
from .port import Port
from .tensors import ordinary
from .weights import Weights


class InProcess(Port):
    """A Port whose messages are executed at once; its replies are taken when they are waited for.

    So a program that would wait in vain for a real server gets an error here.
    """

    def __init__(self, machine: ClientMachine, limit: int = 1 << 40) -> None:
        super().__init__(machine)
        self.performer = Performer(Context(torch.device('cpu'), limit), Weights())
        self._inbox: deque[bytes] = deque()

    def transmit(self) -> None:
        """Execute what there is."""
        for message in self.machine.outgoing():
            with ordinary():
                self._inbox.extend(self.performer.perform(message))

    def receive(self) -> bytes:
        """The next reply."""
        if not self._inbox:
            raise LinkError('every reply has been taken: this wait would have no end')
        return self._inbox.popleft()

    def watch(self, back: Callable[[], bool]) -> None:
        """Nothing: it is never lost."""

    def close(self) -> None:
        """Nothing: there is no link."""
