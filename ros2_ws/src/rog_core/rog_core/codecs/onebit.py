"""``onebit``: one sign bit per element, and per segment one scale, the mean magnitude.

Source: ROG Section V and its reference [22] (dist-EF-SGDM), with one block per row. The sender
keeps the error of the encoding and sends it later (error feedback).

A segment begins with its scale (bfloat16). One bit per element follows (1: negative); the first
element is in the lowest bit. Padding fills the last byte.
"""

from __future__ import annotations

import llvmlite.ir as ir
import numpy as np
from numba import njit, types
from typing_extensions import override

from .base import Codec, bfloat16_encode
from .kernels import LENGTH, SCALE, bad_scale, intrinsic, prefetch_row, scale_of, write_scale


class OneBit(Codec):
    """Encodes a segment as sign bits and one bfloat16 scale."""

    name, number = 'onebit', 1
    segment_elements = 8192  # 1 KiB of sign bits, which fit into one datagram
    kernels = 'onebit', 'onebit'

    @override
    def sizes(self, lengths):
        return (lengths + 23) >> 3  # 2 + ceil(lengths / 8)

    def _encode_on_host(self, partition, values, mirror, ids, magnitude):
        out = self._room(partition, ids)
        _encode(values, mirror, partition.offsets, ids, magnitude, out)
        return out

    def _look(self, lengths, ids, data):
        return _check(lengths, ids, data)

    def _numbers(self, lengths, magnitude):
        return 0 if magnitude is None else _scales(magnitude, lengths)

    def _add_on_host(self, partition, values, ids, data, factor):
        _add(values, partition.offsets, ids, factor, data)


def _scales(magnitude: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the mean absolute value of each segment: bfloat16 bits in uint16 (segments,)."""
    return bfloat16_encode((magnitude / lengths).astype(np.float32))


@intrinsic
def _sign_byte(typing_context, array, index):
    """Return the sign bits (1: negative) of eight consecutive float32; bit 0 is for the first."""
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
    """Return the sign bits (1: negative) of eight consecutive differences left - right."""
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
def _add_signed(typing_context, array, index, byte, scale):
    """Add scale to eight float32 values; where the bit of a value is 1, subtract scale instead.

    The values are consecutive in ``array``, from ``index`` on. ``byte`` contains the
    bits.
    """
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


@njit(nogil=True, cache=True)
def _sign_tail(row):
    byte = np.uint8(0)
    for b in range(row.size):
        if np.signbit(row[b]):
            byte |= np.uint8(1 << b)
    return byte


@njit(nogil=True, cache=True)
def _add_tail(row, byte, scale):
    for b in range(row.size):
        if byte >> b & 1:
            row[b] -= scale
        else:
            row[b] += scale


@njit(nogil=True, cache=True)
def _encode(values, mirror, offsets, ids, magnitude, out):
    """Encode ``values - mirror`` into ``out``.

    If ``mirror`` is None, encode ``values`` and subtract the decoded values from them.
    """
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        lo, hi = offsets[ids[i]], offsets[ids[i] + 1]
        row, aligned = values[lo:hi], (hi - lo) & ~7
        scale = write_scale(out[at:at + 2], magnitude[i] / row.size)
        at += 2
        if mirror is None:
            for k in range(0, aligned, 8):
                byte = _sign_byte(row, k)
                out[at] = byte
                _add_signed(row, k, byte, -scale)
                at += 1
            if aligned < row.size:
                out[at] = _sign_tail(row[aligned:])
                _add_tail(row[aligned:], out[at], -scale)
                at += 1
        else:
            prefetch_row(mirror, offsets, ids, i + 1)
            theirs = mirror[lo:hi]
            for k in range(0, aligned, 8):
                out[at] = _sign_byte_of_difference(row, theirs, k)
                at += 1
            if aligned < row.size:
                out[at] = _sign_tail(row[aligned:] - theirs[aligned:])
                at += 1


@njit(nogil=True, cache=True)
def _add(values, offsets, ids, factor, data):
    """Add ``factor`` times the decoded values to the segments ``ids``.

    A decoded value is +scale where the bit is 0, and -scale where the bit is 1.
    """
    at = 0
    for i in range(ids.size):
        prefetch_row(values, offsets, ids, i + 1)
        row = values[offsets[ids[i]]:offsets[ids[i] + 1]]
        scale = factor * scale_of(data[at:at + 2])
        at += 2
        aligned = row.size & ~7
        for k in range(0, aligned, 8):
            _add_signed(row, k, data[at], scale)
            at += 1
        if aligned < row.size:
            _add_tail(row[aligned:], data[at], scale)
            at += 1


@njit(nogil=True, cache=True)
def _check(lengths, ids, data):
    """Check ``data``; return the three numbers that `Codec._look` describes."""
    at, rule, bad, energy = 0, 0, 0, 0.0
    for i in range(ids.size):
        if at + 2 > data.size:
            return LENGTH, i, energy
        if rule == 0 and bad_scale(data[at:at + 2]):
            rule, bad = SCALE, i
        energy += lengths[ids[i]] * np.float64(scale_of(data[at:at + 2])) ** 2
        at += 2 + (lengths[ids[i]] + 7) // 8
    return (rule, bad, energy) if at == data.size else (LENGTH, bad, energy)
