"""What a robot does: batch, loss, gradient, step. Reads from top to bottom."""

from __future__ import annotations

import threading
import time

import torch
from rog_core.optimizer import RogOptimizer
from rog_tasks.task import Task, load_task

from .node import WorkerNode


def train(node: WorkerNode, stop: threading.Event) -> None:
    """Train the node's task until the run is over or ``stop`` is set."""
    settings = node.settings
    task = load_task(settings.task, node.task_options, seed=settings.seed,
                     batch_size=settings.batch_size)
    model = task.model().to(settings.device)
    optimizer = RogOptimizer(
        model, node, robot=node.robot, incarnation=node.incarnation, lr=settings.learning_rate,
        momentum=settings.momentum, weight_decay=settings.weight_decay,
        granularity=settings.granularity, codec=settings.codec, f1=settings.importance_magnitude,
        f2=settings.importance_age, max_chunk=settings.chunk_bytes,
        chunk_time=settings.chunk_time)
    batches = iter(task.batches(settings.rank, settings.world))
    evaluated = 0
    while not (optimizer.stopped or stop.is_set()):
        began = time.monotonic()
        finished = optimizer.iteration - 1
        if settings.evaluate_every and finished - evaluated >= settings.evaluate_every:
            evaluate(node, task, model, finished)
            evaluated = finished
        optimizer.zero_grad()
        loss = task.loss(model, next(batches))
        loss.backward()
        node.loss = float(loss.detach())
        stop.wait(max(settings.pace - (time.monotonic() - began), 0.0))
        optimizer.step()
    if not node.error and not stop.is_set():
        evaluate(node, task, model, node.machine.iteration if node.machine else 0)


def evaluate(node: WorkerNode, task: Task, model: torch.nn.Module, iteration: int) -> None:
    """Measure the model that this robot holds now."""
    training = model.training
    model.eval()
    with torch.no_grad():
        node.accuracy, node.evaluated_at = float(task.evaluate(model)), iteration
    model.train(training)
