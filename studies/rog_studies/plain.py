"""What plain PyTorch makes of a model: it loads what a fleet has exported, or trains alone.

Nothing here knows fleets. As a program, it reads one JSON object from its input and prints one; it
fails if anything of the fleets' code was loaded, so its results are those of plain PyTorch:

    {"task": CLASS, "options": {...}, "seed": 1, "file": "model.safetensors"}
    {"accuracy": 0.97}
    {"task": CLASS, "options": {...}, "seed": 1, "train": {"batches": [[80, 80], [95, 93]], ...}}
    {"accuracies": [0.95, 0.96]}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from . import ordinary
from .ordinary import Ordinary

FLEETS = ('rog_core', 'rog_sim', 'rog_worker', 'rog_ps', 'rclpy')


def task_of(name: str, options: dict[str, Any], seed: int) -> Ordinary:
    """Return the task whose class in `rog_studies.ordinary` is called ``name``."""
    made: type[Ordinary] = getattr(ordinary, name)
    return made(**options, seed=seed)


@torch.no_grad()
def accuracy_of(task: Ordinary, model: torch.nn.Module) -> float:
    """Return the task's accuracy of a model in evaluation mode; the model's mode stays."""
    training = model.training
    accuracy = task.evaluate(model.eval())
    model.train(training)
    return accuracy


def loaded(task: Ordinary, file: Path) -> torch.nn.Module:
    """Return a new model with the tensors of ``file``, which must be exactly those of the model."""
    model = task.model()
    model.load_state_dict(load_file(file), strict=True)
    return model


def train(task: Ordinary, counts: Sequence[Sequence[int]], learning_rate: float, momentum: float,
          nesterov: bool) -> list[float]:
    """Train one model with the batches that the robots of several runs had; return accuracies.

    A step is one of SGD on the mean gradient of one batch of every robot. A robot that had fewer
    batches than another one has none in the last steps. Runs differ only in the number of steps,
    so all of them are one training, and the accuracy of a run is measured where it ends. (In the
    last steps, the run with the most batches decides which robots take part.)

    :param counts: for each run, the number of batches of each robot.
    """
    model = task.model().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad],
                                lr=learning_rate, momentum=momentum, nesterov=nesterov)
    world = len(counts[0])
    most = [max(run[rank] for run in counts) for rank in range(world)]
    data = [task.batches(rank, world) for rank in range(world)]
    ends = [max(run) for run in counts]
    measured = {}
    for step in range(1, max(ends) + 1):
        present = [rank for rank in range(world) if step <= most[rank]]
        for rank in present:
            (task.loss(model, next(data[rank])) / len(present)).backward()
        # SGD with momentum refuses sparse gradients
        for parameter in model.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        optimizer.step()
        optimizer.zero_grad()
        if step in ends:
            measured[step] = accuracy_of(task, model)
    return [measured[end] for end in ends]


def main() -> None:
    """Answer the request on standard input; the module's docstring has the format."""
    torch.set_num_threads(1)
    asked = json.load(sys.stdin)
    task = task_of(asked['task'], asked['options'], asked['seed'])
    task.batch_size = asked.get('batch_size', task.batch_size)
    if 'file' in asked:
        answer: dict[str, Any] = {
            'accuracy': accuracy_of(task, loaded(task, Path(asked['file'])))}
    else:
        given = asked['train']
        answer = {'accuracies': train(task, given['batches'], given['learning_rate'],
                                      given['momentum'], given['nesterov'])}
    there = [name for name in FLEETS if name in sys.modules]
    if there:
        raise RuntimeError(f'{", ".join(there)} was loaded; this must be plain PyTorch')
    print(json.dumps(answer))


if __name__ == '__main__':
    main()
