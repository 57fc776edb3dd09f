"""The worker: one robot's side of the protocol, as a state machine.

Source: ROG, Section IV-A, Algorithm 1. Here the channel may lose, duplicate and reorder messages.
The tables `WORKER` and `GRADIENT` of `rog_core.protocol.states` list the states and events. The
gradient has its own table, because with pipelining a worker also computes while it pushes, waits
and pulls.

The shell, which is the program around the machine, reports each event by a method call with the
present time (seconds, any monotonic clock). Most of these calls return actions, which the shell
must execute. The shell must call `on_time` at the time `deadline`.

`Registration`, `Pushes` and `Pulls` each handle some of the events. They share one state, `Shared`.
"""

from __future__ import annotations

import math

from ..arrays import Array
from ..protocol.config import SgdConfig, TransferConfig
from ..protocol.messages import (
    Ack,
    Action,
    Chunk,
    End,
    Receipt,
    RegisterRequest,
    RegisterResponse,
)
from ..protocol.states import PUSHING, REGISTERING
from .accumulator import Accumulator
from .pulls import Pulls
from .pushes import Pushes
from .registration import Registration
from .shared import Shared


class WorkerMachine(Shared):
    """A worker's state machine; its methods take an event and the time, and return actions.

    The base class `Shared` holds the state of the worker.
    """

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 config: TransferConfig) -> None:
        super().__init__(robot, incarnation, accumulator, config)
        self.pushes = Pushes(self)
        self.pulls = Pulls(self, self.pushes)
        self.registration = Registration(self, self.pushes)

    # -- registration ----------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """Ask the server to let this worker join."""
        self.since = now
        return self.registration.register(now)

    def awaits(self, request: RegisterRequest) -> bool:
        """Return whether ``request`` is the worker's latest request.

        A shell must call this method when the answer to ``request`` arrives. If the result is
        false, the shell must ignore the answer: the worker has sent a later request in the
        meantime.
        """
        return self.registration.awaits(request)

    def on_register_response(self, response: RegisterResponse, now: float) -> list[Action]:
        """Handle the server's answer; a final refusal stops the worker with the server's reason.

        If the server refuses because the run is over, the worker stops without an error.
        """
        return self.registration.on_response(response, now)

    def on_server_status(self, incarnation: int, known: bool, now: float) -> list[Action]:
        """Handle a heartbeat of the server; ``known``: whether it lists this process as a member.

        If the server was restarted, or has dropped this worker, the worker registers again.
        """
        return self.registration.on_server_status(incarnation, known, now)

    def on_contact(self, now: float) -> list[Action]:
        """Handle the server's first message after a silence: an open registration is repeated.

        Lost rows need no call of their own: each heartbeat lets the push send a probe.
        """
        return self.registration.on_contact(now)

    # -- transfers -------------------------------------------------------------------------------

    def on_gradient(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """Push the gradient that the last `Compute` ordered.

        ``gradient``: finite, float32 (elements,). The caller must not change this array before the
        next `Compute`, because the worker may read the array after this call has returned. With
        pipelining, the worker reads it when the transfers of the previous iteration are over.
        """
        return self.pushes.on_gradient(gradient, sgd, now)

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of this worker's push."""
        return self.pushes.on_ack(ack, now)

    def on_receipt(self, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of this worker's push, which names the chunks that have arrived."""
        actions = self.pushes.on_receipt(receipt, now)
        return actions if self.state == PUSHING else [*actions, *self.pulls.on_pushed(now)]

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows from the server."""
        return self.pulls.on_chunk(chunk, now)

    def on_end(self, end: End, now: float) -> list[Action]:
        """Handle the end of a pull or snapshot, with the command for the next iteration."""
        return self.pulls.on_end(end, now)

    # -- time ------------------------------------------------------------------------------------

    def on_time(self, now: float) -> list[Action]:
        """Send the messages that are due: a registration, or chunks of the push."""
        if self.state == REGISTERING:
            return self.registration.on_time(now)
        return self.pushes.poll(now) if self.state == PUSHING else []

    @property
    def deadline(self) -> float:
        """Time at which `on_time` must be called; infinity means never."""
        if self.state == REGISTERING:
            return self.registration.due
        if self.state == PUSHING and self.push is not None:
            return self.push.deadline
        return math.inf

    # -- control ---------------------------------------------------------------------------------

    def pause(self, now: float) -> None:
        """Leave the fleet for a while.

        The shell must report the pause to the server. During the pause, no robot waits for this
        worker. Its transfers end as if the link were lost. The worker keeps the rows that have not
        arrived at the server, and the gradient that is being computed.
        """
        self.move('pause', now)

    def resume(self, now: float) -> list[Action]:
        """Rejoin the fleet with the rows that the worker has kept."""
        self.move('resume', now)
        return self.registration.register_soon(now)

    def leave(self, now: float) -> None:
        """Stop at once, because the user asks for it."""
        self.move('leave', now)
