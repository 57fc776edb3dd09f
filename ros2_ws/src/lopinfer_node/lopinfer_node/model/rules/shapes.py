"""Operators that move or resample elements: view, permute, slice, cat, pad, interpolate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..calls import Arithmetic, Call, Division, Value, indivisible, rule
from ..footprint import Interval, divided, fixed, identity, merged, ranges, shifted, whole
from .pointwise import same_axis


@rule('permute', 'transpose', 't', 'numpy_T', 'mT', 'swapaxes', 'swapdims', 'movedim')
def permute(call: Call) -> Division:
    """Divide the result along the axis to which the operator moves the input's divided axis.

    A call of `movedim` is indivisible.
    """
    value = call.values[0]
    rank = len(value.shape)
    order = list(range(rank))
    if call.op == 'permute':
        order = [d % rank for d in call.arguments['dims']]
    elif call.op in ('t', 'numpy_T'):
        order.reverse()
    elif call.op == 'mT':
        order[-2:] = order[:-3:-1]
    elif call.op == 'movedim':
        return indivisible(call)
    else:
        names = ('axis0', 'axis1') if call.op == 'swapaxes' else ('dim0', 'dim1')
        i, j = (call.arguments[n] % rank for n in names)
        order[i], order[j] = order[j], order[i]
    assert value.axis is not None
    return same_axis(call, value, order.index(value.axis))


@rule('view', 'reshape', '_unsafe_view', 'unflatten', 'flatten', 'squeeze', 'unsqueeze')
def reshape(call: Call) -> Division:
    """Divide along the axis of the result that corresponds to the divided axis of the input.

    Two axes correspond if the product of the sizes of all outer axes is equal for both. The divided
    axis stays as it is, is joined with inner axes, or is split into several axes. After a split the
    result is divided along the outermost of the new axes that are longer than 1. If the operator
    joins the divided axis with an outer axis longer than 1, the operator is indivisible, because an
    interval would not stay an interval.
    """
    value = call.values[0]
    assert value.axis is not None
    if 'dtype' in call.arguments:   # the operator reads the bytes of the last axis as another type
        return indivisible(call) if value.axis == len(value.shape) - 1 else same_axis(call, value)
    before = int(np.prod(value.shape[:value.axis], dtype=np.int64))
    inner = int(np.prod(value.shape[value.axis + 1:], dtype=np.int64))
    extent = value.extent
    axis = _axis_after(call.shape, before, extent)
    if axis is None:
        return indivisible(call)
    size = call.shape[axis]
    if size == extent:
        footprint, unit = identity(extent), 1
    elif size > extent and size % extent == 0 and inner % (size // extent) == 0:
        footprint, unit = merged(size, size // extent, extent), size // extent
    elif size < extent and extent % size == 0:
        footprint, unit = divided(size, extent // size, extent), 1
    else:
        return indivisible(call)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        first = lo // unit * unit
        rows = [-1 if i == axis else n for i, n in enumerate(call.shape)]
        if not all(n for n in call.shape):
            rows[axis] = hi - lo
        if first == lo and hi % unit == 0:
            return lambda x: x.reshape(rows)
        return lambda x: x.reshape(rows).narrow(axis, lo - first, hi - lo)

    return Division(axis, (footprint,), part)


def _axis_after(shape: tuple[int, ...], before: int, extent: int) -> int | None:
    """Return the first axis longer than 1 for which the product of all outer sizes is `before`.

    Return None if `shape` has no such axis.
    """
    outer, found = 1, []
    for axis, size in enumerate(shape):
        if outer == before and size > 1:
            found.append(axis)
        outer *= size
    return found[0] if found else None


@rule('expand', 'broadcast_to')
def expand(call: Call) -> Division:
    """Divide along the divided axis of the input; indivisible if the operator expands this axis.

    The operator may also add leading axes.
    """
    value = call.values[0]
    assert value.axis is not None
    axis = value.axis + len(call.shape) - len(value.shape)
    if value.extent == 1 and call.shape[axis] != 1:
        return indivisible(call)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        sizes = [hi - lo if i == axis else n for i, n in enumerate(call.shape)]
        return lambda x: x.expand(sizes)

    return Division(axis, (identity(value.extent),), part)


@rule('slice', 'narrow')
def slice_(call: Call) -> Division:
    """Divide along the divided axis of the input; a slice along this axis shifts the footprint."""
    value = call.values[0]
    rank = len(value.shape)
    dim = call.arguments.get('dim', 0) % rank
    if value.axis != dim:
        assert value.axis is not None
        return same_axis(call, value)
    step = call.arguments.get('step', 1) or 1
    start = call.arguments.get('start') or 0
    start = min(max(start + value.extent if start < 0 else start, 0), value.extent)
    footprint = shifted(call.shape[dim], start, value.extent, step)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        if step == 1:
            return lambda x: x
        index = (slice(None),) * dim + (slice(None, None, step),)
        return lambda x: x[index]

    return Division(dim, (footprint,), part)


@rule('select')
def select(call: Call) -> Division:
    """Divide along the divided axis of the input.

    If the operator selects one index of the divided axis, the result is indivisible and needs
    only the selected index.
    """
    value = call.values[0]
    dim = call.arguments['dim'] % len(value.shape)
    assert value.axis is not None
    if value.axis != dim:
        return same_axis(call, value, value.axis - (dim < value.axis))
    at = call.arguments['index'] % value.extent

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        return lambda x: x.squeeze(dim)

    return Division(None, (fixed(1, at, at + 1, value.extent),), part)


@rule('cat', 'concat', 'concatenate')
def cat(call: Call) -> Division:
    """Divide along the divided axis of the inputs.

    If the inputs are joined along this axis, each input fills one interval of the result. Otherwise
    all inputs are divided in the same way.
    """
    tensors = call.arguments['tensors']
    rank = len(call.shape)
    dim = call.arguments.get('dim', 0) % rank
    axis = next((v.axis for v in call.values if v.axis is not None and v.extent > 1), None)
    if axis is None or any(len(t.shape) != rank for t in tensors) \
            or len([t for t in tensors if isinstance(t, Value)]) != len(call.values):
        return indivisible(call)
    return _stretches(call, tensors, axis) if axis == dim else _alike(call, tensors, axis, dim)


def _alike(call: Call, tensors: Sequence[Any], axis: int, dim: int) -> Division:
    extent = call.shape[axis]
    own = [isinstance(t, Value) and t.axis == axis for t in tensors]
    footprints = tuple(identity(extent) if o else whole(extent, t.extent)
                       for o, t in zip(own, tensors, strict=True) if isinstance(t, Value))

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        def on_slices(*given: torch.Tensor) -> torch.Tensor:
            source = iter(given)
            pieces = []
            for o, t in zip(own, tensors, strict=True):
                piece = next(source) if isinstance(t, Value) else t.tensor
                pieces.append(piece if o else piece.narrow(axis, lo, hi - lo))
            return torch.cat(pieces, dim)
        return on_slices

    return Division(axis, footprints, part, any(not f.local for f in footprints))


def _stretches(call: Call, tensors: Sequence[Any], axis: int) -> Division:
    extent = call.shape[axis]
    offsets = np.cumsum([0, *(t.shape[axis] for t in tensors)])
    footprints = []
    for offset, t in zip(offsets, tensors, strict=False):
        if not isinstance(t, Value):
            continue
        if t.axis == axis:
            footprints.append(shifted(extent, -int(offset), t.extent))
        else:
            inside = (np.arange(extent) >= offset) & (np.arange(extent) < offset + t.shape[axis])
            footprints.append(ranges(np.zeros(extent, np.int64),
                                     np.where(inside, t.extent, 0), t.extent))

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        def on_slices(*given: torch.Tensor) -> torch.Tensor:
            source = iter(given)
            pieces = []
            for offset, t in zip(offsets, tensors, strict=False):
                piece = next(source) if isinstance(t, Value) else t.tensor
                start, end = max(lo, int(offset)), min(hi, int(offset) + t.shape[axis])
                if start < end:
                    divided_here = isinstance(t, Value) and t.axis == axis
                    pieces.append(piece if divided_here
                                  else piece.narrow(axis, start - int(offset), end - start))
            # an input of the call can have a narrower type than the result
            return torch.cat(pieces, axis).to(call.dtype)
        return on_slices

    return Division(axis, tuple(footprints), part)


@rule('stack')
def stack(call: Call) -> Division:
    """Divide along the divided axis of the inputs, which may lie before or after the new axis."""
    tensors = call.arguments['tensors']
    rank = len(call.shape)
    dim = call.arguments.get('dim', 0) % rank
    axis = next((v.axis for v in call.values if v.axis is not None), None)
    if axis is None or not all(isinstance(t, Value) and t.axis == axis for t in tensors):
        return indivisible(call)
    return Division(axis + (dim <= axis), tuple(identity(v.extent) for v in call.values),
                    lambda lo, hi, needs: call.bind())


@rule('constant_pad_nd', 'pad', 'reflection_pad2d', 'replication_pad2d', 'reflection_pad1d',
      'replication_pad1d')
def pad(call: Call) -> Division:
    """Divide constant padding; padding of the divided axis shifts the footprint.

    If the divided axis has other padding, such as reflection, the operator is indivisible.
    """
    value = call.values[0]
    assert value.axis is not None
    axis, rank = value.axis, len(value.shape)
    name = 'padding' if 'padding' in call.arguments else 'pad'
    pads = list(call.arguments[name])
    at = 2 * (rank - 1 - axis)
    low, high = pads[at:at + 2] if at < len(pads) else (0, 0)
    if not low and not high:
        return same_axis(call, value)
    if call.op != 'constant_pad_nd' and call.arguments.get('mode') != 'constant':
        return indivisible(call)
    footprint = shifted(call.shape[axis], -low, value.extent)
    fill = call.arguments.get('value') or 0.0

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        start, end = needs[0]
        if start == end:
            blank = [hi - lo if i == axis else n for i, n in enumerate(call.shape)]
            return lambda x: x.new_full(blank, fill)
        here = list(pads)
        here[at:at + 2] = [start - (lo - low), (hi - low) - end]
        return call.bind(**{name: here})

    return Division(axis, (footprint,), part)


@rule('pixel_shuffle')
def pixel_shuffle(call: Call) -> Division:
    """Divide along any axis except the channels, which become r x r blocks of pixels.

    Output row i needs input row i // r, where r is the upscale factor.
    """
    value = call.values[0]
    factor = call.arguments['upscale_factor']
    assert value.axis is not None
    axis = value.axis
    if axis < len(value.shape) - 2:
        return indivisible(call) if axis == len(value.shape) - 3 else same_axis(call, value)
    footprint = merged(call.shape[axis], factor, value.extent)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        run, first = call.bind(), lo // factor * factor
        return lambda x: run(x).narrow(axis, lo - first, hi - lo)

    return Division(axis, (footprint,), part)


@rule('pixel_unshuffle')
def pixel_unshuffle(call: Call) -> Division:
    """Divide along any axis except the channels; blocks of r x r pixels become channels."""
    value = call.values[0]
    assert value.axis is not None
    axis = value.axis
    if axis < len(value.shape) - 2:
        return indivisible(call) if axis == len(value.shape) - 3 else same_axis(call, value)
    return Division(axis, (divided(call.shape[axis], call.arguments['downscale_factor'],
                                   value.extent),), lambda lo, hi, needs: call.bind())


@rule('upsample_nearest1d', 'upsample_nearest2d', 'upsample_nearest3d', 'upsample_linear1d',
      'upsample_bilinear2d', 'upsample_trilinear3d')
def interpolate(call: Call) -> Division:
    """Divide along any axis, unless a part could be rounded differently from the whole result.

    Along a divided spatial axis this rule itself selects the input indices and their weights, and
    PyTorch's kernel interpolates only along the other axes. An output index needs one input index
    (nearest) or two neighbours (linear).
    """
    value = call.values[0]
    assert value.axis is not None
    axis = value.axis
    if axis < 2:
        return same_axis(call, value)
    if not call.dtype.is_floating_point or call.dtype is torch.float64 and 'nearest' in call.op \
            or _ambiguous(call, value):
        # here `_neighbours` and PyTorch's kernels would round differently
        return indivisible(call)
    below, above, weight = _neighbours(call, value)
    footprint = ranges(below, above + 1, value.extent)
    target = list(call.shape[2:])

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        origin, end = needs[0]
        sizes = [end - origin if i == axis - 2 else n for i, n in enumerate(target)]
        run = _others(call, sizes, axis - 2)
        low = torch.from_numpy(below[lo:hi] - origin)
        if weight is None:
            return lambda x: run(x).index_select(axis, low.to(x.device))
        high = torch.from_numpy(above[lo:hi] - origin)
        shape = [-1 if i == axis else 1 for i in range(len(call.shape))]
        lerp = torch.from_numpy(weight[lo:hi]).view(shape)

        def on_slice(x: torch.Tensor) -> torch.Tensor:
            y = run(x)
            a, b = (y.index_select(axis, i.to(y.device)) for i in (low, high))
            return torch.lerp(a, b, lerp.to(y))
        return on_slice

    return Division(axis, (footprint,), part)


def _ambiguous(call: Call, value: Value) -> bool:
    """Return whether an output has 1 or 2 times the input size, but the call has another scale.

    One such spatial axis is enough. In that case some kernels use the sizes and other kernels use
    the scale. Sizes and scale together decide which kernel runs.
    """
    return any(scale and size in (n, 2 * n) and scale * n != size for scale, n, size in zip(
        _scales(call, len(call.shape) - 2), value.shape[2:], call.shape[2:], strict=True))


def _others(call: Call, sizes: list[int], at: int) -> Arithmetic:
    """Return a function that interpolates along all axes except the divided axis `at`.

    The size of the axis `at` does not change.
    """
    packet = getattr(torch.ops.aten, call.op)
    corners = call.arguments.get('align_corners')
    # Keep the call's scales of the other axes, because the scales decide where samples fall.
    scales = [None if i == at else scale for i, scale in enumerate(_scales(call, len(sizes)))]
    if corners is None:
        return lambda x: packet(x, sizes, *scales)
    return lambda x: packet(x, sizes, corners, *scales)


def _scales(call: Call, dims: int) -> list[float | None]:
    factors = call.arguments.get('scale_factors')
    if factors is not None:
        return list(factors)
    if dims == 1:
        return [call.arguments.get('scales')]
    return [call.arguments.get(f'scales_{a}') for a in ('d', 'h', 'w')[3 - dims:]]


def _neighbours(call: Call, value: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return lower and upper input index of each output index, and the weight of the upper index.

    The weight is None for nearest interpolation, which uses the lower index only.
    """
    assert value.axis is not None
    extent, outputs = value.extent, call.shape[value.axis]
    scale = _scales(call, len(value.shape) - 2)[value.axis - 2]
    real: Any = np.float64 if call.dtype is torch.float64 else np.float32
    at = np.arange(outputs, dtype=real)
    if 'nearest' in call.op:
        step = real(1 / scale) if scale else real(extent) / real(outputs)
        index = np.minimum(np.floor(at * step).astype(np.int64), extent - 1)
        return index, index, None
    if call.arguments['align_corners']:
        source = at * real((extent - 1) / (outputs - 1) if outputs > 1 else 0)
    else:
        step = real(1 / scale) if scale else real(extent / outputs)
        source = np.maximum((at + real(0.5)) * step - real(0.5), 0)
    low = np.minimum(source.astype(np.int64), extent - 1)
    return low, np.minimum(low + 1, extent - 1), source - low
