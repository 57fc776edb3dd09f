"""CUDA kernels without a GPU: cubins for every architecture, and the same source on the CPU.

These tests cover neither speed, nor races of threads between two barriers, nor cupy itself. The
last tests of the file need a GPU.
"""

import ctypes
import shutil
import sys
from itertools import pairwise
from pathlib import Path

import cuda_codecs
import hot_path
import numpy as np
import pytest
import torch
from configs import transfer_config
from cuda_checks import ARCHITECTURES, FAMILIES, OnGpu, StandIn, Stream, build, compile_by, usage
from fleet_testing import examples, mostly_long
from hypothesis import given
from hypothesis import strategies as st
from inproc import InProcessLink
from rog_core import cuda
from rog_core.arrays import accumulate, difference_magnitude
from rog_core.codecs import RAW, codec_names, get_codec
from rog_core.errors import LocalProtocolError
from rog_core.model.partition import RowPartition, partition_of
from rog_core.protocol.config import SgdConfig
from rog_core.transfer.plan import window_size
from rog_core.worker.optimizer import RogOptimizer

on_a_gpu = [pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason='needs a GPU; PyTorch finds none here')]
needs_compiler = pytest.mark.skipif(not shutil.which('g++'), reason='needs g++')
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1e-45, -1e-40, 2.0 ** 120],
                   np.float32)
EXAMPLES = [name for name in codec_names() if get_codec(name).kernels]
# Codecs that send the largest elements of a segment, each with its position in the segment.
NAMED = [name for name in EXAMPLES if get_codec(name).kernels[0] == 'topk']


@pytest.fixture(scope='module')
def nvrtc():
    nvidia = pytest.importorskip('nvidia.cuda_nvrtc', reason='needs nvidia-cuda-nvrtc-cu12')
    path, = Path(next(iter(nvidia.__path__))).glob('lib/libnvrtc.so.*')
    return ctypes.CDLL(str(path))


# 87 is the architecture of the Jetson Orin.
@pytest.mark.parametrize('architecture', mostly_long(ARCHITECTURES, 87))
@pytest.mark.parametrize('family', FAMILIES)
def test_nvrtc_compiles_every_kernel_without_spills(nvrtc, family, architecture):
    binary, log = compile_by(nvrtc, cuda.source(family), f'sm_{architecture}', cuda.OPTIONS)
    assert binary[:4] == b'\x7fELF'
    found = usage(log)
    assert len(found) == cuda.source(family).count('__global__ void')
    for name, (registers, spilled) in found.items():
        print(f'sm_{architecture} {name}: {registers} registers, {spilled} bytes spilled')
        assert not spilled
        # A block has at most 65,536 registers; a GPU cannot start a block that needs more.
        assert cuda.THREADS * registers <= 1 << 16


@pytest.mark.parametrize('family', FAMILIES)
def test_no_operation_rounds_otherwise_than_on_a_cpu(nvrtc, family):
    ptx, _ = compile_by(nvrtc, cuda.source(family), 'compute_75', cuda.OPTIONS)
    assert b'.visible .entry' in ptx
    assert b'.ftz' not in ptx and b'fma.' not in ptx and b'.approx' not in ptx


def test_the_kernels_that_a_codec_names_exist():
    for name in EXAMPLES:
        family, prefix = get_codec(name).kernels
        assert family in FAMILIES
        for kernel in ('encode', 'add'):
            assert f'void {prefix}_{kernel}(' in cuda.source(family)


HEADER = '''
extern "C" __global__ void rotate(int *out, int *votes) {
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
extern "C" __global__ void lanes(int *out, float factor) {
    int me = threadIdx.x, *mine = out + 4 * (blockDim.x * blockIdx.x + me);
    mine[0] = __shfl_xor_sync(0xffffffffu, -me, 5);
    mine[1] = __shfl_down_sync(0xffffffffu, (unsigned)me, 3);
    mine[2] = (int)(4 * __shfl_xor_sync(0xffffffffu, factor * me, 1));
    mine[3] = __popc(0xf00fu << me % 8) + 100 * __ffs(1 << me % 32) + 10000 * __ffs(0);
}
extern "C" __global__ void total(int *out) {
    __shared__ int sum;
    if (blockIdx.x == 0 && threadIdx.x == 0) out[2] = sum;
    __syncthreads();
    if (threadIdx.x == 0) sum = blockIdx.x;
    __syncthreads();
    atomicAdd(&sum, threadIdx.x);
    __syncthreads();
    out[blockIdx.x] = sum;
}
extern "C" __global__ void hasty(int *out) {
    __shared__ int shared[96];
    shared[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = shared[(threadIdx.x + 95) % 96];
}
extern "C" __global__ void stuck(int *out) { if (threadIdx.x) __syncthreads(); }
'''


@needs_compiler
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_threads_meet_at_barriers_and_warps_vote_alone(seed):
    out, votes = torch.zeros(96, dtype=torch.int32), torch.zeros(96, dtype=torch.int32)
    build(HEADER)('rotate', 1, 96, (out, votes), seed)
    assert out.tolist() == [30 + 3 * ((t + 1) % 96) for t in range(96)]
    every = votes.numpy().view(np.uint32)
    for t in range(96):
        lanes = range(t // 32 * 32, t // 32 * 32 + 32)
        assert every[t] == sum((k % (t // 32 + 2) == 0) << k % 32 for k in lanes)


@needs_compiler
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_lanes_pass_values_of_any_type_within_their_warp(seed):
    out = torch.zeros(2, 64, 4, dtype=torch.int32)
    build(HEADER)('lanes', 2, 64, (out, np.float32(0.5)), seed)
    for t in range(64):
        down = t + 3 if t % 32 < 29 else t
        assert out[:, t].tolist() == 2 * [[-(t ^ 5), down, 2 * (t ^ 1), 8 + 100 * (1 + t % 32)]]


@needs_compiler
@pytest.mark.parametrize('seed', [0, 1])
def test_shared_memory_is_of_one_block_and_poisoned_before(seed):
    out = torch.zeros(3, dtype=torch.int32)
    build(HEADER)('total', 2, 64, (out,), seed)
    assert out.numpy().view(np.uint32).tolist() == [2016, 2017, 0xa5a5a5a5]


@needs_compiler
def test_a_missing_barrier_shows_in_another_order_and_one_that_is_not_reached_at_once():
    found = set()
    for seed in range(3):
        out = torch.zeros(96, dtype=torch.int32)
        build(HEADER)('hasty', 1, 96, (out,), seed)
        found.add(tuple(out.tolist()))
    assert len(found) == 3
    with pytest.raises(AssertionError, match='for ever'):
        build(HEADER)('stuck', 1, 32, (out,))


@needs_compiler
def test_arguments_of_another_type_than_the_parameters_are_told():
    with pytest.raises(AssertionError):
        build(HEADER)('stuck', 1, 32, (torch.zeros(96),))
    with pytest.raises(AssertionError):
        build(HEADER)('lanes', 1, 32, (torch.zeros(128, dtype=torch.int32), 2.0))
    with pytest.raises(ValueError, match='zip'):
        build(HEADER)('stuck', 1, 32, ())


@pytest.fixture
def gpu(monkeypatch):
    """Replace cupy by a stand-in that runs kernels on the CPU; yield the stand-in."""
    stand_in = StandIn(monkeypatch)
    monkeypatch.setitem(sys.modules, 'cupy', stand_in.cupy)
    for cached in (cuda._cupy, cuda._module, cuda._stream):
        cached.cache_clear()
    yield stand_in
    for cached in (cuda._cupy, cuda._module, cuda._stream):
        cached.cache_clear()


def to_gpu(values):
    return torch.from_numpy(values).as_subclass(OnGpu)


def rows(codec, lengths, whole):
    """Return a partition with one row for each of ``lengths``.

    ``whole``: keep even long rows in one segment. This has no effect on a codec in `NAMED`, because
    its positions have too few bits for a longer segment.
    """
    partition = partition_of([(f'p{k}', (n,)) for k, n in enumerate(lengths)], codec=codec)
    if not whole or codec in NAMED:
        return partition
    return RowPartition(partition.parameters, 'row', 1 << 30)


def drawn(partition, seed, special):
    """Draw two arrays of values; one value in ten is from ``special``."""
    noise = np.random.default_rng(seed)
    both = noise.standard_normal((2, partition.elements)).astype(np.float32)
    both *= np.float32(2.0) ** noise.integers(-3, 30, both.shape, np.int32)
    odd = noise.random(both.shape) < 0.1
    both[odd] = noise.choice(special, int(odd.sum()))
    return both


def results(codec, partition, ids, values, mirror, put):
    """Return the encoded bytes of a codec, and the values that remain after encoding and decoding.

    ``put`` copies arrays to the memory that is tested.
    """
    coder, sums = get_codec(codec), np.abs(values[partition.offsets[ids]])
    with np.errstate(invalid='ignore', over='ignore'):
        taken, left, right = (put(v.copy()) for v in (values, values, mirror))
        code = [coder.take(partition, taken, ids, sums),
                coder.difference(partition, left, right, ids, sums)]
        coder.add(partition, right, ids, code[0], -1 / 3)
        if coder is RAW:
            code.append(RAW.snapshot(partition, left, ids))
            RAW.store(partition, left, ids, code[0][::-1].copy())
    return [c.tobytes() for c in code], [taken, left, right]


def bits(values):
    """Return the bits of float32 values as integers; every NaN gives the same integer."""
    values = values.cpu().numpy() if isinstance(values, torch.Tensor) else values
    return np.where(np.isnan(values), 0x7fc00000, values.view(np.uint32)).tolist()


def check(codec, gpu, partition, ids, seed):
    """Check that kernels and compiled loops return the same bytes, and values with equal bits."""
    values, mirror = drawn(partition, seed, SPECIAL)
    code, left = results(codec, partition, ids, values, mirror, lambda v: v)
    gpu.launches.clear()
    gpu.seed = seed % 1000  # with seed 0 the threads run in order
    found, there = results(codec, partition, ids, values, mirror, to_gpu)
    gpu.finish()
    assert found == code
    assert [bits(v) for v in there] == [bits(v) for v in left]
    calls = 5 if codec == 'raw' else 3
    assert [launch[1:] for launch in gpu.launches] == calls * [(ids.size, cuda.THREADS)] * bool(
        ids.size)


@st.composite
def segments_of(draw, codec, **lengths):
    """Draw a partition, and some of its segments in any order."""
    partition = rows(codec, draw(st.lists(st.integers(**lengths), min_size=1, max_size=5)),
                     draw(st.booleans()))
    ids = draw(st.lists(st.integers(0, partition.segments - 1), unique=True, max_size=6))
    return partition, np.array(ids, np.int64)


@needs_compiler
@pytest.mark.parametrize('codec', EXAMPLES)
@examples(40)
@given(data=st.data(), seed=st.integers(0, 2 ** 32))
def test_a_kernel_gives_the_bits_of_the_compiled_loop(gpu, codec, data, seed):
    partition, ids = data.draw(segments_of(codec, min_value=1, max_value=700))
    check(codec, gpu, partition, ids, seed)


@pytest.mark.long
@needs_compiler
@pytest.mark.parametrize('codec', EXAMPLES)
@examples(40)
@given(data=st.data(), seed=st.integers(0, 2 ** 32))
def test_a_kernel_gives_the_bits_of_the_compiled_loop_for_long_rows(gpu, codec, data, seed):
    partition, ids = data.draw(segments_of(codec, min_value=1, max_value=100_000))
    check(codec, gpu, partition, ids, seed)


def sums_of(magnitudes, offsets):
    """Return the sum of each segment, float32, added in the order of the threads of a block."""
    found = []
    for lo, hi in pairwise(offsets):
        turns = np.zeros((-(-(hi - lo) // cuda.THREADS), cuda.THREADS), np.float32)
        turns.reshape(-1)[:hi - lo] = magnitudes[lo:hi]
        warps = sum(turns, np.zeros(cuda.THREADS, np.float32)).reshape(-1, 32)
        for step in (16, 8, 4, 2, 1):
            warps = warps + warps[:, np.arange(32) ^ step]
        found.append(sum(warps[:, 0], np.float32(0)))
    return np.array(found, np.float32)


@needs_compiler
@pytest.mark.parametrize('nesterov', [True, False])
@examples(40)
@given(data=st.data(), seed=st.integers(0, 2 ** 32), decay=st.sampled_from([0.0, 0.1]))
def test_a_kernel_gives_the_steps_differences_and_sums_of_numpy(gpu, nesterov, data, seed, decay):
    partition, _ = data.draw(segments_of('onebit', min_value=1, max_value=700))
    offsets, f32 = partition.offsets, np.float32
    (gradient, weights), (old, pending) = (drawn(partition, s, SPECIAL) for s in (seed, seed + 1))
    there = [to_gpu(values.copy()) for values in (gradient, weights, old, pending)]
    ahead = (f32(1), f32(0.9)) if nesterov else (f32(0), f32(1))
    with np.errstate(invalid='ignore', over='ignore'):
        momentum = f32(0.9) * old + gradient
        step = ahead[0] * gradient + ahead[1] * momentum
        pending = pending + f32(0.01) * (step + f32(decay) * weights if decay else step)
        expected = [gradient, weights, momentum, pending, sums_of(abs(pending), offsets),
                    sums_of(abs(pending - momentum), offsets)]
    gpu.launches.clear()
    gpu.seed = seed % 1000
    sums = [accumulate(*there, 0.01, 0.9, decay, offsets, nesterov),
            difference_magnitude(there[3], there[2], offsets)]
    gpu.finish()
    assert [bits(v) for v in (*there, *sums)] == [bits(v) for v in expected]
    assert gpu.launches == [(f'sums_{name}', partition.segments, cuda.THREADS)
                            for name in ('accumulate', 'difference')]


@needs_compiler
@pytest.mark.parametrize('codec', NAMED)
@pytest.mark.parametrize('values', [
    [0.0], [-1e-45], [0.0] * 900, [-0.0, 3] * 300, [1, -1] * 300, [5] + [1] * 600,
    [1 + k * 2.0 ** -23 for k in range(700)], [2.0 ** (k % 250 - 125) for k in range(800)],
    [np.nan] * 3 + [np.inf] * 300], ids=range(9))
def test_of_equal_magnitudes_and_of_neighbours_the_right_ones_are_sent(gpu, codec, values):
    partition = rows(codec, [len(values)], False)
    values = np.array(values, np.float32)
    every = np.arange(partition.segments)
    with np.errstate(invalid='ignore', over='ignore'):
        there = to_gpu(values.copy())
        code = get_codec(codec).take(partition, there, every, None)
        assert code.tobytes() == get_codec(codec).take(partition, values, every, None).tobytes()
    assert bits(there) == bits(values)


@needs_compiler
def test_a_segment_of_which_too_many_elements_are_sent_is_refused(gpu):
    partition = partition_of([('p', (5000,))], codec='onebit')
    values, ids = to_gpu(np.ones(5000, np.float32)), np.zeros(1, int)
    with pytest.raises(LocalProtocolError, match=r"most 512 elements, got 2500: .*'ternary:0.5'"):
        get_codec('ternary:0.5').take(partition, values, ids, None)
    assert gpu.launches == []


@needs_compiler
@pytest.mark.parametrize('codec', EXAMPLES)
def test_all_work_goes_to_the_stream_of_the_moment_and_nobody_waits_to_add(gpu, codec):
    partition, coder, first = rows(codec, [9, 40], False), get_codec(codec), gpu.stream
    values, ids, memory = np.arange(49, dtype=np.float32), np.arange(2), np.ones(49, np.float32)
    gpu.stream = Stream(11)
    data = coder.difference(partition, to_gpu(values), to_gpu(np.zeros(49, np.float32)), ids,
                            np.ones(2, np.float32))
    coder.add(partition, to_gpu(memory), ids, data)
    assert gpu.stream.queue and not first.queue
    assert (memory == 1).all()
    gpu.finish()
    expected = np.ones(49, np.float32)
    coder.add(partition, expected, ids, data)
    assert memory.tolist() == expected.tolist()


def test_kernels_are_used_for_tensors_on_a_gpu_where_cupy_is_installed(gpu, monkeypatch):
    values = np.zeros(3, np.float32)
    assert cuda.usable(to_gpu(values))
    assert not cuda.usable(torch.from_numpy(values)) and not cuda.usable(values)
    cuda._cupy.cache_clear()
    monkeypatch.setitem(sys.modules, 'cupy', None)  # imports fail as if cupy was not installed
    assert not cuda.usable(to_gpu(values))


def test_an_older_cupy_gets_the_stream_by_its_address(gpu):
    made = []
    gpu.cupy.cuda.Stream = object
    gpu.cupy.cuda.ExternalStream = lambda *stream: made.append(stream)
    cuda._stream(7, 0)
    assert made == [(7, 0)]


@needs_compiler
@pytest.mark.parametrize('codec', EXAMPLES)
def test_the_bench_measures_kernels_beside_the_loops_of_the_host(gpu, codec):
    partition = rows(codec, [300, 20], False)
    found = cuda_codecs.measure(codec, partition, to_gpu, 1)
    assert found.keys() == {'memcpy_ms', 'take_ms', 'host_take_ms', 'add_ms', 'host_add_ms'}
    # Two launches prepare the magnitudes and the bytes to add. Then each of the two kernels runs
    # once to be compiled, and once to be measured.
    assert len(gpu.launches) == 6


def test_the_bench_measures_the_copies_of_a_model_whose_rows_are_on_the_host():
    found = cuda_codecs.copies([('w', (40, 34)), ('b', (10,))], 'cpu', 1)
    assert found.keys() == {'gradient_down_ms', 'weights_up_ms'}


@needs_compiler
def test_the_bench_pushes_and_pulls_a_whole_model(gpu):
    partition = partition_of([('w', (40, 34)), ('b', (10,))])
    found = cuda_codecs.iterations(partition, to_gpu, 1)
    assert found.keys() == {'iteration_ms', 'host_iteration_ms'}
    # The snapshot has codec raw, hence raw_store.
    assert {name for name, _, _ in gpu.launches} == {
        'onebit_encode', 'onebit_add', 'raw_store', 'sums_accumulate'}


@needs_compiler
def test_a_push_of_many_windows_is_one_launch(gpu, monkeypatch):
    partition = partition_of([('w', (64, 16))])  # each row has 4 encoded bytes
    assert window_size(partition) == partition.segments / 4
    pair = hot_path.Pair(partition, 2, 14000, put=to_gpu)
    for at_once, many in ((cuda.AT_ONCE, 1), (150, 2), (127, 3)):
        monkeypatch.setattr(cuda, 'AT_ONCE', at_once)
        gpu.launches.clear()
        pair.iterate()
        blocks = [blocks for name, blocks, _ in gpu.launches if name == 'onebit_encode']
        assert len(blocks) == many
        assert sum(blocks) == partition.segments
        assert 4 * max(blocks) <= at_once
        assert [launch[1] for launch in gpu.launches if launch[0] == 'sums_accumulate'] \
            == [partition.segments]


# -- on a GPU --------------------------------------------------------------------------------------

def on_device(values):
    return torch.from_numpy(values).cuda()


@pytest.fixture
def cupy():
    return pytest.importorskip('cupy')


@pytest.mark.parametrize('codec', [pytest.param(name, marks=on_a_gpu) for name in EXAMPLES])
@examples(100)
@given(data=st.data(), seed=st.integers(0, 2 ** 32))
def test_a_gpu_gives_the_bits_of_the_compiled_loop(cupy, codec, data, seed):
    partition, ids = data.draw(segments_of(codec, min_value=1, max_value=100_000))
    # Draw no NaN. A GPU makes only one kind of NaN, so the bits of a NaN may differ from the CPU's.
    # Receivers refuse NaN anyway.
    values, mirror = drawn(partition, seed, SPECIAL[4:])
    code, left = results(codec, partition, ids, values, mirror, lambda v: v)
    assert cuda.usable(on_device(values))
    found, there = results(codec, partition, ids, values, mirror, on_device)
    assert found == code
    assert [bits(v) for v in there] == [bits(v) for v in left]


@pytest.mark.parametrize('codec', [pytest.param(name, marks=on_a_gpu) for name in EXAMPLES])
def test_a_gpu_works_on_the_stream_of_the_moment(cupy, codec):
    partition = rows(codec, [5000] * 200, False)
    values, mirror = drawn(partition, 1, SPECIAL[4:])
    ids = np.arange(partition.segments)
    code, left = results(codec, partition, ids, values, mirror, lambda v: v)
    with torch.cuda.stream(torch.cuda.Stream()):
        # This work takes a few milliseconds. The kernels must run after it, on the same stream.
        for _ in range(20):
            busy = torch.randn(2000, 2000, device='cuda')
            busy = busy @ busy
            found, there = results(codec, partition, ids, values, mirror, on_device)
            assert found == code
            assert [bits(v) for v in there] == [bits(v) for v in left]


@pytest.mark.parametrize('codec', [pytest.param('onebit', marks=on_a_gpu)])
@pytest.mark.parametrize('is_apart', [False, True])
def test_a_model_on_a_gpu_trains_with_its_rows_there_or_on_the_host(codec, is_apart, monkeypatch):
    if is_apart:
        monkeypatch.setattr(cuda, '_cupy', lambda: None)
    else:
        pytest.importorskip('cupy')
    torch.manual_seed(1)
    network, batch = torch.nn.Linear(5, 3).cuda(), torch.ones(4, 5).cuda()
    optimizer = RogOptimizer(network, InProcessLink(codec=codec), robot='r', incarnation=1,
                             config=transfer_config(codec), sgd=SgdConfig(0.1, 0.0, 0.0, True))
    assert isinstance(optimizer.accumulator.pending, np.ndarray) == is_apart
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = network(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert network.weight.is_cuda and losses[-1] < 0.5 * losses[0]
