"""Our own suite as one of the compared programs.

It runs the processes of `rog fleet up --emulate`, with the task that the peers train.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fleet_emulation.fleet import EmulatedFleet
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig, TrainingConfig
from rog_ps.directory import kept
from rog_tasks.task import Task as RogTask
from safetensors.numpy import load
from torch import Tensor, nn

from .adapters.task import SERVER, Journal, Settings, Task
from .environments import Method
from .world import World

KEEP = 100_000  # number of checkpoints that the server keeps: all, because each becomes a snapshot
FOLDER = 'fleet'  # name of the subfolder of a run's folder that holds the files of the fleet


class PeerTask(RogTask):
    """The task that the peers train; it writes a journal in the same format as the peers.

    :param folder: folder of the run, as for `adapters.task.Task`.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._task = Task(self._folder)
        self._journal: Journal | None = None

    def model(self) -> nn.Module:
        """Return the network with the weights that every program starts with."""
        return self._task.model()

    def batches(self, rank: int, world: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a robot, endlessly; from now on `loss` records every batch."""
        self._journal = Journal(self._folder, f'robot{rank + 1}', self._task.settings)
        return Task(self._folder, rank).batches()

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean cross entropy, and write the batch into the journal.

        The computing time in the journal is `Settings.pace`, because the worker waits until each
        gradient has taken this long.
        """
        if self._journal is not None:
            self._journal.batch(len(batch[1]), self._task.settings.pace)
        return self._task.loss(model, batch)

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of the spoilt test images that the model recognises."""
        return self._task.accuracy(model)


def with_training(fleet: FleetConfig, method: Method, settings: Settings, folder: Path,
                  start_s: float) -> FleetConfig:
    """Return the fleet with the settings of a run.

    :param fleet: robots, links and minutes of the run.
    :param start_s: seconds that the start is allowed to take. The server's own time limit
        is longer than the start and the run together, so that only the study ends a run.
    """
    training = TrainingConfig(
        task='rog_studies.peers.ours:PeerTask', task_options={'folder': str(folder)},
        **vars(method), learning_rate=settings.learning_rate, momentum=settings.momentum,
        batch_size=settings.batch_size, pace=settings.pace, evaluate_every=0)
    return changed(fleet, minutes=2 * fleet.minutes + start_s / 60, training=training, server={
        'checkpoint_every': settings.snapshot_s, 'keep': KEEP},
        robots=tuple(changed(robot, pace=settings.pace) for robot in fleet.robots))


class Ours:
    """The server and the robots of this suite."""

    def __init__(self, world: World) -> None:
        # this import is here because it loads numba, which takes long
        from rog_core.warm_up import warm_up

        warm_up()  # compile the kernels here once; otherwise every process would compile them
        self._folder = world.out
        self._fleet = EmulatedFleet(world.network, world.out / FOLDER, world.names)

    def command(self, name: str, again: bool) -> list[str]:
        """Return the command of a process; ``again``: whether the process was killed before."""
        self._fleet.resume = again and name == SERVER
        return [sys.executable, '-m', *self._fleet.command(name)]

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables of a process."""
        return self._fleet.environment(name)

    def collect(self) -> None:
        """Convert the server's checkpoints into snapshots; write the server's journal.

        The journal has a line for each checkpoint.
        """
        place = self._folder / 'snapshots' / SERVER
        place.mkdir(parents=True, exist_ok=True)
        store = kept(self._folder / FOLDER)
        lines: list[dict[str, Any]] = []
        while (save := store.newest()) is not None:
            t = save.path.stat().st_mtime - time.time() + time.monotonic()
            np.savez(place / f'{t:.3f}.npz', **{  # type: ignore[arg-type]
                name: values for name, values in load(save.content).items()
                if not name.startswith('rog/')})
            lines.insert(0, {'t': round(t, 4), 'kind': 'version', 'pid': os.getpid(),
                             'version': int(save.meta['iteration'])})
            save.path.unlink()
        (self._folder / 'journals').mkdir(exist_ok=True)
        (self._folder / 'journals' / f'{SERVER}.jsonl').write_text(
            ''.join(json.dumps(line) + '\n' for line in lines))

