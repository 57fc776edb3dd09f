"""Where arrays live: numpy with compiled kernels on a CPU, cupy on a GPU.

Both offer the same operations on whole sets of segments; the arguments `ids`, `lengths`, `codes`
and all encoded bytes are numpy arrays on the host, the flat float32 storage is the backend's.
One-bit format of a segment: bfloat16 scale (little endian), then one sign bit per element (1:
negative), first element in the lowest bit, padded to a byte.
Ternary format of a segment: bfloat16 scale (little endian), then one byte per block of 64 elements
(the last may be shorter): position of the one element sent in bits 0 to 5, its sign in bit 6 (1:
negative), bit 7 set; 0 for a block that sends nothing. Of equal magnitudes the first is sent.
Sparse ternary format of a segment: bfloat16 scale (little endian), then, ascending by position, two
bytes (little endian) for each of the m elements of largest magnitude: position in bits 0 to 14, its
sign in bit 15 (1: negative). Zeros are not sent: 0xffff in their place, at the end. Of equal
magnitudes the first are sent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from . import kernels, sparse, ternary
from .errors import ConfigError

Array = Any  # numpy.ndarray or cupy.ndarray


class NumpyBackend:
    """Kernels of `rog_core.kernels` over numpy arrays."""

    name = 'numpy'

    def zeros(self, size: int) -> Array:
        """Flat float32 storage."""
        return np.zeros(size, np.float32)

    def to_host(self, values: Array) -> np.ndarray:
        """Copy as a numpy array."""
        return np.array(values, np.float32)

    def from_host(self, values: np.ndarray) -> Array:
        """Copy from a numpy array."""
        return np.array(values, np.float32)

    def all_finite(self, values: Array) -> bool:
        """Whether no element is NaN or infinite."""
        return bool(kernels.all_finite(values))

    def accumulate(self, gradient: Array, weights: Array, momentum: Array, pending: Array,
                   rate: float, mu: float, decay: float, offsets: np.ndarray, nesterov: bool = True
                   ) -> np.ndarray:
        """Momentum step into ``pending``; returns sum |pending| per segment.

        ``nesterov``: the step is gradient + mu * momentum; else it is the momentum (heavy ball).
        """
        magnitude = np.empty(offsets.size - 1, np.float32)
        f32 = np.float32
        ahead = (f32(1), f32(mu)) if nesterov else (f32(0), f32(1))
        kernels.accumulate(gradient, weights, momentum, pending, f32(rate), f32(mu), f32(decay),
                           ahead, offsets, magnitude)
        return magnitude

    def difference_magnitude(self, master: Array, mirror: Array, offsets: np.ndarray) -> np.ndarray:
        """Sum |master - mirror| per segment."""
        magnitude = np.empty(offsets.size - 1, np.float32)
        kernels.difference_magnitude(master, mirror, offsets, magnitude)
        return magnitude

    def gather(self, values: Array, offsets: np.ndarray, ids: np.ndarray, total: int) -> Array:
        """Copy the segments ``ids`` (``total`` elements), one after the other."""
        out = np.empty(total, np.float32)
        kernels.gather(values, offsets, ids, out)
        return out

    def gather_difference(self, master: Array, mirror: Array, offsets: np.ndarray, ids: np.ndarray,
                          total: int) -> Array:
        """Copy master - mirror of the segments ``ids``, one after the other."""
        out = np.empty(total, np.float32)
        kernels.gather_difference(master, mirror, offsets, ids, out)
        return out

    def scatter_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                    dense: np.ndarray) -> None:
        """Add factor * dense (host float32) to the segments ``ids``."""
        kernels.scatter_add(values, offsets, ids, np.float32(factor), dense)

    def scatter_set(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                    dense: np.ndarray) -> None:
        """Store dense (host float32) in the segments ``ids``."""
        kernels.scatter_set(values, offsets, ids, dense)

    def onebit_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                      codes: np.ndarray, out: np.ndarray) -> None:
        """Write the one-bit format of the segments ``ids`` and take it off ``values``."""
        kernels.onebit_encode(values, offsets, ids, codes, out)

    def onebit_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                 ids: np.ndarray, codes: np.ndarray, out: np.ndarray) -> None:
        """Write the one-bit format of master - mirror of the segments ``ids``."""
        kernels.onebit_encode_difference(master, mirror, offsets, ids, codes, out)

    def onebit_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                   data: np.ndarray) -> None:
        """Add factor * the decoded segments to ``values``."""
        kernels.onebit_add(values, offsets, ids, np.float32(factor), data)

    def ternary_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                       out: np.ndarray) -> None:
        """Write the ternary format of the segments ``ids`` and take it off ``values``."""
        ternary.encode(values, offsets, ids, out)

    def ternary_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                  ids: np.ndarray, out: np.ndarray) -> None:
        """Write the ternary format of master - mirror of the segments ``ids``."""
        ternary.encode_difference(master, mirror, offsets, ids, out)

    def ternary_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                    data: np.ndarray) -> None:
        """Add factor * the decoded segments to ``values``."""
        ternary.add(values, offsets, ids, np.float32(factor), data)

    def sparse_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                      counts: np.ndarray, out: np.ndarray) -> None:
        """Write ``counts`` elements of the segments ``ids`` and take them off ``values``."""
        sparse.encode(values, offsets, ids, counts, out)

    def sparse_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                 ids: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
        """Write ``counts`` elements of master - mirror of the segments ``ids``."""
        sparse.encode_difference(master, mirror, offsets, ids, counts, out)

    def sparse_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, counts: np.ndarray,
                   factor: float, data: np.ndarray) -> None:
        """Add factor * the decoded segments to ``values``."""
        sparse.add(values, offsets, ids, counts, np.float32(factor), data)


def _range_indices(lengths: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Concatenate arange(start, start + length) for every pair, without a loop."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if ends.size else 0)


class ArrayBackend:
    """The same operations in whole-array calls; ``xp`` is cupy, or numpy to test it anywhere."""

    def __init__(self, xp: Any, name: str) -> None:
        self.xp, self.name = xp, name

    def zeros(self, size: int) -> Array:
        """See `NumpyBackend.zeros`."""
        return self.xp.zeros(size, self.xp.float32)

    def to_host(self, values: Array) -> np.ndarray:
        """See `NumpyBackend.to_host`."""
        return np.array(values.get() if hasattr(values, 'get') else values, np.float32)

    def from_host(self, values: np.ndarray) -> Array:
        """See `NumpyBackend.from_host`."""
        return self.xp.array(values, dtype=self.xp.float32)

    def all_finite(self, values: Array) -> bool:
        """See `NumpyBackend.all_finite`."""
        return bool(self.xp.isfinite(values).all())

    def _segment_sum(self, values: Array, offsets: np.ndarray) -> np.ndarray:
        segments = np.repeat(np.arange(offsets.size - 1), np.diff(offsets))
        sums = self.xp.bincount(self.xp.asarray(segments), weights=values,
                                minlength=offsets.size - 1)
        return self.to_host(sums)

    def accumulate(self, gradient: Array, weights: Array, momentum: Array, pending: Array,
                   rate: float, mu: float, decay: float, offsets: np.ndarray, nesterov: bool = True
                   ) -> np.ndarray:
        """See `NumpyBackend.accumulate`."""
        f32 = self.xp.float32
        momentum *= f32(mu)
        momentum += gradient
        step = gradient + f32(mu) * momentum if nesterov else momentum
        pending += f32(rate) * (step + f32(decay) * weights)
        return self._segment_sum(self.xp.abs(pending), offsets)

    def difference_magnitude(self, master: Array, mirror: Array, offsets: np.ndarray) -> np.ndarray:
        """See `NumpyBackend.difference_magnitude`."""
        return self._segment_sum(self.xp.abs(master - mirror), offsets)

    def _elements(self, offsets: np.ndarray, ids: np.ndarray) -> tuple[Array, np.ndarray]:
        lengths = np.diff(offsets)[ids]
        return self.xp.asarray(_range_indices(lengths, offsets[ids])), lengths

    def gather(self, values: Array, offsets: np.ndarray, ids: np.ndarray, total: int) -> Array:
        """See `NumpyBackend.gather`."""
        return values[self._elements(offsets, ids)[0]]

    def gather_difference(self, master: Array, mirror: Array, offsets: np.ndarray, ids: np.ndarray,
                          total: int) -> Array:
        """See `NumpyBackend.gather_difference`."""
        index, _ = self._elements(offsets, ids)
        return master[index] - mirror[index]

    def scatter_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                    dense: np.ndarray) -> None:
        """See `NumpyBackend.scatter_add`."""
        index, _ = self._elements(offsets, ids)
        values[index] += self.xp.float32(factor) * self.xp.asarray(dense)

    def scatter_set(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                    dense: np.ndarray) -> None:
        """See `NumpyBackend.scatter_set`."""
        index, _ = self._elements(offsets, ids)
        values[index] = self.xp.asarray(dense)

    def _pack(self, dense: Array, lengths: np.ndarray, codes: np.ndarray, out: np.ndarray) -> None:
        padded = -(-lengths // 8) * 8
        bit_starts = np.cumsum(padded) - padded
        bits = self.xp.zeros(int(padded.sum()), self.xp.uint8)
        bits[self.xp.asarray(_range_indices(lengths, bit_starts))] = self.xp.signbit(dense)
        packed = self.xp.packbits(bits.reshape(-1, 8)[:, ::-1].ravel())
        packed = packed.get() if hasattr(packed, 'get') else packed
        starts = np.cumsum(padded // 8 + 2) - (padded // 8 + 2)
        out[starts] = codes & 255
        out[starts + 1] = codes >> 8
        out[_range_indices(padded // 8, starts + 2)] = packed

    def _signs(self, data: np.ndarray, lengths: np.ndarray) -> Array:
        """+1 or -1 per element (float32) of data in the one-bit format."""
        nbytes = -(-lengths // 8)
        starts = np.cumsum(nbytes + 2) - (nbytes + 2)
        packed = self.xp.asarray(data[_range_indices(nbytes, starts + 2)])
        bits = self.xp.unpackbits(packed).reshape(-1, 8)[:, ::-1].ravel()
        kept = _range_indices(lengths, np.cumsum(nbytes * 8) - nbytes * 8)
        return 1 - 2 * bits[self.xp.asarray(kept)].astype(self.xp.float32)

    def _scales(self, codes: np.ndarray, lengths: np.ndarray) -> Array:
        return self.xp.asarray(np.repeat(bfloat16_decode(codes), lengths))

    def onebit_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                      codes: np.ndarray, out: np.ndarray) -> None:
        """See `NumpyBackend.onebit_encode`."""
        index, lengths = self._elements(offsets, ids)
        dense = values[index]
        self._pack(dense, lengths, codes, out)
        values[index] = dense - self.xp.copysign(self._scales(codes, lengths), dense)

    def onebit_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                 ids: np.ndarray, codes: np.ndarray, out: np.ndarray) -> None:
        """See `NumpyBackend.onebit_encode_difference`."""
        index, lengths = self._elements(offsets, ids)
        self._pack(master[index] - mirror[index], lengths, codes, out)

    def onebit_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                   data: np.ndarray) -> None:
        """See `NumpyBackend.onebit_add`."""
        index, lengths = self._elements(offsets, ids)
        nbytes = -(-lengths // 8) + 2
        starts = np.cumsum(nbytes) - nbytes
        codes = data[starts].astype(np.uint16) | data[starts + 1].astype(np.uint16) << 8
        scales = self._scales(codes, lengths) * self.xp.float32(factor)
        values[index] += scales * self._signs(data, lengths)

    def _ternary(self, dense: Array, lengths: np.ndarray, out: np.ndarray) -> None:
        """Write the ternary format of ``dense``, segments one after the other."""
        blocks = -(-lengths // ternary.BLOCK)
        first = np.cumsum(blocks) - blocks
        padded = self.xp.zeros(int(blocks.sum()) * ternary.BLOCK, self.xp.float32)
        padded[self.xp.asarray(_range_indices(lengths, first * ternary.BLOCK))] = dense
        padded = padded.reshape(-1, ternary.BLOCK)
        magnitudes = padded.view(self.xp.int32) & 0x7fffffff
        at = self.xp.argmax(magnitudes, axis=1)
        chosen = self.to_host(padded[self.xp.arange(at.size), at])
        at = np.array(at.get() if hasattr(at, 'get') else at, np.uint8)
        # From here on the host, in the order of the kernel: one block in 64 elements is little.
        sent = chosen != 0
        segment = np.repeat(np.arange(lengths.size), blocks)
        total = np.bincount(segment, np.abs(chosen), lengths.size)
        count = np.bincount(segment[sent], minlength=lengths.size)
        codes = bfloat16_encode((total / np.maximum(count, 1)).astype(np.float32))
        starts = first + 2 * np.arange(lengths.size)
        out[starts], out[starts + 1] = codes & 255, codes >> 8
        out[_range_indices(blocks, starts + 2)] = np.where(
            sent, 0x80 | np.signbit(chosen) * np.uint8(64) | at, 0)

    def ternary_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                       out: np.ndarray) -> None:
        """See `NumpyBackend.ternary_encode`."""
        index, lengths = self._elements(offsets, ids)
        self._ternary(values[index], lengths, out)
        self.ternary_add(values, offsets, ids, -1.0, out)

    def ternary_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                  ids: np.ndarray, out: np.ndarray) -> None:
        """See `NumpyBackend.ternary_encode_difference`."""
        index, lengths = self._elements(offsets, ids)
        self._ternary(master[index] - mirror[index], lengths, out)

    def ternary_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, factor: float,
                    data: np.ndarray) -> None:
        """See `NumpyBackend.ternary_add`."""
        blocks = -(-np.diff(offsets)[ids] // ternary.BLOCK)
        starts = np.cumsum(blocks + 2) - (blocks + 2)
        codes = data[starts].astype(np.uint16) | data[starts + 1].astype(np.uint16) << 8
        code = data[_range_indices(blocks, starts + 2)]
        scale = np.repeat(np.float32(factor) * bfloat16_decode(codes), blocks)
        within = np.arange(code.size) - np.repeat(np.cumsum(blocks) - blocks, blocks)
        index = np.repeat(offsets[ids], blocks) + ternary.BLOCK * within + (code & 63)
        sent = code != 0
        values[self.xp.asarray(index[sent])] += self.xp.asarray(
            np.where(code & 64, -scale, scale)[sent])

    def _sparse(self, dense: Array, lengths: np.ndarray, counts: np.ndarray,
                out: np.ndarray) -> None:
        """Write the sparse format of ``dense``, segments one after the other."""
        xp, first = self.xp, np.cumsum(lengths) - lengths
        segment = xp.asarray(np.repeat(np.arange(lengths.size), lengths))
        magnitudes = dense.view(xp.int32) & 0x7fffffff
        order = xp.lexsort(xp.stack((xp.arange(dense.size), -magnitudes, segment)))
        largest = order[xp.asarray(_range_indices(counts, first))]
        chosen = self.to_host(dense[largest])
        # From here on the host, as in `_ternary`.
        at = np.array(largest.get() if hasattr(largest, 'get') else largest)
        of = np.repeat(np.arange(lengths.size), counts)
        ascending = np.lexsort((at, chosen == 0, of))
        at, chosen = (at - first[of])[ascending], chosen[ascending]
        sent = chosen != 0
        total = np.bincount(of, np.abs(chosen), lengths.size)
        count = np.bincount(of[sent], minlength=lengths.size)
        starts = np.cumsum(counts + 1) - (counts + 1)
        words = np.empty(out.size // 2, '<u2')
        words[starts] = bfloat16_encode((total / np.maximum(count, 1)).astype(np.float32))
        words[_range_indices(counts, starts + 1)] = np.where(
            sent, at | np.signbit(chosen) * sparse.NEGATIVE, sparse.NOTHING)
        out[:] = words.view(np.uint8)

    def sparse_encode(self, values: Array, offsets: np.ndarray, ids: np.ndarray,
                      counts: np.ndarray, out: np.ndarray) -> None:
        """See `NumpyBackend.sparse_encode`."""
        index, lengths = self._elements(offsets, ids)
        self._sparse(values[index], lengths, counts, out)
        self.sparse_add(values, offsets, ids, counts, -1.0, out)

    def sparse_encode_difference(self, master: Array, mirror: Array, offsets: np.ndarray,
                                 ids: np.ndarray, counts: np.ndarray, out: np.ndarray) -> None:
        """See `NumpyBackend.sparse_encode_difference`."""
        index, lengths = self._elements(offsets, ids)
        self._sparse(master[index] - mirror[index], lengths, counts, out)

    def sparse_add(self, values: Array, offsets: np.ndarray, ids: np.ndarray, counts: np.ndarray,
                   factor: float, data: np.ndarray) -> None:
        """See `NumpyBackend.sparse_add`."""
        words = np.frombuffer(data.tobytes(), '<u2')
        starts = np.cumsum(counts + 1) - (counts + 1)
        code = words[_range_indices(counts, starts + 1)].astype(np.int64)
        scale = np.repeat(np.float32(factor) * bfloat16_decode(words[starts]), counts)
        index = np.repeat(offsets[ids], counts) + (code & ~sparse.NEGATIVE)
        sent = code != sparse.NOTHING
        values[self.xp.asarray(index[sent])] += self.xp.asarray(
            np.where(code & sparse.NEGATIVE, -scale, scale)[sent])


def bfloat16_encode(values: np.ndarray) -> np.ndarray:
    """Round float32 (>= 0) to bfloat16, as uint16."""
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def bfloat16_decode(codes: np.ndarray) -> np.ndarray:
    """Exact float32 of bfloat16 codes (uint16)."""
    return (codes.astype(np.uint32) << 16).view(np.float32)


Backend = NumpyBackend | ArrayBackend


@lru_cache
def get_backend(name: str = 'numpy') -> Backend:
    """Return the backend `numpy`, `cupy`, or `auto` (cupy where it finds a GPU, else numpy)."""
    if name == 'numpy':
        return NumpyBackend()
    if name not in ('cupy', 'auto'):
        raise ConfigError(f"backend '{name}' is unknown; choose numpy, cupy or auto")
    try:
        import cupy
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        if name == 'auto':
            return NumpyBackend()
        raise ConfigError(f'backend cupy cannot be used here ({error}); install cupy for your CUDA '
                          'version, or choose backend numpy') from error
    return ArrayBackend(cupy, 'cupy')
