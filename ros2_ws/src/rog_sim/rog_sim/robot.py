"""One robot of the virtual-time fleet: its machine, its model, its data, its energy."""

from __future__ import annotations

import math
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

import torch
from fleet_env.fleet import FleetConfig, RobotConfig
from fleet_env.power import EnergyMeter
from fleet_env.recorder import RobotReport
from fleet_env.stragglers import Stragglers
from rog_core.config import SgdConfig, TransferConfig
from rog_core.errors import ConfigError
from rog_core.learner import Learner
from rog_core.messages import Action, Chunk, Compute
from rog_tasks.robot_data import RobotData
from rog_tasks.task import Task, measure

from .beside import Beside

EVALUATIONS = 40  # of a robot in a run, at most


class Robot:
    """Computes real gradients; how long that takes is the fleet file's word."""

    def __init__(self, config: RobotConfig, rank: int, fleet: FleetConfig, task: Task,
                 model: torch.nn.Module, traffic: float, incarnation: int) -> None:
        training = fleet.training
        self.name, self.training, self.task, self.model = config.name, training, task, model
        self._traffic, self._rank = traffic, rank
        self._pace, self._codec_pace = config.pace / config.capacity, config.codec_pace
        if self._pace + self._codec_pace <= 0:
            raise ConfigError(f'{config.name} computes a gradient in 0 s; virtual time needs '
                              'training.pace, the seconds that it takes on the robot')
        self._learner = Learner(model, config.name, incarnation, TransferConfig.of(fleet, traffic),
                                RobotData(task, rank, len(fleet.robots)), shared=True)
        self.machine, self.store = self._learner.machine, self._learner.store
        assert self._learner.source is not None
        self._source, self._sgd = self._learner.source, SgdConfig.of(fleet)
        self._stragglers = Stragglers(config.stragglers, fleet.seed, rank)
        self.silent_until = 0.0  # it has dropped out, and is not heard
        self._meter = EnergyMeter(config.power, 0.0)
        self.loss = self.accuracy = math.nan
        self.evaluated_at = 0
        self._evaluate_from, self._evaluate_interval = 0.0, 60 * fleet.minutes / EVALUATIONS
        self._job: Future | None = None
        self._evaluating = 0  # iteration that the model is measured as meanwhile, 0: it is not

    def start(self, beside: Beside, order: Compute, evaluate: bool) -> None:
        """Begin to compute a gradient on the model as it is now, and to measure it."""
        self._evaluating = self.machine.finished if evaluate else 0
        self._job = beside.submit(self._rank, order, self.store.anchor, bool(self._evaluating))

    def compute_time(self, order: Compute, now: float) -> float:
        """Seconds until the gradient is there, of a robot as fast and as reliable as this one."""
        pause = self._stragglers.next()
        if pause.silent:
            self.silent_until = now + pause.seconds
        return order.step.batches(self._source) * self._pace + self._codec_pace + pause.seconds

    def finish(self) -> None:
        """See that what was begun is done; whatever changes the model comes after it."""
        if self._job is not None:
            job, self._job = self._job, None
            self.loss, accuracy = job.result()
            if self._evaluating:
                self.accuracy, self.evaluated_at = accuracy, self._evaluating

    def before(self, message: Any) -> None:
        """Rows that come while a gradient is computed on them wait until it is there."""
        if self._job is not None and isinstance(message, Chunk) \
                and self.store.model is self.store.weights:
            self.finish()

    def work(self, order: Compute | None, anchor: Any, evaluate: bool) -> tuple[float, float]:
        """Compute a gradient, if any, and measure the model before; returns loss and accuracy.

        It runs beside the loop, in a process that shares the model and the gradient, and nothing
        else: ``anchor`` is that of the store (SVRG).
        """
        accuracy = measure(self.task, self.model) if evaluate else math.nan
        if order is None:
            return math.nan, accuracy
        self.store.anchor = anchor
        loss = self._source.compute(order, self._sgd)
        self._learner.gradient()  # is finite
        return loss, accuracy

    def computed(self, now: float) -> list[Action]:
        """The gradient is there: hand it in; returns what the machine wants."""
        self.finish()
        return self.machine.on_gradient(self._source.result, self._sgd, now)

    def evaluation_due(self, now: float) -> bool:
        """Whether the model should be measured: as the fleet file says, but not all the time.

        An hour of virtual time has more iterations than anybody looks at.
        """
        every = self.training.evaluate_every
        due = bool(every) and self.machine.finished - self.evaluated_at >= every \
            and now >= self._evaluate_from
        if due:
            self._evaluate_from = now + self._evaluate_interval
        return due

    def evaluate(self, beside: Beside, finished: int) -> None:
        """Measure the model that this robot holds now."""
        _, self.accuracy = beside.submit(self._rank, None, None, True).result()
        self.evaluated_at = finished

    def settle(self, now: float) -> None:
        """Take note of what the robot does from now on, for its energy."""
        self._meter.enter(self.machine.activity, now)

    def report(self, now: float, link_rate: float, state: str = '') -> RobotReport:
        """Return the robot's status; ``link_rate`` in Mbit/s."""
        known = asdict(self.machine.report(now))
        known['state'] = state or known['state']
        for name in ('bytes_sent', 'bytes_received'):  # on the air
            known[name] = round(known[name] * self._traffic)
        return RobotReport(self.name, self.machine.incarnation, loss=self.loss,
                           accuracy=self.accuracy, evaluated_at=self.evaluated_at,
                           link_rate=link_rate, power=self._meter.power(now),
                           energy=self._meter.energy(now), **known)
