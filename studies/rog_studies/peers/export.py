"""Writes the files that `adapters.task` reads: settings, first weights, shards, test images."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rog_core.errors import ConfigError
from rog_tasks.data import LOADERS
from rog_tasks.image_data import as_float
from rog_tasks.shards import partition
from rog_tasks.shift import Shift
from rog_tasks.task import load_task, prepare

from .adapters.task import Settings

CRUDA = 'rog_tasks.cruda:Cruda'
FOG, BRIGHTNESS = 0.5, 0.12   # the default values with which `rog_tasks.cruda` spoils images
TEST = 1000                   # maximum number of test images, taken at equal intervals
SNAPSHOTS = 80  # maximum number of snapshots in a run, for each process that has a model
PRETRAIN_SEED = 0             # every run begins with the same model


@dataclass(frozen=True)
class Trained:
    """The task that the study trains.

    ``data``, ``data_options``, ``model``, ``pretrain_epochs``: options of `rog_tasks.cruda.Cruda`.
    ``targets``: three accuracies, 0 to 1; the study reports when a run reaches them.
    ``local_steps``: see `Settings`.
    """

    name: str
    data: str
    data_options: dict[str, Any]
    model: str
    pretrain_epochs: int
    batch_size: int
    learning_rate: float
    pace: float
    local_steps: int
    targets: tuple[float, float, float]


DIGITS = Trained("scikit-learn's digits", 'digits', {'seed': PRETRAIN_SEED}, 'digitnet', 12, 24,
                 0.002, 0.2, 10, (0.8, 0.9, 0.95))


def cifar10(data: Path | None) -> Trained:
    """Return the task of `rog_tasks.cruda` (recognise spoilt images) on the images of CIFAR-10.

    The settings are those of `rog_studies.rivals`.

    :param data: directory that holds ``cifar10``.
    :raises ConfigError: ``data`` does not hold ``cifar10``.
    """
    if data is None or not (data / 'cifar10').is_dir():
        raise ConfigError(f'--data must name the directory that holds cifar10 and traces, got '
                          f'{data or "none"}; --quick needs none')
    options = {'root': str((data / 'cifar10').absolute()), 'size': 32}
    return Trained('CIFAR-10', 'image_folder', options, 'convmlp', 6, 8, 0.001, 0.92, 30,
                   (0.6, 0.65, 0.7))


def export(task: Trained, robots: int, seed: int, minutes: float, place: Path) -> Path:
    """Write the files of the task, for all runs with this seed, into ``place``; return ``place``.

    If ``place`` already has the files, write nothing.
    """
    settings = Settings(
        model=task.model, channels=0, classes=0, batch_size=task.batch_size,
        learning_rate=task.learning_rate, momentum=0.9, pace=task.pace, fog=FOG,
        brightness=BRIGHTNESS, local_steps=task.local_steps,
        snapshot_s=max(60 * minutes / SNAPSHOTS, 1.0),
        seeds=[int(n) for n in np.random.SeedSequence(seed).generate_state(robots)])
    if (place / 'task.json').exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    data = LOADERS[task.data](**task.data_options)
    settings = dataclasses.replace(settings, channels=data.train_images.shape[1],
                                   classes=data.classes)
    start = load_task(CRUDA, {
        'data': task.data, 'data_options': task.data_options, 'model': task.model,
        'pretrain_epochs': task.pretrain_epochs, 'pretrain_seed': PRETRAIN_SEED}, PRETRAIN_SEED)
    model = start.model()
    prepare(start, model)
    np.savez(place / 'weights.npz', **{name: p.detach().numpy()  # type: ignore[arg-type]
                                       for name, p in model.named_parameters()})
    labels = data.train_labels.numpy()
    for robot, shard in enumerate(partition(labels, robots, 'iid', seed, data.train_images)):
        np.savez(place / f'shard{robot}.npz', images=data.train_images[shard].numpy(),
                 labels=labels[shard])
    count = len(data.test_labels)
    chosen = torch.arange(min(TEST, count)) * count // min(TEST, count)
    spoilt = Shift(FOG, BRIGHTNESS)(as_float(data.test_images[chosen]),
                                    torch.Generator().manual_seed(PRETRAIN_SEED))
    np.savez(place / 'test.npz', images=spoilt.numpy(), labels=data.test_labels[chosen].numpy())
    (place / 'task.json').write_text(json.dumps(dataclasses.asdict(settings), indent=1) + '\n')
    return place
