"""Compiled loops over the elements of whole sets of segments.

Everything that touches every element of a model lives here, each as one pass over memory: at these
sizes the memory bus, not arithmetic, is the cost, so a pass saved is time saved. Storage is flat
float32; a segment ``s`` is ``flat[offsets[s]:offsets[s + 1]]``. All kernels release the GIL and are
cached on disk. Additions may be reordered inside one segment's sum, nowhere else, so that a worker
and the server that apply the same chunk get the same bits.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba import extending, njit, types

_SUM = {'reassoc', 'nsz', 'contract'}
LINE = 16  # float32 of a cache line

intrinsic: Any = extending.intrinsic  # its type says nothing of what calling the result takes


@intrinsic
def _sign_byte(typing_context, array, index):
    """Sign bits of eight consecutive float32 (1: negative), first element in the lowest bit."""
    def generate(context, builder, signature, arguments):
        floats = context.make_array(signature.args[0])(context, builder, arguments[0])
        eight = ir.VectorType(ir.IntType(32), 8)
        pointer = builder.gep(floats.data, [arguments[1]])
        vector = builder.load(builder.bitcast(pointer, eight.as_pointer()), align=4)
        negative = builder.icmp_signed('<', vector, ir.Constant(eight, [0] * 8))
        return builder.bitcast(negative, ir.IntType(8))
    return types.uint8(array, index), generate


@intrinsic
def _sign_byte_of_difference(typing_context, left, right, index):
    """Sign bits of eight consecutive differences left - right (1: negative)."""
    def generate(context, builder, signature, arguments):
        eight = ir.VectorType(ir.FloatType(), 8)
        operands = []
        for kind, value in zip(signature.args[:2], arguments[:2], strict=True):
            floats = context.make_array(kind)(context, builder, value)
            pointer = builder.gep(floats.data, [arguments[2]])
            operands.append(builder.load(builder.bitcast(pointer, eight.as_pointer()), align=4))
        integers = ir.VectorType(ir.IntType(32), 8)
        difference = builder.bitcast(builder.fsub(*operands), integers)
        negative = builder.icmp_signed('<', difference, ir.Constant(integers, [0] * 8))
        return builder.bitcast(negative, ir.IntType(8))
    return types.uint8(left, right, index), generate


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


@intrinsic
def _add_signed(typing_context, array, index, byte, scale):
    """Add +scale (bit 0) or -scale (bit 1) to eight consecutive float32."""
    def generate(context, builder, signature, arguments):
        floats = context.make_array(signature.args[0])(context, builder, arguments[0])
        eight = ir.VectorType(ir.FloatType(), 8)
        pointer = builder.bitcast(builder.gep(floats.data, [arguments[1]]), eight.as_pointer())
        vector = builder.load(pointer, align=4)
        flags = builder.bitcast(arguments[2], ir.VectorType(ir.IntType(1), 8))
        lane = ir.Constant(ir.IntType(32), 0)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), 8), [0] * 8)
        single = builder.insert_element(ir.Constant(eight, ir.Undefined), arguments[3], lane)
        plus = builder.shuffle_vector(single, ir.Constant(eight, ir.Undefined), zeros)
        minus = builder.fsub(ir.Constant(eight, [-0.0] * 8), plus)
        builder.store(builder.fadd(vector, builder.select(flags, minus, plus)), pointer, align=4)
        return context.get_dummy_value()
    return types.void(array, index, byte, scale), generate


@njit(nogil=True, cache=True, fastmath=_SUM)
def all_finite(values):
    """Whether no element is NaN or infinite."""
    total = np.float32(0)
    for k in range(values.size):
        total += values[k] * np.float32(0)
    return total == 0


@njit(nogil=True, cache=True, fastmath=_SUM)
def accumulate(gradient, weights, momentum, pending, rate, mu, decay, ahead, offsets, magnitude):
    """One step of momentum added to ``pending``; ``magnitude[s]`` = sum |pending|.

    ``ahead``: (share of the gradient, of the momentum) in the step.
    """
    for s in range(offsets.size - 1):
        lo, hi = offsets[s], offsets[s + 1]
        g, m, p, w = gradient[lo:hi], momentum[lo:hi], pending[lo:hi], weights[lo:hi]
        total = np.float32(0)
        if decay == 0:
            for k in range(g.size):
                m[k] = mu * m[k] + g[k]
                p[k] += rate * (ahead[0] * g[k] + ahead[1] * m[k])
                total += abs(p[k])
        else:
            for k in range(g.size):
                m[k] = mu * m[k] + g[k]
                p[k] += rate * (ahead[0] * g[k] + ahead[1] * m[k] + decay * w[k])
                total += abs(p[k])
        magnitude[s] = total


@njit(nogil=True, cache=True, fastmath=_SUM)
def difference_magnitude(master, mirror, offsets, magnitude):
    """``magnitude[s]`` = sum of |master - mirror| over segment s."""
    for s in range(offsets.size - 1):
        a, b = master[offsets[s]:offsets[s + 1]], mirror[offsets[s]:offsets[s + 1]]
        total = np.float32(0)
        for k in range(a.size):
            total += abs(a[k] - b[k])
        magnitude[s] = total


@njit(nogil=True, cache=True)
def _sign_tail(row, start):
    byte = np.uint8(0)
    for b in range(row.size - start):
        if np.signbit(row[start + b]):
            byte |= np.uint8(1 << b)
    return byte


@njit(nogil=True, cache=True)
def _add_tail(row, start, byte, scale):
    for b in range(row.size - start):
        if byte >> b & 1:
            row[start + b] -= scale
        else:
            row[start + b] += scale


@njit(nogil=True, cache=True)
def _varint_size(value):
    return 1 + (value > 127) + (value > 16383) + (value > 2097151) + (value > 268435455)


@njit(nogil=True, cache=True)
def scale_of(low, high):
    """Float32 whose upper half is the bfloat16 given as two bytes."""
    return np.uint32(np.uint32(low) << 16 | np.uint32(high) << 24).view(np.float32)


@njit(nogil=True, cache=True)
def prefetch_row(values, offsets, ids, i):
    """Ask for the row ``ids[i]``, if there is one."""
    if i < ids.size:
        for k in range(offsets[ids[i]], offsets[ids[i] + 1], LINE):
            _prefetch(values, k)


@njit(nogil=True, cache=True)
def onebit_encode(values, offsets, ids, codes, out):
    """Write bfloat16 scale and sign bits of the given segments; take +-scale off ``values``."""
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        out[at], out[at + 1] = codes[i] & 255, codes[i] >> 8
        scale = scale_of(out[at], out[at + 1])
        at += 2
        whole = row.size & ~7
        for k in range(0, whole, 8):
            byte = _sign_byte(row, k)
            out[at] = byte
            _add_signed(row, k, byte, -scale)
            at += 1
        if whole < row.size:
            out[at] = _sign_tail(row, whole)
            _add_tail(row, whole, out[at], -scale)
            at += 1


@njit(nogil=True, cache=True)
def onebit_encode_difference(master, mirror, offsets, ids, codes, out):
    """Write bfloat16 scale and sign bits of master - mirror of the given segments."""
    at = 0
    for i in range(ids.size):
        prefetch_row(master, offsets, ids, i + 1)
        prefetch_row(mirror, offsets, ids, i + 1)
        a = master[offsets[ids[i]]:offsets[ids[i] + 1]]
        b = mirror[offsets[ids[i]]:offsets[ids[i] + 1]]
        out[at], out[at + 1] = codes[i] & 255, codes[i] >> 8
        at += 2
        whole = a.size & ~7
        for k in range(0, whole, 8):
            out[at] = _sign_byte_of_difference(a, b, k)
            at += 1
        if whole < a.size:
            out[at] = _sign_tail(a[whole:] - b[whole:], 0)
            at += 1


@njit(nogil=True, cache=True)
def onebit_add(values, offsets, ids, factor, data):
    """Add factor * (+scale where the bit is 0, -scale where it is 1) to the given segments."""
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        scale = factor * scale_of(data[at], data[at + 1])
        at += 2
        whole = row.size & ~7
        for k in range(0, whole, 8):
            _add_signed(row, k, data[at], scale)
            at += 1
        if whole < row.size:
            _add_tail(row, whole, data[at], scale)
            at += 1


@njit(nogil=True, cache=True)
def onebit_check(lengths, ids, data):
    """Whether ``data`` is the one-bit format of the segments.

    Returns -1 if so, -2 if its length does not fit, else the position of a segment whose scale is
    NaN, infinite or negative.
    """
    at, bad = 0, -1
    for i in range(ids.size):
        if at + 2 > data.size:
            return -2
        # Positive bfloat16 have bits 0x0000 to 0x7f7f; above come infinity, NaN, the negative ones.
        if bad == -1 and (np.uint16(data[at]) | np.uint16(data[at + 1]) << 8) > 0x7f7f:
            bad = i
        at += 2 + (lengths[ids[i]] + 7) // 8
    return bad if at == data.size else -2


@njit(nogil=True, cache=True)
def cut(ids, sizes, limit, starts):
    """Cut segments into chunks of at most ``limit`` bytes of values and ids; returns their number.

    ``starts[c]`` becomes the first segment of chunk c. A chunk holds at least one segment.
    """
    chunks, used, previous = 0, 0, np.int64(0)
    for i in range(ids.size):
        cost = sizes[i] + _varint_size(ids[i] - previous)
        if i == 0 or used + cost > limit:
            starts[chunks] = i
            chunks += 1
            used = 0
            cost = sizes[i] + _varint_size(ids[i])
        used += cost
        previous = ids[i]
    return chunks


@njit(nogil=True, cache=True)
def gather(values, offsets, ids, out):
    """Copy the given segments into ``out`` one after the other."""
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        out[at:at + row.size] = row
        at += row.size


@njit(nogil=True, cache=True)
def gather_difference(master, mirror, offsets, ids, out):
    """Copy master - mirror of the given segments into ``out`` one after the other."""
    at = 0
    for i in range(ids.size):
        a = master[offsets[ids[i]]:offsets[ids[i] + 1]]
        b = mirror[offsets[ids[i]]:offsets[ids[i] + 1]]
        to = out[at:at + a.size]
        for k in range(a.size):
            to[k] = a[k] - b[k]
        at += a.size


@njit(nogil=True, cache=True)
def scatter_add(values, offsets, ids, factor, dense):
    """Add ``factor * dense`` (segments one after the other) to the given segments."""
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        part = dense[at:at + row.size]
        for k in range(row.size):
            row[k] += factor * part[k]
        at += row.size


@njit(nogil=True, cache=True)
def scatter_set(values, offsets, ids, dense):
    """Store ``dense`` (segments one after the other) in the given segments."""
    at = 0
    for i in range(ids.size):
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        row[:] = dense[at:at + row.size]
        at += row.size


@njit(nogil=True, cache=True)
def reorder(data, starts, sizes, out):
    """Copy pieces of bytes, given by first byte and size, into ``out`` one after the other."""
    at = 0
    for i in range(starts.size):
        out[at:at + sizes[i]] = data[starts[i]:starts[i] + sizes[i]]
        at += sizes[i]


@njit(nogil=True, cache=True)
def varint_encode(ids, starts, out, ends):
    """LEB128 of the first id of every chunk and of the differences that follow in it.

    Chunk c begins at ``ids[starts[c]]``; its bytes end before ``out[ends[c]]``.
    """
    at = 0
    for c in range(starts.size):
        stop = starts[c + 1] if c + 1 < starts.size else ids.size
        previous = np.int64(0)
        for i in range(starts[c], stop):
            rest = np.int64(ids[i]) - previous
            previous = np.int64(ids[i])
            while rest > 127:
                out[at] = np.uint8(rest & 127 | 128)
                rest >>= 7
                at += 1
            out[at] = np.uint8(rest)
            at += 1
        ends[c] = at


@njit(nogil=True, cache=True)
def varint_decode(data, limit, out):
    """Inverse of `varint_encode`. Returns 0, or which rule the bytes break (1, 2 or 3).

    1: the bytes end early or go on too long; 2: ids do not ascend; 3: an id is >= ``limit``.
    """
    at, previous = 0, np.int64(-1)
    for i in range(out.size):
        value, shift = np.int64(0), 0
        while True:
            if at >= data.size or shift > 35:
                return 1
            byte = np.int64(data[at])
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        identity = value if i == 0 else previous + value
        if i > 0 and value == 0:
            return 2
        if identity >= limit:
            return 3
        out[i] = identity
        previous = identity
    return 0 if at == data.size else 1
