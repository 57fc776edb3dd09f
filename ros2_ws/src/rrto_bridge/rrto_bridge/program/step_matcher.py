"""Compile a step of a sequence into its matcher, a function that handles one call of the program.

The matcher compares the call with the step, and returns wrappers for the results that the server
computes. The matcher is generated code without loops, because its time is the only cost of a
replayed operator besides PyTorch's own dispatch (thesis Algorithm 11, MatchReplayStep).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from ..protocol.operators import Operator, operator
from ..protocol.record import Meta, Persistent, Special
from ..protocol.sequence import Own, Step
from ..protocol.tensors import DTYPES, from_special
from .remote import CUDA, SIZE, Value, _make, move

MISS = object()   # result of a matcher for a call that does not match
Matcher = Callable[[Any, tuple[Any, ...], Any, int], Any]


def compiled(step: Step) -> Matcher:
    """Return the matcher of a step whose tensors are `Own` or `Persistent`; store it in the step.

    Call the matcher with (function, args, kwargs, base), where `base` is the handle of slot 0 in
    this pass. The matcher returns the results of the call, or MISS if the call does not match.
    """
    _, base, overload = step.op.split('.')
    function = getattr(getattr(torch.ops.aten, base), overload)
    names: dict[str, Any] = {'OP': function, 'MISS': MISS, 'MAKE': _make, 'KIND': Value,
                             'STRIDED': torch.strided, 'MOVE': move, 'CUDA': CUDA, 'SIZE': SIZE,
                             'copysign': math.copysign, 'ORDINARY': torch._C._InferenceMode,
                             'INFERENCE': torch.is_inference_mode_enabled}
    tests = [f'len(args) == {len(step.arguments)}']
    places: dict[Any, str] = {}
    for k, value in enumerate(step.arguments):
        _test(f'args[{k}]', value, tests, names, places)
    tests.append(f'len(kwargs) == {len(step.keywords)}' if step.keywords else 'not kwargs')
    for name, value in step.keywords:
        tests.append(f'{name!r} in kwargs')
        _test(f'kwargs[{name!r}]', value, tests, names, places)
    source = (['def match(function, args, kwargs, base):',
               '  if function is not OP: return MISS', '  try:',
               '    if not (' + ' and '.join(tests) + '): return MISS',
               '  except AttributeError: return MISS']
              + _results(step, operator(function), names, places))
    # `exec` is safe: the source contains only numbers, names of this file and quoted strings.
    exec('\n'.join(source), names)
    step.compiled = names['match']
    return step.compiled


def _constant(value: Any, names: dict[str, Any]) -> str:
    name = f'C{len(names)}'
    names[name] = value
    return name


def _test(place: str, value: Any, tests: list[str], names: dict[str, Any],
          places: dict[Any, str]) -> None:
    """Append the code of tests to `tests`: the argument `place` of the call must equal `value`.

    `place`: code of an expression such as `args[0]`.
    """
    kind = type(value)
    if kind is Own or kind is Persistent:
        handle = f'base + {value.slot}' if kind is Own else str(value.handle)
        tests.append(f'{place}.handle == {handle}')
        places.setdefault(value, place)
    elif value is None or kind is bool:
        tests.append(f'{place} is {value}')
    elif kind is int or kind is str or kind is complex:
        tests.append(f'type({place}) is {kind.__name__} and {place} == {value!r}')
    elif kind is float:
        tests.append(f'type({place}) is float')
        if math.isnan(value):
            tests.append(f'{place} != {place}')
        else:
            tests.append(f'{place} == {_constant(value, names)}')
            if not value:
                tests.append(f'copysign(1, {place}) == {math.copysign(1, value)}')
    elif kind is Special:
        tests.append(f'{place} == {_constant(from_special(value, CUDA), names)}')
    elif kind is tuple and value and all(type(item) is int for item in value):
        tests.append(f'{place} == {list(value)}')
    elif kind is tuple:
        tests.append(f'len({place}) == {len(value)}')
        for k, item in enumerate(value):
            _test(f'{place}[{k}]', item, tests, names, places)
    else:
        raise TypeError(f'{value!r} in {place}')


def _results(step: Step, facts: Operator, names: dict[str, Any], places: dict[Any, str]
             ) -> list[str]:
    lines, made = [], []
    for k, (role, meta) in enumerate(zip(step.results, step.metas, strict=True)):
        if role is None or meta is None:
            made.append('None')
        elif role in places:
            made.append(places[role])
            if facts.out:
                lines.append(f'  MOVE({places[role]}, {_constant(meta, names)})')
        else:
            assert isinstance(role, Own)
            lines += [f'  r{k} = {_wrapper(meta, names)}', f'  r{k}.handle = base + {role.slot}']
            made.append(f'r{k}')
    # Even in inference mode, a view of an ordinary tensor must be an ordinary tensor, not an
    # inference tensor; see `remote.make_view`.
    if lines and facts.view:
        lines = ['  if INFERENCE() and not args[0].is_inference():', '    with ORDINARY(False):',
                 *[f'    {line}' for line in lines], '  else:', *[f'  {line}' for line in lines]]
    if facts.lists:
        return [*lines, f'  return [{", ".join(made)}]']
    if not made:
        return [*lines, '  return None']
    return [*lines, '  return ' + (made[0] if len(made) == 1 else f'({", ".join(made)})')]


def _wrapper(meta: Meta, names: dict[str, Any]) -> str:
    return (f'MAKE(KIND, {meta.shape}, {meta.stride}, {meta.offset}, None, '
            f'{_constant(DTYPES[meta.dtype], names)}, STRIDED, CUDA, False, False, None, False, '
            'False, None, SIZE)')
