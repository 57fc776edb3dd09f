"""The training loop of a robot: batch, loss, gradient, step."""

from __future__ import annotations

import threading
import time
from typing import Any

from fleet_env.stragglers import Stragglers
from fleet_ros.device import torch_device
from rog_core.config import SgdConfig, TransferConfig
from rog_core.optimizer import RogOptimizer
from rog_tasks.errors import SourceClosed
from rog_tasks.robot_data import RobotData
from rog_tasks.task import Task, load_task, measure

from .node import WorkerNode


def train(node: WorkerNode, stop: threading.Event) -> None:
    """Train the node's task until the run is over or ``stop`` is set."""
    settings = node.settings
    training = settings.training
    task = load_task(training.task, training.task_options, settings.seed, training.batch_size)
    data = RobotData(task, settings.rank, settings.world)
    node.watch(task.sources)
    try:
        for source in task.sources:
            source.wait()  # a robot that sees nothing yet does not join, and nobody waits for it
    except SourceClosed:
        return
    model = task.model().to(torch_device(training.device))
    optimizer = RogOptimizer(
        model, node, robot=node.robot, incarnation=node.incarnation,
        config=TransferConfig.of(settings), sgd=SgdConfig.of(settings),
        data=data)
    stragglers = Stragglers(settings.stragglers, settings.seed, settings.rank)
    evaluated = 0
    while not (optimizer.stopped or stop.is_set()):
        began = time.monotonic()
        finished = optimizer.iteration - 1
        if training.evaluate_every and finished - evaluated >= training.evaluate_every:
            evaluate(node, task, model, finished)
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
        optimizer.step()
    if not node.error and not stop.is_set():
        evaluate(node, task, model, node.machine.iteration if node.machine else 0)


def evaluate(node: WorkerNode, task: Task, model: Any, iteration: int) -> None:
    """Evaluate the model that this robot holds now."""
    node.accuracy, node.evaluated_at = measure(task, model), iteration
