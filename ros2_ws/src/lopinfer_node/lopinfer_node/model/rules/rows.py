"""Row-wise operators and reductions: linear, matmul, attention, normalisation, softmax, sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..calls import Arithmetic, Call, Division, Value, Weight, along, indivisible, rule
from ..footprint import Interval, identity, ranges, whole
from .pointwise import narrowed, placed, pointwise, same_axis


@rule('linear')
def linear(call: Call) -> Division:
    """Divide a linear layer along any axis except the last (thesis: row-separable).

    Each row is computed without the other rows.
    """
    value = call.values[0]
    if isinstance(call.arguments['weight'], Value) or len(call.values) != 1 \
            or value.axis == len(value.shape) - 1:
        return indivisible(call)
    return same_axis(call, value)


@rule('addmm', 'baddbmm')
def addmm(call: Call) -> Division:
    """Return how to divide a matrix product with an added tensor.

    The added tensor is cut along the axis of the division.
    """
    names = ('mat1', 'mat2') if call.op == 'addmm' else ('batch1', 'batch2')
    bias = call.arguments['self']
    if isinstance(bias, Value):
        return indivisible(call)
    return product(call, *names)


@rule('matmul', 'mm', 'bmm')
def matmul(call: Call) -> Division:
    """Divide a product along rows of the left factor, columns of the right, or a batch axis."""
    return product(call, 'self', 'mat2' if call.op in ('mm', 'bmm') else 'other')


def product(call: Call, left: str, right: str) -> Division:
    """Return how to divide the matrix product of the arguments named `left` and `right`."""
    a, b = call.arguments[left], call.arguments[right]
    rank = len(call.shape)
    if len(a.shape) < 2 or len(b.shape) < 2:
        return indivisible(call)
    axis = _product_axis(a, b, rank)
    if axis is None:
        return indivisible(call)
    extent = call.shape[axis]
    batch = axis < rank - 2
    # If one tensor is both factors, one factor needs the whole tensor and the other factor only
    # a part of it. But a tensor has only one footprint for each call.
    if a == b and not batch:
        return indivisible(call)
    same = [v for v, rows in ((a, rank - 2), (b, rank - 1)) if isinstance(v, Value)
            and v.axis is not None and v.axis + rank - len(v.shape) == axis
            and (batch or axis == rows) and v.extent == extent]
    footprints = along(call, axis, same)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        changes: dict[str, Any] = {}
        cuts: dict[int, int] = {}
        for name, operand, rows in ((left, a, rank - 2), (right, b, rank - 1)):
            if operand in same or not (batch or axis == rows) \
                    or placed(operand.shape, rank, axis) != extent:
                continue
            if isinstance(operand, Weight):
                changes[name] = narrowed(operand, rank, axis, lo, hi)
            else:
                cuts[call.values.index(operand)] = axis - rank
        bias = call.arguments['self']
        if isinstance(bias, Weight) and 'self' not in (left, right):
            changes['self'] = narrowed(bias, rank, axis, lo, hi)
        run = call.bind(**changes)
        if not cuts:
            return run
        return lambda *tensors: run(*(t.narrow(cuts[i], lo, hi - lo) if i in cuts else t
                                      for i, t in enumerate(tensors)))

    return Division(axis, tuple(footprints), part,
                    any(not f.local for f in footprints))


def _product_axis(a: Any, b: Any, rank: int) -> int | None:
    """Return the axis of the product that belongs to the divided axis of a factor, or None."""
    for operand, contracted in ((a, rank - 1), (b, rank - 2)):
        if isinstance(operand, Value) and operand.axis is not None and operand.extent > 1:
            axis = operand.axis + rank - len(operand.shape)
            if axis != contracted:
                return axis
    return None


@rule('scaled_dot_product_attention')
def attention(call: Call) -> Division:
    """Divide along the queries, or along a batch or head axis of all operands.

    A query needs all keys and values. With a causal mask it needs only the keys and values up to
    its own position.
    """
    query, key = call.arguments['query'], call.arguments['key']
    mask = call.arguments.get('attn_mask')
    if not isinstance(query, Value) or query.axis is None or isinstance(mask, Value):
        return indivisible(call)
    axis, rank, extent = query.axis, len(query.shape), query.extent
    operands = query, key, call.arguments['value']
    if axis == rank - 1 or not all(isinstance(o, Value) and len(o.shape) == rank for o in operands):
        return indivisible(call)
    if axis < rank - 2:  # all operands must be divided along the same batch or head axis
        if any(v.axis != axis or v.extent != extent for v in call.values) or mask is not None:
            return indivisible(call)
        return Division(axis, tuple(along(call, axis, call.values)), None)
    causal = bool(call.arguments.get('is_causal'))
    keys = key.shape[-2]
    footprints = []
    for value in call.values:
        if value is query or value == query and value.axis == axis:
            footprints.append(identity(extent) if value is query and call.values.count(value) == 1
                              and value not in (key, call.arguments['value'])
                              else whole(extent, extent))
        elif causal and value.axis == rank - 2:
            footprints.append(ranges(_zeros(extent), _past(extent, keys), keys))
        else:
            footprints.append(whole(extent, value.extent))
    if footprints[call.values.index(query)].local is False:
        return indivisible(call)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        if causal:
            end = max(n[1] for v, n in zip(call.values, needs, strict=True) if v != query)
            visible = end if any(v.axis == rank - 2 for v in call.values if v != query) else keys

            # Make the mask in each call, so that the mask takes no memory between calls.
            def on_slices(*tensors: torch.Tensor) -> torch.Tensor:
                at = torch.arange(max(visible, hi), device=tensors[0].device)
                past = at[None, :visible] <= at[lo:hi, None]
                return call.bind(attn_mask=Weight('causal', past), is_causal=False)(*tensors)
            return on_slices
        if isinstance(mask, Weight):
            return call.bind(attn_mask=narrowed(mask, rank, rank - 2, lo, hi))
        return call.bind()

    return Division(axis, tuple(footprints), part, not causal)


def _zeros(extent: int) -> Any:
    return torch.zeros(extent, dtype=torch.int64).numpy()


def _past(extent: int, keys: int) -> Any:
    return torch.arange(1, extent + 1).clamp(max=keys).numpy()


@rule('layer_norm', 'native_layer_norm', 'rms_norm')
def layer_norm(call: Call) -> Division:
    """Divide along any axis except those over which the operator normalises: the last axes."""
    value = call.values[0]
    assert value.axis is not None
    if value.axis >= len(value.shape) - len(call.arguments['normalized_shape']) or call.pick:
        return indivisible(call)
    return same_axis(call, value)


@rule('softmax', '_softmax', 'log_softmax', '_log_softmax', 'cumsum')
def along_one_axis(call: Call) -> Division:
    """Divide an operator that aggregates along the axis `dim`.

    The operator is local along every other axis. If the divided axis is `dim`, it is global.
    """
    value = call.values[0]
    assert value.axis is not None
    if value.axis == call.arguments['dim'] % len(value.shape):
        return indivisible(call)
    return same_axis(call, value)


@rule('embedding')
def embedding(call: Call) -> Division:
    """Divide an embedding along the divided axis of `indices`; each index selects one vector."""
    value = call.values[0]
    if value is not call.arguments['indices'] and value != call.arguments['indices']:
        return indivisible(call)
    return same_axis(call, value)


@rule('mean', 'sum', 'amax', 'amin', 'var', 'std', 'prod', 'any', 'all', 'logsumexp', 'argmax',
      'var_mean', 'std_mean', 'aminmax')
def reduction(call: Call) -> Division:
    """Return how to divide a reduction over some axes; global if it reduces the divided axis."""
    value = call.values[0]
    rank = len(value.shape)
    dims = call.arguments.get('dim')
    over = set(range(rank)) if dims is None or dims == [] else {
        d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims])}
    assert value.axis is not None
    if value.axis in over or len(call.values) != 1:
        return indivisible(call)
    kept = bool(call.arguments.get('keepdim', False))
    return same_axis(call, value, value.axis if kept
                     else value.axis - sum(d < value.axis for d in over))


@rule('max', 'min')
def extremum(call: Call) -> Division:
    """Return how to divide an extremum: of two tensors, or of one tensor over some axes."""
    return pointwise(call) if 'other' in call.arguments else reduction(call)
