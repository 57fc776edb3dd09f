"""One robot of a fleet in virtual time: its state machine, model, data and energy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from fleet_env.emulated.stragglers import Stragglers
from fleet_env.power.energy import EnergyMeter
from fleet_env.records.run_recorder import RobotReport
from fleet_env.settings.fleet import FleetConfig, RobotConfig
from rog_core.errors import GradientError, RogError
from rog_core.protocol.config import SgdConfig, TransferConfig
from rog_core.protocol.messages import Action, Chunk, Compute
from rog_core.worker.computation import computation_of
from rog_core.worker.learner import Learner
from rog_core.worker.worker import Worker
from rog_tasks.errors import TaskError
from rog_tasks.failure import named_failures
from rog_tasks.robot_data import RobotData
from rog_tasks.task import Task, measure

from .processes import GradientProcesses, Result

EVALUATIONS = 40  # largest number of evaluations of a robot in a run


class Robot:
    """A robot that computes real gradients; the fleet file gives their duration in virtual time."""

    def __init__(self, config: RobotConfig, fleet: FleetConfig, task: Task,
                 model: torch.nn.Module, traffic: float, incarnation: int) -> None:
        training = fleet.training
        self.name, self.training, self.task, self.model = config.name, training, task, model
        self.place = 0  # index of this robot's function in `GradientProcesses`
        rank, world = fleet.share(config.name)
        self._pace, self._codec_pace = config.pace / config.capacity, config.codec_pace
        self._learner = Learner(model, config.name, incarnation, TransferConfig.of(fleet, traffic),
                                RobotData(task, rank, world), shared=True)
        self.machine, self.store = self._learner.machine, self._learner.store
        assert self._learner.source is not None
        self._source, self._sgd = self._learner.source, SgdConfig.of(fleet)
        self._stragglers = Stragglers(config.stragglers, fleet.seed, rank)
        # virtual time, in seconds, until which the robot sends nothing because it has dropped out
        self.dropped_until = 0.0
        self._meter = EnergyMeter(config.power, 0.0)
        self.loss = self.accuracy = math.nan
        self.evaluated_at = 0
        self._evaluate_from, self._evaluate_interval = 0.0, 60 * fleet.minutes / EVALUATIONS
        self._job: Result | None = None
        # why this robot cannot go on, with the iteration; empty: it can
        self.failure = ''
        self.error: RogError | TaskError | None = None  # the error behind `failure`
        self.left = False  # whether the robot has left the fleet because of `failure`
        self._sent_anchor: Any = None  # the SVRG anchor that was last sent to the robot's process
        self._iteration = 0   # iteration of the last gradient that was ordered
        self._evaluating = 0  # iteration whose model is being evaluated; 0 if no evaluation runs

    def start(self, processes: GradientProcesses, order: Compute, evaluate: bool) -> None:
        """Start to compute a gradient; if ``evaluate``, also start to evaluate the model."""
        self._evaluating = self.machine.finished if evaluate else 0
        anchor = self.store.anchor
        new, self._sent_anchor = (() if anchor is self._sent_anchor else (anchor,)), anchor
        self._iteration = order.iteration
        self._job = processes.submit(self.place, order, new, bool(self._evaluating),
                                     self._is_grown)

    def compute_time(self, order: Compute, now: float) -> float:
        """Return the virtual seconds that this robot takes to compute the gradient.

        The time includes a pause if the robot is a straggler (`Stragglers`).
        """
        pause = self._stragglers.next()
        if pause.drops_out:
            self.dropped_until = now + pause.seconds
        batches = computation_of(order.step).batches(self._source)
        return batches * self._pace + self._codec_pace + pause.seconds

    def finish(self) -> None:
        """Wait for the running gradient computation, and store its results.

        The model must not change until the computation ends. If the task has failed, or the
        gradient is not finite, store the reason in `failure`.
        """
        if self._job is not None:
            job, self._job = self._job, None
            try:
                self.loss, accuracy, self.machine.switched = job()
            except (GradientError, TaskError) as error:
                self.failure, self.error = f'iteration {self._iteration}: {error}', error
                return
            if any(k >= len(self.store.partition.parameters) for k in self.machine.switched) \
                    and not self._learner.flat.grown:
                self._learner.flat.grow(copy=False)  # the process has stored the values
            if self._evaluating:
                self.accuracy, self.evaluated_at = accuracy, self._evaluating

    def take_final(self, master: np.ndarray) -> None:
        """Receive the fleet's final model, flat float32, without loss and at once."""
        if len(master) > len(self.store.weights):
            self.machine.grow()
        self.store.weights[:] = master

    def leave(self, now: float) -> None:
        """Leave the fleet, as the node of a robot does when it cannot go on."""
        self.left = True
        self.machine.leave(now)

    def before(self, message: Any) -> None:
        """Wait for the running gradient computation if ``message`` changes the model."""
        if self._job is not None and isinstance(message, Chunk) \
                and self.store.model is self.store.weights:
            self.finish()

    @property
    def _is_grown(self) -> bool:
        return self._learner.flat.grown

    def work(self, order: Compute | None, anchor: tuple[Any, ...], evaluate: bool,
             is_grown: bool = False, portrait: bool = False) -> Any:
        """Evaluate the model, then compute a gradient; return (loss, accuracy, switched).

        ``switched``: see `FlatModel.switched`.

        This method runs in another process, which shares only the model and the gradient with the
        event loop.

        :param order: gradient to compute; None: no gradient, and the loss is NaN.
        :param anchor: tuple with the new anchor of SVRG (model and full gradient of the last full
            pass), which is not in shared memory; empty if the anchor has not changed.
        :param evaluate: whether to evaluate the model; if not, the accuracy is NaN.
        :param is_grown: whether the event loop has called `FlatModel.grow`.
        :param portrait: if True, only return the task's outputs for figures.
        """
        flat = self._learner.flat
        if is_grown:
            flat.grow(copy=False)
        flat.load()
        if portrait:
            return self.task.portrait(self.model)
        try:
            with named_failures(self.task, besides=(RogError,)):
                accuracy = measure(self.task, self.model) if evaluate else math.nan
                if order is None:
                    return math.nan, accuracy, flat.switched
                if anchor:
                    self.store.anchor, = anchor
                loss = self._source.compute(order, self._sgd)
        # Convert the error, because a SystemExit would look as if the user had ended the run.
        except SystemExit as error:
            raise TaskError(f'the task called sys.exit({error})') from error
        self._learner.gradient()  # raises an error if the gradient is not finite
        return loss, accuracy, flat.switched

    def computed(self, now: float) -> list[Action]:
        """Pass the computed gradient to the robot's state machine; return the machine's actions.

        If there is none, or it is not finite, return no actions; see `failure`.
        """
        self.finish()
        if self.failure:
            return []
        return self.machine.on_gradient(self._learner.result, self._sgd, now)

    def evaluation_due(self, now: float) -> bool:
        """Return whether to evaluate the model now.

        The fleet file gives the iterations between two evaluations. A robot makes at most
        `EVALUATIONS` evaluations in a run, because an hour of virtual time has many iterations.
        """
        every = self.training.evaluate_every
        due = bool(every) and self.machine.finished - self.evaluated_at >= every \
            and now >= self._evaluate_from
        if due:
            self._evaluate_from = now + self._evaluate_interval
        return due

    def evaluate(self, processes: GradientProcesses, finished: int) -> None:
        """Evaluate the robot's present model; ``finished`` is the number of finished iterations."""
        _, self.accuracy, _ = processes.submit(self.place, None, (), True, self._is_grown)()
        self.evaluated_at = finished

    def portrait(self, processes: GradientProcesses) -> Mapping[str, np.ndarray]:
        """Return the task's outputs for figures; the process that trains this robot makes them."""
        return processes.submit(self.place, None, (), False, self._is_grown, True)()

    def settle(self, now: float) -> None:
        """Update the energy meter with the present activity of the robot."""
        self._meter.enter(self.machine.activity, now)

    def report(self, now: float, link_rate: float, state: str = '') -> RobotReport:
        """Return the robot's status; ``link_rate`` in Mbit/s."""
        return RobotReport(self.name, self.machine.incarnation, loss=self.loss,
                           accuracy=self.accuracy, evaluated_at=self.evaluated_at,
                           link_rate=link_rate, power=self._meter.power(now),
                           energy=self._meter.energy(now),
                           **on_the_air(self.machine, now, state))


def on_the_air(machine: Worker, now: float, state: str = '') -> dict[str, Any]:
    """Return a worker's report, with its numbers of bytes multiplied by `TransferConfig.traffic`.

    :param state: state in the report; if empty, the report has the state of ``machine``.
    """
    known = dict(vars(machine.report(now)))
    known['state'] = state or known['state']
    for name in ('bytes_sent', 'bytes_received'):
        known[name] = round(known[name] * machine.config.traffic)
    return known
