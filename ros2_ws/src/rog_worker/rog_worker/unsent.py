"""Saves a robot's pending rows and momentum on its disk: `robots/NAME` in the run's directory.

The saves have the format of `fleet_env.durable`. A separate thread writes them, because writing
to a memory card takes long and the robot's heartbeat must continue.
"""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.durable import Kept, Save, hold
from fleet_env.errors import DurableError
from rog_core.model.partition import RowPartition
from rog_core.worker.machine import WorkerMachine
from rog_core.worker.unsent import Unsent
from safetensors import SafetensorError
from safetensors.numpy import load, save

SCHEMA = 'rog-unsent/1'
KEEP = 2    # number of saves to keep: if the newest is damaged, the older one is used
REST = 10   # least pause after a save, in multiples of the time that the save took


class Keeper:
    """Saves the pending rows of a robot, and finds those that a former process has saved.

    :param out: directory of the run; empty: save nothing and find nothing.
    :param robot: name of the robot.
    :param every: seconds between two saves; 0: save only in `finish`.
    :raises DurableError: another process of this robot still writes there, or writing fails.
    """

    def __init__(self, out: str, robot: str, every: float, logger: Any) -> None:
        self._robot, self._log = robot, logger
        self._every = every or math.inf
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        self._due = time.monotonic() + self._every
        self._saved: object = None
        self._failed = self._told = False
        self._store: Kept | None = None
        self._lock: int | None = None
        if out:
            folder = Path(out) / 'robots' / robot
            self._lock = hold(folder / 'lock', f'process of {robot}')
            self._store = Kept(folder, 'unsent', '.safetensors', KEEP)
            # A full disk is not an error here: a later save reports it, and the training goes on.
            self._store.tidy()

    def give(self, machine: WorkerMachine) -> None:
        """Give a machine that has not started the pending rows that a former process has saved."""
        former = self.former(machine.partition)
        if former is not None:
            machine.take_over(former)

    def former(self, partition: RowPartition) -> Unsent | None:
        """Return the pending rows that a former process saved last; log it if they are damaged.

        Return None if there is no save, or if no save can be used.
        """
        if self._store is None:
            return None
        try:
            found = self._store.newest()
            for skipped in self._store.skipped:
                self._log.warning(f'{skipped}; the save before it is used')
            return None if found is None else read(found, self._robot, partition)
        except DurableError as error:
            self._log.warning(f'what a former process had not sent is lost: {error}')
            return None

    def look(self, machine: WorkerMachine, now: float) -> None:
        """Save if a save is due, preferably between two pushes.

        After a save during a push, the server may still take some of the saved rows. So a due save
        waits for the end of a push, but at most ``every`` seconds.
        """
        if now < self._due + (self._every if machine.push is not None else 0.0):
            return
        if self._writing is None or self._writing.done():
            self._begin(machine)

    def finish(self, machine: WorkerMachine) -> None:
        """Save for the last time."""
        self._due = math.inf
        self._begin(machine)

    def _begin(self, machine: WorkerMachine) -> None:
        version = machine.incarnation, machine.unsent_version
        if self._store is None or version == self._saved:
            return
        unsent, self._saved = machine.unsent(), version
        if unsent is None and not (machine.command.step.additive or self._told):
            self._told = True
            self._log.info(f'what is not sent is not kept: with {machine.sync} it is of no use in '
                           'another round')
        if unsent is not None:
            self._writing = self._thread.submit(self._write, self._store, unsent,
                                                machine.partition)

    def _write(self, store: Kept, unsent: Unsent, partition: RowPartition) -> None:
        began = time.monotonic()
        try:
            store.write(
                save({'pending': unsent.pending, 'momentum': unsent.momentum}),
                {'schema': SCHEMA, 'robot': self._robot, 'model': partition.digest,
                 'incarnation': unsent.incarnation, 'attempt': unsent.attempt})
            self._failed = False
        except DurableError as error:
            if not self._failed:
                self._log.warning(f'what is not sent is not saved: {error}')
            self._failed, self._saved = True, None
        now = time.monotonic()
        if math.isfinite(self._due):
            self._due = now + max(self._every, REST * (now - began))

    def close(self) -> None:
        """Wait until the running write ends, then let other processes write there."""
        self._thread.shutdown()
        if self._lock is not None:
            os.close(self._lock)


def read(found: Save, robot: str, partition: RowPartition) -> Unsent:
    """Return the pending rows in a save.

    :raises DurableError: the save is of another robot or model, or is invalid.
    """
    meta = found.meta
    try:
        for name, wanted in (('schema', SCHEMA), ('robot', robot), ('model', partition.digest)):
            if meta[name] != wanted:
                raise ValueError(f'its {name} must be {wanted}, got {meta[name]}')
        arrays = load(found.payload)
        unsent = Unsent(int(meta['incarnation']), int(meta['attempt']), arrays['pending'],
                        arrays['momentum'])
        if not (0 < unsent.incarnation < 2**64 and 0 <= unsent.attempt < 2**32):
            raise ValueError('its numbers are out of range')
        for values in (unsent.pending, unsent.momentum):
            if values.shape != (partition.elements,) or values.dtype != np.float32 \
                    or not np.isfinite(values).all():
                raise ValueError(f'an array of it is {values.dtype} of shape {values.shape}, or '
                                 'not finite')
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise DurableError(f'{found.path} cannot be used: {error}') from error
    return unsent
