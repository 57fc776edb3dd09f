"""The model that this robot's own worker trains, shared in memory with who uses it on the robot.

The worker writes its model to a file in the machine's memory, once an iteration at most, and only
while somebody reads it. The file is whole at any time: a new one takes its place in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from fleet_env.errors import WeightsError
from fleet_env.versions import Version, read_apart, write_apart
from fleet_env.weights import state_bytes

from .fetch import Fetched
from .wire import Announcement

if TYPE_CHECKING:
    from torch import nn

LOCAL = 'local'      # stands for the namespace of a fleet: this robot's own worker
MEMORY = Path('/dev/shm')
WANTED = 'wanted'    # file that a reader touches
FRESH = 5.0          # seconds after which a reader that has not touched it is gone
PERIOD = 0.2         # least seconds between two writes, and between two looks of a reader
TOUCH = 1.0          # seconds between two touches


def shared_folder(robot: str) -> Path:
    """Return the folder in memory of a robot, which only this user can read."""
    domain = os.environ.get('ROS_DOMAIN_ID') or '0'
    return MEMORY / f'rog-{os.getuid()}' / f"{domain}-{robot.strip('/').replace('/', '-')}"


class Share:
    """The worker's side; its thread calls `offer` between two iterations."""

    def __init__(self, robot: str, task: str, model: nn.Module) -> None:
        self._folder, self._task, self._model = shared_folder(robot), task, model
        self._next, self._robot = 0.0, robot
        self.error = ''     # why the model is not shared; '' if it is, or nobody wants it

    def offer(self, iteration: int, now: float) -> None:
        """Write the model if somebody reads it; ``now``: time on the monotonic clock."""
        if now < self._next or not self._is_wanted():
            return
        self._next = now + PERIOD
        try:
            content = state_bytes(self._model)
            version = Version(iteration, 0, '', '', '', iteration,
                              time.strftime('%Y-%m-%dT%H:%M:%S%z'), math.nan, self._task,
                              f"the model of {self._robot}", '',
                              hashlib.sha256(content).hexdigest())
            write_apart(self._folder, version, content)
            self.error = ''
        except (OSError, WeightsError) as error:
            self.error = f'the model is not shared with other processes of this robot: {error}'

    def _is_wanted(self) -> bool:
        try:
            return time.time() - (self._folder / WANTED).stat().st_mtime < FRESH
        except OSError:     # nobody has ever read it
            return False


class LocalReader:
    """The reader's side, in a thread, with the interface of `reader.Reader`."""

    def __init__(self, robot: str, refusal: Callable[[Announcement], str],
                 take: Callable[[Fetched], None]) -> None:
        self._folder, self._refusal, self._take = shared_folder(robot), refusal, take
        self.fetch = SimpleNamespace(newest=None, present=None, refused='', got=0,
                                     know=lambda content: None)
        self.trouble = f'no worker of {robot} has shared a model yet'
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name='local model', daemon=True)
        self._thread.start()

    def say(self) -> None:
        """Do nothing: the worker need not know."""

    def close(self) -> None:
        """End the thread."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        touched, digest = -math.inf, ''
        while not self._closed.wait(PERIOD):
            if time.monotonic() - touched > TOUCH:
                touched = time.monotonic()
                with contextlib.suppress(OSError):
                    self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                    (self._folder / WANTED).touch()
            found = self._read(digest)
            if found is not None:
                digest = found.announcement.version.digest
                self.fetch.newest, self.trouble = found.announcement, ''
                self.fetch.refused = self._refusal(found.announcement)
                if not self.fetch.refused:
                    self._take(found)

    def _read(self, before: str) -> Fetched | None:
        """Return the model if it is another one; None also while the worker replaces it."""
        if (found := read_apart(self._folder, before)) is None:
            return None
        version, content = found
        return Fetched(Announcement(version, len(content), '', 0), content)

