"""The role of a method that says how pushes change the model, and what a checkpoint keeps."""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from ..codecs import Codec
from ..protocol.steps import Step
from .role import Fleet, Model, Role


class Update(Role):
    """BSP's update: each row of a push is applied when it arrives."""

    model: Model | None = None

    def unfit(self, model: Model) -> str:
        """Return why this method cannot train this model; empty if it can."""
        return ''

    def on_join(self, robot: str) -> None:
        """Handle a robot that joins or rejoins; a push that it has not finished will not continue.

        A method that applies only complete pushes drops the unfinished push.
        """

    def begin(self, model: Model, iteration: int) -> None:
        """Start to train this model; ``iteration``: highest iteration pushed or granted so far."""
        self.model = model

    def grow(self, model: Model) -> None:
        """Continue with ``model``, to which the rows of the frozen parameters were added."""
        former = self.arrays()
        self.model = model
        self.load_arrays({name: np.append(values, np.zeros_like(model.master[len(values):]))
                          for name, values in former.items()})

    def takes(self, step: Step) -> bool:
        """Return whether this method accepts a push whose gradient was computed with this step."""
        return step.additive

    def in_time(self, robot: str, iteration: int) -> bool:
        """Return whether the server may still use a push of this iteration.

        If not, the server ends the push early.
        """
        return True

    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        """Apply some checked rows of a push; the fleet has ``robots`` robots.

        Subtracts the rows, divided by ``robots``, from the master rows (ROG, Algorithm 2, line 6).
        """
        model = self.held_model
        codec.add(model.partition, model.master, ids, data, -1.0 / robots)

    def settle(self, fleet: Fleet, gone: frozenset[str], robots: int) -> None:
        """Change the model by what is due now; the server calls this after every event.

        ``gone``: robots that have left, are away or are retired, and robots that have not
        registered again after a restart of the server. ``robots``: number of robots, at least 1.
        """

    def flush(self, robots: int) -> None:
        """Apply all stored pushes to the model, because the method or the run ends."""

    @property
    def held_model(self) -> Model:
        """The model given to `begin`."""
        assert self.model is not None, 'begin() comes first'
        return self.model

    # -- restart -----------------------------------------------------------------------------------

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a checkpoint must contain, by name; each float32 (elements,)."""
        return {}

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Resume from the arrays that `arrays` returned."""


class Holding(Update):
    """Base of methods that store each push and apply it later.

    For example, a method may apply all pushes at the end of a round.
    """

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        # For each robot: sum of its pushed rows, float32 (elements,).
        self.held: dict[str, np.ndarray] = {}

    @override
    def take(self, robot: str, ids: np.ndarray, codec: Codec, data: np.ndarray, robots: int
             ) -> None:
        model = self.held_model
        if robot not in self.held:
            self.held[robot] = model.zeros()
        codec.add(model.partition, self.held[robot], ids, data, 1.0)

    @override
    def arrays(self) -> dict[str, np.ndarray]:
        return {f'held/{name}': held for name, held in self.held.items()}

    @override
    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        self.held = {name.removeprefix('held/'): value for name, value in arrays.items()
                     if name.startswith('held/')}


class Rolling(Holding):
    """Base of methods that store each push and keep the momentum on the server."""

    @override
    def begin(self, model: Model, iteration: int) -> None:
        super().begin(model, iteration)
        self.velocity = model.zeros()

    @override
    def arrays(self) -> dict[str, np.ndarray]:
        return {'velocity': self.velocity, **super().arrays()}

    @override
    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        super().load_arrays(arrays)
        self.velocity = arrays.get('velocity', self.velocity)
