"""Registers a worker with the fleet; registers it again if the server no longer lists it."""

from __future__ import annotations

import math
from dataclasses import replace

from ..protocol.messages import (
    Action,
    Kind,
    RegisterRequest,
    RegisterResponse,
    Send,
    Stop,
    TransferId,
)
from ..protocol.states import PAUSED, REGISTERING, STOPPED
from ..transfer.receiver import Receiver
from .pushes import Pushes
from .shared import Shared

REGISTER_INTERVAL = 1.0      # seconds between the first two registration attempts
# Maximum seconds between two attempts. The interval doubles with each attempt: only the answer to
# the latest attempt counts, and on a slow link an answer that waits behind those to other robots
# takes 15 s and more. A message of the server after a silence starts with the first interval again.
MAX_REGISTER_INTERVAL = 32.0


class Registration:
    """Registers the worker with the server.

    When the server has accepted the worker, ``pushes`` ends a push that is still open. ``due``:
    time of the next attempt, in seconds.
    """

    def __init__(self, shared: Shared, pushes: Pushes) -> None:
        self.shared, self.pushes = shared, pushes
        self.due = math.inf
        self._interval = REGISTER_INTERVAL
        self._requests = 0
        self._unknown = 0  # number of successive heartbeats that do not list this worker

    def register(self, now: float) -> list[Action]:
        """Ask the server to let this worker join."""
        shared = self.shared
        shared.settle(now)
        # Mark the gradient that is being computed with iteration 0, which is never granted: it then
        # fits a later grant only if its step is exchangeable (`Step.exchangeable`).
        shared.order = shared.order and replace(shared.order, iteration=0)
        shared.accumulator.anchor = None
        self.due = now + self._interval
        self._requests += 1
        partition, pull = shared.partition, shared.pull
        parameters = tuple((p.name, p.shape, int(p.role)) for p in partition.listing.parameters)
        known = pull is not None and pull.incarnation == shared.session
        return [Send(shared.robot, RegisterRequest(
            shared.robot, shared.incarnation, shared.iteration, shared.attempt,
            partition.granularity, shared.codec.name, partition.digest, parameters,
            number=self._requests, pull=pull.known() if known and pull else None))]

    def register_soon(self, now: float) -> list[Action]:
        """Register now; if no answer comes, register again after `REGISTER_INTERVAL` seconds."""
        self._interval = REGISTER_INTERVAL
        return self.register(now)

    def awaits(self, request: RegisterRequest) -> bool:
        """See `WorkerMachine.awaits`."""
        return (request.incarnation, request.number) == (self.shared.incarnation, self._requests)

    def on_response(self, response: RegisterResponse, now: float) -> list[Action]:
        """Handle the server's answer; see `WorkerMachine.on_register_response`."""
        shared = self.shared
        if shared.state != REGISTERING:
            return []
        if not response.accepted:
            if response.retry:  # the server can be reached, but does not accept this worker yet
                self._interval = REGISTER_INTERVAL
                self.due = now + REGISTER_INTERVAL
                return []
            shared.move('refused', now)
            return [Stop('' if response.over else response.reason)]
        shared.sync = response.sync
        if shared.server != response.incarnation:
            shared.server = response.incarnation
            shared.link.forget()
        self.pushes.end(response.push)
        shared.early = None
        pull = shared.pull
        if pull is None or pull.incarnation != shared.session \
                or self._foreign(pull.transfer, response.attempt):
            kinds = frozenset({Kind.PULL, Kind.SNAPSHOT, Kind.FINAL, Kind.ANCHOR})
            pull = shared.pull = Receiver(shared.partition, kinds, shared.session, shared.codec)
        pull.floor = response.attempt
        self._unknown = 0
        self._interval = REGISTER_INTERVAL
        shared.move('accepted', now)
        return []

    @staticmethod
    def _foreign(pull: TransferId | None, following: int) -> bool:
        """Return whether the number of a pull is so high that the server cannot have sent the pull.

        ``following``: the number of the server's next transfer. Earlier transfers have lower
        numbers. Only a snapshot may have the number ``following``, because a snapshot continues
        when its worker registers again.
        """
        if pull is None or pull.attempt < following:
            return False
        return pull.attempt > following or pull.kind != Kind.SNAPSHOT

    def on_server_status(self, incarnation: int, known: bool, now: float) -> list[Action]:
        """Handle the server's heartbeat; see `WorkerMachine.on_server_status`."""
        shared = self.shared
        if shared.state in (REGISTERING, STOPPED, PAUSED):
            return []
        missed = not known or incarnation != shared.server
        self._unknown = self._unknown + 1 if missed else 0
        # Ignore the first heartbeat that does not list this worker: the server may have sent this
        # heartbeat before it accepted the worker.
        if self._unknown < 2:
            return self.pushes.on_heard(now)
        shared.move('lost', now)
        return self.register(now)

    def on_contact(self, now: float) -> list[Action]:
        """Handle the server's first message after a silence; see `WorkerMachine.on_contact`."""
        return self.register_soon(now) if self.shared.state == REGISTERING else []

    def on_time(self, now: float) -> list[Action]:
        """Register again if no answer came before `due`; double the interval between attempts."""
        if now < self.due:
            return []
        self._interval = min(2 * self._interval, MAX_REGISTER_INTERVAL)
        return self.register(now)
