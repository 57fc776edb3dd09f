"""Applies pushes to the master rows by the rules of the synchronisation method.

The method can be changed during a run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..methods import Method, Team, create
from ..methods.base import Fleet, Model
from ..protocol.messages import Kind, Receipt
from ..transfer.receiver import Rows
from . import buffers
from .full_gradient import FullGradient
from .member import Member


@dataclass(frozen=True)
class ServerState:
    """The state of the server that a checkpoint contains besides the master rows.

    ``updated_at`` int64 (rows,): for each master row, the iteration of the newest push that carried
    this row; a change by the parent fleet counts as such a push. ``pushes`` maps each robot to its
    incarnation and the receipt of its last push. ``policy``: JSON values, see `Gate.state`.
    ``update`` maps names to arrays, float32 (elements,), see `Update.arrays`. ``base``, float32
    (elements,): see `rog_core.upstream.Upstream`; None without a parent fleet.
    """

    iteration: int
    sync: str
    updated_at: np.ndarray
    pushes: dict[str, tuple[int, Receipt]]
    policy: dict[str, Any] = field(default_factory=dict)
    update: dict[str, np.ndarray] = field(default_factory=dict)
    base: np.ndarray | None = None


class Aggregation:
    """The present synchronisation method, and the model that the method changes.

    ``team``: see `Team`.
    """

    def __init__(self, sync: str, model: Model, team: Team) -> None:
        self.model, self.team = model, team
        method = self._created(sync)
        method.begin(model, 0)
        self._use(method, 0)

    def _created(self, sync: str) -> Method:
        method = create(sync, self.team)
        if reason := method.unfit(self.model):
            raise ConfigError(reason)
        return method

    def _use(self, method: Method, iteration: int) -> None:
        self.method = method
        self.full = FullGradient(self.model.partition, self.model.master, iteration)

    def change(self, sync: str, robots: Collection[str], iteration: int) -> None:
        """Change the method to ``sync``; first apply the pushes that the former method has stored.

        ``robots``: the robots of the fleet. ``iteration``: the highest iteration that any robot has
        pushed or was granted. If exactly one of the two methods uses gradient coding, the server
        drops pushes that are under way. If this function raises `ConfigError`, nothing has changed.
        """
        method = self._created(sync)
        for name in robots:
            if reason := method.refusal(name):
                raise ConfigError(reason)
        self.flush(len(robots))
        method.begin(self.model, iteration)
        self._use(method, iteration)

    def grow(self, model: Model) -> None:
        """Continue with ``model``, to which the rows of the frozen parameters were added."""
        self.model = model
        self.method.grow(model)
        # the next full gradient contains the new rows
        self.full = FullGradient(model.partition, model.master, self.full.since)

    def take(self, member: Member, rows: Rows, robots: int) -> None:
        """Apply checked rows of a push; ``robots``: number of robots in the fleet."""
        if rows.transfer.kind == Kind.ANCHOR:
            self.full.take(member.robot, rows.transfer.iteration, rows.ids, rows.data)
        elif self.counts(member):
            self.method.take(member.robot, rows.ids, rows.codec, rows.data, max(robots, 1))

    def take_buffers(self, member: Member, rows: Rows, active: Collection[Member], own: bool
                     ) -> None:
        """Apply checked buffers of a push.

        ``active``: the members that take part in training. ``own``: whether robots keep their own
        buffers.
        """
        model, steps = self.model, [m.step for m in active]
        if own:
            fleet = [(buffers.share(m.step, steps), m.mirror.rows) for m in active
                     if m.mirror.known]
            buffers.apply_own(model.partition, model.master, member.mirror.rows, rows.ids,
                              rows.data, fleet)
        else:
            buffers.apply(model.partition, model.master, member.mirror.rows, rows.ids, rows.data,
                          buffers.share(member.step, steps))

    def rest(self, rows: np.ndarray) -> None:
        """Stop what a method does by itself, such as momentum, in rows that no robot trains.

        ``rows``: bool (rows,).
        """
        partition = self.model.partition
        for row in np.flatnonzero(rows):
            part = slice(int(partition.row_offsets[row]), int(partition.row_offsets[row + 1]))
            for values in self.method.arrays().values():
                values[part] = 0

    def pushed(self, member: Member, fleet: Fleet, now: float) -> None:
        """Handle the end of a member's push; ``fleet``: see `Gate.on_push`."""
        transfer = member.push.transfer
        assert transfer is not None
        complete = member.is_whole and not member.push.refused
        if transfer.kind == Kind.ANCHOR:
            self.full.close(member.robot, transfer.iteration, complete)
        elif self.counts(member):
            self.method.pushed(member.robot, complete, fleet, now)

    def counts(self, member: Member) -> bool:
        """Return whether the method uses the pushes of this member.

        The answer depends on the kind of step (such as a gradient, or local steps) that the server
        last granted to the member.
        """
        return self.method.takes(member.step)

    def joined(self, robot: str) -> None:
        """Drop what a robot that registers has pushed of an unfinished push."""
        self.full.forget(robot)
        self.method.on_join(robot)

    def settle(self, fleet: Fleet, gone: frozenset[str]) -> None:
        """Apply the changes to the model that are due now.

        The server calls this function after each push, and when a robot joins, leaves or retires.
        ``gone``: robots that have left, are away or are retired, and robots that have not
        registered again after a restart of the server.
        """
        self.method.settle(fleet, gone, max(len(fleet), 1))

    def flush(self, robots: int) -> None:
        """Apply all pushes that the method has stored, because the method or the run ends."""
        self.method.flush(max(robots, 1))

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return the values of the fields ``policy`` and ``update`` of `ServerState`."""
        return self.method.state(), {name: value.copy()
                                     for name, value in self.method.arrays().items()}

    def load(self, state: ServerState) -> None:
        """Resume from a checkpoint; raise `ConfigError` if it does not fit the method."""
        method = self._created(state.sync)
        method.begin(self.model, state.iteration)
        try:
            method.load_state(state.policy)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the state of '{state.sync}' in the checkpoint is invalid: {error}"
                              ) from error
        method.load_arrays({name: value.copy() for name, value in state.update.items()})
        self._use(method, state.iteration)
