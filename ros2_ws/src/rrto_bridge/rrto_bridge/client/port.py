"""`Port`: the connection of a ClientMachine to its server.

`Port` has three implementations: `shell.Link` over DDS, and `inprocess.InProcess` and
`ownprocess.OwnGpu` without a network.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from ..protocol.record import HTOD, Meta
from .machine import Awaited, ClientMachine, Ticket


class Upload(NamedTuple):
    """Bytes for the device. ``digest``: their SHA-256, if known; ``handle``: 0 for the next one."""

    meta: Meta
    data: Any
    digest: str = ''
    handle: int = 0


class Port(ABC):
    """Carries messages between `machine` and its server. Only one thread at a time may call it."""

    idle = False  # whether a thread waits at a point where a signal handler may raise an exception
    # Called after the loss, again and again until it returns True; by no thread of the program.
    on_lost: Callable[[], bool] | None = None
    ending = False  # whether the program ends, so that no other server is needed

    def __init__(self, machine: ClientMachine) -> None:
        self.machine = machine

    def wait(self, ticket: Ticket | Awaited) -> Any:
        """Send pending messages, wait for the reply, and return its value or raise its error."""
        machine = self.machine
        self.transmit()
        try:
            while not machine.settled(ticket):    # an earlier `wait` may have received the reply
                machine.on_message(self.receive())
        except BaseException:
            machine.forgo(ticket)
            raise
        return machine.result(ticket)

    def make(self, item: tuple[Any, ...]) -> None:
        """Execute an item of `protocol.requests`; raise its error."""
        self.wait(self.machine.request(item))

    def place(self, upload: Upload, keep: Callable[[], None]) -> None:
        """Make a weight again; call ``keep`` before the bytes of ``upload`` change."""
        self.make((HTOD, upload.handle, upload.meta, upload.data))

    def encoded(self, meta: Meta, data: memoryview) -> Any:
        """Return the bytes of a tensor as they are best sent; `Context.received` takes either."""
        return data

    def post(self) -> None:
        """Send pending messages; if the server is lost, raise no error, but let `wait` raise it."""
        self.transmit()

    @abstractmethod
    def transmit(self) -> None:
        """Send the messages that `machine.outgoing()` returns."""

    @abstractmethod
    def receive(self) -> bytes:
        """Return the server's next message; raise LinkError if the server is lost."""

    def why(self) -> str:
        """Return the reason of the loss."""
        return ''

    @abstractmethod
    def watch(self, back: Callable[[], bool]) -> None:
        """Call `back` repeatedly while a server is visible, until `back` returns True.

        Use this method after the server is lost.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection; call no other method afterwards."""
