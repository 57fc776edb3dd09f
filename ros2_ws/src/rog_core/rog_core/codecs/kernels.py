"""Compiled functions that several codecs use.

The values are a flat float32 array; segment ``s`` is ``flat[offsets[s]:offsets[s + 1]]``. All loops
release the GIL, and their compiled code is cached on disk. No loop reorders additions, so worker
and server get equal bits when they apply the same chunk.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import extending, njit, types

LINE = 16  # number of float32 values in a cache line
# Numbers of the rules that encoded values must obey. LENGTH: the number of bytes is right.
# SCALE: each scale is valid. OWN and higher numbers: rules of a single codec.
LENGTH, SCALE, OWN = 1, 2, 3

intrinsic: Any = extending.intrinsic  # numba's own type annotation does not fit decorated functions


@intrinsic
def _prefetch(typing_context, array, index):
    """Load the cache line of an element in advance, because rows are far apart in memory."""
    def generate(context, builder, signature, arguments):
        floats = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(floats.data, [arguments[1]])
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        function = builder.module.declare_intrinsic('llvm.prefetch', [pointer.type], kind)
        builder.call(function, [pointer, *(ir.Constant(number, n) for n in (0, 2, 1))])
        return context.get_dummy_value()
    return types.void(array, index), generate


@njit(nogil=True, cache=True)
def prefetch_row(values, offsets, ids, i):
    """Prefetch the segment ``ids[i]``; do nothing if ``i`` is beyond the end of ``ids``."""
    if i < ids.size:
        for k in range(offsets[ids[i]], offsets[ids[i] + 1], LINE):
            _prefetch(values, k)


@njit(nogil=True, cache=True)
def scale_of(code):
    """Return the scale of an encoded segment: its first two bytes, a bfloat16, as float32."""
    return np.uint32(np.uint32(code[0]) << 16 | np.uint32(code[1]) << 24).view(np.float32)


@njit(nogil=True, cache=True)
def write_scale(code, scale):
    """Write a segment's scale (>= 0), rounded to the nearest bfloat16; return the rounded scale."""
    bits = np.float32(scale).view(np.uint32) + np.uint32(0x8000)
    code[0], code[1] = bits >> 16 & 255, bits >> 24
    return scale_of(code)


@njit(nogil=True, cache=True)
def bad_scale(code):
    """Return whether the scale of an encoded segment is NaN, infinite or negative.

    Read as integers, the finite bfloat16 values >= 0 are 0x0000 to 0x7f7f. The bits of infinity,
    NaN and negative values are higher integers.
    """
    return (np.uint16(code[0]) | np.uint16(code[1]) << 8) > 0x7f7f


@njit(nogil=True, cache=True)
def _count(magnitudes, least):
    total = np.int32(0)
    for k in range(magnitudes.size):
        total = np.int32(total + np.int32(magnitudes[k] >= least))
    return np.int64(total)


@njit(nogil=True, cache=True)
def _threshold(magnitudes, count):
    """Return two numbers (t, equals) that define the ``count`` largest magnitudes.

    These are all magnitudes above t, and the first ``equals`` magnitudes that are equal to t. If
    fewer than ``count`` magnitudes are above zero, t is 0.
    """
    low, high, above = np.int32(0), np.int32(0), 0
    for k in range(magnitudes.size):
        high = max(high, magnitudes[k])
    # Two conditions are always true in the loop: at least ``count`` magnitudes are >= ``low``, and
    # exactly ``above`` magnitudes are >= ``high``. The variable ``above`` is less than ``count``.
    high += 1
    # Subtracting 1 << 23 from the bits of a float32 halves the float32. The search first tries
    # half of the largest magnitude, because the threshold is usually above this half.
    step = 1 << 23
    while high - low > 1:
        middle = np.int32(max(low + (high - low) // 2, high - step))
        step *= 2
        found = _count(magnitudes, middle)
        if found < count:
            high, above = middle, found
            continue
        low = middle
        if found == count:
            break
    return low, count - above


@njit(nogil=True, cache=True)
def select_largest(bits, magnitudes, positions, count):
    """Find the ``count`` nonzero elements of largest magnitude; of equal ones, choose the first.

    ``bits``: the float32 values of a segment as int32. The function writes the positions of the
    elements to ``positions`` (uint16) in ascending order, and returns their number. The number is
    lower than ``count`` if fewer elements are nonzero. ``magnitudes`` int32 is scratch memory of
    the size of ``bits``; ``positions`` must be at least as large as ``bits``.

    A bisection on the bits of float32 finds the smallest magnitude to send. This is faster than
    sorting, because each step only counts, eight elements at a time.
    """
    for k in range(bits.size):
        magnitudes[k] = bits[k] & 0x7fffffff
    threshold, equals = _threshold(magnitudes, count)
    found, least = 0, max(threshold, np.int32(1))
    for k in range(bits.size):  # without `if`, because the CPU could not predict the branch
        positions[found] = k
        found += magnitudes[k] >= least
    sent = 0
    for k in positions[:found]:
        equal = magnitudes[k] == threshold
        if equal and equals == 0:
            continue
        equals -= equal
        positions[sent] = k
        sent += 1
    return sent


@njit(nogil=True, cache=True)
def longest(offsets, ids):
    """Return the number of elements of the longest segment in ``ids``."""
    most = np.int64(0)
    for i in range(ids.size):
        most = max(most, offsets[ids[i] + 1] - offsets[ids[i]])
    return most
