"""Element-wise operators: an output element needs the inputs at the same index (thesis 4.4.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..calls import Arithmetic, Call, Division, Value, Weight, indivisible, rule
from ..footprint import Footprint, Interval, identity, whole

UNARY = (
    'relu', 'relu6', 'gelu', 'silu', 'sigmoid', 'tanh', 'hardswish', 'hardsigmoid', 'hardtanh',
    'leaky_relu', 'elu', 'selu', 'celu', 'mish', 'softplus', 'log_sigmoid', 'exp',
    'expm1', 'log', 'log1p', 'log2', 'sqrt', 'rsqrt', 'square', 'abs', 'neg', 'sign', 'sin', 'cos',
    'tan', 'atan', 'erf', 'floor', 'ceil', 'round', 'trunc', 'reciprocal', 'clone', 'contiguous',
    'to', '_to_copy', 'detach', 'alias', 'lift_fresh_copy', 'dropout', 'feature_dropout',
    'alpha_dropout', 'clamp', 'clamp_min', 'clamp_max', 'nan_to_num', 'logical_not', 'bitwise_not',
    'isnan', 'isinf', 'threshold', 'hardshrink', 'softshrink', 'zeros_like', 'ones_like',
    'full_like', 'exp2', 'log10', 'asin', 'acos', 'sinh', 'cosh', 'asinh', 'acosh', 'atanh', 'erfc',
    'frac', 'negative', 'absolute', 'clip', 'sinc')
BINARY = (
    'add', 'sub', 'rsub', 'mul', 'div', 'pow', 'maximum', 'minimum', 'atan2',
    'eq', 'ne', 'lt', 'le', 'gt', 'ge', 'logical_and', 'logical_or', 'logical_xor', 'bitwise_and',
    'bitwise_or', 'fmod', 'remainder', 'floor_divide', 'where', 'masked_fill', 'addcmul',
    'addcdiv', 'lerp', 'true_divide', 'multiply', 'subtract', 'divide', 'copy', 'fill', '__and__',
    '__or__', '__xor__', 'bitwise_xor', 'logaddexp', 'hypot', 'xlogy', 'copysign', 'fmax', 'fmin',
    'float_power')


def placed(shape: Sequence[int], rank: int, axis: int) -> int | None:
    """Return the size that an operand has along axis `axis` of the result.

    Return None if the operand lacks this axis. `rank`: number of dimensions of the result. As in
    broadcasting, the last axis of the operand corresponds to the last axis of the result.
    """
    at = axis - (rank - len(shape))
    return shape[at] if at >= 0 else None


@rule(*UNARY, *BINARY)
def pointwise(call: Call) -> Division:
    """Divide an element-wise operator with any number of operands, which broadcast together."""
    rank = len(call.shape)
    axis = next((v.axis + rank - len(v.shape) for v in sorted(
        call.values, key=lambda v: -len(v.shape)) if v.axis is not None and v.extent > 1), None)
    if axis is None:
        return indivisible(call)
    extent = call.shape[axis]
    own = [v.axis is not None and v.axis + rank - len(v.shape) == axis and v.extent == extent
           for v in call.values]
    footprints: list[Footprint] = [identity(extent) if o else whole(extent, value.extent)
                                   for o, value in zip(own, call.values, strict=True)]

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        run = call.bind(**{name: narrowed(a, rank, axis, lo, hi)
                           for name, a in call.arguments.items()})
        cuts = [i for i, value in enumerate(call.values)
                if not own[i] and placed(value.shape, rank, axis) == extent]
        if not cuts:
            return run

        def on_slices(*tensors: Any) -> Any:
            return run(*(t.narrow(axis - rank, lo, hi - lo) if i in cuts else t
                         for i, t in enumerate(tensors)))
        return on_slices

    return Division(axis, tuple(footprints), part,
                    any(not f.local for f in footprints))


def narrowed(argument: Any, rank: int, axis: int, lo: int, hi: int) -> Any:
    """Return an argument; if it is a weight longer than 1 along `axis`, only its part [lo, hi)."""
    if isinstance(argument, Weight):
        size = placed(argument.shape, rank, axis)
        if size is not None and size > 1:
            cut = argument.tensor.narrow(axis - rank, lo, hi - lo)
            return Weight(argument.name, cut)
    return argument


@rule('batch_norm', '_native_batch_norm_legit_no_training', 'native_batch_norm',
      'cudnn_batch_norm')
def batch_norm(call: Call) -> Division:
    """Divide batch normalisation, which is element-wise if its statistics are fixed.

    If the channels are divided, divide the statistics in the same way. If the statistics
    are not fixed, the operator computes them over all axes except the channels. In that
    case only the channels can be divided.
    """
    value = call.values[0]
    assert value.axis is not None
    axis = value.axis
    if len(call.values) != 1 or call.arguments.get('training') and axis != 1:
        return indivisible(call)

    def part(lo: int, hi: int, needs: Sequence[Interval]) -> Arithmetic:
        if axis != 1:
            return call.bind()
        return call.bind(**{name: Weight(a.name, a.tensor[lo:hi])
                            for name, a in call.arguments.items() if isinstance(a, Weight)})

    return Division(axis, (identity(value.extent),), part)


@rule('prelu')
def prelu(call: Call) -> Division:
    """Divide PReLU along any axis; along axis 1 (channels) only if all channels share one slope."""
    value = call.values[0]
    weight = call.arguments['weight']
    if len(call.values) != 1 or value.axis == 1 and weight.shape[0] > 1:
        return indivisible(call)
    return Division(value.axis, (identity(value.extent),), lambda lo, hi, needs: call.bind())


@rule('glu')
def glu(call: Call) -> Division:
    """Divide GLU along any axis except the axis that the operator halves."""
    value = call.values[0]
    if value.axis == call.arguments['dim'] % len(value.shape):
        return indivisible(call)
    return same_axis(call, value)


@rule('channel_shuffle')
def channels(call: Call) -> Division:
    """Divide a channel shuffle along any axis except the channels, which the operator reorders."""
    value = call.values[0]
    return indivisible(call) if value.axis == 1 else same_axis(call, value)


def same_axis(call: Call, value: Value, axis: int | None = None) -> Division:
    """Return a division in which index i of the result needs index i of `value`.

    The arguments of the call are the same for every interval. `axis`: the axis of the result; by
    default the axis of `value`.
    """
    at = value.axis if axis is None else axis
    assert at is not None
    return Division(at, tuple(identity(value.extent) if v == value
                              else whole(value.extent, v.extent) for v in call.values),
                    lambda lo, hi, needs: call.bind())
