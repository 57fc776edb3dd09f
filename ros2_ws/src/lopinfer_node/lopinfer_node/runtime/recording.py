"""Record the times at which one side computes and sends, to compare them with an estimate.

The estimate is a `timeline.Timeline`. The file has one JSON object per line:

- `side`: 0 is the device (the robot), 1 the server.
- `run`: number of the inference on this side.
- `what`: `compute` for the step at `index`, or `send` or `receive` for the transfer at `index`.
- `start` and `end`: seconds of the machine's monotonic clock. Two processes on one machine share
  this clock. So a transfer lasts from its `send` in one file to its `receive` in the other file.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from .execution import AnyProgram, AnyRun, AnyStep
from .wire import Buffer


class Recording:
    """Appends lines to the file at ``path``; any thread may call its methods.

    If a line cannot be written, for example because the disk is full, the recording ends with a
    warning. The inferences go on.
    """

    def __init__(self, path: Path) -> None:
        self._file: TextIO | None = path.open('a', buffering=1)
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
            if self._file is None:
                return
            try:
                self._file.write(line + '\n')
            except OSError as error:
                warnings.warn(f'the recording {self._file.name} ends: {error.strerror}',
                              stacklevel=2)
                with suppress(OSError):
                    self._file.close()   # closing writes again what could not be written
                self._file = None


class RecordedProgram:
    """A program whose runs are recorded."""

    def __init__(self, program: AnyProgram, side: int, recording: Recording) -> None:
        self.program, self.side, self.recording = program, side, recording

    @property
    def steps(self) -> Sequence[AnyStep]:
        """Return the steps of the program."""
        return self.program.steps

    def start(self, inputs: Any) -> AnyRun:
        """Begin an inference."""
        return _RecordedRun(self.program.start(inputs), self.side, self.recording)


class _RecordedRun:
    """A run that writes a line to the file for each computation and transfer."""

    def __init__(self, run: AnyRun, side: int, recording: Recording) -> None:
        self.outputs, self.finish_alone = run.outputs, run.finish_alone
        self._run, self._side, self._recording = run, side, recording
        self._number = recording.next_run()

    def compute(self, position: int) -> None:
        start = time.monotonic()
        self._run.compute(position)
        self._recording.note(self._side, self._number, 'compute', position, start)

    def piece(self, transfer: int) -> Buffer:
        start = time.monotonic()
        data = self._run.piece(transfer)
        self._recording.note(self._side, self._number, 'send', transfer, start)
        return data

    def deliver(self, transfer: int, data: Buffer) -> None:
        start = time.monotonic()
        self._run.deliver(transfer, data)
        self._recording.note(self._side, self._number, 'receive', transfer, start)


def recorded(program: AnyProgram, side: int, recording: Recording | None) -> AnyProgram:
    """Return ``program`` with a recording of its runs.

    If ``recording`` is None, return ``program`` unchanged.
    """
    return program if recording is None else RecordedProgram(program, side, recording)
