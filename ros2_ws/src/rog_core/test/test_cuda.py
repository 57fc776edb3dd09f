"""CUDA kernels without a GPU: cubins for every architecture, and the same source on the CPU.

Nothing here runs on a GPU: speed, races, and cupy itself are not tested.
"""

import ctypes
import re
import shutil
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cuda_checks import ARCHITECTURES, FAMILIES, build, cubin, stand_in
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import cuda, get_codec
from rog_core.model.partition import partition_of

needs_compiler = pytest.mark.skipif(not shutil.which('g++'), reason='needs g++')
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-40, 2.0 ** 120],
                   np.float32)


@pytest.mark.parametrize('architecture', ARCHITECTURES)
@pytest.mark.parametrize('family', FAMILIES)
def test_nvrtc_compiles_every_kernel_without_spills(family, architecture):
    nvidia = pytest.importorskip('nvidia.cuda_nvrtc', reason='needs nvidia-cuda-nvrtc-cu12')
    path, = Path(next(iter(nvidia.__path__))).glob('lib/libnvrtc.so.*')
    binary, log = cubin(ctypes.CDLL(str(path)), cuda.source(family), architecture, cuda.OPTIONS)
    print(f'sm_{architecture}\n{log}')
    assert binary[:4] == b'\x7fELF'
    registers = re.findall(r'Used (\d+) registers', log)
    spills = re.findall(r'(\d+) bytes spill (?:stores|loads)', log)
    assert len(registers) == cuda.source(family).count('__global__ void')
    assert spills and not any(map(int, spills))


@pytest.fixture(scope='module')
def compiled(tmp_path_factory):
    return cache(lambda text: build(text, tmp_path_factory.mktemp('kernels')))


@needs_compiler
def test_fibers_meet_at_barriers_and_votes_are_of_one_warp(compiled):
    run = compiled('''
extern "C" __global__ void rotate(int *out, unsigned *votes) {
    __shared__ int shared[96];
    for (int turn = 0; turn < 3; ++turn) {
        shared[threadIdx.x] = 10 * turn + threadIdx.x;
        __syncthreads();
        out[threadIdx.x] += shared[(threadIdx.x + 1) % blockDim.x];
        __syncthreads();
    }
    for (unsigned n = 0; n <= threadIdx.x / 32; ++n)
        votes[threadIdx.x] = __ballot_sync(0xffffffffu, threadIdx.x % (n + 2) == 0);
}
extern "C" __global__ void stuck(int *out) { if (threadIdx.x) __syncthreads(); }
''')
    out, votes = torch.zeros(96, dtype=torch.int32), torch.zeros(96, dtype=torch.int32)
    run('rotate', 1, 96, (out, votes))
    assert out.tolist() == [30 + 3 * ((t + 1) % 96) for t in range(96)]
    every = votes.numpy().view(np.uint32)
    for t in range(96):
        lanes = range(t // 32 * 32, t // 32 * 32 + 32)
        assert every[t] == sum((k % (t // 32 + 2) == 0) << k % 32 for k in lanes)
    with pytest.raises(AssertionError, match='for ever'):
        run('stuck', 1, 32, (out,))


@pytest.fixture
def fake(compiled, monkeypatch):
    """Kernels on CPU tensors; memory that is not yet written holds 0xa5."""
    cupy, empty = stand_in(compiled), torch.empty

    def poisoned(*shape, pin_memory=False, **options):
        made = empty(*shape, **options)
        made.view(torch.uint8).fill_(0xa5)
        return made

    cuda._function.cache_clear()
    monkeypatch.setattr(cuda, '_cupy', lambda: cupy)
    monkeypatch.setattr(cuda, 'usable', lambda values: isinstance(values, torch.Tensor))
    monkeypatch.setattr(torch, 'empty', poisoned)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: SimpleNamespace(
        cuda_stream=7, synchronize=lambda: None))
    yield cupy
    cuda._function.cache_clear()


def check(codec, cupy, lengths, ids, seed):
    """Kernels and compiled loops give the same bytes, and the same bits of values."""
    noise, coder = np.random.default_rng(seed), get_codec(codec)
    partition = partition_of([(f'p{k}', (n,)) for k, n in enumerate(lengths)])
    object.__setattr__(partition, 'segment_elements', 1 << 30)
    partition.__post_init__()  # rows longer than a datagram stay whole
    values, mirror = noise.standard_normal((2, partition.elements)).astype(np.float32)
    for array in (values, mirror):
        odd = noise.random(array.size) < 0.1
        array[odd] = noise.choice(SPECIAL, int(odd.sum()))
    sums = np.abs(noise.standard_normal(ids.size)).astype(np.float32)

    def results(put):
        taken, left, right = (put(v.copy()) for v in (values, values, mirror))
        data = coder.take(partition, taken, ids, sums)
        difference = coder.difference(partition, left, right, ids, sums)
        coder.add(partition, right, ids, data, -1 / 3)
        arrays = [np.asarray(v) for v in (taken, left, right)]
        return data, difference, [np.where(np.isnan(a), 0x7fc00000, a.view(np.uint32))
                                  for a in arrays]

    cupy.launches.clear()
    with np.errstate(invalid='ignore'):
        expected, found = results(lambda v: v), results(torch.from_numpy)
    assert found[0].tobytes() == expected[0].tobytes()
    assert found[1].tobytes() == expected[1].tobytes()
    assert all(map(np.array_equal, found[2], expected[2]))
    assert len(cupy.launches) == (3 if ids.size else 0)  # one a call


@needs_compiler
@pytest.mark.parametrize('codec', FAMILIES)
@examples(20)
@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=6), data=st.data(),
       seed=st.integers(0, 2 ** 32))
def test_a_kernel_gives_the_bits_of_the_compiled_loop(fake, codec, lengths, data, seed):
    ids = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    check(codec, fake, lengths, np.array(ids, np.int64), seed)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize('codec', FAMILIES)
@examples(30)
@given(lengths=st.lists(st.integers(1, 100_000), min_size=1, max_size=3), data=st.data(),
       seed=st.integers(0, 2 ** 32))
def test_a_kernel_gives_the_bits_of_the_compiled_loop_for_long_rows(fake, codec, lengths, data,
                                                                    seed):
    ids = data.draw(st.lists(st.sampled_from(range(len(lengths))), unique=True))
    check(codec, fake, lengths, np.array(ids, np.int64), seed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_a_gpu_gives_the_bytes_of_torch_operations(monkeypatch):
    pytest.importorskip('cupy')
    partition = partition_of([('a', (5000,)), ('b', (40, 34))])
    values = torch.randn(partition.elements, device='cuda')
    ids, other = np.arange(partition.segments), values.clone()
    sums = np.ones(ids.size, np.float32)
    found = get_codec('onebit').take(partition, values, ids, sums)
    monkeypatch.setattr(cuda, 'usable', lambda values: False)
    assert get_codec('onebit').take(partition, other, ids, sums).tobytes() == found.tobytes()
    assert torch.equal(values, other)
