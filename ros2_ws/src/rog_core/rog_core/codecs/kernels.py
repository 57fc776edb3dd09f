"""Compiled functions that several codecs use.

Storage is flat float32; a segment ``s`` is ``flat[offsets[s]:offsets[s + 1]]``. All loops release
the GIL and are cached on disk. None of them reorders additions, so that a worker and the server
that apply the same chunk get the same bits.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import extending, njit, types

LINE = 16  # float32 of a cache line
LENGTH, SCALE, OWN = 1, 2, 3  # rules of every format; those of one codec begin at OWN

intrinsic: Any = extending.intrinsic  # its type says nothing of what calling the result takes


@intrinsic
def _prefetch(typing_context, array, index):
    """Ask for the cache line of an element that will be used soon; rows are far apart in memory."""
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
    """Ask for the row ``ids[i]``, if there is one."""
    if i < ids.size:
        for k in range(offsets[ids[i]], offsets[ids[i] + 1], LINE):
            _prefetch(values, k)


@njit(nogil=True, cache=True)
def scale_of(code):
    """Scale of an encoded segment: a float32 whose upper half is the bfloat16 it begins with."""
    return np.uint32(np.uint32(code[0]) << 16 | np.uint32(code[1]) << 24).view(np.float32)


@njit(nogil=True, cache=True)
def write_scale(code, scale):
    """Begin an encoded segment with its scale (>= 0) as the nearest bfloat16; returns that."""
    bits = np.float32(scale).view(np.uint32) + np.uint32(0x8000)
    code[0], code[1] = bits >> 16 & 255, bits >> 24
    return scale_of(code)


@njit(nogil=True, cache=True)
def bad_scale(code):
    """Whether the scale of an encoded segment is NaN, infinite or negative.

    Positive bfloat16 have bits 0x0000 to 0x7f7f; above come infinity, NaN, the negative ones.
    """
    return (np.uint16(code[0]) | np.uint16(code[1]) << 8) > 0x7f7f
