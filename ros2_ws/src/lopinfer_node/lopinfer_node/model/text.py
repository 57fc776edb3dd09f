"""A tape as JSON text, from which the file `graph.json` and the digest of a model are made."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import ModelError
from .calls import Weight
from .layout import format_of
from .tape import Ref, Tape

# Versions of the format of `graph.json`; the second one is written only with memory formats.
VERSIONS = 2, 3

KINDS: dict[str, type] = {'dtype': torch.dtype, 'layout': torch.layout,
                          'memory_format': torch.memory_format}


def as_json(name: str, axes: Sequence[int | None], tape: Tape) -> str:
    """Return the text of the graph file; equal models give equal texts."""
    calls, inputs = [], []
    formats = {weight: _short(form) for weight, tensor in tape.weights.items()
               if (form := format_of(tensor)) is not torch.contiguous_format}
    own = {'formats': formats} if formats else {}
    version = VERSIONS[bool(formats or any(
        made.format is not torch.contiguous_format for made in tape.records))]
    divided = iter(axes)
    for made in tape.records:
        common = {'shape': list(made.shape), 'dtype': name_of(made.dtype), 'place': made.place}
        if made.format is not torch.contiguous_format:
            common['format'] = _short(made.format)
        if made.overload is None:
            inputs.append({**common, 'axis': next(divided)})
        else:
            calls.append({**common, 'op': str(made.overload), 'pick': made.pick, 'arguments': {
                k: _encode(a) for k, a in made.arguments.items()}})
    return json.dumps({'version': version, 'name': name, 'inputs': inputs, 'calls': calls,
                       'outputs': [_encode(o) for o in tape.outputs],
                       'precision': tape.precision.as_json(), **own},
                      separators=(',', ':'), sort_keys=True)


def name_of(dtype: torch.dtype) -> str:
    """Return the short name of a type: `float32` for torch.float32."""
    return _short(dtype)


def _short(constant: Any) -> str:
    return str(constant).removeprefix('torch.')


def _encode(argument: Any) -> Any:
    if isinstance(argument, Ref):
        return {'v': argument.index}
    if isinstance(argument, Weight):
        return {'w': argument.name}
    if isinstance(argument, (list, tuple)):
        return [_encode(a) for a in argument]
    if isinstance(argument, torch.device):
        return {'device': 'model'}
    for kind, of in KINDS.items():
        if isinstance(argument, of):
            return {kind: _short(argument)}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {'float': str(argument)}
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    raise ModelError(f'an argument of type {type(argument).__name__} cannot be written as JSON')
