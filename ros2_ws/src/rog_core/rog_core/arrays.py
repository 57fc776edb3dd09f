"""Functions on flat float32 arrays, (elements,): numpy arrays, or torch tensors on a CUDA device.

For numpy arrays, the functions run loops that numba has compiled. Each loop passes over the memory
only once, because memory bandwidth limits the speed for arrays of this size. For tensors on a GPU,
a CUDA kernel (`rog_core.cuda`) does the same where PyTorch would need many passes. Sums per segment
and encoded values are always numpy arrays on the host.

Functions import torch only where they use it: the import takes seconds, and some verbs of
``rog`` do not need it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from . import cuda

Array = Any  # numpy.ndarray or torch.Tensor

# Optimisations that numba may apply to sums: reorder the additions, ignore the sign of zero, and
# fuse a multiplication with an addition. Sums with NaN or infinity must still be right.
_SUM = {'reassoc', 'nsz', 'contract'}


def from_host(values: np.ndarray, like: Array) -> Array:
    """Return a copy of ``values`` with the same dtype, on the device of ``like``."""
    if isinstance(like, np.ndarray):
        return np.array(values)
    import torch
    return torch.tensor(values, device=like.device)


def to_host(values: Array) -> np.ndarray:
    """Return a copy of ``values`` on the host: a numpy array, float32."""
    host = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return np.array(host, np.float32)


def copy_of(values: Array) -> Array:
    """Return a copy of ``values`` on the same device."""
    return values.copy() if isinstance(values, np.ndarray) else values.clone()


def zeros_like(values: Array) -> Array:
    """Return float32 zeros with the size of ``values``, on the device of ``values``."""
    if isinstance(values, np.ndarray):
        return np.zeros(values.size, np.float32)
    return values.new_zeros(len(values))


def joined(first: Array, second: Array) -> Array:
    """Return the elements of ``first``, then those of ``second``, in one array."""
    if isinstance(first, np.ndarray):
        return np.concatenate([first, second])
    import torch
    return torch.cat([first, second])


def between(values: Array, one: Array, other: Array) -> Array:
    """Return ``values``, each moved into the range from ``one`` to ``other`` if it is outside."""
    if isinstance(values, np.ndarray):
        return np.clip(values, np.minimum(one, other), np.maximum(one, other))
    import torch
    return torch.clamp(values, torch.minimum(one, other), torch.maximum(one, other))


def all_finite(values: Array) -> bool:
    """Return whether all elements are finite: neither NaN nor infinite."""
    if isinstance(values, np.ndarray):
        return bool(_all_finite(values))
    return bool(values.isfinite().all())


def first_bad(values: Array) -> int:
    """Return the index of the first element that is NaN or infinite; there must be one."""
    return int(np.flatnonzero(~np.isfinite(to_host(values)))[0])


def accumulate(gradient: Array, weights: Array, momentum: Array, pending: Array, rate: float,
               mu: float, decay: float, offsets: np.ndarray, nesterov: bool = True) -> np.ndarray:
    """Add a step with momentum to ``pending``; return the sum of |pending| per segment, float32.

    momentum = mu * momentum + gradient; pending += rate * (step + decay * weights).
    ``nesterov``: if true, the step is gradient + mu * momentum; if false, the step is the momentum
    (heavy ball). ``offsets`` int64 (segments + 1,): index of the first element of each segment; the
    last value is the number of elements.
    """
    f32 = np.float32
    ahead = (f32(1), f32(mu)) if nesterov else (f32(0), f32(1))
    if isinstance(pending, np.ndarray):
        magnitude = np.empty(offsets.size - 1, f32)
        _accumulate(gradient, weights, momentum, pending, f32(rate), f32(mu), f32(decay), ahead,
                    offsets, magnitude)
        return magnitude
    return cuda.sums('accumulate', offsets, pending, gradient, weights, momentum, pending,
                     f32(rate), f32(mu), f32(decay), *ahead)


def difference_magnitude(master: Array, mirror: Array, offsets: np.ndarray) -> np.ndarray:
    """Return the sum of |master - mirror| per segment, float32; ``offsets``: see `accumulate`."""
    if isinstance(master, np.ndarray):
        magnitude = np.empty(offsets.size - 1, np.float32)
        _difference_magnitude(master, mirror, offsets, magnitude)
        return magnitude
    return cuda.sums('difference', offsets, master, master, mirror)


@njit(nogil=True, cache=True, fastmath=_SUM)
def _all_finite(values):
    total = np.float32(0)
    for k in range(values.size):
        total += values[k] * np.float32(0)
    return total == 0


@njit(nogil=True, cache=True, fastmath=_SUM)
def _accumulate(gradient, weights, momentum, pending, rate, mu, decay, ahead, offsets, magnitude):
    """Do what `accumulate` does, and write the sums to ``magnitude``.

    ``ahead``: two numbers (a, b); the step is a * gradient + b * momentum.
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
def _difference_magnitude(master, mirror, offsets, magnitude):
    for s in range(offsets.size - 1):
        a, b = master[offsets[s]:offsets[s + 1]], mirror[offsets[s]:offsets[s + 1]]
        total = np.float32(0)
        for k in range(a.size):
            total += abs(a[k] - b[k])
        magnitude[s] = total
