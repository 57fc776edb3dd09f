"""A PyTorch model whose parameters are views of one flat array, which the protocol transfers."""

from __future__ import annotations

import mmap
import warnings

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from ..arrays import Array
from ..errors import ConfigError, LocalProtocolError
from .partition import RowPartition, partition_of


class FlatModel:
    """Stores a model's trainable parameters and their gradients in two flat float32 tensors.

    Each tensor is (elements,). The model's own parameters and gradients become views of these
    tensors. ``shared``: whether the memory of these tensors is shared with processes that are
    forked later. Raises `ConfigError` if `trainable` refuses the model.
    """

    def __init__(self, model: torch.nn.Module, shared: bool = False) -> None:
        self._model, self.named = model, trainable(model)
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
        self._versions = self._counted()

    def partition(self, granularity: str, codec: str) -> RowPartition:
        """Return the partition of this model into rows."""
        return rows_of(self.named, granularity, codec)

    def collect(self) -> None:
        """Copy gradients that the program has stored in other tensors into `gradient`."""
        for parameter, view in self._views:
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad is not view:
                view.copy_(parameter.grad.to_dense())  # an embedding may have a sparse gradient
            parameter.grad = view

    def require_views(self) -> None:
        """Raise `LocalProtocolError` if a trained parameter is no longer a view of `weights`."""
        now, at = {id(p) for p in self._model.parameters()}, self.weights.data_ptr()
        for name, parameter in self.named:
            if id(parameter) not in now or parameter.data_ptr() != at:
                raise LocalProtocolError(
                    f'parameter {name} is not where the optimizer has put it, so it would not be '
                    'trained; move or convert a model, or load weights with assign=True, before '
                    'you make its optimizer, and make only one optimizer for a model')
            at += parameter.numel() * parameter.element_size()

    def tell_changes(self) -> None:
        """Warn if the program has changed weights in place since the last call.

        A change is not an error: a program may store averaged weights in the model, evaluate them,
        and then restore the former weights. Changes through ``parameter.data`` are not detected.
        """
        former, self._versions = self._versions, self._counted()
        for (name, _), before, now in zip(self.named, former, self._versions, strict=True):
            if before != now:
                warnings.warn(
                    f'the program has changed parameter {name} in place: unless it has restored '
                    'the values, this robot now trains another model than the fleet, which does '
                    'not notice; change weights before you make the optimizer', stacklevel=4)
                return

    def _counted(self) -> list[int]:
        # PyTorch counts the in-place changes of each parameter. It does not count the changes that
        # this package makes, because they go through another tensor with the same memory,
        # `weights`.
        return [parameter._version for _, parameter in self.named]

    def zero_grad(self) -> None:
        """Set all gradients to zero in place, so that they remain views of `gradient`."""
        self.gradient.zero_()
        self.collect()


def _shared(elements: int) -> torch.Tensor:
    return torch.frombuffer(mmap.mmap(-1, 4 * elements), dtype=torch.float32)


def as_array(tensor: torch.Tensor) -> Array:
    """Return a CPU tensor as a numpy array with the same memory; return a GPU tensor unchanged."""
    return tensor.numpy() if tensor.device.type == 'cpu' else tensor


def trainable(model: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that require a gradient, with their names, in model order.

    Raises `ConfigError` if no parameter requires a gradient. Also raises `ConfigError` for a
    parameter that has no values, is not float32, is on another device than the first
    parameter, or shares memory with another parameter.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f'the model is of type {type(model).__name__}; it must be a '
                          'torch.nn.Module')
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ConfigError('the model has no parameters that require a gradient')
    at: dict[int, str] = {}
    for name, parameter in named:
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
            raise ConfigError(f'parameter {name} has no values yet (a lazy layer, or the device '
                              'meta); run the model once before, or move it to a device')
        if parameter.dtype != torch.float32 or parameter.device != named[0][1].device:
            raise ConfigError(f'parameter {name} is {parameter.dtype} on {parameter.device}; all '
                              f'must be float32 on one device ({named[0][1].device})')
        other = at.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if other != name:
            raise ConfigError(f'parameters {other} and {name} share memory; to tie them, make '
                              'them one parameter: a.weight = b.weight')
    return named


def rows_of(named: list[tuple[str, torch.nn.Parameter]], granularity: str, codec: str
            ) -> RowPartition:
    """Divide ``named``, the parameters that `trainable` has returned, into rows."""
    return partition_of([(n, p.shape) for n, p in named], granularity, codec)


def flatten(model: torch.nn.Module) -> np.ndarray:
    """Return the trainable parameters of a model as one flat float32 array, on the host."""
    return torch.cat([p.detach().reshape(-1).cpu() for _, p in trainable(model)]).numpy()


def unflatten(model: torch.nn.Module, weights: np.ndarray) -> None:
    """Store a flat float32 array in the trainable parameters of a model."""
    named = trainable(model)
    sizes = [p.numel() for _, p in named]
    if sum(sizes) != len(weights):
        raise ConfigError(f'the model has {sum(sizes)} elements; {len(weights)} are given. Models '
                          'must have the same shapes on all machines and in all calls')
    with torch.no_grad():
        for (_, parameter), part in zip(named, torch.from_numpy(np.asarray(weights)).split(sizes),
                                        strict=True):
            parameter.copy_(part.view(parameter.shape))
