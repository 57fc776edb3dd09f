"""``summary.json``: the outcome of a run, on robots or in virtual time.

    schema       rog-run/1
    sync         synchronisation method, for example rsp:4; the last one if it was changed
    task         class of the task
    seed         seed of all random numbers
    fleet        name of the fleet
    duration_s   duration of the training, s
    robots       robot name -> the fields of RobotSummary
    notes        further information in free form: reason (why the run ended), faults (short
                  name -> number of such events in run.jsonl), server (accuracy of the server's
                  model at its last evaluation, its iteration, and the share of a BatchNorm's
                  statistics that are still those of the start, if any), and failed (name of a robot
                  that could not go on -> why)

Keys are sorted and nothing depends on the wall clock, so equal outcomes give equal files.
"""

import dataclasses
import json
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fleet_env.durable import finite, read_file, write_whole
from fleet_env.errors import RecordError, why_unread
from fleet_env.records.events import FIELDS, SCHEMA, Number, wrong_field

SUMMARY_FILE = 'summary.json'
_NAN = float('nan')


def _(help: str, unit: str = '', default: Any = 0) -> Any:
    return field(default=default, metadata={'help': help, 'unit': unit})


@dataclass(frozen=True)
class Accuracy:
    """The metric of the task, from 0 to 1; NaN (``null``) if it was not measured."""

    __pydantic_config__: ClassVar[ConfigDict] = FIELDS

    clean: Number = _('on unaltered data, before the shift', default=_NAN)
    before: Number = _('on shifted data, before adaptation', default=_NAN)
    after: Number = _('on shifted data, at the end', default=_NAN)


@dataclass(frozen=True)
class RobotSummary:
    """What one robot did in the whole run."""

    __pydantic_config__: ClassVar[ConfigDict] = FIELDS

    iterations: int = _('iterations finished')
    compute_s: Number = _('computing', 's', 0.0)
    communicate_s: Number = _('pushing and pulling', 's', 0.0)
    stall_s: Number = _('waiting for others', 's', 0.0)
    energy_j: Number = _('electrical energy', 'J', 0.0)
    bytes_sent: int = _('payload sent', 'B')
    bytes_received: int = _('payload received', 'B')
    rows_pushed_mean: Number = _('mean number of rows that a push transferred', default=0.0)
    accuracy: Accuracy = Accuracy()
    evaluations: list[tuple[Number, int, Number]] = field(default_factory=list, metadata={
        'help': '(t_s, iteration, metric) of each evaluation while training', 'unit': ''})


@dataclass(frozen=True)
class Summary:
    """The outcome of a run."""

    __pydantic_config__: ClassVar[ConfigDict] = FIELDS

    sync: str
    task: str
    seed: int
    duration_s: Number
    robots: dict[str, RobotSummary]
    fleet: str = ''
    notes: dict[str, Any] = field(default_factory=dict)
    schema: Literal['rog-run/1'] = SCHEMA
    codec: str = ''


def write_summary(directory: str | PathLike[str], summary: Summary) -> Path:
    """Write ``summary.json`` into ``directory``, atomically; return its path."""
    path = Path(directory) / SUMMARY_FILE
    text = json.dumps(finite(dataclasses.asdict(summary)), indent=2, sort_keys=True) + '\n'
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise RecordError(f'cannot be written: {error.strerror}', str(path)) from error
    return path


def read_summary(directory: str | PathLike[str]) -> Summary:
    """Read ``summary.json`` of a run.

    :raises RecordError: the file cannot be read, or a field is missing, unknown or wrong; the
        message names file and field.
    """
    path = Path(directory) / SUMMARY_FILE
    try:
        return _SUMMARY.validate_json(read_file(path))
    except ValidationError as error:
        raise RecordError(f'cannot be read: {wrong_field(error)}', str(path)) from error
    except OSError as error:
        raise RecordError(f'cannot be read: {why_unread(error, path)}', str(path)) from error


_SUMMARY = TypeAdapter(Summary)
