"""How pushes change the master rows: the method in force, and how it is changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arrays import from_host, to_host
from .errors import ConfigError
from .member import Member
from .messages import Kind, Receipt
from .methods import Method, Team, create
from .methods.base import Due, Fleet, Model
from .transfer.receiver import Rows


@dataclass(frozen=True)
class ServerState:
    """Strategy state of a server; with the master rows it is a checkpoint.

    ``updated_at`` int64 (rows,); ``pushes``: robot -> (incarnation, receipt of its last push);
    ``policy``: plain values; ``update``: name -> float32 (elements,), what the method holds.
    """

    iteration: int
    sync: str
    updated_at: np.ndarray
    pushes: dict[str, tuple[int, Receipt]]
    policy: dict[str, Any] = field(default_factory=dict)
    update: dict[str, np.ndarray] = field(default_factory=dict)


class Aggregation:
    """See the module. ``team``: see `rog_core.methods.base.Team`."""

    def __init__(self, sync: str, model: Model, team: Team) -> None:
        self.model, self.team = model, team
        self.method = create(sync, team)
        self.method.begin(model, 0)

    def change(self, sync: str, robots: Collection[str], iteration: int) -> None:
        """Change the method for a fleet of ``robots``; what is held counts now.

        ``iteration``: the highest that anybody has pushed or was granted. Between a coded method
        and another, what is under way then does not count. `ConfigError`: nothing has changed.
        """
        method = create(sync, self.team)
        for name in robots:
            if reason := method.refusal(name):
                raise ConfigError(reason)
        self.flush(len(robots))
        method.begin(self.model, iteration)
        self.method = method

    def take(self, member: Member, rows: Rows, robots: int) -> None:
        """Take checked rows of a push."""
        if rows.transfer.kind == Kind.ANCHOR:
            self.method.take_whole(member.robot, rows.transfer.iteration, rows.ids, rows.data)
        elif self.counts(member):
            self.method.take(member.robot, rows.ids, rows.codec, rows.data, max(robots, 1))

    def pushed(self, member: Member, fleet: Fleet, now: float) -> None:
        """The push of a member is over; ``fleet`` counts it."""
        transfer, whole = member.push.transfer, member.rows_pushed == self.model.partition.rows
        assert transfer is not None
        if transfer.kind == Kind.ANCHOR:
            self.method.close_whole(member.robot, transfer.iteration, whole)
        elif self.counts(member):
            self.carry_out(self.method.close(member.robot, whole, fleet, now), len(fleet))

    def forget(self, robot: str, robots: int) -> None:
        """Of a push that was not finished, drop what only counts whole."""
        self.carry_out(self.method.on_join(robot), robots)

    def counts(self, member: Member) -> bool:
        """Whether what the member was told to compute is what the method takes."""
        return self.method.takes(member.step)

    def carry_out(self, dues: list[Due], robots: int) -> None:
        """Change the model as the method says."""
        for due in dues:
            self.method.carry_out(due, max(robots, 1))

    def settle(self, fleet: Fleet, gone: frozenset[str]) -> None:
        """Somebody has pushed, come or gone: do what is due."""
        self.carry_out(self.method.dues(fleet, gone), len(fleet))

    def flush(self, robots: int) -> None:
        """Let everything count that is held: the method, or the run, is over."""
        self.method.flush(max(robots, 1))

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """State of the method, for `ServerState`."""
        return self.method.state(), {name: to_host(value)
                                     for name, value in self.method.arrays().items()}

    def load(self, state: ServerState) -> None:
        """Take up where a former life left off; `ConfigError` where that cannot be."""
        method: Method = create(state.sync, self.team)
        method.begin(self.model, state.iteration)
        try:
            method.load_state(state.policy)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the state of '{state.sync}' cannot be taken up: {error}") from error
        method.load_arrays({name: from_host(value, self.model.master)
                            for name, value in state.update.items()})
        self.method = method
