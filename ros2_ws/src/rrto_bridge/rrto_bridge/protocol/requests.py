"""Converts replay actions to items of messages and back.

The conversion checks each received item. A message contains items. An item is a tuple:
its kind, then its fields.
"""

from __future__ import annotations

from typing import Any

from .actions import Abandon, Define, Finish, Forget, More, Start, Switch, Value
from .errors import RemoteError
from .record import Meta
from .sequence import ROLES, Sequence, Step

# Kinds of items other than calls and replay actions.
FREE, SEED, QUERY, FIND, KEEP, MEMORY, RANDOM, FORM, FORMS = (
    'free', 'seed', 'query', 'find', 'keep', 'memory', 'random', 'form', 'forms')

_KINDS: dict[str, Any] = {'forget': Forget, 'start': Start, 'more': More, 'switch': Switch,
                          'abandon': Abandon, 'finish': Finish}
_NAMES = {kind: name for name, kind in _KINDS.items()}
DEFINE = 'define'
KINDS = frozenset((DEFINE, *_KINDS))


def to_item(action: Any) -> tuple[Any, ...]:
    """Return the item for a replay action."""
    if isinstance(action, Define):
        s = action.sequence
        steps = tuple([(t.op, t.arguments, t.keywords, t.results, t.metas, t.wanted)
                       for t in s.steps])
        return DEFINE, s.number, tuple(sorted(s.kept)), s.bound, steps
    return (_NAMES[type(action)], *[getattr(action, name) for name in action.__slots__])


def from_item(item: tuple[Any, ...]) -> Any:
    """Return the action in an item; raises RemoteError for a malformed item."""
    kind, fields = item[0], item[1:]
    if kind == DEFINE:
        return _define(fields)
    action = _KINDS[kind]
    if len(fields) != len(action.__slots__):
        raise RemoteError(f'malformed {kind}: expected {len(action.__slots__)} fields, '
                          f'got {len(fields)}')
    for name, field in zip(action.__slots__, fields, strict=True):
        if name in ('bound', 'alive'):
            good = type(field) is tuple and all(type(h) is int for h in field)
        elif name == 'failed':
            good = type(field) is bool
        elif name == 'inputs':
            good = type(field) is tuple and all(type(data) is memoryview for data in field)
        else:
            good = type(field) is int and field >= 0
        if not good:
            raise RemoteError(f'malformed {kind}: invalid {name}')
    return action(*fields)


def _define(fields: tuple[Any, ...]) -> Define:
    if len(fields) != 4 or type(fields[0]) is not int or not all(
            type(f) is tuple for f in fields[1:]):
        raise RemoteError('malformed sequence: expected an integer and three tuples')
    number, kept, bound, steps = fields
    if not all(type(k) is int for k in kept) or not all(type(m) is Meta for m in bound):
        raise RemoteError('malformed sequence: invalid kept slots or bound metas')
    try:
        sequence = Sequence(tuple([_step(step) for step in steps]), frozenset(kept), bound)
    except (AttributeError, TypeError, ValueError) as error:
        raise RemoteError(f'malformed sequence: {error}') from error
    sequence.number = number
    return Define(sequence)


def _step(fields: Any) -> Step:
    if type(fields) is not tuple or tuple(type(f) for f in fields) != (
            str, tuple, tuple, tuple, tuple, bool):
        raise RemoteError('malformed step of a sequence')
    _, _, keywords, results, metas, _ = fields
    if not all(type(k) is tuple and len(k) == 2 and type(k[0]) is str for k in keywords) \
            or not all(r is None or isinstance(r, ROLES) for r in results) \
            or not all(m is None or type(m) is Meta for m in metas) or len(results) != len(metas):
        raise RemoteError('malformed step of a sequence')
    return Step(*fields)


def value_to_message(value: Value) -> tuple[Any, ...]:
    """Return the message that carries a value of a run to the client."""
    return value.run, value.index, value.value, value.metas, value.error


def value_of(message: tuple[Any, ...]) -> Value:
    """Return the value of a run from a message to the client.

    Raises RemoteError if the message is malformed.
    """
    run, index, value, metas, error = message
    if type(run) is not int or type(index) is not int or type(metas) is not tuple \
            or type(error) is not str:
        raise RemoteError('malformed value from the server')
    return Value(run, index, value, metas, error)
