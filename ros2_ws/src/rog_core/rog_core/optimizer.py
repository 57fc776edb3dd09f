"""RogOptimizer: replace a program's optimizer, and its model is trained by the fleet.

Source: ROG, Section V. `step()` accumulates the gradient, pushes, pulls and applies; it returns
once the synchronisation method lets this worker go on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from .accumulator import Accumulator
from .backend import get_backend
from .errors import ConfigError
from .flat import FlatModel, as_array
from .link import CHUNK_TIME
from .worker import WorkerMachine


class Link(Protocol):
    """What carries a worker's messages: the ROS 2 shell, or anything that runs its machine."""

    def join(self, machine: WorkerMachine) -> int | None:
        """Start the machine; return the first iteration to compute, None if the run is over."""

    def exchange(self, accumulate: Callable[[], None]) -> int | None:
        """Share a gradient; return the next iteration, None if the run is over.

        ``accumulate``: see `WorkerMachine.on_gradient`; whoever runs the machine hands it on.
        """


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
                 max_chunk: int = 14000, chunk_time: float = CHUNK_TIME) -> None:
        for name, value in (('lr', lr), ('momentum', momentum), ('weight_decay', weight_decay)):
            if not (np.isfinite(value) and value >= 0):
                raise ConfigError(f'{name} is {value}; it must be a number that is not negative')
        flat = FlatModel(model)
        super().__init__([p for _, p in flat.named],
                         {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay})
        self._flat = flat
        backend = get_backend('numpy' if flat.weights.device.type == 'cpu' else 'cupy')
        self.accumulator = Accumulator(flat.partition(granularity, codec), backend,
                                       as_array(flat.weights))
        self.machine = WorkerMachine(robot, incarnation, self.accumulator, codec, f1, f2, max_chunk,
                                     chunk_time=chunk_time)
        self._link = link
        self.iteration = link.join(self.machine) or 0

    @property
    def stopped(self) -> bool:
        """Whether the run is over: the model is final, further steps do nothing."""
        return self.iteration == 0

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
        self._flat.collect()
        group = self.param_groups[0]
        gradient = as_array(self._flat.gradient)
        self.accumulator.check(gradient)
        self.iteration = self._link.exchange(lambda: self.accumulator.accumulate(
            gradient, group['lr'], group['momentum'], group['weight_decay'])) or 0
        return loss
