"""Settings: one line of a pydantic model declares type, default, unit, bounds and description.

pydantic checks types and bounds. This module turns its errors into texts that name the setting and
the allowed values. It also lists all settings (`knobs`) for fleet files, ROS parameters, launch
arguments and the documentation.
"""

import functools
import json
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from fleet_env.errors import SettingError, did_you_mean

# Matches numbers like 1e-3, which YAML 1.1, the format of fleet files, reads as text.
_EXPONENT = re.compile(r'[-+]?[\d.]+[eE][-+]?\d+')
_BOUNDS = {'ge': 'at least', 'gt': 'greater than', 'le': 'at most', 'lt': 'less than'}
_KINDS = {str: 'text', bool: 'true or false', int: 'a whole number', float: 'a number',
          dict: 'a mapping of keys to values', tuple: 'a list'}
_Path = tuple[str | int, ...]
_WITHOUT_PREFIX = ('training', 'network')  # sections whose names are not part of parameter names


def setting(default: Any, description: str, unit: str = '', *, form: str = '', empty: bool = False,
            live: bool = False, **checks: Any) -> Any:
    """Declare a setting; the default ``...`` means that a value is required.

    :param form: example or description of a value, for settings with a ``pattern``.
    :param empty: whether an empty text is allowed.
    :param live: whether the ROS parameter may be changed while the node runs.
    :param checks: arguments of :func:`pydantic.Field`: ``ge``, ``gt``, ``le``, ``lt``, ``pattern``,
        ``max_length``.
    """
    return Field(default, description=description, **checks, json_schema_extra={
        'unit': unit, 'form': form, 'empty': empty, 'live': live})


class Text(str):
    """Text from a command line, which is converted to the type of the setting, such as a number."""


class Settings(BaseModel):
    """Base of all models: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(frozen=True, extra='forbid', strict=True, allow_inf_nan=False)

    # For each former setting that is a constant now: its value, and what to tell who gives another.
    CONSTANTS: ClassVar[Mapping[str, tuple[Any, str]]] = {}

    @model_validator(mode='before')
    @classmethod
    def _without_constants(cls, values: Any) -> Any:
        # the settings of an older run name them all
        return {key: value for key, value in values.items()
                if key not in cls.CONSTANTS or value != cls.CONSTANTS[key][0]} \
            if cls.CONSTANTS and isinstance(values, dict) else values

    @field_validator('*', mode='before')
    @classmethod
    def _read(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or '']
        kind = typing.get_origin(field.annotation) or field.annotation
        if value is None and (kind is dict or isinstance(field.default, Settings)):
            value = {}  # the file contains the key without a value
        if isinstance(value, dict):
            if isinstance(field.default, Settings):  # a section: omitted keys keep their defaults
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
    """Return the text converted to type ``kind``, or the text itself if it cannot be converted."""
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
    """One setting.

    :param path: keys from the top of the model to the setting.
    :param kind: str, bool, int, float, dict or tuple.
    :param bounds: name of each bound of the setting (``ge``, ``gt``, ``le``, ``lt``) -> its value.
    :param allowed: description of the allowed values, with the unit.
    :param live: whether the ROS parameter may be changed while the node runs.
    """

    path: tuple[str, ...]
    default: Any
    description: str
    kind: type
    unit: str
    bounds: dict[str, Any]
    allowed: str
    live: bool

    @property
    def name(self) -> str:
        """Return the name of the ROS parameter and launch argument."""
        return parameter_name(self.path)

    @property
    def usual(self) -> str:
        """Return the default as text for `help`.

        This is the value as in a file or on a command line, 'empty' for an empty value, or 'needed'
        if there is no default.
        """
        if self.default in (None, '', (), {}):
            return 'needed' if self.default is None else 'empty'
        return str(self.default) if self.kind is str else json.dumps(self.default)

    @property
    def help(self) -> str:
        """Return description, allowed values and default in one line."""
        return f'{self.description} ({self.allowed}; default {self.usual})'


def parameter_name(path: Iterable[Any]) -> str:
    """Return the parameter name ``section.key``; omit a section that is in `_WITHOUT_PREFIX`."""
    keys = [str(key) for key in path]
    return '.'.join(keys[keys[0] in _WITHOUT_PREFIX and len(keys) > 1:])


def knobs(model: type[Settings], path: tuple[str, ...] = (), default: Settings | None = None
          ) -> Iterator[Knob]:
    """Yield every setting of a model and of its sections, in order of declaration."""
    for key, field in model.model_fields.items():
        value = getattr(default, key) if default is not None else field.default
        if isinstance(value, Settings):
            yield from knobs(type(value), (*path, key), value)
        elif field.description:  # a field without a description is not a setting
            yield _knob((*path, key), field, value)


def _knob(path: tuple[str, ...], field: FieldInfo, default: Any) -> Knob:
    kind: Any = typing.get_origin(field.annotation) or field.annotation
    unit, form = _extra(field, 'unit'), _extra(field, 'form')
    bounds = {key: getattr(rule, key) for rule in field.metadata for key in _BOUNDS
              if getattr(rule, key, None) is not None}
    if kind is typing.Literal:
        kind, words = str, f'one of {", ".join(typing.get_args(field.annotation))}'
    else:
        limits = [f'{_BOUNDS[key]} {str(bound).removesuffix(".0")}'
                  for key, bound in bounds.items()]
        words = _KINDS[kind] + ', ' * bool(limits) + ' and '.join(limits) + f' {unit}' * bool(unit)
        words += f' like this: {form}' * bool(form)
        longest = [rule.max_length for rule in field.metadata if hasattr(rule, 'max_length')]
        words += f', at most {longest[0]} characters' if longest else ''
    default = None if field.is_required() else default
    return Knob(path, default, field.description or '', kind, unit, bounds, words,
                bool(_extra(field, 'live')))


def arguments(model: type[Settings]) -> dict[str, str]:
    """Return name and help of the launch arguments for all settings of a model."""
    return {knob.name: knob.help for knob in knobs(model)}


def flat(settings: Settings) -> dict[str, Any]:
    """Return all settings as a dict parameter name -> value."""
    return {knob.name: functools.reduce(getattr, knob.path, settings)
            for knob in knobs(type(settings))}


def from_flat(model: type[S], values: Mapping[str, Any], prefix: str = '') -> S:
    """Return the settings with these values; the inverse of `flat`.

    :param values: parameter name -> value; other names are ignored.
    :param prefix: text before the parameter's name in an error message.
    :raises SettingError: a value is invalid; the message names the parameter.
    """
    tree: dict[str, Any] = {}
    for knob in knobs(model):
        if knob.name in values:
            section = tree
            for key in knob.path[:-1]:
                section = section.setdefault(key, {})
            section[knob.path[-1]] = values[knob.name]
    return checked(model, tree, lambda path: prefix + parameter_name(path))


def changed(settings: S, **changes: Any) -> S:
    """Return a checked copy of the settings with these changes.

    :param changes: key -> value; for a section, a dict changes only the keys that it contains.
    :raises SettingError: a value is invalid; the message names the setting.
    """
    values = dict(settings)
    for key, value in changes.items():
        section = isinstance(value, dict) and isinstance(values.get(key), Settings)
        values[key] = changed(values[key], **value) if section else value
    return checked(type(settings), values)


def as_written(model: type[Settings], values: Mapping[str, Any],
               texts: Mapping[_Path, str], path: _Path = ()) -> dict[str, Any]:
    """Return the values of a file, with its texts where a setting is a text or a list of texts.

    :param texts: path of keys -> text of a value that YAML reads as another type.
    :param path: keys from the top of the file to these values.
    """
    found = dict(values)
    for key in found.keys() & model.model_fields.keys():
        field, value, here = model.model_fields[key], found[key], (*path, key)
        kind = typing.get_origin(field.annotation) or field.annotation
        if isinstance(field.default, Settings) and isinstance(value, dict):
            found[key] = as_written(type(field.default), value, texts, here)
        elif kind in (str, typing.Literal):
            found[key] = texts.get(here, value)
        elif typing.get_args(field.annotation)[:1] == (str,) and isinstance(value, list):
            found[key] = [texts.get((*here, k), item) for k, item in enumerate(value)]
    return found


def dotted(path: _Path) -> str:
    """Return the keys as text, such as robots[1].link.trace."""
    return ''.join(f'[{key}]' if isinstance(key, int) else f'.{key}' for key in path).lstrip('.')


def checked(model: type[S], values: Mapping[str, Any],
            name: Callable[[_Path], str] = dotted) -> S:
    """Return the settings with these values.

    :param values: key -> value; a section is a dict.
    :param name: function that formats keys for an error message.
    :raises SettingError: a value is invalid. The message describes the first error and the allowed
        values; the attribute ``path`` holds the keys.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e['type'] == 'missing')
    path = first['loc']
    raise SettingError(_sentence(model, first, name(path)), path=path)


def _sentence(model: type[Settings], error: Any, name: str) -> str:
    owner: Any = model
    field: FieldInfo | None = None
    for key in error['loc']:
        if field is not None:
            if not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings)):
                break  # the remaining keys of `loc` point into the value of this setting
            owner = field.annotation
        field = owner.model_fields.get(key)
    value, kind = error['input'], error['type']
    if kind == 'value_error':
        return f'{name} {error["ctx"]["error"]}'
    if kind == 'missing':
        return f'the key {name!r} is missing'
    if field is None:
        key = error['loc'][-1]
        if key in owner.CONSTANTS:
            return f'{name} is no setting any more: it {owner.CONSTANTS[key][1]}; delete it'
        return f'unknown key {name!r}; {suggestion(key, owner.model_fields)}'
    if not field.description:  # sections have no description
        return f'{name} must be {_KINDS[dict]}, not {_shown(value)}'
    knob = _knob((), field, None)
    if kind.endswith('_type'):
        inner = typing.get_args(field.annotation)[:1] if isinstance(error['loc'][-1], int) else ()
        return f'{name} must be {_KINDS[(*inner, knob.kind)[0]]}, not {_shown(value)}'
    allowed = knob.allowed.replace('a number', 'a finite number') if kind == 'finite_number' \
        else knob.allowed
    near = did_you_mean(str(value), typing.get_args(field.annotation)) \
        if kind == 'literal_error' else ''
    unit = f' {knob.unit}' if knob.unit else ''
    return f'{name} is {value!r}{unit}; it must be {allowed}' \
        + f'; {near}' * bool(near)


def suggestion(key: str, known: Iterable[str]) -> str:
    """Return a hint: the most similar known key, or all known keys."""
    known = list(known)
    return did_you_mean(key, known) or f'known are {", ".join(sorted(known))}'


def _extra(field: FieldInfo, key: str) -> Any:
    return field.json_schema_extra.get(key, '') if isinstance(field.json_schema_extra, dict) else ''


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return 'a mapping' if isinstance(value, dict) else 'a list'
    return 'nothing' if value is None else repr(value)
