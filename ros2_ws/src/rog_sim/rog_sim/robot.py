"""One robot of the virtual-time fleet: its machine, its model, its data, its energy."""

from __future__ import annotations

import math
from concurrent.futures import Executor, Future
from dataclasses import asdict
from typing import Any

import torch
from fleet_env.fleet import FleetConfig, RobotConfig
from fleet_env.power import EnergyMeter
from fleet_env.recorder import RobotReport
from fleet_env.stragglers import Stragglers
from rog_core.accumulator import Accumulator
from rog_core.errors import ConfigError
from rog_core.flat import FlatModel, as_array
from rog_core.gradient import GradientSource
from rog_core.messages import Chunk, Compute
from rog_core.worker import WorkerMachine
from rog_tasks.robot_data import RobotData
from rog_tasks.task import Task

EVALUATIONS = 40  # of a robot in a run, at most


class Robot:
    """Computes real gradients; how long that takes is the fleet file's word."""

    def __init__(self, config: RobotConfig, rank: int, fleet: FleetConfig, task: Task,
                 model: torch.nn.Module, traffic: float, incarnation: int) -> None:
        training = fleet.training
        self.name, self.training, self.task, self.model = config.name, training, task, model
        self._traffic = traffic
        self._pace, self._codec_pace = config.pace / config.capacity, config.codec_pace
        if self._pace + self._codec_pace <= 0:
            raise ConfigError(f'{config.name} computes a gradient in 0 s; virtual time needs '
                              'training.pace, the seconds that it takes on the robot')
        self._flat = FlatModel(model)
        self.store = Accumulator(self._flat.partition(training.granularity, training.codec),
                                 as_array(self._flat.weights))
        self.machine = WorkerMachine(config.name, incarnation, self.store, training.codec,
                                     max_chunk=fleet.network.chunk_bytes, traffic=traffic,
                                     chunk_time=fleet.network.chunk_time)
        self._source = GradientSource(model, self._flat, self.store,
                                      RobotData(task, rank, len(fleet.robots)))
        self._stragglers = Stragglers(config.stragglers, fleet.seed, rank)
        self.silent_until = 0.0  # it has dropped out, and is not heard
        self._meter = EnergyMeter(config.power, 0.0)
        self.loss = self.accuracy = math.nan
        self.evaluated_at = 0
        self._evaluate_from, self._evaluate_interval = 0.0, 60 * fleet.minutes / EVALUATIONS
        self._job: Future | None = None

    def start(self, pool: Executor, order: Compute, evaluate: bool) -> None:
        """Begin to compute a gradient on the model as it is now, and to measure it."""
        self._job = pool.submit(self._compute, order, self.machine.finished if evaluate else 0)

    def compute_time(self, order: Compute, now: float) -> float:
        """Seconds until the gradient is there, of a robot as fast and as reliable as this one."""
        pause = self._stragglers.next()
        if pause.silent:
            self.silent_until = now + pause.seconds
        return self._source.batches(order) * self._pace + self._codec_pace + pause.seconds

    def finish(self) -> None:
        """See that what was begun is done; whatever changes the model comes after it."""
        if self._job is not None:
            job, self._job = self._job, None
            self.loss = job.result()  # here, not beside the loop: heartbeats tell it

    def before(self, message: Any) -> None:
        """Rows that come while a gradient is computed on them wait until it is there."""
        if self._job is not None and isinstance(message, Chunk) \
                and self.store.model is self.store.weights:
            self.finish()

    def _compute(self, order: Compute, evaluate_as: int) -> float:
        if evaluate_as:
            self.evaluate(evaluate_as)
        loss = self._source.compute(order)
        self.store.check(as_array(self._flat.gradient))
        return loss

    def accumulate(self) -> None:
        """Put the last gradient in the accumulator."""
        training = self.training
        self.machine.accumulate(as_array(self._flat.gradient), training.learning_rate,
                                training.momentum, training.weight_decay, training.nesterov)

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
        for name in ('bytes_sent', 'bytes_received'):  # on the air
            known[name] = round(known[name] * self._traffic)
        return RobotReport(self.name, self.machine.incarnation, loss=self.loss,
                           accuracy=self.accuracy, evaluated_at=self.evaluated_at,
                           link_rate=link_rate, power=self._meter.power(now),
                           energy=self._meter.energy(now), **known)
