"""A traced model on disk and on the wire: graph.json, contents.json and weights, never a pickle.

contents.json maps the name of each weight to [SHA-256, dtype, shape] (`traced.Content`). The
weights are among the kept ones (`fleet_compute.weights`), by their SHA-256, so models share them.

graph.json: {"version", "name", "inputs": [{"shape", "dtype", "axis", "place"}], "calls": [{"op",
"arguments", "shape", "dtype", "place", "pick"}], "outputs": [...], "precision": {"matmul",
"convolution", "float16", "bfloat16"}}. An input or a call has a "format", and "formats" names
weights, whose memory format is not contiguous (`layout.CHANNELS_LAST`). Inputs and calls are
numbered together: first the inputs, then the calls. An argument {"v": number} stands for the input
or the result of the call with this number, and {"w": name} for a weight. The reader does not trust
the files: it accepts only operators of an allow-list, and computes every shape again.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from fleet_compute.operators import find, refusal
from fleet_compute.weights import Weights

from ..errors import ModelError
from . import rules  # noqa: F401 - registers the rules
from .calls import Weight
from .layout import CHANNELS_LAST
from .precision import Precision
from .tape import Record, Ref, Tape
from .text import KINDS, VERSIONS, as_json
from .traced import Content, Traced, bytes_of

GRAPH, CONTENTS = 'graph.json', 'contents.json'
MODEL = re.compile('[0-9a-f]{64}')   # name of the folder of a complete model: its digest


def texts(traced: Traced) -> dict[str, bytes]:
    """Return the contents of the files of a model, by their names."""
    return {GRAPH: as_json(traced.name, traced.axes, traced.tape).encode(),
            CONTENTS: json.dumps(traced.contents, separators=(',', ':')).encode()}


def contents_of(text: bytes) -> dict[str, Content]:
    """Return the weights that a file `CONTENTS` names; raise ModelError if it is invalid."""
    try:
        return {name: _content(*fields) for name, fields in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f'{CONTENTS}: {error}') from error


def _content(sha256: str, dtype: str, shape: list[int]) -> Content:
    if not MODEL.fullmatch(sha256) or not isinstance(getattr(torch, dtype), torch.dtype) \
            or not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) > 1 << 40:
        raise ValueError(f'{CONTENTS} must have the SHA-256, dtype and shape of each weight')
    return Content(sha256, dtype, tuple(shape))


def load(directory: Path, kept: Weights, device: str = 'cpu') -> Traced:
    """Read and check both files, put the weights on `device`; raise ModelError if a check fails."""
    try:
        document = json.loads((directory / GRAPH).read_text(encoding='utf-8'))
        contents = contents_of((directory / CONTENTS).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f'{directory}: not a traced model: {error}') from error
    weights = {name: _weight(name, content, kept, device) for name, content in contents.items()}
    try:
        traced = _read(document, weights, torch.device(device))
        traced.contents = dict(sorted(contents.items()))    # `find` has computed it
        return traced
    except ModelError as error:
        raise ModelError(f'{directory / GRAPH}: {error}') from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise ModelError(f'{directory / GRAPH}: {type(error).__name__}: {error}') from error


def _weight(name: str, content: Content, kept: Weights, device: str) -> torch.Tensor:
    """Return a kept weight in memory of its own."""
    tensor = torch.empty(content.shape, dtype=getattr(torch, content.dtype))
    if content.nbytes and not kept.read(content.sha256, bytes_of(tensor)):
        raise ModelError(f'the weight {name} is no longer kept, or was damaged on the disk')
    return tensor.to(device)


def _read(document: dict[str, Any], weights: dict[str, torch.Tensor],
          device: torch.device) -> Traced:
    if document['version'] not in VERSIONS:
        raise ModelError(f'version {document["version"]}, this program reads versions {VERSIONS}')
    for name, form in document.get('formats', {}).items():
        weights[name] = weights[name].to(memory_format=_format(form, weights[name].ndim))
    tape = Tape(weights=weights, precision=Precision.from_json(document['precision']))
    records = tape.records
    for entry in document['inputs']:
        records.append(Record(None, {}, _shape(entry), _dtype(entry['dtype']), entry['place'],
                              format=_format_of(entry)))
    shadows = [torch.empty(r.shape, dtype=r.dtype, device='meta') for r in records]
    for entry in document['calls']:
        arguments = {str(k): _decode(a, len(records), weights, device)
                     for k, a in entry['arguments'].items()}
        made = Record(_overload(entry['op']), arguments, _shape(entry), _dtype(entry['dtype']),
                      str(entry['place']), entry['pick'], _format_of(entry))
        shadows.append(_check(made, shadows))
        records.append(made)
    tape.outputs = [_decode(o, len(records), weights, device) for o in document['outputs']]
    axes = [entry['axis'] for entry in document['inputs']]
    for axis, made in zip(axes, records, strict=False):
        if axis is not None and not 0 <= axis < len(made.shape):
            raise ModelError(f'input {made.place} has no axis {axis}')
    return Traced(str(document['name']), tape, axes)


def _check(made: Record, shadows: list[torch.Tensor]) -> torch.Tensor:
    """Run the call on tensors without memory (`meta`), and check the declared shape and type."""
    assert made.overload is not None

    def shadow(a: Any) -> Any:
        if isinstance(a, list):
            return [shadow(i) for i in a]
        if isinstance(a, Ref):
            return shadows[a.index]
        if isinstance(a, torch.device):
            return torch.device('meta')
        return a.tensor.to('meta') if isinstance(a, Weight) else a
    schema = made.overload._schema.arguments
    plain = [shadow(made.arguments.get(a.name, a.default_value)) for a in schema
             if not a.kwarg_only]
    keywords = {a.name: shadow(made.arguments[a.name]) for a in schema
                if a.kwarg_only and a.name in made.arguments}
    result = made.overload(*plain, **keywords)
    result = result if made.pick is None else result[made.pick]
    if tuple(result.shape) != made.shape or result.dtype != made.dtype:
        raise ModelError(f'{made.place}: {made.overload} gives {result.dtype} '
                         f'{list(result.shape)}, the file says {made.dtype} {list(made.shape)}')
    return result


def _overload(name: str) -> torch._ops.OpOverload:
    try:
        overload = find(name)
    except LookupError as error:
        raise ModelError(str(error)) from None
    if why := refusal(overload):
        raise ModelError(f'operator {overload} {why}')
    return overload


def _shape(entry: dict[str, Any]) -> tuple[int, ...]:
    shape = tuple(entry['shape'])
    if not all(type(n) is int and n >= 0 for n in shape) or math.prod(shape) > 1 << 31:
        raise ModelError(f'{entry["place"]}: shape must be a list of sizes, got {shape}')
    return shape


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ModelError(f'dtype must be a type of tensors, got {name}')
    return dtype


def _format_of(entry: dict[str, Any]) -> torch.memory_format:
    return _format(entry['format'], len(entry['shape'])) if 'format' in entry \
        else torch.contiguous_format


def _format(name: Any, axes: int) -> torch.memory_format:
    form = CHANNELS_LAST.get(axes)
    if str(form) != f'torch.{name}':
        raise ModelError(f'a tensor with {axes} axes has no memory format {name}')
    assert form is not None
    return form


def _decode(argument: Any, records: int, weights: dict[str, torch.Tensor],
            device: torch.device) -> Any:
    if isinstance(argument, list):
        return [_decode(a, records, weights, device) for a in argument]
    if not isinstance(argument, dict):
        return argument
    (kind, value), = argument.items()
    if kind == 'v':
        if type(value) is not int or not 0 <= value < records:
            raise ModelError(f'record {value} does not exist yet')
        return Ref(value)
    if kind == 'w':
        if value not in weights:
            raise ModelError(f'weight {value} is missing')
        return Weight(value, weights[value])
    if kind == 'float':
        return float(value)
    if kind == 'device':
        return device
    found = getattr(torch, str(value), None)
    if kind not in KINDS or not isinstance(found, KINDS[kind]):
        raise ModelError(f'{argument} is not known')
    return found
