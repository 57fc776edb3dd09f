"""Where a ClientMachine meets its server: what every shell around one does alike.

See `inprocess.InProcess` and `client_shell.Link`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from .client import Awaited, ClientMachine, Ticket


class Port(ABC):
    """Carries the messages of `machine`. One thread at a time calls it."""

    idle = False    # whether it waits, with the machine in order: a signal's handler may raise then

    def __init__(self, machine: ClientMachine) -> None:
        self.machine = machine

    def wait(self, ticket: Ticket | Awaited) -> Any:
        """Send what is to be sent, wait for the reply, and return or raise what it says."""
        machine = self.machine
        self.transmit()
        try:
            while not machine.settled(ticket):    # it may have come with an earlier reply
                machine.on_message(self.receive())
        except BaseException:
            machine.forgo(ticket)
            raise
        return machine.result(ticket)

    def post(self) -> None:
        """Send what is to be sent. That the server is lost is for `wait` to say."""
        self.transmit()

    @abstractmethod
    def transmit(self) -> None:
        """Send `machine.outgoing()`."""

    @abstractmethod
    def receive(self) -> bytes:
        """The next message of the server; raises LinkError if none will come."""

    @abstractmethod
    def watch(self, back: Callable[[], bool]) -> None:
        """The server is lost: call `back` when one is in sight again, until it returns True."""

    @abstractmethod
    def close(self) -> None:
        """No call follows."""
