"""Run records: the events of a run (``run.jsonl``), on robots or in virtual time.

``run.jsonl`` contains one JSON object per line, in the order of writing. Every object has
these fields:

    kind    start, iteration, evaluation, status, fault or stop
    t       seconds since the run began
    robot   name of the robot; empty for the fleet or the server

Further fields depend on the kind: for each kind, a class of the same name defines
them. The metadata of a field gives its unit and meaning. An unknown number is NaN in
Python and ``null`` in the file. One process writes the file, each line by one write. The
schema's version is :data:`SCHEMA`; a reader refuses any other version.
:mod:`fleet_env.records.summary` describes ``summary.json``.
"""

import errno
import fcntl
import hashlib
import io
import json
import math
import os
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from fleet_env.durable import read_file
from fleet_env.errors import RecordError, why_unread

SCHEMA: Literal['rog-run/1'] = 'rog-run/1'
RUN_FILE = 'run.jsonl'
_NAN = float('nan')
# a number that may be unknown: NaN, and null in a file
Number = Annotated[float, BeforeValidator(lambda value: _NAN if value is None else value)]
FIELDS = ConfigDict(extra='forbid')  # how the fields of a file are checked


def _(help: str, unit: str = '', default: Any = ...) -> Any:
    metadata = {'help': help, 'unit': unit}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Event:
    """The fields that every event has."""

    __pydantic_config__: ClassVar[ConfigDict] = FIELDS

    t: Number = _('time since the run began', 's')
    robot: str = _('name of the robot; empty for the fleet or the server')


@dataclass(frozen=True)
class Start(Event):
    """The run, or one robot in it, has begun."""

    task: str = _('class of the task')
    sync: str = _('synchronisation method')
    seed: int = _('seed of all random numbers')
    fleet: str = _('name of the fleet', default='')
    robots: list[str] = field(default_factory=list, metadata={
        'help': 'names of the robots, in order of rank', 'unit': ''})
    wall_time: str = _('date and time of the beginning, ISO 8601; empty in virtual time',
                       default='')
    schema: Literal['rog-run/1'] = _('version of this schema', default=SCHEMA)
    codec: str = _('codec of the fleet', default='')


@dataclass(frozen=True)
class Iteration(Event):
    """One robot has finished one iteration; the durations and amounts are of this iteration."""

    iteration: int = _('iterations finished')
    loss: Number = _('loss of the batch')
    compute_s: Number = _('computing', 's')
    communicate_s: Number = _('pushing and pulling', 's')
    stall_s: Number = _('waiting for others', 's')
    rows_pushed: int = _('rows of the push that the server has applied', default=0)
    rows_pulled: int = _('rows of the pull that the robot has applied', default=0)
    rows_total: int = _('rows of the model', default=0)
    bytes_sent: int = _('payload sent', 'B', default=0)
    bytes_received: int = _('payload received', 'B', default=0)
    staleness: int = _("iterations from the fleet's slowest row to this robot", default=0)
    bandwidth: Number = _('measured throughput', 'Mbit/s', default=_NAN)
    link_rate: Number = _('rate of the emulated link', 'Mbit/s', default=_NAN)
    energy_j: Number = _('electrical energy', 'J', default=_NAN)

    @property
    def rate(self) -> float:
        """Return the rate in Mbit/s of the emulated link or, of a real link, the measured rate."""
        return self.bandwidth if math.isnan(self.link_rate) else self.link_rate


@dataclass(frozen=True)
class Evaluation(Event):
    """A model was evaluated: the model of a robot or, if ``robot`` is empty, of the server."""

    iteration: int = _('iterations finished')
    metric: Number = _('the metric of the task, 0 to 1')
    phase: str = _('clean: before the shift; before: after the shift, not adapted; online: while '
                   'training; after: at the end', default='online')


@dataclass(frozen=True)
class Status(Event):
    """A robot or the server has entered a state, or sends a regular report."""

    state: str = _('joining, computing, pushing, waiting, pulling, away, stopped')
    power: Number = _('electrical power', 'W', default=_NAN)
    energy: Number = _('electrical energy since the start', 'J', default=_NAN)
    detail: str = _('for people, such as the robot that others wait for', default='')


@dataclass(frozen=True)
class Fault(Event):
    """Something went wrong, and the run goes on."""

    what: str = _('a short name: peer_lost, rejoined, retired, returned, given_up, failed, ...')
    detail: str = _('for people: what happened and what was done', default='')


@dataclass(frozen=True)
class Stop(Event):
    """The run, or one robot in it, has ended."""

    reason: str = _('finished, interrupted, failed: and why')
    iterations: int = _('iterations finished', default=0)


EVENTS: dict[str, TypeAdapter[Event]] = {kind.__name__.lower(): TypeAdapter(kind) for kind in (
    Start, Iteration, Evaluation, Status, Fault, Stop)}


class RunWriter:
    """Appends events to ``run.jsonl`` in ``directory``; creates the directory if necessary.

    Removes an incomplete last line, because the next line would continue it.

    :raises RecordError: the file cannot be opened, or another process writes it.
    """

    def __init__(self, directory: str | PathLike[str]):
        self.path = Path(directory) / RUN_FILE
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = io.FileIO(self.path, 'a+')
        except OSError as error:
            raise RecordError(f'cannot be opened: {error.strerror}; choose another directory',
                              str(self.path)) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise RecordError('is being written by another process; choose another directory',
                              str(self.path)) from error
        file, size = self._file.fileno(), self._size
        if size and os.pread(file, 1, size - 1) != b'\n':
            self._file.truncate(os.pread(file, size, 0).rfind(b'\n') + 1)

    @property
    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def write(self, event: Event) -> None:
        """Append ``event`` as one line, by one write.

        If the disk stores only a part of the line, this part is removed again.

        :raises RecordError: the disk is full or fails, or somebody has removed the file.
        """
        fields = {key: _to_json(value) for key, value in vars(event).items()}
        line = {'kind': type(event).__name__.lower(), **fields}
        data = json.dumps(line, allow_nan=False).encode() + b'\n'
        try:
            written = self._file.write(data)
            if written != len(data):  # otherwise the next line would continue this incomplete line
                self._file.truncate(self._size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if not os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno())):
                raise FileNotFoundError(errno.ENOENT, 'another file has replaced it')
        except FileNotFoundError as error:
            raise RecordError(f'was removed while it was written, and is lost: {error.strerror}',
                              str(self.path)) from error
        except OSError as error:
            raise RecordError(f'cannot be written: {error.strerror}', str(self.path)) from error

    def close(self) -> None:
        """Close the file; no event is lost without this call, because nothing is buffered."""
        self._file.close()

    def __enter__(self) -> 'RunWriter':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RunReader:
    """Reads the events of a run, also while they are being written.

    ``position``: number of bytes read. ``digest``: SHA-256 of these bytes, hexadecimal.

    :param directory: directory of the run.
    """

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.path = Path(directory) / RUN_FILE
        self.position, self._lines, self._hash = 0, 0, hashlib.sha256()

    @property
    def digest(self) -> str:  # noqa: D102
        return self._hash.hexdigest()

    def read(self, damaged: list[RecordError] | None = None, end: int | None = None
             ) -> list[Event]:
        """Return the events after those already read, in order of writing.

        A last line without newline is not read: its writer is at work, or was interrupted.

        :param damaged: list to which the errors of damaged lines are appended; the lines are
            skipped.
        :param end: read only the first ``end`` bytes of the file.
        :raises RecordError: the file cannot be read, or ``damaged`` is not given and a line is
            damaged; the message names file and line.
        """
        try:
            data = read_file(self.path, self.position, end)
        except OSError as error:
            raise RecordError(f'cannot be read: {why_unread(error, self.path)}', str(self.path)
                              ) from error
        data = data[:data.rfind(b'\n') + 1]
        first = self._lines + 1
        lines = data.split(b'\n')[:-1]
        self._hash.update(data)
        self.position, self._lines = self.position + len(data), self._lines + len(lines)
        events = []
        for number, line in enumerate(lines, first):
            event = _event_or_error(line, str(self.path), number)
            if isinstance(event, Event):
                events.append(event)
            elif damaged is None:
                raise event
            else:
                damaged.append(event)
        return events


def read_run(directory: str | PathLike[str], damaged: list[RecordError] | None = None
             ) -> list[Event]:
    """Read the events of a run; see `RunReader.read`."""
    return RunReader(directory).read(damaged)


def _event_or_error(line: bytes, file: str, number: int) -> Event | RecordError:
    try:
        return _event(line, file, number)
    except RecordError as error:
        return error


def _event(line: bytes, file: str, number: int) -> Event:
    try:
        data = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f'is not JSON ({error}); remove the line if its writer was cut off',
                          file, number) from error
    kind = data.pop('kind', None) if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise RecordError(f'has kind {kind!r}; known are {", ".join(EVENTS)}', file, number)
    try:
        return EVENTS[kind].validate_python(data)
    except ValidationError as error:
        raise RecordError(f'{kind}: {wrong_field(error)}', file, number) from error


def wrong_field(error: ValidationError) -> str:
    """Return a text that names the first field that is missing, unknown or wrong, and why."""
    first = error.errors(include_url=False)[0]
    value = '' if first['type'] == 'missing' else f', got {first["input"]!r}'
    return f'{".".join(map(str, first["loc"]))}: {first["msg"]}{value}'


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
