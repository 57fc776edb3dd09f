"""The parts that every worker program needs: flat model, state machine and gradients."""

from __future__ import annotations

import torch

from ..arrays import Array
from ..errors import GradientError
from ..model.flat import FlatModel, as_array
from ..protocol.config import TransferConfig
from .accumulator import Accumulator
from .gradient import Data, GradientSource
from .worker import Worker


class Learner:
    """A model that is trained by the fleet.

    ``model``: the parameters that require a gradient become views of one flat tensor, see
    `FlatModel`. ``shared``: see `FlatModel`. ``data``: the training data; None if the program
    computes its gradients itself. ``incarnation``: random 64-bit identity of this process.
    """

    def __init__(self, model: torch.nn.Module, robot: str, incarnation: int,
                 config: TransferConfig, data: Data | None = None, shared: bool = False) -> None:
        self.flat = FlatModel(model, shared)
        self.store = Accumulator(
            self.flat.partition(config.granularity, config.codec), as_array(self.flat.weights),
            as_array(self.flat.own), self.flat.frozen, self._enlarged,
            config.buffers == 'local')
        self.machine = Worker(robot, incarnation, self.store, config)
        self.source = None if data is None else GradientSource(model, self.flat, self.store, data)

    def _enlarged(self) -> Array:
        self.flat.grow()
        return as_array(self.flat.weights)

    def gradient(self) -> Array:
        """Return the computed gradient, flat, with the change of the buffers.

        Also notes, for the next push, which parameters are frozen now. Raises `GradientError` if
        the gradient is not finite.
        """
        self.flat.collect(computed=self.source is not None)
        self.flat.require_views()
        self.flat.tell_changes()
        self.flat.collect_buffers()
        gradient = as_array(self.flat.gradient)
        try:
            self.store.check(gradient)
        except GradientError:
            if self.source is not None:
                self.source.velocity = None  # drop the momentum, which contains this gradient
            self.flat.load()
            raise
        self.machine.switched = self.flat.switched
        return gradient
