"""RogOptimizer: replace a program's optimizer, and its model is trained by the fleet.

Source: ROG, Section V. `step()` accumulates the gradient, pushes, pulls and applies; it returns
once the synchronisation method lets this worker go on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from .accumulator import Accumulator
from .errors import ConfigError, LocalProtocolError
from .flat import FlatModel, as_array
from .gradient import Data, GradientSource
from .link import CHUNK_TIME
from .messages import Compute
from .worker import WorkerMachine


class Link(Protocol):
    """What carries a worker's messages: the ROS 2 shell, or anything that runs its machine."""

    def join(self, machine: WorkerMachine) -> Compute | None:
        """Start the machine; return the first gradient to compute, None if the run is over."""

    def exchange(self, accumulate: Callable[[], None]) -> Compute | None:
        """Share a gradient; return the next one to compute, None if the run is over.

        ``accumulate``: see `WorkerMachine.on_gradient`; whoever runs the machine hands it on.
        """


class RogOptimizer(torch.optim.Optimizer):
    """SGD with Nesterov momentum whose gradients and weights are shared by the fleet.

    ``model``: its parameters that require a gradient must be float32 on one device; they become
    views of one flat tensor. ``lr``, ``momentum`` and ``weight_decay`` stand in ``param_groups``,
    so learning rate schedules work. ``incarnation``: random 64-bit identity of this life. After
    `step`, ``iteration`` is the one to compute next; ``stopped`` says that the run is over.

    Coded gradients and SVRG choose what a gradient is computed of: a program that may meet them
    gives its ``data`` and calls `compute` instead of ``backward``.
    """

    def __init__(self, model: torch.nn.Module, link: Link, *, robot: str, incarnation: int,
                 data: Data | None = None, lr: float = 0.05, momentum: float = 0.9,
                 nesterov: bool = True, weight_decay: float = 0.0, granularity: str = 'row',
                 codec: str = 'onebit', f1: float = 1.0, f2: float = 1.0, max_chunk: int = 14000,
                 chunk_time: float = CHUNK_TIME) -> None:
        for name, value in (('lr', lr), ('momentum', momentum), ('weight_decay', weight_decay)):
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f'{name} is {value}; it must be a number that is not negative')
        flat = FlatModel(model)
        super().__init__([p for _, p in flat.named],
                         {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay,
                          'nesterov': nesterov})
        self._flat = flat
        self.accumulator = Accumulator(flat.partition(granularity, codec),
                                       as_array(flat.weights))
        self.machine = WorkerMachine(robot, incarnation, self.accumulator, codec, f1, f2, max_chunk,
                                     chunk_time=chunk_time)
        self._link = link
        self._source = None if data is None else GradientSource(model, flat, self.accumulator, data)
        self._order = link.join(self.machine)

    @property
    def iteration(self) -> int:
        """Iteration to compute next; 0: the run is over."""
        return self._order.iteration if self._order else 0

    @property
    def stopped(self) -> bool:
        """Whether the run is over: the model is final, further steps do nothing."""
        return self._order is None

    @property
    def batches(self) -> int:
        """Gradients of batches that the next `compute` takes."""
        return self._source.batches(self._order) if self._source and self._order else 1

    def compute(self) -> float:
        """Compute the gradient that the method asks for, of ``data``; returns the loss."""
        if self._source is None:
            raise LocalProtocolError('compute() needs data; give it to the optimizer')
        return self._source.compute(self._order) if self._order else math.nan

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero, in place whatever ``set_to_none`` says: they are views."""
        self._flat.zero_grad()

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
        assert self._order is not None
        if self._source is None and (self._order.work is not None or self._order.full):
            raise ConfigError(f"the fleet's method, '{self.machine.method}', chooses what a "
                              'gradient is computed of; give the optimizer data and call compute()')
        self._flat.collect()
        group = self.param_groups[0]
        gradient = as_array(self._flat.gradient)
        self.accumulator.check(gradient)
        self._order = self._link.exchange(lambda: self.machine.accumulate(
            gradient, group['lr'], group['momentum'], group['weight_decay'], group['nesterov']))
        return loss
