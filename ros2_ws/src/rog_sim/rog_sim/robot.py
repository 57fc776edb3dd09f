"""One robot of the virtual-time fleet: its machine, its model, its data, its energy."""

from __future__ import annotations

import math
from dataclasses import asdict

import torch
from fleet_env.fleet import FleetConfig, RobotConfig
from fleet_env.power import EnergyMeter
from fleet_env.recorder import RobotReport
from rog_core.accumulator import Accumulator
from rog_core.backend import get_backend
from rog_core.errors import ConfigError
from rog_core.flat import FlatModel, as_array
from rog_core.worker import COMPUTING, WorkerMachine
from rog_tasks.task import Task


class Robot:
    """Computes real gradients; how long that takes is the fleet file's word."""

    def __init__(self, config: RobotConfig, rank: int, fleet: FleetConfig, task: Task,
                 model: torch.nn.Module, traffic: float, incarnation: int) -> None:
        training = fleet.training
        self.name, self.training, self.task, self.model = config.name, training, task, model
        self.compute_time = config.pace + config.codec_pace
        if self.compute_time <= 0:
            raise ConfigError(f'{config.name} computes a gradient in 0 s; virtual time needs '
                              'training.pace, the seconds that it takes on the robot')
        self._flat = FlatModel(model)
        self.store = Accumulator(self._flat.partition(training.granularity, training.codec),
                                 get_backend('numpy'), as_array(self._flat.weights))
        self.machine = WorkerMachine(config.name, incarnation, self.store, training.codec,
                                     max_chunk=fleet.network.chunk_bytes, traffic=traffic)
        self._batches = iter(task.batches(rank, len(fleet.robots)))
        self._meter = EnergyMeter(config.power, 0.0)
        self.loss = self.accuracy = math.nan
        self.evaluated_at = 0

    def compute(self) -> None:
        """Compute the gradient of the next batch on the model as it is now."""
        self._flat.zero_grad()
        loss = self.task.loss(self.model, next(self._batches))
        loss.backward()
        self.loss = float(loss.detach())
        self._flat.collect()
        self.store.check(as_array(self._flat.gradient))

    def accumulate(self) -> None:
        """Put the last gradient in the accumulator."""
        training = self.training
        self.store.accumulate(as_array(self._flat.gradient), training.learning_rate,
                              training.momentum, training.weight_decay)

    def evaluate_if_due(self) -> None:
        """Measure the model where the fleet file wants it, as the worker node does."""
        finished = self.machine.iteration - (self.machine.state == COMPUTING)
        every = self.training.evaluate_every
        if every and finished - self.evaluated_at >= every:
            self.evaluate(finished)

    def evaluate(self, finished: int) -> None:
        """Measure the model that this robot holds now."""
        self.model.eval()
        with torch.no_grad():
            self.accuracy, self.evaluated_at = float(self.task.evaluate(self.model)), finished
        self.model.train()

    def settle(self, now: float) -> None:
        """Take note of what the robot does from now on, for its energy."""
        self._meter.enter(self.machine.activity, now)

    def report(self, now: float, link_rate: float, state: str = '') -> RobotReport:
        """Return the robot's status; ``link_rate`` in Mbit/s."""
        known = asdict(self.machine.report(now))
        known['state'] = state or known['state']
        return RobotReport(self.name, self.machine.incarnation, loss=self.loss,
                           accuracy=self.accuracy, evaluated_at=self.evaluated_at,
                           link_rate=link_rate, power=self._meter.power(now),
                           energy=self._meter.energy(now), **known)
