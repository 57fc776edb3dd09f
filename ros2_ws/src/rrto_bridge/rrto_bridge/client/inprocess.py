"""A server in the program's own process: for tests, and after the loss of the real server."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from fleet_compute.weights import Weights

from ..execution.context import Context
from ..execution.perform import Performer
from ..protocol.errors import LinkError
from ..protocol.tensors import ordinary
from .machine import ClientMachine
from .port import Port, Upload


class InProcess(Port):
    """A Port that executes messages at once, and keeps each reply until the program waits for it.

    A wait that would never end with a real server raises LinkError here.
    """

    name = ''   # name of the device, if it is not the CPU

    def __init__(self, machine: ClientMachine, limit: int = 1 << 40) -> None:
        super().__init__(machine)
        self.performer = Performer(Context(torch.device('cpu'), limit), Weights())
        self._inbox: deque[bytes] = deque()

    def context(self) -> Context:
        """Return the context with all tensors."""
        return self.performer.context

    def make(self, item: tuple[Any, ...]) -> None:
        """Execute an item, without a message."""
        with ordinary(), torch.inference_mode():
            self.performer.make(item)

    def place(self, upload: Upload, keep: Callable[[], None]) -> None:
        """Use the memory of a weight as it is; see `Port.place`."""
        context = self.performer.context
        with ordinary(), torch.inference_mode():
            context.upload(upload.handle, upload.meta, upload.data, True)
        context.mark(upload.handle, upload.digest)
        context.lend(upload.handle, keep)

    def transmit(self) -> None:
        """Execute the pending messages and keep the replies."""
        for message in self.machine.outgoing():
            with ordinary():
                self._inbox.extend(self.performer.perform(message))

    def receive(self) -> bytes:
        """Return the next reply; raises LinkError if there is none."""
        if not self._inbox:
            raise LinkError('no reply is left: this wait would never end')
        return self._inbox.popleft()

    def watch(self, back: Callable[[], bool]) -> None:
        """Do nothing, because this server is never lost."""

    def close(self) -> None:
        """Do nothing, because there is no link."""
