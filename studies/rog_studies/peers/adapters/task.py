"""The task of the study for a peer's program: network, data, optimiser, pace, and a journal.

This module needs only PyTorch and numpy, because this suite is not installed in the environment of
a peer. The study writes the files that this module reads. So every peer starts with the same
weights. The robot with number I gets the same batches, in the same order, in each of the programs.
The folder of a run holds

    data/task.json      the settings, see `Settings`
    data/weights.npz    name of the parameter -> its first value
    data/shardI.npz     images and labels of robot I
    data/test.npz       spoilt test images, and their labels
    journals/NAME.jsonl lines that `Journal` has written; NAME is ``server`` or the name of a robot
    snapshots/NAME/     models that `Journal.snapshot` has written
    work/NAME/          working directory of a process; keeps its files when the process is killed

The study evaluates the snapshots after the run, so a peer needs no time for the evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, interpolate, max_pool2d

SERVER = 'server'


@dataclass(frozen=True)
class Settings:
    """The settings of a run, the same for all peers.

    ``model``: key of `MODELS`. ``seeds``: a seed for the batches of each robot. ``fog``,
    ``brightness``: how strongly images are spoilt. ``pace``: minimum duration of a gradient, in
    seconds. ``local_steps``: for methods that exchange models, the number of gradients between
    two exchanges. ``snapshot_s``: minimum time between two snapshots, in seconds.
    """

    model: str
    channels: int
    classes: int
    batch_size: int
    learning_rate: float
    momentum: float
    pace: float
    fog: float
    brightness: float
    local_steps: int
    snapshot_s: float
    seeds: list[int]


def arguments(options: tuple[tuple[str, dict], ...] = ()) -> argparse.Namespace:
    """Return the arguments of an adapter.

    :param options: the adapter's own options, each as (name, keywords of `add_argument`).
    """
    parser = argparse.ArgumentParser()
    parser.add_argument('--role', choices=('server', 'robot'), required=True)
    parser.add_argument('--robot', type=int, default=0, help='number of the robot, from 0')
    parser.add_argument('--robots', type=int, required=True)
    parser.add_argument('--server', required=True, help='address of the server')
    parser.add_argument('--folder', type=Path, required=True, help='folder of the run')
    parser.add_argument('--minutes', type=float, required=True)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--again', action='store_true', help='it was killed and started again')
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    found = parser.parse_args()
    found.name = SERVER if found.role == 'server' else f'robot{found.robot + 1}'
    return found


def own_address(server: str) -> str:
    """Return this machine's address on the network that leads to the server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server, 9))  # this call sends nothing, so the port does not matter
        address: str = probe.getsockname()[0]
        return address


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays to an .npz file; an old file stays until the new one is complete."""
    part = path.with_suffix('.part')
    with part.open('wb') as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    part.replace(path)


class Task:
    """The network, data and loss that a robot trains.

    :param folder: folder of the run.
    :param robot: number of the robot, from 0.
    """

    def __init__(self, folder: Path, robot: int = 0) -> None:
        self._data, self._robot = Path(folder) / 'data', robot
        self.settings = Settings(**json.loads((self._data / 'task.json').read_text()))

    def model(self) -> nn.Module:
        """Return the network with the weights from which every peer starts."""
        model = MODELS[self.settings.model](self.settings.channels, self.settings.classes)
        with np.load(self._data / 'weights.npz') as weights:
            model.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights})
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return SGD with Nesterov momentum."""
        return torch.optim.SGD(model.parameters(), self.settings.learning_rate,
                               self.settings.momentum, nesterov=True)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross entropy of a batch."""
        images, labels = batch
        return cross_entropy(model(images), labels)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the robot's batches, endlessly: (images (B, C, H, W) from 0 to 1, labels (B,))."""
        images, labels = _images(self._data / f'shard{self._robot}.npz')
        generator = torch.Generator().manual_seed(self.settings.seeds[self._robot])
        waiting = torch.empty(0, dtype=torch.int64)
        while True:
            while len(waiting) < self.settings.batch_size:
                order = torch.randperm(len(labels), generator=generator)
                waiting = torch.cat((waiting, order))
            chosen = waiting[:self.settings.batch_size]
            waiting = waiting[self.settings.batch_size:]
            yield self._spoilt(_as_float(images[chosen]), generator), labels[chosen]

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of the spoilt test images that the model recognises.

        Images are spoilt by fog and by a change of brightness.
        """
        images, labels = _images(self._data / 'test.npz')
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(part).argmax(1) == truth).sum()) for part, truth in
                        zip(images.split(64), labels.split(64), strict=True))
        model.train()
        return right / len(labels)

    def _spoilt(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return brightened images in fog; the density of the fog varies over each image."""
        coarse = torch.rand(len(images), 1, 3, 3, generator=generator)
        field = interpolate(coarse, size=images.shape[-2:], mode='bilinear', align_corners=True)
        density = self.settings.fog * (0.5 + 0.5 * field)
        return (images * (1 - density) + density + self.settings.brightness).clamp(0, 1)


def _images(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file['images']), torch.from_numpy(file['labels'])


def _as_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


class Journal:
    """Writes the records of a run: lines of JSON in ``journals``, models in ``snapshots``.

    Every line has ``t`` (the machine's monotonic clock, in seconds), ``pid`` (the process) and
    ``kind``:

        start     the process has begun
        batch     ``samples`` were trained in ``compute_s`` seconds
        version   the shared model has reached ``version``, a number that rises
        note      ``text``, for people

    A process that starts again continues the same file.

    :param folder: folder of the run.
    :param name: ``server`` or name of a robot.
    :param settings: settings of the task.
    """

    def __init__(self, folder: Path, name: str, settings: Settings) -> None:
        self._settings = settings
        self._snapshots = Path(folder) / 'snapshots' / name
        self._snapshots.mkdir(parents=True, exist_ok=True)
        path = Path(folder) / 'journals' / f'{name}.jsonl'
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open('ab', buffering=0)
        self._next_snapshot = 0.0
        self._write('start')

    @contextmanager
    def computing(self, samples: int) -> Iterator[None]:
        """Return a context for computing a batch; the context lasts at least ``pace`` seconds.

        When the context ends, it records the batch.
        """
        began = time.monotonic()
        yield
        time.sleep(max(began + self._settings.pace - time.monotonic(), 0.0))
        self.batch(samples, time.monotonic() - began)

    def batch(self, samples: int, compute_s: float) -> None:
        """Record that ``samples`` were trained in ``compute_s`` seconds of computing."""
        self._write('batch', samples=samples, compute_s=round(compute_s, 4))

    def version(self, version: int) -> None:
        """Record that the shared model has reached a new version."""
        self._write('version', version=version)

    def note(self, text: str) -> None:
        """Record a text for people."""
        self._write('note', text=text)

    def snapshot(self, model: nn.Module | Mapping[str, Tensor] | Mapping[str, np.ndarray]) -> None:
        """Save the shared model, unless the last snapshot is younger than ``snapshot_s``."""
        now = time.monotonic()
        if now < self._next_snapshot:
            return
        self._next_snapshot = now + self._settings.snapshot_s
        tensors = dict(model.named_parameters()) if isinstance(model, nn.Module) else model
        save(self._snapshots / f'{now:.3f}.npz', {
            name: values.detach().cpu().numpy() if isinstance(values, Tensor)
            else np.asarray(values) for name, values in tensors.items()})

    def _write(self, kind: str, **fields: object) -> None:
        line = {'t': round(time.monotonic(), 4), 'kind': kind, 'pid': os.getpid(), **fields}
        self._file.write(json.dumps(line).encode() + b'\n')


class DigitNet(nn.Module):
    """A convolutional network for small images: 159,626 parameters for digits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.hidden = nn.Linear(512, 128)
        self.out = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of B images, (B, classes)."""
        x = torch.relu(self.conv1((images - 0.3) / 0.35))
        x = x.contiguous(memory_format=torch.channels_last)  # this layout halves the time on a CPU
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.pool(torch.relu(self.conv3(x)))
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class ConvMlp(nn.Module):
    """A small variant of ConvMLP (Li et al., 2021): 613,642 parameters for ten classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.stage1 = _MlpStage(64, 128)
        self.down = nn.Conv2d(64, 192, 3, stride=2, padding=1)
        self.stage2 = _MlpStage(192, 576)
        self.norm = nn.LayerNorm(192)
        self.out = nn.Linear(192, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of B images, (B, classes)."""
        x = ((images - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = self.stage1(max_pool2d(torch.relu(self.conv2(x)), 2))
        x = self.stage2(self.down(x))
        return self.out(self.norm(x.mean((2, 3))))


class _MlpStage(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.mlp1 = _ChannelMlp(channels, hidden)
        self.norm = nn.LayerNorm(channels)
        self.places = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.mlp2 = _ChannelMlp(channels, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mlp1(x.permute(0, 2, 3, 1))
        x = self.places(self.norm(x).permute(0, 3, 1, 2)) + x.permute(0, 3, 1, 2)
        return self.mlp2(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ChannelMlp(nn.Module):
    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.rise = nn.Linear(channels, hidden)
        self.fall = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.fall(gelu(self.rise(self.norm(x))))


MODELS: dict[str, type] = {'digitnet': DigitNet, 'convmlp': ConvMlp}
