"""An intercepted call: operator, handles, scalars and results. Independent of torch.

All other files describe the program in these terms. Source: thesis section 5.3.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

HTOD = 'htod'  # host to device: no arguments, one result; the call does not contain the bytes
SEEDING = 'rrto.seed.default'  # sets the random seed; one Ref to a tensor with the seed; no result
DTOH = 'dtoh'  # device to host: one Ref, no result, always wanted; the bytes are the value
GIVEN = 'given'  # kind of a `Special` in a result: the operator returned its k-th tensor argument


class Meta(NamedTuple):
    """The properties of a tensor without its values.

    `shape`, `stride` (elements), `dtype` named as in torch, without prefix ('float32'), `offset` of
    the first element in the storage (elements).
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    offset: int = 0


class Ref(NamedTuple):
    """A tensor argument, given by the client's handle. Handles are never reused."""

    handle: int


class Slot(NamedTuple):
    """The k-th tensor argument in a signature; a signature contains no handles."""

    place: int


class Special(NamedTuple):
    """An argument that is neither scalar nor tensor: `kind` is 'dtype', 'layout', ..."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """One call that reached the device.

    `op` is 'aten.conv2d.default', HTOD or DTOH. `arguments` and `keywords` (name, value) hold
    scalars, `Ref`, `Special`, and tuples of these. `results` are the handles of the returned
    tensors, flattened in order, None where the operator returned no tensor; an in-place operator
    returns the handle of its argument. `metas` belong to `results`. `wanted`: the program needs a
    value now (a number, bytes, or a shape that depends on data), so a round trip is necessary.
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
    """Return a hashable value without handles that identifies a call.

    It is equal for the same step of two inferences. `input_metas` belong to `call.inputs()`. The
    value contains the types of scalars (1, 1.0 and True differ), and which results are returned
    arguments.
    """
    given = call.inputs()
    slots = iter(range(len(given)))
    template = _template((call.arguments, call.keywords), slots)
    returned = tuple(-1 if h is None else given.index(h) if h in given else -2
                     for h in call.results)
    return (call.op, template, input_metas, call.metas, returned, call.wanted)


def _template(value: Any, slots: Iterator[int]) -> Any:
    if isinstance(value, Ref):
        return Slot(next(slots))
    if type(value) is tuple:
        return tuple(_template(item, slots) for item in value)
    if type(value) is float:
        return ('float', value.hex())  # as text, NaN equals NaN, and -0.0 differs from 0.0
    if type(value) is complex:
        return ('complex', value.real.hex(), value.imag.hex())
    if type(value) in (bool, int):
        return (type(value).__name__, value)
    return value


class Persistent(NamedTuple):
    """Role of a tensor that exists before the pass and is the same in every pass (a parameter)."""

    handle: int


def metas(described: Any) -> Iterator[Meta]:
    """Yield the metas of the new tensors in a result of a call, in the order of their handles.

    `execution.context.Context.execute` describes the form of a result.
    """
    if type(described) is Meta:
        yield described
    elif type(described) is tuple and not (described and type(described[0]) is Special):
        for item in described:
            yield from metas(item)
