"""The parts that every worker program needs: flat model, state machine and gradients."""

from __future__ import annotations

import numpy as np
import torch

from ..arrays import Array
from ..codecs import get_codec
from ..errors import GradientError
from ..model.flat import FlatModel
from ..protocol.config import TransferConfig
from .accumulator import Accumulator
from .gradient import Data, GradientSource
from .worker import Worker


class Learner:
    """A model that is trained by the fleet.

    ``model``: the parameters that require a gradient become views of one flat tensor, see
    `FlatModel`. ``shared``: see `FlatModel`. ``data``: the training data; None if the program
    computes its gradients itself. ``incarnation``: random 64-bit identity of this process.

    The worker's rows are where the model is. But they are on the host if the model is on a GPU for
    which there are no CUDA kernels, because cupy is missing or the codec has none. Then the weights
    are copied to the GPU, and the gradient to the host, once per iteration.
    """

    def __init__(self, model: torch.nn.Module, robot: str, incarnation: int,
                 config: TransferConfig, data: Data | None = None, shared: bool = False) -> None:
        self.flat = FlatModel(model, shared)
        self._is_apart = not _has_loops(self.flat.weights, config.codec)
        self._copy = torch.empty(0)  # of the gradient, if the rows are apart
        self.store = Accumulator(
            self.flat.partition(config.granularity, config.codec), self._rows(self.flat.weights),
            self._rows(self.flat.own), lambda: self._rows(self.flat.frozen()), self._enlarged,
            config.buffers == 'local')
        self.machine = Worker(robot, incarnation, self.store, config)
        self.source = None if data is None else GradientSource(model, self.flat, self.store, data)

    def _rows(self, values: torch.Tensor) -> Array:
        """Return ``values`` where the rows are: their own memory, or a copy on the host."""
        if self._is_apart:
            return values.to('cpu', copy=True).numpy()
        return values if values.is_cuda else values.numpy()

    def _enlarged(self) -> Array:
        self.flat.grow()
        if self._is_apart:  # the rest of the rows may be newer than those on the GPU
            more = self._rows(self.flat.weights[len(self.store.model):])
            return np.concatenate([self.store.model, more])
        return self._rows(self.flat.weights)

    @torch.no_grad()
    def load(self) -> None:
        """Give the model what `Worker` has prepared for the next computation."""
        if self._is_apart:
            for values, rows in ((self.flat.weights, self.store.model),
                                 (self.flat.own, self.store.own)):
                values[:len(rows)].copy_(torch.from_numpy(rows))
        self.flat.load()

    @property
    def result(self) -> Array:
        """The computed gradient, flat, with the change of the buffers; valid until the next one."""
        gradient = self.flat.gradient
        if not self._is_apart:
            return self._rows(gradient)
        if len(self._copy) != len(gradient):
            self._copy = torch.empty(len(gradient))
        return self._copy.copy_(gradient).numpy()

    def gradient(self) -> Array:
        """Complete the computed gradient, check it, and return it as `result`.

        Also notes, for the next push, which parameters are frozen now. Raises `GradientError` if
        the gradient is not finite.
        """
        self.flat.collect(computed=self.source is not None)
        self.flat.require_views()
        self.flat.tell_changes()
        self.flat.collect_buffers()
        gradient = self.result
        try:
            self.store.check(gradient)
        except GradientError:
            if self.source is not None:
                self.source.velocity = None  # drop the momentum, which contains this gradient
            self.flat.load()
            raise
        self.machine.switched = self.flat.switched
        return gradient


def _has_loops(values: torch.Tensor, codec: str) -> bool:
    """Return whether there are loops of numba, or CUDA kernels, for values on this device."""
    return values.device.type == 'cpu' or get_codec(codec).has_kernels(values)
