"""A model in a numpy array and the same model in a tensor give the same results."""

import numpy as np
import pytest
import torch
from configs import transfer_config
from inproc import InProcessLink
from reference import PLACES, put
from rog_core.arrays import (
    accumulate,
    all_finite,
    copy_of,
    difference_magnitude,
    from_host,
    on_device,
    to_host,
    zeros_like,
)
from rog_core.model.partition import partition_of
from rog_core.protocol.config import SgdConfig
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker

LENGTHS = [1, 63, 64, 65, 300, 8192]
OFFSETS = np.cumsum([0, *LENGTHS])
NOISE = np.random.default_rng(0).standard_normal((4, OFFSETS[-1])).astype(np.float32)


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('decay', [0.0, 1e-3])
@pytest.mark.parametrize('nesterov', [True, False])
def test_a_step_is_accumulated_as_the_formula_says(place, decay, nesterov):
    gradient, weights, momentum, pending = NOISE.astype(float)
    momentum = 0.9 * momentum + gradient
    step = gradient + 0.9 * momentum if nesterov else momentum
    pending = pending + 0.1 * (step + decay * weights)
    ours = [put(values, place) for values in NOISE]
    sums = accumulate(*ours, 0.1, 0.9, decay, OFFSETS, nesterov)
    for found, expected in zip(ours, (gradient, weights, momentum, pending)):
        assert np.allclose(to_host(found), expected, rtol=1e-5, atol=1e-6)
    assert sums.dtype == np.float32
    assert np.allclose(sums, np.add.reduceat(abs(pending), OFFSETS[:-1]), rtol=1e-4)


@pytest.mark.parametrize('place', PLACES)
def test_differences_are_summed_by_segment(place):
    sums = difference_magnitude(put(NOISE[0], place), put(NOISE[1], place), OFFSETS)
    assert sums.dtype == np.float32
    assert np.allclose(sums, np.add.reduceat(abs(NOISE[0] - NOISE[1]), OFFSETS[:-1]), rtol=1e-4)


@pytest.mark.parametrize('place', PLACES)
@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_one_value_that_is_not_finite_is_found(place, bad):
    values = NOISE[0].copy()
    assert all_finite(put(values, place))
    values[5] = bad
    assert not all_finite(put(values, place))


@pytest.mark.parametrize('place', PLACES)
def test_copies_share_no_memory_and_stay_where_they_were(place):
    values = put(NOISE[0], place)
    copies = copy_of(values), zeros_like(values), from_host(NOISE[0], values)
    host = to_host(values)
    values[:] = 7
    assert all(type(copy) is type(values) for copy in copies)
    for copy, expected in zip((*copies, host), (NOISE[0], 0 * NOISE[0], NOISE[0], NOISE[0])):
        assert to_host(copy).dtype == np.float32
        assert np.array_equal(to_host(copy), expected)


def test_on_the_cpu_storage_is_a_numpy_array():
    values = on_device(NOISE[0], 'cpu')
    assert isinstance(values, np.ndarray)
    assert not np.shares_memory(values, NOISE[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='needs a GPU; PyTorch finds none here')
def test_on_a_gpu_storage_is_a_tensor_there():
    values = on_device(NOISE[0], 'cuda')
    assert values.device.type == 'cuda'
    assert np.array_equal(to_host(values), NOISE[0])


@pytest.mark.parametrize('place', PLACES[1:])
@pytest.mark.parametrize('codec', ['raw', 'onebit', 'ternary', 'ternary:0.1'])
@pytest.mark.parametrize('sync', ['bsp', 'rsp:3+pipeline', 'gsgm'])
def test_worker_and_server_train_on_tensors_as_on_arrays(place, codec, sync):
    def train(place):
        partition = partition_of([('w', (40, 34)), ('b', (9,))], 'row', codec)
        noise = np.random.default_rng(1)
        # Values are multiples of 1/8, so that sums are exact in any order.
        draw = [put(noise.integers(-9, 10, partition.elements).astype(np.float32) / 8, place)
                for _ in range(6)]
        machine = Worker('robot', 1, Accumulator(partition, draw[0]),
                         transfer_config(codec))
        link = InProcessLink(sync, codec)
        order = link.join(machine)
        for gradient in draw[1:]:
            assert order is not None
            machine.accumulator.check(gradient)
            order = link.exchange(gradient, SgdConfig(0.5, 0.5, 0.0, True))
        state = link.server.checkpoint().update
        return [to_host(link.server.master), to_host(machine.accumulator.weights),
                to_host(machine.accumulator.pending), *(state[name] for name in sorted(state))]

    for found, expected in zip(train(place), train('numpy'), strict=True):
        assert np.array_equal(found, expected)
