"""Window operators: convolution, transposed convolution and pooling (block-wise, thesis 4.4.1).

These rules add the padding (0 or -inf) to a slice before the operator runs. Otherwise the operator
would pad every border of a slice, even if that border lies inside the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..calls import Arithmetic, Call, Division, Value, indivisible, rule
from ..footprint import Interval, ranges, transposed_window, window
from .pointwise import same_axis


def each(setting: Any, dims: int) -> list[int]:
    """Return a list with the setting of each spatial dimension; a single number applies to all."""
    items = list(setting) if isinstance(setting, (list, tuple)) else [setting]
    return [int(i) for i in (items * dims if len(items) == 1 else items)]


def on_axis(items: Sequence[int], at: int, value: int) -> list[int]:
    """Return a copy of ``items`` with `value` at position `at`."""
    return [value if i == at else item for i, item in enumerate(items)]


def padded(tensor: torch.Tensor, axis: int, low: int, high: int, value: float = 0.0
           ) -> torch.Tensor:
    """Return `tensor` with `low` more indices at the start of `axis` and `high` more at its end.

    A negative number removes indices. New elements have the value `value`.
    """
    if not low and not high:
        return tensor
    pads = [0, 0] * (tensor.dim() - axis)
    pads[-2:] = [low, high]
    return F.pad(tensor, pads, value=value)


def _first(call: Call) -> tuple[Value, int, int] | None:
    """Return (operand, number of spatial dimensions, index of the divided spatial dimension).

    The index is negative if the batch or the channels are divided. Return None if the
    operand is not divided, or if other arguments also depend on the inputs of the model.
    """
    value = call.arguments.get('input', call.arguments.get('self'))
    if not isinstance(value, Value) or value.axis is None or len(call.values) != 1:
        return None
    dims = next((d for d in (1, 2, 3) if f'{d}d' in call.op), 0) \
        or len(call.arguments['weight'].shape) - 2
    return value, dims, value.axis - (len(call.shape) - dims)


@rule('conv1d', 'conv2d', 'conv3d', 'convolution', '_convolution', 'conv_transpose1d',
      'conv_transpose2d', 'conv_transpose3d')
def convolution(call: Call) -> Division:
    """Divide a convolution along a spatial dimension or along the batch.

    A convolution whose input is divided along the channels is indivisible, because an output needs
    all input channels (with groups, all channels of its group).
    """
    found = _first(call)
    if found is None or isinstance(call.arguments['weight'], Value):
        return indivisible(call)
    value, dims, at = found
    assert value.axis is not None
    if value.axis == 0 and len(value.shape) == dims + 2:
        return same_axis(call, value)
    if at < 0:
        return indivisible(call)
    stride, dilation = (each(call.arguments.get(name, 1), dims) for name in ('stride', 'dilation'))
    kernel = call.arguments['weight'].shape[2:]
    named = call.overload._overloadname == 'padding'
    padding = call.arguments.get('padding', 'valid' if named else 0)
    if isinstance(padding, str):
        if padding == 'same' and dilation[at] * (kernel[at] - 1) % 2:
            return indivisible(call)  # PyTorch pads the two ends unequally
        padding = [d * (k - 1) // 2 if padding == 'same' else 0
                   for d, k in zip(dilation, kernel, strict=True)]
        if call.arguments.get('padding') == 'same' and any(
                d * (k - 1) % 2 for d, k in zip(dilation, kernel, strict=True)):
            return indivisible(call)
    padding = each(padding, dims)
    geometry = (kernel[at], stride[at], padding[at], dilation[at])
    if 'transpose' in call.op or call.arguments.get('transposed'):
        return _transposed(call, value, at, padding, dims, geometry)
    footprint = window(call.shape[value.axis], value.extent, *geometry)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        start, end = needs[0]
        k, s, p, d = geometry
        first, last = lo * s - p, (hi - 1) * s - p + d * (k - 1) + 1
        if start == end:
            start = end = first
        run = _with_padding(call, on_axis(padding, at, 0))
        low, high = start - first, last - end
        return lambda x: run(padded(x, value.axis or 0, low, high))

    return Division(value.axis, (footprint,), part)


def _with_padding(call: Call, padding: list[int], **changes: Any) -> Arithmetic:
    """Return a function that makes the call with the numbers `padding`.

    The arguments of the call itself may give the padding as a string, such as 'same'.
    """
    if call.overload._overloadname == 'padding':
        plain = Call(getattr(torch.ops.aten, call.op).default, {**call.arguments}, call.shape,
                     call.dtype)
        return plain.bind(padding=padding, **changes)
    return call.bind(padding=padding, **changes)


def _transposed(call: Call, value: Value, at: int, padding: list[int], dims: int,
                geometry: tuple[int, int, int, int]) -> Division:
    assert value.axis is not None
    axis = value.axis
    k, s, p, d = geometry
    output_padding = each(call.arguments.get('output_padding', 0), dims)
    footprint = transposed_window(call.shape[axis], value.extent, k, s, p, d)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        start, end = needs[0]
        run = call.bind(padding=on_axis(padding, at, 0),
                        output_padding=on_axis(output_padding, at, 0))
        if start == end:  # no input contributes, so the result is the bias
            blank = [hi - lo if i == axis else n for i, n in enumerate(call.shape)]
            return lambda x: _bias(call, x).expand(blank)
        origin = start * s - p  # output index of the first result of the unpadded call

        def on_slice(x: torch.Tensor) -> torch.Tensor:
            y = run(x)
            low, high = origin - lo, hi - (origin + y.shape[axis])
            if low <= 0 and high <= 0:
                return y.narrow(axis, -low, hi - lo)
            body = y.narrow(axis, max(0, -low), y.shape[axis] - max(0, -low) - max(0, -high))
            parts = [_bias(call, y).expand([n if i == axis else m
                                            for i, m in enumerate(y.shape)])
                     for n in (max(0, low), max(0, high))]
            return torch.cat([parts[0], body, parts[1]], axis)
        return on_slice

    return Division(axis, (footprint,), part)


def _bias(call: Call, like: torch.Tensor) -> torch.Tensor:
    """Return the bias. A transposed convolution has this result where no input affects it."""
    bias = call.arguments.get('bias')
    rank = like.dim()
    if bias is None:
        return like.new_zeros([1] * rank)
    return bias.tensor.to(like).view([-1] + [1] * (call.arguments['weight'].tensor.dim() - 2))


@rule('max_pool1d', 'max_pool2d', 'max_pool3d', 'max_pool2d_with_indices')
def max_pool(call: Call) -> Division:
    """Return how to divide maximum pooling; padding counts as minus infinity."""
    return _pool(call, -torch.inf)


@rule('avg_pool1d', 'avg_pool2d', 'avg_pool3d')
def avg_pool(call: Call) -> Division:
    """Return how to divide average pooling.

    Near the border, the divisor of the average depends on the output index.
    """
    return _pool(call, 0.0)


def _pool(call: Call, border: float) -> Division:
    found = _first(call)
    if found is None or call.pick == 1:
        return indivisible(call)
    value, dims, at = found
    if at < 0:
        return same_axis(call, value)
    # Do not divide integers: they have no minus infinity for the padding, and PyTorch rounds
    # their averages.
    if not call.dtype.is_floating_point:
        return indivisible(call)
    assert value.axis is not None
    axis = value.axis
    kernel = each(call.arguments['kernel_size'], dims)
    stride = each(call.arguments.get('stride') or kernel, dims)
    padding = each(call.arguments.get('padding', 0), dims)
    dilation = each(call.arguments.get('dilation', 1), dims)
    outputs = call.shape[axis]
    k, s, p, d = kernel[at], stride[at], padding[at], dilation[at]
    footprint = window(outputs, value.extent, k, s, p, d)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        start, end = needs[0]
        low, high = start - (lo * s - p), (hi - 1) * s - p + d * (k - 1) + 1 - end
        if border:
            run = call.bind(padding=on_axis(padding, at, 0))
            return lambda x: run(padded(x, axis, low, high, border)).narrow(axis, 0, hi - lo)
        return _average(call, at, axis, (low, high), (lo, hi), kernel, stride, padding,
                        value.extent)

    return Division(axis, (footprint,), part)


def _average(call: Call, at: int, axis: int, pads: tuple[int, int], interval: Interval,
             kernel: list[int], stride: list[int], padding: list[int], extent: int) -> Arithmetic:
    """Return a function that pools a slice, with the right divisor for each window."""
    lo, hi = interval
    k, s, p = kernel[at], stride[at], padding[at]
    run = call.bind(padding=on_axis(padding, at, 0))
    if call.arguments.get('divisor_override'):
        return lambda x: run(padded(x, axis, *pads)).narrow(axis, 0, hi - lo)
    begin = torch.arange(lo, hi) * s - p
    # The divisor counts the padding that the call requests, not the padding of ceil mode.
    counted = (begin + k).clamp(max=extent + p) - begin \
        if call.arguments.get('count_include_pad', True) \
        else (begin + k).clamp(max=extent) - begin.clamp(min=0)
    scale = (k / counted.double()).to(call.dtype).view([-1] + [1] * (len(call.shape) - axis - 1))
    even = bool((counted == k).all())

    def on_slice(x: torch.Tensor) -> torch.Tensor:
        y = run(padded(x, axis, *pads)).narrow(axis, 0, hi - lo)
        return y if even else y * scale.to(y.device)
    return on_slice


@rule('adaptive_avg_pool1d', 'adaptive_avg_pool2d', 'adaptive_avg_pool3d', '_adaptive_avg_pool2d',
      'adaptive_max_pool1d', 'adaptive_max_pool2d')
def adaptive_pool(call: Call) -> Division:
    """Divide adaptive pooling of input length L to output length O.

    Output index o pools [floor(o L / O), ceil((o + 1) L / O)). The operator is global if O = 1.
    """
    found = _first(call)
    if found is None or call.pick == 1:
        return indivisible(call)
    value, dims, at = found
    if at < 0:
        return same_axis(call, value)
    assert value.axis is not None
    axis, outputs, extent = value.axis, call.shape[value.axis], value.extent
    if outputs == 1:
        return indivisible(call)
    starts = [o * extent // outputs for o in range(outputs)]
    ends = [-(-(o + 1) * extent // outputs) for o in range(outputs)]
    footprint = ranges(torch.tensor(starts).numpy(), torch.tensor(ends).numpy(), extent)
    sizes = each(call.arguments['output_size'], dims)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        origin = needs[0][0]
        run = call.bind(output_size=on_axis(sizes, at, 1))

        def on_slice(x: torch.Tensor) -> torch.Tensor:
            return torch.cat([run(x.narrow(axis, starts[o] - origin, ends[o] - starts[o]))
                              for o in range(lo, hi)], axis)
        return on_slice

    return Division(axis, (footprint,), part)
