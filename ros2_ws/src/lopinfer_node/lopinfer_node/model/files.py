"""A traced model on disk and on the wire: graph.json, weights.safetensors, never a pickle.

A third file, contents.json, maps the name of each weight to its SHA-256 (`traced.content_of`). By
it, a model finds weights that are not in its own file in the files of other models.

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
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from fleet_compute.operators import find, refusal
from fleet_env.durable import write_text
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ..errors import ModelError
from . import rules  # noqa: F401 - registers the rules
from .calls import Weight
from .layout import CHANNELS_LAST
from .precision import Precision
from .tape import Record, Ref, Tape
from .text import KINDS, VERSIONS, as_json
from .traced import Traced, content_of

GRAPH, WEIGHTS, CONTENTS = 'graph.json', 'weights.safetensors', 'contents.json'
MODEL = re.compile('[0-9a-f]{64}')   # name of the folder of a complete model: its digest
FOLLOWED = re.compile('followed-([0-9]+)')  # name of a folder with the weights of a fleet's model


def save(traced: Traced, directory: Path) -> None:
    """Write the files; weights that share memory are each written in full."""
    directory.mkdir(parents=True, exist_ok=True)
    save_texts(traced, directory)
    save_weights(traced, directory, traced.parameters)


def save_texts(traced: Traced, directory: Path) -> None:
    """Write the files `GRAPH` and `CONTENTS`."""
    write_text(directory / GRAPH, as_json(traced.name, traced.axes, traced.tape))
    write_text(directory / CONTENTS, json.dumps(traced.contents, separators=(',', ':')))


def save_weights(traced: Traced, directory: Path, names: Collection[str]) -> None:
    """Write the file `WEIGHTS` with these weights; folders beside this one have the others."""
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in traced.parameters.items()
               if k in names}, str(directory / WEIGHTS))


def lacking(directory: Path) -> dict[str, str]:
    """Return the weights that are in the file `CONTENTS` of a folder, but not in its `WEIGHTS`.

    The result maps their names to their contents; it is empty if there is no file `CONTENTS`.
    Raises ModelError for an invalid file.
    """
    try:
        contents, there = _contents(directory), _names(directory / WEIGHTS)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise ModelError(f'{directory}: not a traced model: {error}') from error
    return {name: content for name, content in contents.items() if name not in there}


def _contents(directory: Path) -> dict[str, str]:
    contents = json.loads((directory / CONTENTS).read_text(encoding='utf-8'))
    if type(contents) is not dict or not all(
            type(c) is str and MODEL.fullmatch(c) for c in contents.values()):
        raise ValueError(f'{CONTENTS} must have the SHA-256 of each weight')
    return contents


class Index:
    """Which weights are in the files of the complete models in a folder, and of `FOLLOWED`."""

    def __init__(self, models: Path) -> None:
        self._found: dict[str, list[tuple[Path, str]]] = {}   # by content: (folder, name)
        for folder in sorted(p for p in models.iterdir()
                             if MODEL.fullmatch(p.name) or FOLLOWED.fullmatch(p.name)):
            try:
                contents, there = _contents(folder), _names(folder / WEIGHTS)
            except (OSError, ValueError, RecursionError, SafetensorError):
                continue    # a damaged model, which is refused when it is loaded
            for name in there & contents.keys():
                self._found.setdefault(contents[name], []).append((folder, name))

    def place(self, content: str, besides: Path) -> tuple[Path, str] | None:
        """Return (folder, name) of a weight with this content in another folder than `besides`."""
        return next((p for p in self._found.get(content, ()) if p[0] != besides), None)


def _names(path: Path) -> set[str]:
    if not path.exists():
        return set()
    with safe_open(str(path), 'pt') as file:
        return set(file.keys())


def load(directory: Path, device: str = 'cpu') -> Traced:
    """Read and check both files, put the weights on `device`; raise ModelError if a check fails."""
    try:
        document = json.loads((directory / GRAPH).read_text(encoding='utf-8'))
        weights = _weights(directory / WEIGHTS, device) | _others(directory, device)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(f'{directory}: not a traced model: {error}') from error
    try:
        return _read(document, weights, torch.device(device))
    except ModelError as error:
        raise ModelError(f'{directory / GRAPH}: {error}') from None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        raise ModelError(f'{directory / GRAPH}: {type(error).__name__}: {error}') from error


def _others(directory: Path, device: str) -> dict[str, torch.Tensor]:
    """Read the weights that only the files of other models have."""
    lacks = lacking(directory)
    if not lacks:
        return {}
    index = Index(directory.parent)
    names: dict[Path, dict[str, str]] = {}
    for name, content in lacks.items():
        place = index.place(content, directory)
        if place is None:
            raise ModelError(f'{directory}: no file has the weight {name}')
        names.setdefault(place[0], {})[name] = place[1]
    found: dict[str, torch.Tensor] = {}
    for folder, pairs in names.items():
        read = _weights(folder / WEIGHTS, device, set(pairs.values()))
        for name, theirs in pairs.items():
            if content_of(read[theirs]) != lacks[name]:
                (folder / CONTENTS).unlink(missing_ok=True)   # nobody else reads from it
                raise ModelError(f'{folder}: the weight {theirs} is not what {CONTENTS} says')
            found[name] = read[theirs]
    return found


def _weights(path: Path, device: str, only: Collection[str] | None = None
             ) -> dict[str, torch.Tensor]:
    """Read weights from a file into new memory; `only`: the names of these weights.

    Tensors that are mapped from a file would change when the file changes.
    """
    with safe_open(str(path), 'pt') as file:   # `safe_open` checks the header of the file
        kinds = {name: file.get_tensor(name) for name in file.keys()  # noqa: SIM118
                 if only is None or name in only}
        kinds = {name: torch.empty_like(tensor) for name, tensor in kinds.items()}
    with path.open('rb') as file:
        size = int.from_bytes(file.read(8), 'little')
        header = json.loads(file.read(size))
        for name, tensor in kinds.items():
            begin, end = header[name]['data_offsets']
            file.seek(8 + size + begin)
            if end > begin and file.readinto(
                    tensor.reshape(-1).view(torch.uint8).numpy().data) != end - begin:
                raise ValueError(f'{path.name} ends within {name}')
    return {name: tensor.to(device) for name, tensor in kinds.items()}


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
