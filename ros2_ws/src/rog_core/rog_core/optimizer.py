"""RogOptimizer: replace a program's optimizer, and its model is trained by the fleet.

Source: ROG, Section V. `step()` accumulates the gradient, pushes, pulls and applies; it returns
once the synchronisation method lets this worker go on.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from .accumulator import Accumulator
from .backend import Array, get_backend
from .errors import ConfigError
from .partition import partition_of
from .worker import WorkerMachine


class Link(Protocol):
    """What carries a worker's messages: the ROS 2 shell, or anything that runs its machine."""

    def join(self, machine: WorkerMachine) -> int | None:
        """Start the machine; return the first iteration to compute, None if the run is over."""

    def exchange(self) -> int | None:
        """Share what is in the accumulator; return the next iteration, None if the run is over."""


def _as_array(tensor: torch.Tensor) -> Array:
    """Array of the tensor's backend on the same memory."""
    if tensor.device.type == 'cpu':
        return tensor.numpy()
    import cupy
    return cupy.from_dlpack(tensor)


class RogOptimizer(torch.optim.Optimizer):
    """SGD with Nesterov momentum whose gradients and weights are shared by the fleet.

    ``model``: its parameters that require a gradient must be float32 on one device; they become
    views of one flat tensor. ``lr``, ``momentum`` and ``weight_decay`` stand in ``param_groups``,
    so learning rate schedules work. ``incarnation``: random 64-bit identity of this life. After
    `step`, ``iteration`` is the one to compute next; ``stopped`` says that the run is over.
    """

    def __init__(self, model: torch.nn.Module, link: Link, *, robot: str, incarnation: int,
                 lr: float = 0.05, momentum: float = 0.9, weight_decay: float = 0.0,
                 granularity: str = 'row', codec: str = 'onebit', f1: float = 1.0, f2: float = 1.0,
                 max_chunk: int = 14000) -> None:
        for name, value in (('lr', lr), ('momentum', momentum), ('weight_decay', weight_decay)):
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f'{name} is {value}; it must be a number that is not negative')
        named = trainable(model)
        super().__init__([p for _, p in named],
                         {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay})
        partition = partition_of([(n, p.shape) for n, p in named], granularity, codec)
        self._parameters = [p for _, p in named]
        self._weights = torch.cat([p.detach().reshape(-1) for p in self._parameters])
        self._gradient = torch.zeros_like(self._weights)
        self._bind()
        backend = get_backend('numpy' if self._weights.device.type == 'cpu' else 'cupy')
        self.accumulator = Accumulator(partition, backend, _as_array(self._weights))
        self.machine = WorkerMachine(robot, incarnation, self.accumulator, codec, f1, f2, max_chunk)
        self._link = link
        self.iteration = link.join(self.machine) or 0

    @property
    def stopped(self) -> bool:
        """Whether the run is over: the model is final, further steps do nothing."""
        return self.iteration == 0

    def _bind(self) -> None:
        """Make every parameter and its gradient a view of the flat tensors."""
        at = 0
        self._slices = []
        for parameter in self._parameters:
            part = slice(at, at + parameter.numel())
            parameter.data = self._weights[part].view(parameter.shape)
            parameter.grad = self._gradient[part].view(parameter.shape)
            self._slices.append(part)
            at = part.stop

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero, in place whatever ``set_to_none`` says: they are views."""
        self._gradient.zero_()
        self._collect()

    def _collect(self) -> None:
        """Take in gradients that the program has put elsewhere than in our views."""
        for parameter, part in zip(self._parameters, self._slices, strict=True):
            view = self._gradient[part].view(parameter.shape)
            if parameter.grad is None:
                view.zero_()
            elif parameter.grad.data_ptr() != view.data_ptr():
                view.copy_(parameter.grad)
            parameter.grad = view

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Push the gradient, pull the fleet's updates.

        Raises `GradientError`, with nothing changed, if it is not finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.stopped:
            return loss
        self._collect()
        group = self.param_groups[0]
        self.accumulator.accumulate(_as_array(self._gradient), group['lr'], group['momentum'],
                                    group['weight_decay'])
        self.iteration = self._link.exchange() or 0
        return loss


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


def flatten(model: torch.nn.Module) -> np.ndarray:
    """Trainable parameters of a model as one flat float32 array on the host, in model order."""
    return torch.cat([p.detach().reshape(-1).cpu() for _, p in trainable(model)]).numpy()


def unflatten(model: torch.nn.Module, weights: np.ndarray) -> None:
    """Store a flat float32 array in the trainable parameters of a model."""
    parts = torch.from_numpy(np.asarray(weights)).split([p.numel() for _, p in trainable(model)])
    with torch.no_grad():
        for (_, parameter), part in zip(trainable(model), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
