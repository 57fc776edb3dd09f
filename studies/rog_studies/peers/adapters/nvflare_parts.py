"""The parts of the jobs of `nvflare`: FedBuff's server and site, and a watcher of FedAvg.

FedBuff follows NVFlare's example collab/pt_async_cifar10 as of pull request 5239, with FLARE's
Collab API. A few updates together make the next version of the model. A site never waits for
another site: as soon as the site has finished an update, it gets the newest version and
trains this version. Each update is weighted by its number of steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.model import ModelLearnableKey
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.collab import CollabCallError, collab
from torch import Tensor, nn

from .task import SERVER, Journal, Task

SHARE = 2  # a new model needs (number of sites) / SHARE updates; NVFlare's example: 4 with 8 sites
CALL = 600.0    # seconds that a site may take for an update, including transfers
PAUSE = 1.0     # seconds before the server again asks a site that has failed
SAVED = 'FL_global_model.pt'
Model = dict[str, Tensor]


class Watch(FLComponent):
    """Writes each round of FLARE's workflow ScatterAndGather into the journal, and saves snapshots.

    :param folder: folder of the run.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self._journal: Journal | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Begin the journal at the start of the run; write a line at the end of each round."""
        if event_type == EventType.START_RUN:
            self._journal = Journal(Path(self.folder), SERVER, Task(Path(self.folder)).settings)
        elif event_type == AppEventType.ROUND_DONE and self._journal is not None:
            self._journal.version(fl_ctx.get_prop(AppConstants.CURRENT_ROUND) + 1)
            self._journal.snapshot(
                fl_ctx.get_prop(AppConstants.GLOBAL_MODEL)[ModelLearnableKey.WEIGHTS])


class Server:
    """Makes new versions of the model from the updates of the sites.

    :param folder: folder of the run; ``weights``: file with the first weights.
    """

    def __init__(self, folder: str, weights: str) -> None:
        self.folder, self.weights = folder, weights

    @collab.main
    def serve(self) -> None:
        """Ask all sites for updates, and make versions from them, until the job ends."""
        journal = Journal(Path(self.folder), SERVER, Task(Path(self.folder)).settings)
        model: Model = torch.load(self.weights, weights_only=True)
        place = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())) / SAVED
        clients = list(collab.clients)
        size, version = max(len(clients) // SHARE, 1), 0
        buffer: list[tuple[int, Model]] = []
        with ThreadPoolExecutor(len(clients)) as pool:
            running: dict[Future, Any] = {pool.submit(_ask, client, version, model): (client, model)
                                          for client in clients}
            while not collab.is_aborted:
                done, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    client, base = running.pop(future)
                    pause = 0.0
                    try:
                        trained, steps, begun = future.result()
                        print(f'update {len(buffer) + 1} of {size} for version {version + 1}: '
                              f'{client.name}, from version {begun}', flush=True)
                        buffer.append((steps, {key: trained[key] - base[key] for key in base}))
                    except CollabCallError as error:
                        print(f'{client.name} failed: {error}', flush=True)
                        pause = PAUSE
                    if len(buffer) == size:
                        version, model = version + 1, _next(model, buffer)
                        buffer = []
                        journal.version(version)
                        journal.snapshot(model)
                        torch.save(model, f'{place}.part')
                        os.replace(f'{place}.part', place)
                    running[pool.submit(_ask, client, version, model, pause)] = client, model


def _ask(client: Any, version: int, model: Model, pause: float = 0.0) -> tuple[Model, int, int]:
    """Wait ``pause`` seconds, then let a site train a version of the model.

    Returns the trained model, the number of steps, and the number of the version.
    """
    time.sleep(pause)
    trained, steps = client(timeout=CALL).train(model)
    return trained, steps, version


def _next(model: Model, buffer: list[tuple[int, Model]]) -> Model:
    total = sum(steps for steps, _ in buffer)
    return {key: value + sum(steps / total * delta[key] for steps, delta in buffer)
            for key, value in model.items()}


class Site:
    """Trains models on the data of its robot.

    :param folder: folder of the run.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._model: nn.Module
        self._batches: Iterator[tuple[Tensor, Tensor]]

    @collab.init
    def begin(self) -> None:
        """Load the task, the model and the batches of this robot, and begin its journal."""
        torch.set_num_threads(1)
        name = collab.site_name
        self._task = Task(Path(self.folder), int(name.removeprefix('robot')) - 1)
        self._journal = Journal(Path(self.folder), name, self._task.settings)
        self._model, self._batches = self._task.model(), self._task.batches()

    @collab.publish
    def train(self, model: Model) -> tuple[Model, int]:
        """Train ``model`` on the next batches; return the trained model and the number of steps."""
        self._model.load_state_dict(model)
        optimizer, steps = self._task.optimizer(self._model), self._task.settings.local_steps
        for batch in islice(self._batches, steps):
            with self._journal.computing(len(batch[1])):
                optimizer.zero_grad()
                self._task.loss(self._model, batch).backward()
                optimizer.step()
        return {key: value.clone() for key, value in self._model.state_dict().items()}, steps
