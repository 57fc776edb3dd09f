"""Run records: the events of a run (``run.jsonl``), on robots or in virtual time.

``run.jsonl`` contains one JSON object per line, in the order of writing. Every object has
these fields:

    kind    start, iteration, evaluation, status, fault or stop
    t       seconds since the run began
    robot   name of the robot; empty for the fleet or the server

Further fields depend on the kind: for each kind, a class of the same name defines
them. The metadata of a field gives its unit and meaning. An unknown number is NaN in
Python and ``null`` in the file. Every line is appended by one write, so that several
processes can write to one file. The schema's version is :data:`SCHEMA`; a reader
refuses any other version. :mod:`fleet_env.records.summary` describes ``summary.json``.
"""

import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import time
import typing
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fleet_env.durable import read_file
from fleet_env.errors import RecordError, why_unread

SCHEMA = 'rog-run/1'
RUN_FILE = 'run.jsonl'
_NAN = float('nan')


def _(help: str, unit: str = '', default: Any = ...) -> Any:
    metadata = {'help': help, 'unit': unit}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Event:
    """The fields that every event has."""

    t: float = _('time since the run began', 's')
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
    schema: str = _('version of this schema', default=SCHEMA)
    codec: str = _('codec of the fleet', default='')


@dataclass(frozen=True)
class Iteration(Event):
    """One robot has finished one iteration; the durations and amounts are of this iteration."""

    iteration: int = _('iterations finished')
    loss: float = _('loss of the batch')
    compute_s: float = _('computing', 's')
    communicate_s: float = _('pushing and pulling', 's')
    stall_s: float = _('waiting for others', 's')
    rows_pushed: int = _('rows of the push that the server has applied', default=0)
    rows_pulled: int = _('rows of the pull that the robot has applied', default=0)
    rows_total: int = _('rows of the model', default=0)
    bytes_sent: int = _('payload sent', 'B', default=0)
    bytes_received: int = _('payload received', 'B', default=0)
    staleness: int = _("iterations from the fleet's slowest row to this robot", default=0)
    bandwidth: float = _('measured throughput', 'Mbit/s', default=_NAN)
    link_rate: float = _('rate of the emulated link', 'Mbit/s', default=_NAN)
    energy_j: float = _('electrical energy', 'J', default=_NAN)

    @property
    def rate(self) -> float:
        """Return the rate in Mbit/s of the emulated link or, of a real link, the measured rate."""
        return self.bandwidth if math.isnan(self.link_rate) else self.link_rate


@dataclass(frozen=True)
class Evaluation(Event):
    """A model was evaluated: the model of a robot or, if ``robot`` is empty, of the server."""

    iteration: int = _('iterations finished')
    metric: float = _('the metric of the task, 0 to 1')
    phase: str = _('clean: before the shift; before: after the shift, not adapted; online: while '
                   'training; after: at the end', default='online')


@dataclass(frozen=True)
class Status(Event):
    """A robot or the server has entered a state, or sends a regular report."""

    state: str = _('joining, computing, pushing, waiting, pulling, away, stopped')
    power: float = _('electrical power', 'W', default=_NAN)
    energy: float = _('electrical energy since the start', 'J', default=_NAN)
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


EVENTS: dict[str, type[Event]] = {kind.__name__.lower(): kind for kind in (
    Start, Iteration, Evaluation, Status, Fault, Stop)}


class RunWriter:
    """Appends events to ``run.jsonl`` in ``directory``; creates the directory if necessary.

    If somebody removes the file during the run, the writer creates it again with its full content.

    :raises RecordError: the file cannot be opened.
    """

    def __init__(self, directory: str | PathLike[str]):
        self.path = Path(directory) / RUN_FILE
        try:
            self._file = _open(self.path, 0)
        except OSError as error:
            raise RecordError(f'cannot be opened: {error.strerror}; choose another directory',
                              str(self.path)) from error

    def write(self, event: Event) -> None:
        """Append ``event`` as one line, by one write.

        If the disk stores only a part of the line, this part is removed again.

        :raises RecordError: the disk is full or fails, or another file has replaced the record,
            or the record was removed and cannot be written again.
        """
        fields = {key: _to_json(value) for key, value in vars(event).items()}
        line = {'kind': type(event).__name__.lower(), **fields}
        data = json.dumps(line, allow_nan=False).encode() + b'\n'
        try:
            written = os.write(self._file, data)
            if written != len(data):  # otherwise the next line would continue this incomplete line
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RecordError(f'cannot be written: {error.strerror}', str(self.path)) from error
        self._keep()

    def close(self) -> None:
        """Close the file; without this call no event is lost, because the writer buffers nothing.

        :raises RecordError: another file has replaced the record. In this case the record is now in
            a directory beside the run's directory, and the message names its new path.
        """
        if self._file < 0:
            return
        try:
            self._keep()
        except RecordError:
            beside = self.path.parent.with_name(self.path.parent.name + '-record') / RUN_FILE
            self._move(beside)
            raise RecordError(f'another file has replaced it; the record is now {beside}',
                              str(self.path)) from None
        finally:
            os.close(self._file)
            self._file = -1

    def _keep(self) -> None:
        """Write the file again at its path, if somebody removed it.

        :raises RecordError: another file has replaced the record, or it cannot be written again.
        """
        try:
            there = os.stat(self.path)
        except OSError:
            there = None
        if there is None:
            self._move(self.path)
        elif not os.path.samestat(there, os.fstat(self._file)):
            raise RecordError('another file has replaced it: move that file away',
                              str(self.path))

    def _move(self, path: Path) -> None:
        """Copy the record to a new file and continue there."""
        try:
            new = _open(path, os.O_EXCL)
            try:
                place = 0
                while data := os.pread(self._file, 1 << 20, place):
                    place += os.write(new, data)
            except OSError:
                os.close(new)
                path.unlink()
                raise
        except OSError as error:
            raise RecordError('was removed, and cannot be written again: '
                              f'{error.strerror}; remove what has replaced it',
                              str(path)) from error
        os.close(self._file)
        self._file = new

    def __enter__(self) -> 'RunWriter':
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: Path, flags: int) -> int:
    """Open a record, with a shared lock until it is closed.

    If no other writer has the file open, remove an incomplete last line, because the next line
    would continue it. Otherwise keep this line, because another writer may still be writing it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | flags, 0o644)
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _end_last_line(file)
    for wait in (0.01,) * 100:
        with suppress(BlockingIOError):  # another writer repairs the file at this moment
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return file
        time.sleep(wait)
    os.close(file)
    raise BlockingIOError(errno.EAGAIN, 'another process locks it')


def _end_last_line(file: int) -> None:
    size = os.fstat(file).st_size
    if not size or os.pread(file, 1, size - 1) == b'\n':
        return
    os.ftruncate(file, os.pread(file, size, 0).rfind(b'\n') + 1)


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


def parse_fields(cls: type, data: Any, file: str, line: int = 0, skip: tuple[str, ...] = ()) \
        -> dict[str, Any]:
    """Check the JSON object ``data`` against the dataclass ``cls`` and return its fields.

    :param skip: fields that are neither checked nor returned.
    :raises RecordError: a field is missing, unknown or of the wrong type; the message names it.
    """
    if not isinstance(data, dict):
        raise RecordError(f'{cls.__name__} must be an object', file, line)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}
    out = {}
    for key, value in data.items():
        if key in skip:
            continue
        if key not in known:
            raise RecordError(f'{cls.__name__} has no field {key!r}', file, line)
        kind = hints[key]
        if kind is float:
            value = _NAN if value is None else value
            good = isinstance(value, int | float) and not isinstance(value, bool)
            value = float(value) if good else value
        elif kind in (int, str):
            good = isinstance(value, kind) and not isinstance(value, bool)
        else:
            good = isinstance(value, typing.get_origin(kind) or kind)
        if not good:
            raise RecordError(f'{key!r} of {cls.__name__} is {value!r}, which is not {kind}',
                              file, line)
        out[key] = value
    for key, declared in known.items():
        required = declared.default is dataclasses.MISSING \
            and declared.default_factory is dataclasses.MISSING
        if required and key not in out and key not in skip:
            raise RecordError(f'{cls.__name__} lacks the field {key!r}', file, line)
    if 'schema' in known and out.get('schema', SCHEMA) != SCHEMA:
        raise RecordError(f'has schema {out["schema"]!r}, this reader knows {SCHEMA!r}', file, line)
    return out


def _event(line: bytes, file: str, number: int) -> Event:
    try:
        data = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise RecordError(f'is not JSON ({error}); remove the line if its writer was cut off',
                          file, number) from error
    kind = data.get('kind') if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise RecordError(f'has kind {kind!r}; known are {", ".join(EVENTS)}', file, number)
    return EVENTS[kind](**parse_fields(EVENTS[kind], data, file, number, skip=('kind',)))


def _to_json(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
