"""Codecs: both backends against a slow reference, error feedback, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rog_core.backend import (
    ArrayBackend,
    NumpyBackend,
    bfloat16_decode,
    bfloat16_encode,
    get_backend,
)
from rog_core.codec import CODECS, RAW, codec_on_wire, get_codec, in_model_order
from rog_core.errors import ConfigError, RemoteProtocolError
from rog_core.partition import partition_of

BACKENDS = [NumpyBackend(), ArrayBackend(np, 'numpy as an array module')]
PARTITION = partition_of([('conv', (40, 34)), ('bias', (3,)), ('scale', ()), ('long', (9001,))])
MODELS = {name: partition_of([(p.name, p.shape) for p in PARTITION.parameters], codec=name)
          for name in CODECS}


def gpu():
    pytest.importorskip('cupy')
    try:
        return get_backend('cupy')
    except ConfigError as error:
        pytest.skip(str(error))


def draw(seed, codec):
    """Values, another set of them, and some segments in ascending order."""
    noise, partition = np.random.default_rng(seed), MODELS[codec]
    values = noise.standard_normal((2, partition.elements)).astype(np.float32)
    values[:, noise.random(partition.elements) < 0.1] = 0
    values[0, noise.random(partition.elements) < 0.05] = -0.0
    ids = np.flatnonzero(noise.random(partition.segments) < noise.random())
    return partition, values[0], values[1], ids


def magnitude(partition, values, ids):
    zeros = np.zeros_like(values)
    return NumpyBackend().difference_magnitude(values, zeros, partition.offsets)[ids]


def reference(codec, partition, values, ids, sums):
    """Encoded bytes and decoded values (elements,), one element at a time."""
    out, decoded = bytearray(), np.zeros_like(values)
    for number, segment in enumerate(ids):
        lo, hi = partition.offsets[segment], partition.offsets[segment + 1]
        if codec == 'raw':
            out += values[lo:hi].astype('<f4').tobytes()
            decoded[lo:hi] = values[lo:hi]
            continue
        mean = np.float32(sums[number] / (hi - lo))
        code = (int(mean.view(np.uint32)) + 0x8000) >> 16
        scale = np.uint32(code << 16).view(np.float32)
        out += code.to_bytes(2, 'little')
        for start in range(lo, hi, 8):
            byte = 0
            for bit, k in enumerate(range(start, min(start + 8, hi))):
                negative = bool(np.signbit(values[k]))
                byte |= negative << bit
                decoded[k] = -scale if negative else scale
            out.append(byte)
    return bytes(out), decoded


def check_backend(backend, codec_name, seed):
    codec = get_codec(codec_name)
    partition, values, other, ids = draw(seed, codec_name)
    sums = magnitude(partition, values, ids)
    expected, decoded = reference(codec_name, partition, values, ids, sums)
    pending = backend.from_host(values)
    data = codec.take(backend, partition, pending, ids, sums)
    assert data.dtype == np.uint8
    assert data.tobytes() == expected
    assert (backend.to_host(pending) == values - decoded).all()
    target = backend.from_host(other)
    codec.add(backend, partition, target, ids, data, -0.5)
    assert np.array_equal(backend.to_host(target), other - np.float32(0.5) * decoded)
    left, right = backend.from_host(values), backend.from_host(other)
    difference = codec.difference(backend, partition, left, right, ids, sums)
    assert difference.tobytes() == reference(codec_name, partition, values - other, ids, sums)[0]
    assert (backend.to_host(left) == values).all()
    assert (backend.to_host(right) == other).all()


def check_elementwise(backend, seed):
    partition, values, other, ids = draw(seed, 'onebit')
    numpy = NumpyBackend()
    expected = [values.copy(), other.copy(), values + other]
    host = numpy.accumulate(other, values, *expected[:2], 0.1, 0.9, 1e-3, partition.offsets)
    arrays = [backend.from_host(a) for a in (values, other, values + other)]
    sums = backend.accumulate(backend.from_host(other), backend.from_host(values), *arrays[:2], 0.1,
                              0.9, 1e-3, partition.offsets)
    for ours, theirs in zip(arrays, expected):
        assert np.allclose(backend.to_host(ours), theirs, rtol=1e-5, atol=1e-6)
    assert np.allclose(sums, host, rtol=1e-4)
    assert backend.all_finite(arrays[0])
    for bad in (np.nan, np.inf, -np.inf):
        values[5] = bad
        assert not backend.all_finite(backend.from_host(values))


@pytest.mark.parametrize('backend', BACKENDS, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize('codec', sorted(CODECS))
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2 ** 32))
def test_a_backend_agrees_with_the_slow_reference(backend, codec, seed):
    check_backend(backend, codec, seed)


@pytest.mark.parametrize('backend', BACKENDS, ids=lambda b: type(b).__name__)
def test_elementwise_operations_agree_between_backends(backend):
    for seed in range(5):
        check_elementwise(backend, seed)


@pytest.mark.gpu
@pytest.mark.parametrize('codec', sorted(CODECS))
def test_cupy_agrees_with_the_slow_reference(codec):
    backend = gpu()
    for seed in range(20):
        check_backend(backend, codec, seed)
        check_elementwise(backend, seed)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2 ** 32), codec=st.sampled_from(sorted(CODECS)))
def test_what_is_encoded_and_what_stays_add_up_to_the_original(seed, codec):
    partition, values, _, ids = draw(seed, codec)
    pending, sums = values.copy(), magnitude(partition, values, ids)
    data = get_codec(codec).take(NumpyBackend(), partition, pending, ids, sums)
    get_codec(codec).add(NumpyBackend(), partition, pending, ids, data)
    assert np.allclose(pending, values, rtol=1e-6, atol=1e-6)


def test_error_feedback_brings_everything_over_in_the_end():
    partition, values, _, _ = draw(1, 'onebit')
    codec, every = get_codec('onebit'), np.arange(partition.segments)
    pending, there, backend = values.copy(), np.zeros_like(values), NumpyBackend()
    for _ in range(200):
        data = codec.take(backend, partition, pending, every, magnitude(partition, pending, every))
        codec.add(backend, partition, there, every, data)
    error = np.abs(there + pending - values)
    assert error.max() < 1e-4
    assert np.abs(pending).mean() < 0.2 * np.abs(values).mean()


@given(st.floats(0, 2.0 ** 120, width=32, allow_subnormal=False))
def test_bfloat16_rounds_to_the_nearest(value):
    value = np.float32([value])
    code = bfloat16_encode(value)
    decoded = bfloat16_decode(code)[0]
    around = bfloat16_decode(np.array([max(int(code[0]) - 1, 0), int(code[0]) + 1], np.uint16))
    distance = abs(np.float64(decoded) - np.float64(value[0]))
    assert distance <= np.abs(around.astype(float) - np.float64(value[0])).min()


@given(st.integers(0, 0x7f7f))
def test_bfloat16_round_trips(code):
    codes = np.array([code], np.uint16)
    assert bfloat16_encode(bfloat16_decode(codes)) == codes


@pytest.mark.parametrize('codec', sorted(CODECS))
@pytest.mark.parametrize('bits', [0x7fc0, 0xffc1, 0x7f80, 0xff80])
def test_values_that_are_nan_or_infinite_are_refused(codec, bits):
    partition, values, _, _ = draw(2, codec)
    ids = np.array([1, 3])
    data = get_codec(codec).take(NumpyBackend(), partition, values, ids, np.ones(2, np.float32))
    get_codec(codec).check(partition, ids, data)
    at = 2 if codec == 'raw' else int(get_codec(codec).sizes(partition.lengths[1:2])[0])
    data[at:at + 2] = bits & 255, bits >> 8
    with pytest.raises(RemoteProtocolError, match='segment 3|NaN or infinite'):
        get_codec(codec).check(partition, ids, data)


def test_a_negative_scale_is_refused():
    partition, values, _, _ = draw(2, 'onebit')
    ids = np.array([4])
    data = get_codec('onebit').take(NumpyBackend(), partition, values, ids, np.ones(1, np.float32))
    data[1] |= 0x80
    with pytest.raises(RemoteProtocolError, match='scale of segment 4 .* negative'):
        get_codec('onebit').check(partition, ids, data)


@pytest.mark.parametrize('codec', sorted(CODECS))
@pytest.mark.parametrize('change', [-1, 1, -10 ** 9])
def test_values_of_the_wrong_length_are_refused(codec, change):
    partition, values, _, _ = draw(2, codec)
    ids = np.array([1, 41, 42])
    data = get_codec(codec).take(NumpyBackend(), partition, values, ids, np.ones(3, np.float32))
    wrong = np.append(data, np.uint8(0)) if change > 0 else data[:max(change, -data.size)]
    told = f'3 segments has {wrong.size} .* {data.size} are'
    with pytest.raises(RemoteProtocolError, match=told):
        get_codec(codec).check(partition, ids, wrong)


def test_unaligned_raw_bytes_are_decoded():
    partition, values, _, ids = draw(6, 'raw')
    data = RAW.snapshot(NumpyBackend(), partition, values, ids)
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    target = np.zeros_like(values)
    RAW.check(partition, ids, shifted)
    RAW.store(NumpyBackend(), partition, target, ids, shifted)
    assert target[:34].tolist() == (values[:34].tolist() if ids[0] == 0 else [0] * 34)


@pytest.mark.parametrize('codec', sorted(CODECS))
def test_chunks_put_in_model_order_decode_to_the_same(codec):
    partition, values, _, _ = draw(3, codec)
    coder, backend = get_codec(codec), NumpyBackend()
    order = np.random.default_rng(4).permutation(partition.segments)
    parts = [(ids, coder.take(backend, partition, values, ids, np.ones(ids.size, np.float32)))
             for ids in (np.sort(order[:20]), np.sort(order[20:31]), np.sort(order[31:]))]
    expected, actual = np.zeros_like(values), np.zeros_like(values)
    for ids, data in parts:
        coder.add(backend, partition, expected, ids, data)
    ids, data = in_model_order(coder, partition, parts)
    coder.add(backend, partition, actual, ids, data)
    assert ids.tolist() == list(range(partition.segments))
    assert np.array_equal(actual, expected)
    assert in_model_order(coder, partition, [])[0].size == 0


def test_codecs_are_found_by_name_and_number_or_refused():
    for name, codec in CODECS.items():
        assert get_codec(name) is codec_on_wire(codec.number) is codec
    with pytest.raises(ConfigError, match="'zip' is unknown; choose one of onebit, raw"):
        get_codec('zip')
    with pytest.raises(RemoteProtocolError, match='codec 9'):
        codec_on_wire(9)


def test_an_unknown_backend_is_refused():
    assert get_backend('auto').name in ('numpy', 'cupy')
    with pytest.raises(ConfigError, match="'tpu' is unknown"):
        get_backend('tpu')
