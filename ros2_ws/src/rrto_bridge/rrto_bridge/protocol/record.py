"""The types of an intercepted PyTorch call: its operator, its arguments and its results.

A handle is the number by which client and server name a tensor. The other files describe the
program's calls with these types. This file does not import torch. Source: thesis section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

# HTOD, SEEDING and DTOH are names of calls that are not ATen operators.

# Copy from host to device: no arguments, one result. `Call` does not contain the bytes.
HTOD = 'htod'
# Set the random seed: the argument is a tensor that contains the seed; no result.
SEEDING = 'rrto.seed.default'
# Copy from device to host: the argument is one `Ref`; no result. It is always a wanted call (a call
# whose value the program needs at once); the value is the bytes.
DTOH = 'dtoh'

GIVEN = 'given'  # `Special(GIVEN, k)` in a result: the operator has returned tensor argument k


class Meta(NamedTuple):
    """The properties of a tensor without its values.

    `stride`: in elements. `dtype`: torch's name without the prefix 'torch.', such as 'float32'.
    `offset`: position of the first element in the storage, in elements.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int = 0


class Ref(NamedTuple):
    """A tensor argument, named by the tensor's handle. The client never reuses a handle."""

    handle: int


class Slot(NamedTuple):
    """Stands for a tensor in a `signature`, which contains no handles.

    `place`: number of the tensor in the call, in order of first use.
    """

    place: int


class Special(NamedTuple):
    """An argument that is neither scalar nor tensor, such as Special('dtype', 'float32')."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the device.

    `op`: an operator such as 'aten.conv2d.default', or HTOD, DTOH or SEEDING. `arguments` and
    `keywords` (name, value) hold scalars, `Ref`, `Special`, and tuples of these. `results`: handles
    of the returned tensors, flattened in order; None where the operator returned no tensor. An
    in-place operator returns the handle of its argument. `metas`: meta of each result. `wanted`:
    whether the program needs a value now (a number, bytes, or a shape that depends on data), so
    that a round trip is necessary.
    """

    op: str
    arguments: tuple[Any, ...] = ()
    keywords: tuple[tuple[str, Any], ...] = ()
    results: tuple[int | None, ...] = ()
    metas: tuple[Meta | None, ...] = ()
    wanted: bool = False

    def inputs(self) -> tuple[int, ...]:
        """Return the handles of the tensor arguments, in order, with repetitions."""
        return tuple(_handles((self.arguments, self.keywords)))

    def fresh(self) -> tuple[int, ...]:
        """Return the handles of the results that are new tensors, not returned arguments."""
        given = set(self.inputs())
        return tuple(h for h in self.results if h is not None and h not in given)


def _handles(value: Any) -> Iterator[int]:
    if isinstance(value, Ref):
        yield value.handle
    elif type(value) is tuple:
        for item in value:
            yield from _handles(item)


def signature(call: Call, input_metas: tuple[Meta | None, ...]) -> tuple[Any, ...]:
    """Return a hashable value that identifies a call and contains no handles.

    If two inferences make the same call with other tensors, both signatures are equal.
    `input_metas`: metas of `call.inputs()`. The signature distinguishes the types of scalars (1,
    1.0 and True differ). It also says which arguments are the same tensor, and which results are
    returned arguments.
    """
    given = call.inputs()
    template = _template((call.arguments, call.keywords), {})
    returned = tuple(-1 if h is None else given.index(h) if h in given else -2
                     for h in call.results)
    return (call.op, template, input_metas, call.metas, returned, call.wanted)


def _template(value: Any, slots: dict[int, int]) -> Any:
    if isinstance(value, Ref):
        return Slot(slots.setdefault(value.handle, len(slots)))
    if type(value) is tuple:
        return tuple(_template(item, slots) for item in value)
    if type(value) is float:
        return ('float', value.hex())  # as text, NaN equals NaN, but -0.0 differs from 0.0
    if type(value) is complex:
        return ('complex', value.real.hex(), value.imag.hex())
    if type(value) in (bool, int):
        return (type(value).__name__, value)
    return value


class Persistent(NamedTuple):
    """Role of a tensor that exists before every pass and is the same in each, such as a weight."""

    handle: int


def metas(described: Any) -> Iterator[Meta]:
    """Yield the metas of the new tensors in the result of a call, in the order of their handles.

    `described`: a result in the form that `execution.context.Context.execute` returns.
    """
    if type(described) is Meta:
        yield described
    elif type(described) is tuple and not (described and type(described[0]) is Special):
        for item in described:
            yield from metas(item)
