"""What a setting is: one line of a model says its type, default, unit, bounds and description.

pydantic checks types and bounds. What is here says where a value is wrong so that the reader can
put it right, and gives fleet files, ROS parameters, launch arguments and the documentation one view
of all settings: `knobs`.
"""

import difflib
import json
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from fleet_env.errors import SettingError

# YAML 1.1, which fleet files are written in, reads 1e-3 as text.
_EXPONENT = re.compile(r'[-+]?[\d.]+[eE][-+]?\d+')
_BOUNDS = {'ge': 'at least', 'gt': 'greater than', 'le': 'at most', 'lt': 'less than'}
_KINDS = {str: 'text', bool: 'true or false', int: 'a whole number', float: 'a number',
          dict: 'a mapping of keys to values', tuple: 'a list'}


def setting(default: Any, description: str, unit: str = '', *, form: str = '', empty: bool = False,
            live: bool = False, **checks: Any) -> Any:
    """Declare a setting; the default ``...`` means that it must be given.

    :param form: what a value looks like, for settings with a ``pattern``.
    :param empty: whether an empty text is allowed.
    :param live: whether the ROS parameter may be changed while the node runs.
    :param checks: those of :func:`pydantic.Field`: ``ge``, ``gt``, ``le``, ``lt``, ``pattern``.
    """
    return Field(default, description=description, **checks, json_schema_extra={
        'unit': unit, 'form': form, 'empty': empty, 'live': live})


class Text(str):
    """A value from a command line, which gives numbers and everything else as text."""


class Settings(BaseModel):
    """Base of all models: nothing is converted by guessing, no key is unknown, nothing changes."""

    model_config = ConfigDict(frozen=True, extra='forbid', strict=True, allow_inf_nan=False)

    @field_validator('*', mode='before')
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or '']
        kind = typing.get_origin(field.annotation) or field.annotation
        if value is None and (kind is dict or isinstance(field.default, Settings)):
            value = {}  # a key with nothing behind it
        if isinstance(value, dict):
            if isinstance(field.default, Settings):  # what a section leaves out is its default's
                return {**dict(field.default), **value}
            return {key: _parsed(item, dict) if isinstance(item, Text) else item
                    for key, item in value.items()}
        exponent = isinstance(value, str) and kind in (int, float) and _EXPONENT.fullmatch(value)
        if isinstance(value, Text) or exponent:
            value = _parsed(value, kind)
        if kind is str and isinstance(value, str) and not (value.strip() or _extra(field, 'empty')):
            raise ValueError('is empty; give a value or leave the key out')
        return tuple(value) if isinstance(value, list) and kind is tuple else value


def _parsed(text: str, kind: Any) -> Any:
    """Return what the text means as a value of this type, or the text if it means none."""
    try:
        if kind is bool:
            return {'true': True, 'false': False}.get(text.lower(), str(text))
        if kind in (dict, tuple):
            return yaml.safe_load(text)
        return kind(text) if kind in (int, float) else str(text)
    except (ValueError, yaml.YAMLError):
        return str(text)


S = TypeVar('S', bound=Settings)


class Knob(NamedTuple):
    """One setting: its keys from the top of the model, its field, its default."""

    path: tuple[str, ...]
    field: FieldInfo
    default: Any

    @property
    def name(self) -> str:
        """Its name as a ROS parameter and as a launch argument."""
        return parameter_name(self.path)

    @property
    def kind(self) -> Any:
        """Its type: str, bool, int, float, dict or tuple."""
        kind = typing.get_origin(self.field.annotation) or self.field.annotation
        return str if kind is typing.Literal else kind

    @property
    def unit(self) -> str:
        """Its unit, or nothing."""
        return str(_extra(self.field, 'unit'))

    @property
    def live(self) -> bool:
        """Whether the ROS parameter may be changed while the node runs."""
        return bool(_extra(self.field, 'live'))

    @property
    def bounds(self) -> dict[str, Any]:
        """Its bounds, of ``ge``, ``gt``, ``le``, ``lt``."""
        return {key: getattr(rule, key) for rule in self.field.metadata for key in _BOUNDS
                if getattr(rule, key, None) is not None}

    @property
    def allowed(self) -> str:
        """Which values it may have, in words; nothing: all of its type."""
        if choices := _choices(self.field):
            return f'one of {", ".join(choices)}'
        bounds = [f'{_BOUNDS[key]} {str(bound).removesuffix(".0")}'
                  for key, bound in self.bounds.items()]
        return ' and '.join(bounds) or str(_extra(self.field, 'form'))

    @property
    def metavar(self) -> str:
        """What stands for a value in a line of help."""
        return '{' + ','.join(_choices(self.field)) + '}' if _choices(self.field) else 'X'

    @property
    def help(self) -> str:
        """Its description and its default."""
        return f'{self.description}; default: {self.usual}'

    @property
    def usual(self) -> str:
        """Its default, as a file or a command line has it."""
        if self.field.is_required():
            return 'none, it must be given'
        if self.default in ('', (), {}):
            return 'empty'
        return self.default if self.kind is str else json.dumps(self.default)

    @property
    def description(self) -> str:
        """What it is, its unit, and which values it may have."""
        unit = f' [{self.unit}]' if self.unit else ''
        return f'{self.field.description}{unit}' + (f'; {self.allowed}' if self.allowed else '')


def parameter_name(path: Iterable[Any]) -> str:
    """Name of a setting on the graph and in a launch: training's own name, else section.name."""
    keys = [key for key in path if key != 'training']
    return '.'.join(map(str, keys)) or 'training'


def knobs(model: type[Settings], path: tuple[str, ...] = (), default: Settings | None = None
          ) -> Iterator[Knob]:
    """Yield every setting of a model, those of its sections in their place."""
    for key, field in model.model_fields.items():
        value = getattr(default, key) if default is not None else field.default
        if isinstance(value, Settings):
            yield from knobs(type(value), (*path, key), value)
        elif field.description:  # what has none is no setting
            yield Knob((*path, key), field, value)


def arguments(model: type[Settings]) -> dict[str, str]:
    """Return name and help of the launch arguments for all settings of a model."""
    return {knob.name: knob.help for knob in knobs(model)}


def flat(settings: Settings) -> dict[str, Any]:
    """Return the settings by their parameter names."""
    return {knob.name: value_at(settings, knob.path) for knob in knobs(type(settings))}


def value_at(settings: Settings, path: Iterable[str]) -> Any:
    """Return the value of the setting with these keys."""
    value: Any = settings
    for key in path:
        value = getattr(value, key)
    return value


def from_flat(model: type[S], values: Mapping[str, Any], prefix: str = '') -> S:
    """Return the model with these values by parameter name; `flat` the other way round.

    :param prefix: what stands before the parameter's name in a message.
    :raises SettingError: names the parameter.
    """
    tree: dict[str, Any] = {}
    for knob in knobs(model):
        if knob.name in values:
            section = tree
            for key in knob.path[:-1]:
                section = section.setdefault(key, {})
            section[knob.path[-1]] = values[knob.name]
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        _, text = first_error(model, error, lambda loc: prefix + parameter_name(loc))
        raise SettingError(text) from None


def changed(settings: S, **changes: Any) -> S:
    """Return the settings with these changes, checked; a dict changes a section where it says.

    :raises SettingError: names the setting.
    """
    values = dict(settings)
    for key, value in changes.items():
        section = isinstance(value, dict) and isinstance(values.get(key), Settings)
        values[key] = changed(values[key], **value) if section else value
    return from_values(type(settings), values)


def from_values(model: type[S], values: Mapping[str, Any]) -> S:
    """Return the model with these values by key, checked.

    :raises SettingError: names the setting.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise SettingError(first_error(model, error)[1]) from None


def suggestion(key: str, known: Iterable[str]) -> str:
    """Say which known key is nearest, or which there are."""
    known = list(known)
    near = difflib.get_close_matches(key, known, 1, 0.6)
    if near:
        return f'did you mean {near[0]!r}?'
    return f'known are {", ".join(sorted(known))}'


def dotted(path: Iterable[str | int]) -> str:
    """Return the keys as a fleet file's reader writes them: robots[1].link.trace."""
    return re.sub(r'\.?(\[\d+\])', r'\1', '.'.join(
        f'[{key}]' if isinstance(key, int) else key for key in path))


def first_error(model: type[Settings], error: ValidationError, name: Any = dotted,
                line: Any = lambda loc: 0) -> tuple[tuple[str | int, ...], str]:
    """Return where the first thing is wrong, and what is wrong and allowed there, in a sentence.

    :param name: keys -> how they are written. :param line: keys -> their place, to order by.
    """
    found = min(error.errors(), key=lambda e: (line(e['loc']), e['type'] == 'missing'))
    return found['loc'], _sentence(model, found, name)


def _sentence(model: type[Settings], error: Any, name: Any) -> str:
    loc, kind, value = error['loc'], error['type'], error['input']
    owner: Any = model
    field: FieldInfo | None = None
    for key in loc:
        if field is not None:
            if not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings)):
                break  # the rest of the place lies within the value
            owner = field.annotation
        field = owner.model_fields.get(key)
    here = name(loc)
    if kind == 'value_error':
        return f'{here} {error["ctx"]["error"]}'
    if kind == 'missing':
        return f'the key {here!r} is missing'
    if field is None:
        return f'unknown key {here!r}; {suggestion(str(loc[-1]), owner.model_fields)}'
    knob = Knob(tuple(map(str, loc)), field, None)
    if kind == 'finite_number':
        return f'{here} is {value}; it must be finite'
    if kind == 'literal_error' and isinstance(value, str):
        return f'{here} is {value!r}; {suggestion(value, _choices(field))}'
    if kind == 'string_pattern_mismatch':
        return f'{here} is {value!r}; it must look like this: {knob.allowed}'
    if kind in ('greater_than', 'greater_than_equal', 'less_than', 'less_than_equal'):
        unit = f' {knob.unit}' if knob.unit else ''
        return f'{here} is {value}{unit}; it must be {knob.allowed}{unit}'
    wanted = _KINDS.get(typing.get_args(field.annotation)[0] if isinstance(loc[-1], int)
                        else knob.kind, _KINDS[dict])
    return f'{here} must be {wanted}, not {_shown(value)}'


def _choices(field: FieldInfo) -> tuple[str, ...]:
    literal = typing.get_origin(field.annotation) is typing.Literal
    return typing.get_args(field.annotation) if literal else ()


def _extra(field: FieldInfo, key: str) -> Any:
    return field.json_schema_extra.get(key, '') if isinstance(field.json_schema_extra, dict) else ''


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return 'a mapping'
    if isinstance(value, list | tuple):
        return 'a list'
    return 'nothing' if value is None else repr(value)
