"""DiLoCo: robots take local steps; the server applies Nesterov momentum to the mean change."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rog_core.errors import ConfigError
from rog_core.methods.base import Fleet, Method, Model, Team
from rog_core.methods.method_spec import MethodSpec
from rog_core.methods.outer import Outer
from rog_core.steps import Phase, Step
from typing_extensions import override


class DiLoCo(Outer, Method):
    """``diloco:H``: each robot takes H local steps, then the server takes an outer step.

    The outer step uses the mean of the robots' changes.

    ``diloco:H:P``: the model is divided into P fragments. An iteration has H/P local steps and
    exchanges one fragment, so each fragment is exchanged every H steps. With the option
    ``pipeline``, the robot computes the next local steps while a fragment travels. So a fragment is
    applied late, but transmission takes no extra time. A robot's momentum continues from one
    iteration to the next.

    ``quorum=K``: the fleet does not wait for a robot whose link fades. A round is one iteration of
    every robot. It ends at the latest ``grace=S`` seconds after K robots have pushed. A later push
    is applied when it arrives, and its robot continues with the present round of the fleet.

    Sources: DiLoCo (arXiv 2311.08105); Streaming DiLoCo (arXiv 2501.18512); Decoupled DiLoCo (arXiv
    2604.21428) for quorum and grace. Fragments consist of rows, not of layers, so that all
    fragments have about the same size. Streaming DiLoCo mixes an arriving fragment with the robot's
    own fragment. This mixing drops a part of the steps made during the transfer. Here these steps
    stay in the robot's model and are pushed when the fragment is sent next. Decoupled DiLoCo weighs
    robots by their number of tokens and merges norms and directions separately; here every push has
    the same weight.
    """

    name = 'diloco'
    usage = 'diloco:H[:P]'
    known = ('pipeline', 'quorum', 'grace', 'rate', 'momentum')
    usual_rate, usual_momentum = 0.7, 0.9  # the values of the DiLoCo paper

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if 'grace' in self.options and 'quorum' not in self.options:
            raise ConfigError(f"'{spec.text}': grace is the time after a quorum; write "
                              'quorum=K, too')
        self.quorum = self.needed('quorum') if 'quorum' in self.options else 0
        if team.capacities and self.quorum > len(team.capacities):
            raise ConfigError(f"'{spec.text}': the quorum is {self.quorum} robots; the fleet "
                              f'has {len(team.capacities)}')
        self.grace = self.numbers.get('grace', 0.0)
        self._met = -1           # newest round in which K robots have pushed (option quorum=K)
        self._since = 0.0        # time of the K-th push of the round `_met`, in seconds
        self._over = -1          # newest round whose grace is over
        self._newest = -1        # newest round that any robot has finished

    @classmethod
    @override
    def by_default(cls, spec: MethodSpec) -> frozenset[str]:
        return frozenset({'pipeline'}) if len(spec.arguments) > 1 else frozenset()

    @classmethod
    @override
    def numbered(cls) -> tuple[str, ...]:
        return ('quorum',)

    @classmethod
    @override
    def ranges(cls) -> Mapping[str, tuple[float, float]]:
        return {**super().ranges(), 'grace': (0.0, 3600.0)}

    @override
    def bounds(self) -> tuple[float, float]:
        text, arguments = self.spec.text, self.spec.arguments
        if not 1 <= len(arguments) <= 2:
            raise ConfigError(f"'{text}' needs the number of local steps, and may have a number of "
                              'fragments, for example diloco:30 or diloco:30:3')
        every = self.spec.integer(arguments[0], 1)
        self.fragments = self.spec.integer(arguments[1], 1) if len(arguments) > 1 else 1
        if every % self.fragments:
            raise ConfigError(f"'{text}': {every} local steps cannot be divided among "
                              f'{self.fragments} fragments; H must be a multiple of P')
        self.steps = every // self.fragments
        return 1, 1

    @override
    def unfit(self, model: Model) -> str:
        rows = model.partition.rows
        if self.fragments <= rows:
            return ''
        return (f"'{self.spec.text}': {self.fragments} fragments are more than the {rows} rows "
                f"of the model (granularity '{model.partition.granularity}')")

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self._newest = iteration  # with a quorum, all robots continue with the round after it

    @property
    @override
    def by_row(self) -> bool:
        return self.fragments == 1 and not self.quorum and not self.pipelined

    # -- which robots may continue ---------------------------------------------------------------

    @override
    def on_push(self, robot: str, fleet: Fleet, now: float) -> None:
        iteration = fleet[robot].iteration
        pushed = sum(other.iteration >= iteration for other in fleet.values())
        if self.quorum and iteration > self._met and pushed >= self.quorum:
            self._met, self._since = iteration, now
            if not self.grace:
                self._over = iteration

    @property
    @override
    def deadline(self) -> float:
        return self._since + self.grace if self._met > self._over else math.inf

    @override
    def on_time(self, now: float) -> None:
        self._over = self._met

    @override
    def held_up_by(self, robot: str, fleet: Fleet, least: float = 0.0) -> list[str]:
        if fleet[robot].iteration <= self._over:
            return []
        return super().held_up_by(robot, fleet, least)

    # -- what a robot computes -------------------------------------------------------------------

    @override
    def goes_ahead(self, staleness: int) -> bool:
        return self.pipelined  # a robot waits for other robots after its push, not before

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        # with a quorum, a late robot continues with the fleet's next round
        self._newest = max(self._newest, iteration)
        following = (self._newest if self.quorum else iteration) + 1
        return following, Phase(self.steps, self.fragments, following % self.fragments)
