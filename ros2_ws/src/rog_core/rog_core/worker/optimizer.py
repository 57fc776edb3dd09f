"""RogOptimizer: a PyTorch optimizer whose model is trained by the whole fleet.

Source: ROG, Section V. `step()` accumulates and pushes the gradient, pulls rows and applies them.
`step()` returns when the synchronisation method permits this worker to compute the next iteration.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Protocol

import torch

from ..arrays import Array
from ..errors import ConfigError, LocalProtocolError
from ..protocol.config import SgdConfig, TransferConfig
from ..protocol.messages import Compute
from ..protocol.steps import Gradient
from .computation import computation_of
from .gradient import Data
from .learner import Learner
from .worker import Worker

# PyTorch's function without the wrapper that imports torch._dynamo at its first call. The import
# takes more than a second of each robot's processor.
_add_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class Link(Protocol):
    """Runs a worker's state machine and transports its messages, as the ROS 2 node does."""

    def join(self, machine: Worker) -> Compute | None:
        """Start the machine; return the first order to compute, or None if the run is over."""

    def exchange(self, gradient: Array, sgd: SgdConfig) -> Compute | None:
        """Push a gradient; return the next order to compute, or None if the run is over.

        ``gradient`` and ``sgd``: see `Worker.on_gradient`.
        """


class RogOptimizer(torch.optim.Optimizer):
    """SGD with momentum; the robots of the fleet share gradients and weights.

    ``model``: its parameters that require a gradient must be on one device. Those of float32 become
    views of one flat tensor. ``sgd`` is copied to ``param_groups``, so learning rate schedules
    work. ``incarnation``: random 64-bit identity of this process. After `step`, ``iteration`` is
    the next iteration to compute; ``stopped`` says whether the run is over.

    Some methods (coded gradients, SVRG, local steps) choose the batches and steps to compute. With
    these methods, a program must pass its ``data`` and call `compute` instead of ``backward``.
    """

    def __init__(self, model: torch.nn.Module, link: Link, *, robot: str, incarnation: int,
                 config: TransferConfig, sgd: SgdConfig, data: Data | None = None) -> None:
        sgd.check()
        self._learner = Learner(model, robot, incarnation, config, data)
        super().__init__([p for _, p in self._learner.flat.named],
                         {'lr': sgd.learning_rate, 'momentum': sgd.momentum,
                          'weight_decay': sgd.weight_decay, 'nesterov': sgd.nesterov})
        self.machine, self.accumulator = self._learner.machine, self._learner.store
        self._link = link
        self._order = link.join(self.machine)
        self._learner.load()

    @property
    def iteration(self) -> int:
        """Iteration to compute next; 0 means that the run is over."""
        return self._order.iteration if self._order else 0

    @property
    def stopped(self) -> bool:
        """Whether the run is over. Then the model is final, and further steps do nothing."""
        return self._order is None

    @property
    def batches(self) -> int:
        """Number of batch gradients that the next `compute` evaluates."""
        source = self._learner.source
        if source is None or self._order is None:
            return 1
        return computation_of(self._order.step).batches(source)

    @property
    def sgd(self) -> SgdConfig:
        """Learning rate, momentum and weight decay as ``param_groups`` have them now."""
        group = self.param_groups[0]
        sgd = SgdConfig(group['lr'], group['momentum'], group['weight_decay'], group['nesterov'])
        sgd.check()
        return sgd

    def add_param_group(self, param_group: Any) -> None:
        """Train parameters that were frozen when the optimizer was made, from the next step on.

        ``param_group``: as in PyTorch. All groups have the learning rate, momentum and weight
        decay of the first one, and the parameters must be the model's. Setting ``requires_grad``
        of a frozen parameter has the same effect, without a group.
        """
        if not self.param_groups:  # the constructor adds the group of the trained parameters
            _add_group(self, param_group)
            return
        given = dict(param_group)
        added = given['params']
        added = [added] if isinstance(added, torch.Tensor) else list(added)
        known = {id(p) for _, p in self._learner.flat.contents.frozen}
        if not all(id(p) in known for p in added):
            raise ConfigError('a group of a fleet\'s optimizer must consist of parameters that '
                              'the model had, frozen, when the optimizer was made; make new layers '
                              'before the optimizer')
        first = self.param_groups[0]
        for name, value in given.items():
            if name != 'params' and first.get(name, value) != value:
                raise ConfigError(f'{name} of a new group must be that of the first group, '
                                  f'{first[name]}, got {value}')
        for parameter in added:
            parameter.requires_grad_(True)
        _add_group(self, {**given, 'params': added})

    def compute(self) -> float:
        """Compute the gradient that the method orders, from ``data``; return the loss."""
        source = self._learner.source
        if source is None:
            raise LocalProtocolError('compute() needs data; give it to the optimizer')
        return source.compute(self._order, self.sgd) if self._order else math.nan

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to zero in place, so that they remain views; ignore ``set_to_none``."""
        self._learner.flat.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Push the gradient, wait for the other robots, and pull the fleet's updates.

        If the gradient is not finite, raises `GradientError` and leaves the model unchanged.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.stopped:
            return loss
        assert self._order is not None
        if self._learner.source is None and not isinstance(self._order.step, Gradient):
            raise ConfigError(f"the fleet's method, '{self.machine.sync}', chooses the batches of "
                              'a step; give the optimizer data and call compute()')
        self._order = self._link.exchange(self._learner.gradient(), self.sgd)
        self._learner.load()
        return loss
