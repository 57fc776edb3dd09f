"""Parses texts that name a source: ``topic:/camera?keep=512``, ``folder:PATH``, ``self``."""

import difflib
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import parse_qsl

from rog_tasks.errors import TaskError


@dataclass(frozen=True)
class Spec:
    """A parsed text that names a source; each kind of source uses some of the options."""

    kind: str
    target: str
    keep: int = 512
    memory: float = 64.0
    patience: float = 10.0
    tolerance: float = 0.5
    threshold: float = 0.0
    topic: str = ''
    weights: str = ''
    split: str = 'iid'
    epochs: int = 5


_RANGES = {'keep': (1, 10**6), 'memory': (0.001, 2**20), 'patience': (0.1, 86400.0),
           'tolerance': (0.0, 3600.0), 'threshold': (0.0, 1.0),
           'epochs': (0, 1000)}
_TYPES = {field.name: field.type for field in fields(Spec)}


def parse(text: str, what: str, kinds: dict[str, tuple[str, ...]], **defaults: Any) -> Spec:
    """Parse a text that names a source.

    :param what: word for the text in messages to the user: ``images``, ``labels``.
    :param kinds: maps each kind to the names of its options. A kind that needs a target
        ends in a colon.
    :param defaults: default values that replace the defaults of :class:`Spec`.
    :raises TaskError: the text is invalid; the message says what is wrong and what is
        possible.
    """
    head, _, query = text.partition('?')
    kind, colon, target = head.partition(':')
    if kind + colon not in kinds or bool(colon) != bool(target):
        there = ', '.join(k + ('...' if k.endswith(':') else '') for k in kinds)
        raise TaskError(f'{what} must be one of {there}, got {text!r}')
    known = kinds[kind + colon]
    values: dict[str, Any] = dict(defaults)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise TaskError(f'{what} {text!r} has no option {name!r}; ' + (
                f'did you mean {near[0]!r}?' if near else f'it knows {", ".join(known) or "none"}'))
        values[name] = _value(text, what, name, value)
    return Spec(kind, target, **values)


def _value(text: str, what: str, name: str, value: str) -> Any:
    if name not in _RANGES:
        if not value:
            raise TaskError(f'{what} {text!r}: {name} is empty')
        return value
    low, high = _RANGES[name]
    kind = int if _TYPES[name] is int else float
    try:
        number = kind(value)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise TaskError(f'{what} {text!r}: {name} must be a {"whole " if kind is int else ""}'
                        f'number between {low:g} and {high:g}')
    return number
