"""The parts that every worker program needs: flat model, state machine and gradients."""

from __future__ import annotations

import torch

from ..arrays import Array
from ..errors import GradientError
from ..model.flat import FlatModel, as_array
from ..protocol.config import TransferConfig
from .accumulator import Accumulator
from .gradient import Data, GradientSource
from .machine import WorkerMachine


class Learner:
    """A model that is trained by the fleet.

    ``model``: the parameters that require a gradient become views of one flat tensor, see
    `FlatModel`. ``shared``: see `FlatModel`. ``data``: the training data; None if the program
    computes its gradients itself. ``incarnation``: random 64-bit identity of this process.
    """

    def __init__(self, model: torch.nn.Module, robot: str, incarnation: int,
                 config: TransferConfig, data: Data | None = None, shared: bool = False) -> None:
        self.flat = FlatModel(model, shared)
        self.store = Accumulator(self.flat.partition(config.granularity, config.codec),
                                 as_array(self.flat.weights))
        self.machine = WorkerMachine(robot, incarnation, self.store, config)
        self.source = None if data is None else GradientSource(model, self.flat, self.store, data)

    def gradient(self) -> Array:
        """Return the computed gradient, flat; raise `GradientError` if it is not finite."""
        self.flat.collect()
        self.flat.require_views()
        self.flat.tell_changes()
        gradient = as_array(self.flat.gradient)
        try:
            self.store.check(gradient)
        except GradientError:
            if self.source is not None:
                self.source.velocity = None  # drop the momentum, which contains this gradient
            raise
        return gradient
