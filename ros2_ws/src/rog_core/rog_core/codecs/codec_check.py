"""Tries a codec of another package with random values, before a fleet uses it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError, RemoteProtocolError
from .base import Codec

TOLERANCE = 1e-3  # allowed error of float32 sums, as a share of the largest value


@dataclass(frozen=True)
class _Segments:
    offsets: np.ndarray
    lengths: np.ndarray


def try_codec(codec: Codec) -> None:
    """Encode, check, decode and scale random values.

    Raises `ConfigError` if a method of the codec raises an error, or if two methods do not agree.
    Two examples: `take` subtracts other values than `add` decodes, or `check` accepts data that is
    too short.
    """
    try:
        _try(codec)
    except ConfigError:
        raise
    except Exception as error:  # a plugin may raise any exception
        raise ConfigError(f"codec '{codec.name}' fails with random values: "
                          f'{type(error).__name__}: {error}') from error


def _try(codec: Codec) -> None:
    def require(fits: bool, what: str) -> None:
        if not fits:
            raise ConfigError(f"codec '{codec.name}' must {what}")

    random = np.random.default_rng(0)
    lengths = np.array([1, codec.segment_elements, 7, 2])
    segments = _Segments(np.r_[0, lengths.cumsum()], lengths)
    before = random.standard_normal(lengths.sum()).astype(np.float32)
    near = TOLERANCE * float(np.abs(before).max())
    ids = np.array([0, 1, 3])  # the codec must not change segment 2
    magnitude = np.add.reduceat(np.abs(before), segments.offsets[:-1])[ids]

    def decoded(data: np.ndarray) -> np.ndarray:
        values = np.zeros_like(before)
        codec.add(segments, values, ids, data)
        return values

    left = before.copy()
    data = codec.take(segments, left, ids, magnitude)
    size = int(codec.sizes(lengths[ids]).sum())
    require(isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape == (size,),
            f'encode into uint8 ({size},), as `sizes` says, got '
            f'{getattr(data, "dtype", type(data).__name__)} {getattr(data, "shape", "")}')
    values = decoded(data)
    require(bool(np.isfinite(values).all()), 'decode finite values, got NaN or infinity')
    other = slice(*segments.offsets[2:4])
    require(not values[other].any() and (left[other] == before[other]).all(),
            'change the segments `ids` alone, got a change of another segment')
    expected = codec.kept * (before - values)
    expected[other] = before[other]
    difference = float(np.abs(left - expected).max())
    require(difference <= near, 'subtract from the values what it decodes, got a difference of '
            f'{difference:.3g}')
    energy, wanted = codec.check(segments, ids, data), float(np.square(values).sum())
    require(abs(energy - wanted) <= TOLERANCE * (wanted + 1), 'return the sum of the squares of '
            f'the decoded values from `_look`, {wanted:.6g}, got {energy:.6g}')
    half = decoded(codec.scaled(segments, ids, data, 0.5))
    require(bool((np.abs(half - values / 2) <= np.abs(values) / 100 + near).all()),
            'halve the decoded values in `scaled(..., 0.5)`')
    try:
        codec.check(segments, ids, data[:-1])
    except RemoteProtocolError:
        return
    require(False, 'refuse data that is a byte too short in `_look`')
