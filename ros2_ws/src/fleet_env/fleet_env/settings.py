"""Checks settings against the dataclass that declares them, and says where one is wrong.

The input is a tree of :class:`Located` values: a YAML file with line numbers, or overrides from a
command line. The output is the dataclass.
"""

import dataclasses
import difflib
import math
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fleet_env.errors import FleetFileError


@dataclass(frozen=True)
class Located:
    """A value and where it stands.

    :param value: a scalar, a list of Located, or a dict of str to Located.
    :param lenient: accept text for numbers and booleans, as a command line gives it.
    """

    value: Any
    file: str = ''
    line: int = 0
    lenient: bool = False

    def error(self, message: str) -> FleetFileError:
        """Return an error that points here."""
        return FleetFileError(message, self.file, self.line)

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value


def locate(value: Any, file: str = '', lenient: bool = False) -> Located:
    """Return plain data as a tree of :class:`Located` that all stand in ``file``."""
    if isinstance(value, dict):
        value = {key: locate(item, file, lenient) for key, item in value.items()}
    elif isinstance(value, list | tuple):
        value = [locate(item, file, lenient) for item in value]
    return Located(value, file, 0, lenient)


def suggestion(key: str, known: Iterable[str]) -> str:
    """Say which known key is nearest, or which there are."""
    known = list(known)
    near = difflib.get_close_matches(key, known, 1, 0.6)
    if near:
        return f'did you mean {near[0]!r}?'
    return f'known are {", ".join(sorted(known))}'


def mapping(node: Located, path: str) -> dict[str, Located]:
    """Return the node's mapping; an empty entry is an empty mapping."""
    if node.value is None:
        return {}
    if not isinstance(node.value, dict):
        raise node.error(f'{path} must be a mapping of keys to values, not {_shown(node.value)}')
    return node.value


def build(cls: type, node: Located, path: str = '', defaults: Any = None,
          skip: tuple[str, ...] = ()) -> dict[str, Any]:
    """Check the keys of ``node`` and return the fields of ``cls`` that it sets, as a dict.

    :param path: dotted name of the node, for messages; empty at the top.
    :param defaults: an instance of ``cls`` that nested mappings start from.
    :param skip: keys that are known but left to the caller.
    :raises FleetFileError: names file, line and key, what is wrong and what is allowed.
    """
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name in _hints(cls)
              and (f.metadata or dataclasses.is_dataclass(_hints(cls)[f.name]))}
    out: dict[str, Any] = {}
    entries = mapping(node, path or 'the file')
    for key, item in entries.items():
        name = f'{path}.{key}' if path else key
        if key not in fields:
            raise item.error(f'unknown key {name!r}; {suggestion(key, fields)}')
        if key in skip:
            continue
        kind = _hints(cls)[key]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            start = getattr(defaults, key, None) if defaults is not None else None
            out[key] = construct(kind, item, name, start)
        else:
            out[key] = check(item, name, kind, fields[key].metadata)
    return out


def construct(cls: type, node: Located, path: str = '', defaults: Any = None) -> Any:
    """Build ``cls`` from ``node``; what it leaves out comes from ``defaults``."""
    values = build(cls, node, path, defaults)
    if defaults is not None:
        return dataclasses.replace(defaults, **values)
    return cls(**values)


def check(node: Located, name: str, kind: Any, rules: typing.Mapping[str, Any]) -> Any:
    """Return the node's value as ``kind`` (str, bool, int, float or a dict), within ``rules``."""
    if typing.get_origin(kind) is dict or kind is dict:
        return {key: item.plain() for key, item in mapping(node, name).items()}
    value = _typed(node, name, kind)
    unit = f' {rules["unit"]}' if rules.get('unit') else ''
    for rule, holds, words in (('low', lambda v, b: v >= b, 'at least'),
                               ('above', lambda v, b: v > b, 'greater than'),
                               ('high', lambda v, b: v <= b, 'at most'),
                               ('below', lambda v, b: v < b, 'less than')):
        if rule in rules and not holds(value, rules[rule]):
            raise node.error(f'{name} is {value}{unit}; it must be {words} {rules[rule]}{unit}')
    if 'choices' in rules and value not in rules['choices']:
        raise node.error(f'{name} is {value!r}; {suggestion(str(value), rules["choices"])}')
    if 'pattern' in rules and not re.fullmatch(rules['pattern'], value):
        raise node.error(f'{name} is {value!r}; it must look like this: {rules["form"]}')
    if kind is str and not value.strip() and not rules.get('empty'):
        raise node.error(f'{name} is empty; give a value or leave the key out')
    return value


_NAMES = {str: 'text', bool: 'true or false', int: 'a whole number', float: 'a number'}


def _typed(node: Located, name: str, kind: Any) -> Any:
    value = node.value
    wrong = node.error(f'{name} must be {_NAMES[kind]}, not {_shown(value)}')
    if isinstance(value, str) and kind is not str:
        # YAML 1.1 reads 1e-3 as text; a command line gives everything as text.
        if kind is bool and node.lenient and value.lower() in ('true', 'false'):
            return value.lower() == 'true'
        if kind is bool or not (node.lenient or re.fullmatch(r'[-+]?[\d.]+[eE][-+]?\d+', value)):
            raise wrong
        try:
            value = kind(value)
        except ValueError:
            raise wrong from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise wrong
    if kind is float and not math.isfinite(value):
        raise node.error(f'{name} is {value}; it must be finite')
    return value


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return 'a mapping'
    if isinstance(value, list):
        return 'a list'
    return 'nothing' if value is None else repr(value)


def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)
