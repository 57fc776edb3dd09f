"""A PyTorch model whose parameters are views of one flat array, on which the protocol works."""

from __future__ import annotations

import mmap

import numpy as np
import torch

from .arrays import Array
from .errors import ConfigError
from .partition import RowPartition, partition_of


class FlatModel:
    """Parameters and gradients of a model as views of two flat float32 tensors, (elements,).

    ``shared``: processes forked later share the memory of the tensors with this one.
    Raises `ConfigError` if a parameter that is trained is not float32, or on another device.
    """

    def __init__(self, model: torch.nn.Module, shared: bool = False) -> None:
        self.named = trainable(model)
        self.weights = torch.cat([p.detach().reshape(-1) for _, p in self.named])
        self.gradient = torch.zeros_like(self.weights)
        if shared:
            self.weights = _shared(len(self.weights)).copy_(self.weights)
            self.gradient = _shared(len(self.weights))
        self._views = []
        at = 0
        for _, parameter in self.named:
            part = slice(at, at + parameter.numel())
            view = self.gradient[part].view(parameter.shape)
            parameter.data = self.weights[part].view(parameter.shape)
            parameter.grad = view
            self._views.append((parameter, view))
            at = part.stop

    def partition(self, granularity: str, codec: str) -> RowPartition:
        """Rows of this model."""
        return rows_of(self.named, granularity, codec)

    def collect(self) -> None:
        """Copy gradients that the program has stored in other tensors into our views."""
        for parameter, view in self._views:
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    def zero_grad(self) -> None:
        """Set all gradients to zero, in place: they are views."""
        self.gradient.zero_()
        self.collect()


def _shared(elements: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, 4 * elements), dtype=torch.float32)


def as_array(tensor: torch.Tensor) -> Array:
    """Return a numpy array on the same memory; for a tensor on a GPU the tensor itself."""
    return tensor.numpy() if tensor.device.type == 'cpu' else tensor


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Named parameters that are trained, in model order; `ConfigError` if they do not fit."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ConfigError('the model has no parameters that require a gradient')
    for name, parameter in named:
        if parameter.dtype != torch.float32 or parameter.device != named[0][1].device:
            raise ConfigError(f'parameter {name} is {parameter.dtype} on {parameter.device}; all '
                              f'must be float32 on one device ({named[0][1].device})')
    return named


def rows_of(named: list[tuple[str, torch.nn.Parameter]], granularity: str, codec: str
            ) -> RowPartition:
    """Rows of the parameters that `trainable` lists."""
    return partition_of([(n, p.shape) for n, p in named], granularity, codec)


def flatten(model: torch.nn.Module) -> np.ndarray:
    """Trainable parameters of a model as one flat float32 array on the host, in model order."""
    return torch.cat([p.detach().reshape(-1).cpu() for _, p in trainable(model)]).numpy()


def unflatten(model: torch.nn.Module, weights: np.ndarray) -> None:
    """Store a flat float32 array in the trainable parameters of a model."""
    parts = torch.from_numpy(np.asarray(weights)).split([p.numel() for _, p in trainable(model)])
    with torch.no_grad():
        for (_, parameter), part in zip(trainable(model), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
