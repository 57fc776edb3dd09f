"""SVRG: from time to time, robots compute full gradients, which correct stochastic gradients.

All robots compute a full gradient at a barrier, on the same model. Source: GSGM, Algorithms 5
and 6. `Svrg` is a mix-in class for any method that sends all rows: it decides when robots compute a
full gradient, and who waits before and after it. The server keeps the full gradients
(`rog_core.server.full_gradient`), because they belong to the step `Full`, whatever the method.
"""

from __future__ import annotations

from typing_extensions import override

from ..errors import ConfigError
from ..protocol.steps import Full, Step
from .gate import Gate
from .method_spec import MethodSpec
from .orders import Orders
from .role import Fleet, Team

PERIOD = 50  # iterations between two full gradients


class Svrg(Gate, Orders):
    """A mix-in class: the name ``asp+svrg``, for example, builds the class ``SvrgAsp(Svrg, Asp)``.

    After every `PERIOD` iterations (after every N iterations with ``svrg=N``), all robots compute
    the gradient of their whole shards on the same model. Each robot receives the mean of these full
    gradients.
    """

    def __init__(self, spec: MethodSpec, team: Team) -> None:
        super().__init__(spec, team)
        if self.early:
            raise ConfigError(f"'{spec.text}': svrg needs all rows of every gradient, so it "
                              'cannot be combined with early transmission')
        if team.codec != 'raw':
            raise ConfigError(f"'{spec.text}' needs exact gradients, so codec raw; the fleet "
                              f"has '{team.codec}'")
        team.require_alone(spec.text)
        self.period = int(self.numbers.get('svrg', PERIOD))

    def is_full(self, iteration: int) -> bool:
        """Return whether robots compute a full gradient in this iteration."""
        return iteration > 0 and (iteration - 1) % (self.period + 1) == 0

    @override
    def at_barrier(self, robot: str, fleet: Fleet) -> bool:
        iteration = fleet[robot].iteration
        return self.is_full(iteration) or self.is_full(iteration + 1)

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        following, step = super().grant(robot, iteration)
        return following, Full() if self.is_full(following) else step
