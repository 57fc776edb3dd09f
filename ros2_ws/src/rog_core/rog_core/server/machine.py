"""The parameter server, as a state machine.

Source: ROG, Section IV-A, Algorithm 2; joining and leaving robots are our addition. A `Member` is
the server's data about one robot; the table `rog_core.protocol.states.MEMBER` has its states. A
robot that registers again becomes a new member. Members are active while they are waiting, pulling,
training or draining. Staleness, the mean of the pushes and the MTA time are computed over the
active members. If a member makes no progress while others wait for it, the server *retires* it
(the table `rog_core.protocol.states.PLACE`): the member is not active until its next push has
arrived, but its transfers continue.

`Membership`, `Pulls`, `Pushes` and `Overdue` each handle some of the events. They share one state,
`Shared`.
"""

from __future__ import annotations

import math

from ..arrays import Array, difference_magnitude, from_host, to_host, zeros_like
from ..errors import ConfigError, RemoteProtocolError
from ..model.partition import RowPartition
from ..protocol.config import ServerConfig
from ..protocol.messages import (
    Ack,
    Action,
    Chunk,
    End,
    Receipt,
    RegisterRequest,
    RegisterResponse,
)
from ..protocol.states import SERVER, WAITING
from . import buffers
from .aggregation import ServerState
from .membership import Membership
from .overdue import Overdue
from .pulls import Pulls
from .pushes import Pushes
from .shared import Shared


class ServerMachine(Shared):
    """The server's state machine; its methods take an event and the time, and return actions.

    `Shared` describes the arguments of the constructor.
    """

    def __init__(self, partition: RowPartition, master: Array, incarnation: int,
                 config: ServerConfig, frozen: Array | None = None) -> None:
        super().__init__(partition, master, incarnation, config, frozen)
        self.pulls = Pulls(self)
        self.pushes = Pushes(self, self.pulls)
        self.membership = Membership(self, self.pulls, self.pushes)
        self.overdue = Overdue(self, self.pulls, self.pushes)

    # -- robots ----------------------------------------------------------------------------------

    def on_register(self, request: RegisterRequest, now: float
                    ) -> tuple[RegisterResponse, list[Action]]:
        """Answer a registration; a refusal leaves the server unchanged."""
        return self.membership.on_register(request, now)

    def on_heartbeat(self, robot: str, incarnation: int, now: float, loss: float = math.nan,
                     state: str = WAITING) -> list[Action]:
        """Handle a robot's heartbeat; the robot must register again if `is_member` is false for it.

        ``loss``: loss of the robot's last batch; NaN if unknown. ``state``: state of its worker. A
        worker in the state computing makes progress, unless its gradient takes far longer than
        usual. A worker in the state starved (without data) makes no progress.
        """
        return self.membership.on_heartbeat(robot, incarnation, now, loss, state)

    def on_leave(self, robot: str, incarnation: int, now: float) -> list[Action]:
        """Handle a worker's message that it leaves the fleet."""
        return self.membership.on_leave(robot, incarnation, now)

    # -- transfers -------------------------------------------------------------------------------

    def on_chunk(self, robot: str, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows of a worker's push."""
        return self.pushes.on_chunk(robot, chunk, now)

    def on_end(self, robot: str, end: End, now: float) -> list[Action]:
        """Handle the end of a worker's push; from now on the worker waits for its pull."""
        return self.pushes.on_end(robot, end, now)

    def on_ack(self, robot: str, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of a pull."""
        return self.pulls.on_ack(robot, ack, now)

    def on_receipt(self, robot: str, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of a pull or snapshot, which names the chunks that have arrived."""
        actions = self.pulls.on_receipt(robot, receipt, now)
        # messages of the next push that have arrived before this receipt
        for message in self.pushes.early(robot):
            actions += self._on_early(robot, message, now)
        return actions

    def _on_early(self, robot: str, message: Chunk | End, now: float) -> list[Action]:
        try:
            if isinstance(message, End):
                return self.on_end(robot, message, now)
            return self.on_chunk(robot, message, now)
        except RemoteProtocolError:
            return []  # the message is invalid and counts as lost; the receipt remains valid

    def on_model_above(self, former: Array, model: Array) -> None:
        """Add the change of the parent fleet's model to the master rows.

        ``former`` and ``model``: this model before and after the change, float32 (elements,).
        Robots receive the change with their next pulls, like the pushes of other robots. No robot
        waits for the change, and the change does not count as an iteration.
        """
        if len(model) > len(self.master):
            self.grow()
        change = model - former
        offsets = self.partition.offsets
        moved = self.partition.row_sum(difference_magnitude(change, zeros_like(change), offsets))
        part = self.partition.buffers
        before = to_host(self.master[part])
        self.master += change
        if before.size:
            self.master[part] = from_host(buffers.combined(
                before, to_host(self.master[part]), to_host(model[part]),
                self.partition.are_integers, 1 / (1 + len(self.active()))), self.master)
        self.updated_at[moved > 0] = self.iteration

    # -- control ---------------------------------------------------------------------------------

    def set_sync(self, text: str, now: float) -> list[Action]:
        """Change the method of a running fleet; if this raises `ConfigError`, nothing has changed.

        For a method from another package, the caller must first call
        `rog_core.method_check.check_named`, which imports the method's module. A state machine
        itself imports no module of a method.
        """
        newest = max([self.iteration, *(m.granted for m in self.members.values())])
        self.aggregation.change(text, self.members, newest)
        self.pushes.begin()
        for member in self.members.values():
            self.count_slowest(member)
        return self.pulls.release(now)

    def pause(self, now: float) -> list[Action]:
        """Grant no iteration until `resume`: every worker finishes its iteration, then waits."""
        self.paused = True
        for member in self.members.values():
            # the member waits for the end of the pause, not for another robot
            member.waiting_for = []
        return self.pulls.release(now)

    def resume(self, now: float) -> list[Action]:
        """Continue after a pause; the pause does not count as a delay of any robot."""
        self.paused = False
        for member in self.members.values():
            member.since = member.progress = member.paid = now
        self.deadlines.waited_for = {}
        return self.pulls.release(now)

    def stop(self, now: float) -> list[Action]:
        """End the run: every worker finishes its push, then receives the final model.

        A push that is not over after ``drain_limit`` is cut short.
        """
        if self.stopping:
            return []
        self.state = SERVER.after(self.state, 'stop')
        self.deadlines.stop(now + self.config.drain_limit, now + self.config.stop_limit)
        for member in self.members.values():
            member.progress = now  # each member gets the full patience again
        return [*self.pulls.drain(now), *self.pulls.finish()]

    def checkpoint(self) -> ServerState:
        """Return the state, besides the master rows, that a restarted server needs."""
        pushes = {name: (m.incarnation, known) for name, m in self.members.items()
                  if (known := m.push.known()) is not None}
        return ServerState(self.iteration, self.method.asked, self.updated_at.copy(),
                           {**self.former_pushes, **pushes}, *self.aggregation.state())

    def load_state(self, state: ServerState) -> None:
        """Resume from a checkpoint; the caller must do this before any worker has registered."""
        if state.updated_at.size > self.partition.rows:
            self.grow()
        if state.updated_at.shape != self.updated_at.shape:
            raise ConfigError(f"the checkpoint's model has {state.updated_at.size} rows; this one "
                              f'has {self.partition.rows}')
        self.aggregation.load(state)
        self.iteration, self.former_pushes = state.iteration, dict(state.pushes)
        self.updated_at[:] = state.updated_at
        self.restarted = True

    # -- time ------------------------------------------------------------------------------------

    def on_time(self, now: float) -> list[Action]:
        """Handle everything that is due: retransmissions, time-outs, missing heartbeats."""
        return self.overdue.on_time(now)

    def on_held_up(self, seconds: float, now: float) -> None:
        """Take into account that this process did not run for ``seconds``.

        This time does not count as a delay of any member.
        """
        self.overdue.on_held_up(seconds, now)

    @property
    def deadline(self) -> float:
        """Return a time by which the caller must call `on_time`; it may be earlier than necessary.

        Infinity means never.
        """
        return self.overdue.next

    def deadline_of(self, robot: str) -> float:
        """Return the time by which `on_time` must be called for this robot.

        Infinity means never.
        """
        return self.overdue.of(robot)
