"""Emulates robots that are late or drop out, with the probabilities in the fleet file."""

from dataclasses import dataclass

import numpy as np

from fleet_env.settings.fleet import StragglerConfig


@dataclass(frozen=True)
class Pause:
    """A pause that is added to the computation of a gradient."""

    seconds: float
    drops_out: bool
    """True: the robot has dropped out and does not communicate. False: the robot is only late."""


class Stragglers:
    """Draws the pauses of one robot; they depend only on seed and rank.

    :param seed: seed of the fleet.
    :param rank: rank of the robot.
    """

    def __init__(self, config: StragglerConfig, seed: int, rank: int):
        self._config = config
        self._rng = np.random.default_rng([seed, rank, *b'stragglers'])

    def next(self) -> Pause:
        """Return the pause before the next gradient: the robot is late, drops out, or neither."""
        # Always draw both numbers, so that a change of one probability does not affect the draws
        # for the other probability.
        late, away = self._rng.random(2)
        if away < self._config.drop_probability:
            return Pause(self._config.drop_time, drops_out=True)
        if late < self._config.probability:
            return Pause(self._config.time, drops_out=False)
        return Pause(0.0, drops_out=False)
