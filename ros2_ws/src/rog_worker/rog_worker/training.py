"""The robot's node, which trains the task that its settings name, on a separate thread."""

from __future__ import annotations

import threading
import time

from fleet_env.emulated.stragglers import Stragglers
from fleet_models.local import Share
from fleet_ros.device import torch_device
from fleet_ros.ending import CLEANUP
from rog_core.errors import GradientError, RogError
from rog_core.protocol.config import SgdConfig, TransferConfig
from rog_core.worker.optimizer import RogOptimizer
from rog_ros.parameters import WorkerSettings
from rog_tasks.errors import SourceClosed, TaskError
from rog_tasks.failure import failure
from rog_tasks.robot_data import RobotData
from rog_tasks.task import load_task, measure

from .node import WorkerNode
from .sources import Watch


class Training:
    """A robot's task and the task's model, which `run` trains."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings, training = settings, settings.training
        self.task = load_task(training.task, training.task_options, settings.seed,
                              training.batch_size)
        self.data = RobotData(self.task, settings.rank, settings.world)
        self.model = self.task.model().to(torch_device(training.device))

    def run(self, node: WorkerNode, stop: threading.Event) -> None:
        """Train with the fleet of ``node`` until the run is over or ``stop`` is set."""
        settings, training = self.settings, self.settings.training
        try:
            for source in self.task.sources:
                # A robot without data does not join yet, so that no other robot waits for it.
                source.wait()
        except SourceClosed:
            return
        optimizer = RogOptimizer(
            self.model, node, robot=node.robot, incarnation=node.incarnation,
            config=TransferConfig.of(settings), sgd=SgdConfig.of(settings), data=self.data)
        stragglers = Stragglers(settings.stragglers, settings.seed, settings.rank)
        evaluated = 0
        share = Share(node.get_namespace(), training.task, self.model)
        while not (optimizer.stopped or stop.is_set()):
            began = time.monotonic()
            finished = optimizer.iteration - 1
            if training.evaluate_every and finished - evaluated >= training.evaluate_every:
                node.evaluation = finished, measure(self.task, self.model)
                evaluated = finished
            least = optimizer.batches * training.pace / settings.capacity
            try:
                node.loss = optimizer.compute()
            except SourceClosed:
                break
            stop.wait(max(least - (time.monotonic() - began), 0.0))
            pause = stragglers.next()
            node.pause(pause)
            stop.wait(pause.seconds)
            try:
                optimizer.step()
            except GradientError as error:
                raise GradientError(f'iteration {finished + 1}: {error}') from error
            share.offer(finished + 1, time.monotonic())
            if share.error:
                node.get_logger().warning(share.error, throttle_duration_sec=60.0)
        if not node.error and not stop.is_set():
            finished = node.machine.iteration if node.machine else 0
            node.evaluation = finished, measure(self.task, self.model)


class RobotNode(WorkerNode):
    """The node of a robot. It trains on a thread of its own, from its first activation on."""

    # set when the training is over; None: the node is not configured
    _finished: threading.Event | None = None
    _cleaning = False                          # whether a cleanup has ended the training

    def configure(self) -> None:
        """Load the task and its model."""
        super().configure()
        self.stop, self._finished, self._cleaning = threading.Event(), threading.Event(), False
        training = Training(self.settings)
        self.watch(Watch(self, training.task.sources))
        self._thread = threading.Thread(target=self._train, args=(training, self._finished),
                                        name='training', daemon=True)

    def activate(self) -> None:
        """Begin to train, or continue after a pause."""
        if self._cleaning:
            raise RogError('a cleanup has ended the training and is not over; clean up again')
        super().activate()
        if self._thread.ident is None:
            self._thread.start()

    def cleanup(self) -> None:
        """End the training; raise `RogError` if a gradient takes longer than `CLEANUP` seconds."""
        self._cleaning = True
        self.leave()
        if self._thread.ident is not None:
            self._thread.join(CLEANUP)
            if self._thread.is_alive():
                raise RogError(f'a gradient is still being computed after {CLEANUP:g} s; try again')

    @property
    def has_trained(self) -> bool:
        """Whether the training has ended for another reason than a cleanup."""
        return self._finished is not None and self._finished.is_set() and not self._cleaning

    def leave(self, error: str = '') -> None:
        """Leave the fleet now, and end the training; drop the gradient that is being computed."""
        self.stop.set()
        super().leave(error)

    def _forget(self) -> None:
        self.stop.set()
        self._finished = None
        super()._forget()

    def _train(self, training: Training, finished: threading.Event) -> None:
        try:
            training.run(self, self.stop)
        except (RogError, TaskError) as error:
            self.error = str(error)
        except BaseException as error:  # includes the SystemExit of a task
            self.error = failure(training.task, error)
            # After `stop` is set, do not raise: the removal of the node may have caused the error.
            if not self.stop.is_set():
                raise
        finally:
            finished.set()
