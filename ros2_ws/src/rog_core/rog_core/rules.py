"""The server's side of a method: who may go on, how pushes count, what is kept across a restart."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import Array, from_host, to_host
from .codecs import Codec
from .errors import ConfigError
from .full_gradient import FullGradient
from .member import Member
from .messages import Kind, Receipt, TransferId
from .partition import RowPartition
from .policies import policy_of
from .policy import Fleet, Policy
from .update import AveragedUpdate, Step, update_of


@dataclass(frozen=True)
class ServerState:
    """Strategy state of a server; with the master rows it is a checkpoint.

    ``updated_at`` int64 (rows,); ``pushes``: robot -> (incarnation, receipt of its last push);
    ``policy``: plain values; ``update``: name -> float32 (elements,), what the update rule holds.
    """

    iteration: int
    sync: str
    updated_at: np.ndarray
    pushes: dict[str, tuple[int, Receipt]]
    policy: dict[str, Any] = field(default_factory=dict)
    update: dict[str, np.ndarray] = field(default_factory=dict)


class Rules:
    """Policy and update rule of the method in force; they change together.

    ``master``: the rows that the update rule moves. ``momentum``, ``capacities``: of the fleet, see
    `ServerMachine`.
    """

    def __init__(self, sync: str, partition: RowPartition, master: Array, codec: Codec,
                 momentum: float, capacities: Mapping[str, float]) -> None:
        self.partition, self.master = partition, master
        self.codec, self.momentum, self.capacities = codec, momentum, dict(capacities)
        self.full_gradient = FullGradient(partition, master)
        self.policy, self.update = self.of(sync)

    def of(self, sync: str) -> tuple[Policy, AveragedUpdate]:
        """Return new rules of a method; `ConfigError` where it does not fit this fleet."""
        policy = policy_of(sync, self.capacities, self.codec.name)
        return policy, update_of(policy.method, self.partition, self.master, self.codec,
                                 self.momentum)

    def change(self, sync: str, robots: Collection[str], iteration: int) -> None:
        """Change the method for a fleet of ``robots``; what is held counts now.

        Between a coded method and another, what is under way then does not count. Raises
        `ConfigError` with nothing changed.
        """
        policy, update = self.of(sync)
        for name in robots:
            if reason := policy.refusal(name):
                raise ConfigError(reason)
        self.flush(len(robots))
        policy.begin(iteration)
        self.policy, self.update = policy, update

    def take(self, member: Member, transfer: TransferId, ids: np.ndarray, codec: Codec,
             data: np.ndarray, workers: int) -> None:
        """Take a checked chunk of a push."""
        if transfer.kind == Kind.ANCHOR:
            self.full_gradient.take(member.robot, transfer.iteration, ids, data)
        elif self.counts(member):
            self.update.take(member.robot, self.partition, self.master, ids, codec, data, workers)

    def pushed(self, member: Member, fleet: Fleet, now: float) -> None:
        """The push of a member is over; ``fleet`` counts it."""
        transfer, whole = member.push.transfer, member.rows_pushed == self.partition.rows
        assert transfer is not None
        if transfer.kind == Kind.ANCHOR:
            self.full_gradient.close(member.robot, transfer.iteration, whole)
        elif self.counts(member):
            if self.update.coded and not whole and self.policy.in_time(member.robot,
                                                                       transfer.iteration):
                self.forget(member.robot, len(fleet))
            else:
                self.policy.on_push(member.robot, fleet, now)

    def forget(self, robot: str, workers: int) -> None:
        """Of a push that was not finished, drop what only counts whole."""
        self.full_gradient.forget(robot)
        self.carry_out(self.policy.on_join(robot), workers)

    def counts(self, member: Member) -> bool:
        """Whether what the member was told to push is what the method takes."""
        return (member.work is not None) == self.update.coded

    def carry_out(self, steps: list[Step], workers: int) -> None:
        """Let the update rule do what the policy says."""
        for step in steps:
            self.update.carry_out(step, self.master, max(workers, 1))

    def settle(self, fleet: Fleet, gone: frozenset[str]) -> None:
        """Somebody has pushed, come or gone: do what is due."""
        self.carry_out(self.policy.steps(fleet, gone), len(fleet))

    def flush(self, workers: int) -> None:
        """Let everything count that is held: the method, or the run, is over."""
        self.update.flush(self.master, max(workers, 1))

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """State of policy and update rule, for `ServerState`."""
        return self.policy.state(), {name: to_host(value) for name, value
                                     in self.update.state().items()}

    def load(self, state: ServerState) -> None:
        """Take up where a former life left off; `ConfigError` where that cannot be."""
        self.policy, self.update = self.of(state.sync)
        self.policy.begin(state.iteration)
        try:
            self.policy.load_state(state.policy)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the state of '{state.sync}' cannot be taken up: {error}") from error
        self.update.load_state({name: from_host(value, self.master)
                                for name, value in state.update.items()})
