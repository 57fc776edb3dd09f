"""Record the times at which one side computes and sends, to compare them with an estimate.

The estimate is a `timeline.Timeline`. The file has one JSON object per line:

- `side`: 0 is the device (the robot), 1 the server.
- `run`: number of the inference on this side.
- `what`: `compute` for the step at `index`, or `send` or `receive` for the transfer at `index`.
- `start` and `end`: seconds of the machine's monotonic clock. Two processes on one machine share
  this clock. So a transfer lasts from its `send` in one file to its `receive` in the other file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .execution import AnyProgram, AnyRun, AnyStep, Form
from .wire import Buffer

_log = logging.getLogger(__name__)


class Recording:
    """Appends lines to the file at ``path``; any thread may call its methods.

    If the file cannot be written any more, such as on a full disk, the recording logs one warning
    and ends; inferences continue. The file then has whole lines only.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open('ab', buffering=0)
        self._lock = threading.Lock()
        self._runs = 0

    def next_run(self) -> int:
        """Return the number of a new inference."""
        with self._lock:
            self._runs += 1
            return self._runs

    def note(self, side: int, run: int, what: str, index: int, start: float) -> None:
        """Write a line for an event that began at ``start`` and ends now."""
        line = json.dumps({'side': side, 'run': run, 'what': what, 'index': index, 'start': start,
                           'end': time.monotonic()})
        with self._lock:
            if not self._file.closed:
                self._append(line.encode() + b'\n')

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError as error:
            _log.warning('the recording %s ends here: %s', self._file.name, error.strerror)
            with contextlib.suppress(OSError):   # OSError: a pipe or a device
                self._file.truncate(self._file.tell() - written)
            with contextlib.suppress(OSError):   # such as a network file system that is full
                self._file.close()


class RecordedProgram:
    """A program whose runs are recorded."""

    def __init__(self, program: AnyProgram, side: int, recording: Recording) -> None:
        self.program, self.side, self.recording = program, side, recording

    @property
    def steps(self) -> Sequence[AnyStep]:
        """Return the steps of the program."""
        return self.program.steps

    @property
    def forms(self) -> Sequence[Form]:
        """Return what each transfer of the plan consists of."""
        return self.program.forms

    def start(self, inputs: Any) -> AnyRun:
        """Begin an inference."""
        return _RecordedRun(self.program.start(inputs), self.side, self.recording)

    def compute_together(self, runs: Sequence[Any], steps: range) -> bool:
        """Return False: a recording has the steps of each run."""
        return False


class _RecordedRun:
    """A run that writes a line to the file for each computation and transfer."""

    def __init__(self, run: AnyRun, side: int, recording: Recording) -> None:
        self.outputs, self.finish_alone = run.outputs, run.finish_alone
        self._run, self._side, self._recording = run, side, recording
        self._number = recording.next_run()

    def compute(self, steps: range) -> None:
        for position in steps:
            start = time.monotonic()
            self._run.compute(range(position, position + 1))
            self._recording.note(self._side, self._number, 'compute', position, start)

    def piece(self, transfer: int) -> Buffer:
        start = time.monotonic()
        data = self._run.piece(transfer)
        self._recording.note(self._side, self._number, 'send', transfer, start)
        return data

    def form(self, transfer: int) -> Form:
        return self._run.form(transfer)

    def deliver(self, transfer: int, data: Buffer) -> None:
        start = time.monotonic()
        self._run.deliver(transfer, data)
        self._recording.note(self._side, self._number, 'receive', transfer, start)


def recorded(program: AnyProgram, side: int, recording: Recording | None) -> AnyProgram:
    """Return ``program`` with a recording of its runs.

    If ``recording`` is None, return ``program`` unchanged.
    """
    return program if recording is None else RecordedProgram(program, side, recording)
