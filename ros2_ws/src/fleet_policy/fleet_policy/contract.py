"""The contract: maps topics and their fields to tensors, with rate and units.

    rate: 30.0
    observations:
      image.top: {topic: camera_top/image_raw, type: sensor_msgs/msg/Image, height: 480,
                  width: 640}
      state: {topic: joint_states, type: sensor_msgs/msg/JointState, names: [shoulder, elbow]}
    actions:
      joints: {topic: commands, type: std_msgs/msg/Float64MultiArray, size: 2}

A policy receives the observations by name. An action of the policy consists of the
numbers of all entries of ``actions``, in the order in which the file lists the entries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, TypeVar

from fleet_env.errors import SettingError, why_unread
from fleet_env.settings.base import Settings, as_written, changed, checked, dotted, setting
from fleet_env.settings.yaml_lines import Lines, Texts, line_of, parse

from .errors import ContractError
from .messages import (
    IMAGES,
    MessageError,
    check_field,
    message_class,
    names_field,
    usual_field,
)

UNITS = {'': 1.0, 'rad': 1.0, 'deg': 57.29577951308232, 'm': 1.0, 'cm': 100.0, 'mm': 1000.0}

_TYPE: dict[str, Any] = {'pattern': r'^[a-z]\w*/msg/[A-Z]\w*$',
                         'form': 'sensor_msgs/msg/JointState'}
_UNIT = Literal['', 'rad', 'deg', 'm', 'cm', 'mm']
_UNIT_TEXT = ("unit of the policy's numbers; messages are in SI units (REP-103): rad or m. Empty: "
              'the numbers of the message')


class Numbers(Settings):
    """The settings of an entry that holds numbers.

    Observations and actions have further settings.
    """

    topic: str = setting(..., "topic, relative to the robot's namespace")
    type: str = setting(..., 'type of the messages', **_TYPE)
    field: str = setting('', 'field with the list of numbers, with dots for nested ones; empty: '
                             'the usual one of the type', empty=True)
    fields: tuple[str, ...] = setting((), 'fields with one number each, instead of field, such as '
                                          '[linear.x, angular.z]')
    names: tuple[str, ...] = setting((), 'names of the joints, in the order of the policy')
    size: int = setting(0, 'how many numbers; 0: as many as names or fields', ge=0, le=100_000)
    unit: _UNIT = setting('', _UNIT_TEXT)

    @property
    def count(self) -> int:
        """Return how many numbers the entry has."""
        return len(self.fields) or len(self.names) or self.size

    @property
    def factor(self) -> float:
        """Return the factor that converts a number of a message to the policy's unit."""
        return UNITS[self.unit]


class Observation(Numbers):
    """An entry of ``observations``: an image, or a list of numbers."""

    height: int = setting(0, 'rows of the image, which is scaled to it', ge=0, le=8192)
    width: int = setting(0, 'columns of the image', ge=0, le=8192)
    encoding: Literal['rgb8', 'bgr8'] = setting('rgb8', "order of the channels of the policy's "
                                                        'image')
    limit: float = setting(1.0, 'time without a message after which the topic counts as stopped; '
                                '0: one message is enough', 's', ge=0.0, le=600.0)
    publishers: int = setting(1, 'how many publishers the topic may have, such as 2 for an arm and '
                                 'its gripper; with more, the robot enters the safe state', ge=1,
                              le=100)

    @property
    def is_image(self) -> bool:
        """Return whether the observation is an image."""
        return self.type in IMAGES

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return (1, 3, self.height, self.width) if self.is_image else (1, self.count)


class Action(Numbers):
    """An entry of ``actions``."""

    kind: Literal['position', 'velocity', 'effort'] = setting(
        'position', 'what the numbers are; velocities and efforts are 0 when the robot stops')


class _File(Settings):
    rate: float = setting(..., 'actions in a second', 'Hz', gt=0.0, le=1000.0)
    observations: dict[str, Any] = setting(..., 'what the policy sees')
    actions: dict[str, Any] = setting(..., 'what the policy does')


N = TypeVar('N', bound=Numbers)


@dataclass(frozen=True)
class Contract:
    """A checked contract; ``size``: how many numbers an action has."""

    rate: float
    observations: Mapping[str, Observation]
    actions: Mapping[str, Action]

    @property
    def size(self) -> int:
        """Return how many numbers an action has."""
        return sum(entry.count for entry in self.actions.values())


def read_contract(path: str | PathLike[str]) -> Contract:
    """Read a contract file.

    :raises ContractError: the file is unreadable or invalid; the message names file, line and key.
    """
    file = fspath(path)
    try:
        text = Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise ContractError(f'cannot be read: {why_unread(error, file)}', file) from error
    data, lines, texts = parse(text, file, 'it needs rate, observations and actions', ContractError)
    return _Reader(file, lines, texts).contract(data)


def make_contract(data: Mapping[str, Any]) -> Contract:
    """Return the contract with this content, for programs that have no contract file.

    :raises ContractError: the content is invalid; the message names the key.
    """
    return _Reader('', {}, {}).contract(data)


class _Reader:
    def __init__(self, file: str, lines: Lines, texts: Texts) -> None:
        self._file, self._lines, self._texts = file, lines, texts

    def contract(self, data: Any) -> Contract:
        if not isinstance(data, Mapping):
            raise self._error('must be a mapping of keys to values', ())
        file = self._checked(_File, data, ())
        contract = Contract(
            file.rate, self._entries(Observation, 'observations', file.observations),
            self._entries(Action, 'actions', file.actions))
        topics: dict[str, str] = {}
        for name, action in contract.actions.items():
            if action.topic in topics:
                raise self._error(f'actions.{name}.topic is {action.topic!r}, which is the topic '
                                  f'of actions.{topics[action.topic]}, too: each needs its own',
                                  ('actions', name, 'topic'))
            topics[action.topic] = name
        return contract

    def _entries(self, model: type[N], section: str, data: dict[str, Any]) -> dict[str, N]:
        if not data:
            raise self._error(f'{section} must have at least one entry', (section,))
        found = {}
        for name, values in data.items():
            path = (section, name)
            if not isinstance(values, Mapping):
                raise self._error(f'{dotted(path)} must be a mapping of keys to values', path)
            found[name] = self._complete(self._checked(model, values, path), path)
        return found

    def _complete(self, entry: N, path: tuple[str, ...]) -> N:
        """Check an entry against the type of its messages; set ``field`` if the file omits it."""
        where = dotted(path)

        def refuse(text: str, key: str) -> ContractError:
            return self._error(f'{where}{text}', (*path, key))

        try:
            kind = message_class(entry.type)
        except MessageError as error:
            raise refuse(f'.type is {entry.type!r}: {error}', 'type') from None
        if isinstance(entry, Observation) and entry.is_image:
            if not entry.height or not entry.width:
                raise refuse(' is an image, so it must have height and width', 'type')
            return entry
        if entry.fields:
            for field in entry.fields:
                self._field(kind, field, False, (*path, 'fields'))
            if entry.field or entry.names:
                raise refuse('.fields replaces field and names: give one of them', 'fields')
        else:
            action = isinstance(entry, Action)
            quantity = entry.kind if isinstance(entry, Action) else 'position'
            field = entry.field or usual_field(entry.type, quantity)
            if not field:
                raise refuse(f'.field is missing: {entry.type} has no usual one', 'type')
            entry = changed(entry, field=field)
            self._field(kind, field, True, (*path, 'field'))
            if entry.names and not names_field(kind):
                raise refuse(f'.names is given, but {entry.type} names no joints: give size '
                             'instead', 'names')
            if action and names_field(kind) and not entry.names:
                raise refuse(f'.names is missing: {entry.type} names its joints', 'type')
        if not entry.count:
            raise refuse(' must have one of size, names and fields', 'type')
        if entry.size not in (0, entry.count):
            raise refuse(f'.size is {entry.size}, but there are {entry.count} names or fields',
                         'size')
        return entry

    def _field(self, kind: Any, field: str, several: bool, path: tuple[str, ...]) -> None:
        try:
            check_field(kind, field, several)
        except MessageError as error:
            raise self._error(f'{dotted(path)} is {field!r}: {error}', path) from None

    def _checked(self, model: Any, values: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        try:
            return checked(model, as_written(model, values, self._texts, path),
                           lambda rest: dotted((*path, *rest)))
        except SettingError as error:
            raise self._error(error.message, (*path, *error.path)) from None

    def _error(self, text: str, path: tuple[Any, ...]) -> ContractError:
        return ContractError(text, self._file, line_of(path, self._lines), path)
