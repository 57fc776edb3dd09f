"""The runs of the study of whole models; `rog_studies.whole_models` puts them together.

Two robots train each model of `rog_studies.ordinary` with four methods and several seeds, in
virtual time, on links that fade. Each run is a process of its own, which is this module as a
program, and so is each measurement in plain PyTorch (`rog_studies.plain`). A run has a directory
with its record, its model, and ``result.json``, written last:

    server    accuracy of the server's model, 0 to 1
    robots    robot -> accuracy of its model when the run ended
    exported  accuracy of the exported file in plain PyTorch, loaded with ``strict=True``
    file      the exported file, relative to the directory
    batches   robot -> number of batches that it had
    push      bytes and rows of the median push, and rows of the model
    buffers   number of elements in the model's buffers
    young     share of their initial values that the running statistics still have, in the layer
              where it is largest; 0 without batch normalisation
    seconds   duration of the run on this machine; cpu_s: computing time of its processes

The training of one machine has ``batches`` (method -> number of batches of each robot),
``accuracies`` (method -> accuracy) and ``seconds``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fleet_env.durable import write_text
from fleet_env.records.events import Iteration, read_run
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import (
    FleetConfig,
    LinkConfig,
    NetworkConfig,
    RobotConfig,
    TrainingConfig,
)
from fleet_env.settings.fleet_file import dump_fleet, read_fleet
from rog_core.errors import ConfigError
from rog_sim.jobs import FLEET_FILE, RunError

from .ordinary import TASKS

RESULT_FILE = 'result.json'
ALONE, BARE = 'alone', 'bare'
PACE = 0.1           # seconds that a gradient takes on a robot
MEAN_RATE = 73e6     # bit/s, mean of the trace `outdoor`
FASTER = 4.0         # on a link with the mean rate, a full push takes a quarter of `PACE`
START = 240.0        # s; after this moment of the record, links are good and fade 3 minutes later
BARE_MINUTES = 0.2


@dataclass(frozen=True)
class Method:
    """A method's settings of `TrainingConfig`; ``steps``: batches of a robot in an iteration."""

    settings: dict[str, Any]
    steps: int = 1


METHODS = {
    'bsp': Method({'sync': 'bsp'}),
    'rsp:20+pipeline+sparse': Method({'sync': 'rsp:20+pipeline+sparse'}),
    'rsp:4+pipeline+sparse+local=8': Method({'sync': 'rsp:4+pipeline+sparse+local=8'}, 8),
    'diloco:8': Method({'sync': 'diloco:8+rate=0.7+momentum=0.5', 'codec': 'e3m0'}, 8)}


@dataclass(frozen=True)
class Trained:
    """How a model is trained.

    ``text``: what the page says about the model. ``chance``: accuracy of a model that has learned
    nothing. ``minutes``: virtual duration of a run.
    """

    text: str
    learning_rate: float
    minutes: float
    chance: float = 0.1
    options: dict[str, Any] = field(default_factory=dict)


MODELS = {
    'mobilenet_v3_small': Trained('torchvision; 34 BatchNorms of momentum 0.01', 0.03, 1.5),
    'resnet18': Trained('torchvision; 20 BatchNorms', 0.004, 0.6),
    'yolo': Trained('a small YOLO: BatchNorm, C3, SPPF, a grid of boxes', 0.004, 2.5, 0.0),
    'vit': Trained("torchvision's VisionTransformer, 3 layers", 0.03, 3.0),
    'lstm': Trained('LSTM that reads a digit row by row', 0.05, 3.0),
    'lora': Trained('frozen transformer with LoRA', 0.01, 3.0),
    'embedding': Trained('EmbeddingBag with sparse gradients', 0.2, 3.0),
    'tied': Trained('GRU language model; input and output share their weights', 0.1, 2.5, 0.18)}
COUNTED = ('mobilenet_v3_small', 'resnet18')   # models of the table of bytes


def fleet_of(model: str, method: str, seed: int, robots: int = 2, minutes: float | None = None,
             **options: Any) -> FleetConfig:
    """Return a fleet that trains ``model``; ``options`` are added to those of the task."""
    from rog_core.model.flat import partition_of_model

    trained, (made, usual) = MODELS[model], TASKS[model]
    rows = partition_of_model(made(**usual).model(), 'row', 'onebit')
    # A push has one bit per element, and a scale of 32 bits per row.
    scale = FASTER * (rows.elements + 32 * rows.rows) / (MEAN_RATE * PACE)
    training = TrainingConfig(
        task=f'{made.__module__}:{made.__name__}', task_options={**usual, **options}, pace=PACE,
        batch_size=16, learning_rate=trained.learning_rate, evaluate_every=0,
        **METHODS[method].settings)
    link = LinkConfig(trace='outdoor', scale=scale)
    return FleetConfig(
        name='whole-models', seed=seed, training=training, link=link,
        minutes=minutes or trained.minutes,
        network=NetworkConfig(chunk_time=0.03), robots=tuple(
            RobotConfig(name=f'robot{rank + 1}', pace=PACE,
                        link=changed(link, offset=START + 60.0 * rank + 30.0 * seed))
            for rank in range(robots)))


def run_fleet(fleet: FleetConfig, out: Path, steps: int = 1) -> dict[str, Any]:
    """Run a fleet in this process; return its result without ``exported``.

    :param steps: see `Method`.
    """
    import torch
    from rog_core.model.flat import unflatten
    from rog_sim.simulation import Simulation
    from rog_tasks.task import load_task, measure

    began = time.monotonic()
    torch.set_num_threads(1)
    training = fleet.training
    task = load_task(training.task, training.task_options, fleet.seed, training.batch_size)
    simulation = Simulation(fleet, out, keep_model=True)
    summary = simulation.run(lambda done: None)
    model = task.model()
    unflatten(model, simulation.server.master)
    batches = {name: steps * robot.iterations for name, robot in summary.robots.items()}
    pushes = [event for event in read_run(out) if isinstance(event, Iteration)]
    return {
        'server': measure(task, model),
        'robots': {name: robot.accuracy.after for name, robot in summary.robots.items()},
        'file': 'models/latest/model.safetensors',
        'batches': batches,
        'push': {'bytes': statistics.median(push.bytes_sent for push in pushes),
                 'rows': statistics.median(push.rows_pushed for push in pushes),
                 'rows_total': pushes[0].rows_total},
        'buffers': sum(buffer.numel() for buffer in model.buffers()),
        'young': young(model, min(batches.values())), 'seconds': time.monotonic() - began,
        'cpu_s': sum(os.times()[:4])}


def young(model: Any, batches: int) -> float:
    """Return the share of the initial values in the running statistics after ``batches``."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return max(((1 - (module.momentum or 1.0)) ** batches for module in model.modules()
                if isinstance(module, _BatchNorm) and module.track_running_stats), default=0.0)


def measure_plain(fleet: FleetConfig, file: Path) -> float:
    """Return the accuracy of a file in plain PyTorch, measured by another process."""
    return _plain(fleet, file=str(file.absolute()))['accuracy']


def train_plain(fleet: FleetConfig, batches: Sequence[Sequence[int]]) -> list[float]:
    """Train on one machine, in another process; see `rog_studies.plain.train`."""
    training = fleet.training
    return _plain(fleet, train={
        'batches': batches, 'learning_rate': training.learning_rate, 'momentum': training.momentum,
        'nesterov': training.nesterov})['accuracies']


def _plain(fleet: FleetConfig, **asked: Any) -> dict[str, Any]:
    training = fleet.training
    return json.loads(_process('rog_studies.plain', [], json.dumps({
        'task': training.task.partition(':')[2], 'options': training.task_options,
        'seed': fleet.seed, 'batch_size': training.batch_size, **asked})))


def _process(module: str, arguments: Sequence[str], text: str = '') -> str:
    """Run a module as a program, with one thread; return the last line of its output."""
    done = subprocess.run([sys.executable, '-m', module, *arguments], input=text, text=True,
                          capture_output=True, env={**os.environ, 'OMP_NUM_THREADS': '1'})
    if done.returncode:
        error = done.stderr.strip().splitlines()[-1:] or ['no message']
        raise RunError(f'{module} {" ".join(arguments)} failed: {error[0]}')
    return done.stdout.strip().splitlines()[-1]


@dataclass(frozen=True, eq=False)
class Run:
    """A run of the study, with its place."""

    model: str
    method: str
    seed: int
    directory: Path
    fleet: FleetConfig

    def result(self) -> dict[str, Any] | None:
        """Return the run's result; None if it has not finished, or had other settings."""
        try:
            kept = read_fleet(self.directory / FLEET_FILE)
            result = json.loads((self.directory / RESULT_FILE).read_text())
        except (OSError, ValueError):
            return None
        return result if dump_fleet(kept) == dump_fleet(self.fleet) else None

    def do(self) -> str:
        """Run in other processes, and write the result; return it as text."""
        shutil.rmtree(self.directory, ignore_errors=True)  # what an interrupted run has left
        self.directory.mkdir(parents=True)
        path = self.directory / FLEET_FILE
        write_text(path, dump_fleet(self.fleet))
        steps = 1 if self.method == BARE else METHODS[self.method].steps
        result = json.loads(_process('rog_studies.whole_runs', [str(path), str(steps)]))
        result['exported'] = measure_plain(self.fleet, self.directory / result['file'])
        write_text(self.directory / RESULT_FILE, json.dumps(result, indent=2) + '\n')
        robots = ', '.join(f'{100 * value:.1f}' for value in result['robots'].values())
        return f'{self.model}, {self.method}: server {100 * result["server"]:.1f} %, robots ' \
            f'{robots} %, exported {100 * result["exported"]:.1f} %, {result["seconds"]:.0f} s'


def runs_of(out: Path, models: Sequence[str], methods: Sequence[str], seeds: int) -> list[Run]:
    """Return the runs of fleets, those of one seed of all models first.

    :raises ConfigError: a model or a method is unknown.
    """
    for kind, names, known in (('model', models, MODELS), ('method', methods, METHODS)):
        for name in names:
            if name not in known:
                raise ConfigError(f'{name!r} is no {kind} of study whole_models; it has '
                                  f'{", ".join(known)}')
    found = [Run(model, method, seed, place_of(out, model, method, seed),
                 fleet_of(model, method, seed))
             for seed in range(1, seeds + 1) for model in models for method in methods]
    return found + [Run(model, BARE, 1, place_of(out, model, BARE, 1),
                        fleet_of(model, 'bsp', 1, minutes=BARE_MINUTES, statistics=False))
                    for model in models if model in COUNTED and 'bsp' in methods]


def folder(method: str) -> str:
    """Return the name of a method's folder."""
    return method.replace(':', '-')


def place_of(out: Path, model: str, method: str, seed: int) -> Path:
    """Return the directory of a run."""
    return out / model / folder(method) / f'seed{seed}'


def train_alone(out: Path, runs: Sequence[Run], results: Mapping[Run, dict[str, Any]]) -> str:
    """Train on one machine with the batches of the runs of a model and seed; return a text."""
    model = runs[0].model
    path = place_of(out, model, ALONE, runs[0].seed) / RESULT_FILE
    batches = {run.method: list(results[run]['batches'].values()) for run in runs}
    if path.exists() and json.loads(path.read_text())['batches'] == batches:
        return f'{model}, {ALONE}: kept'
    began = time.monotonic()
    accuracies = train_plain(runs[0].fleet, list(batches.values()))
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {'batches': batches, 'accuracies': dict(zip(batches, accuracies, strict=True)),
             'seconds': time.monotonic() - began}
    write_text(path, json.dumps(found, indent=2) + '\n')
    return f'{model}, {ALONE}: {", ".join(f"{100 * a:.1f}" for a in accuracies)} %, ' \
        f'{found["seconds"]:.0f} s'


def main() -> None:
    """Do the run of a fleet file, and print its result; the second argument is `Method.steps`."""
    path = Path(sys.argv[1])
    print(json.dumps(run_fleet(read_fleet(path), path.parent, int(sys.argv[2]))))


if __name__ == '__main__':
    main()
