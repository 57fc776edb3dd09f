"""Loops over whole arrays compute what numpy computes in many passes; for a GPU: `test_cuda`."""

import numpy as np
import pytest
from rog_core.arrays import (
    accumulate,
    all_finite,
    copy_of,
    difference_magnitude,
    from_host,
    zeros_like,
)

LENGTHS = [1, 63, 64, 65, 300, 8192]
OFFSETS = np.cumsum([0, *LENGTHS])
NOISE = np.random.default_rng(0).standard_normal((4, OFFSETS[-1])).astype(np.float32)


@pytest.mark.parametrize('decay', [0.0, 1e-3])
@pytest.mark.parametrize('nesterov', [True, False])
def test_a_step_is_accumulated_as_the_formula_says(decay, nesterov):
    gradient, weights, momentum, pending = NOISE.astype(float)
    momentum = 0.9 * momentum + gradient
    step = gradient + 0.9 * momentum if nesterov else momentum
    pending = pending + 0.1 * (step + decay * weights)
    ours = [values.copy() for values in NOISE]
    sums = accumulate(*ours, 0.1, 0.9, decay, OFFSETS, nesterov)
    for found, expected in zip(ours, (gradient, weights, momentum, pending)):
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert sums.dtype == np.float32
    assert np.allclose(sums, np.add.reduceat(abs(pending), OFFSETS[:-1]), rtol=1e-4)


def test_differences_are_summed_by_segment():
    sums = difference_magnitude(NOISE[0], NOISE[1], OFFSETS)
    assert sums.dtype == np.float32
    assert np.allclose(sums, np.add.reduceat(abs(NOISE[0] - NOISE[1]), OFFSETS[:-1]), rtol=1e-4)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found(bad):
    values = NOISE[0].copy()
    assert all_finite(values)
    values[5] = bad
    assert not all_finite(values)


def test_copies_share_no_memory():
    values = NOISE[0].copy()
    copies = copy_of(values), zeros_like(values), from_host(NOISE[0], values)
    values[:] = 7
    for copy, expected in zip(copies, (NOISE[0], 0 * NOISE[0], NOISE[0]), strict=True):
        assert copy.dtype == np.float32 and np.array_equal(copy, expected)
