"""Tests that codecs give the same bytes as slow reference codecs, and refuse bad data."""

from dataclasses import replace

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference import reference, ternary_reference
from rog_core.arrays import difference_magnitude
from rog_core.codecs import RAW, codec_names, codec_on_wire, encode_ids, get_codec, in_model_order
from rog_core.codecs.base import bfloat16_decode, bfloat16_encode
from rog_core.errors import ConfigError, RemoteProtocolError
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Chunk, Kind, TransferId
from rog_core.transfer.receiver import Receiver

NAMES = codec_names()  # plug-ins included
SCALED = [name for name in NAMES if get_codec(name).scales]
PARTITION = partition_of([('conv', (40, 34)), ('bias', (3,)), ('scale', ()), ('long', (9001,))])
MODELS = {name: partition_of([(p.name, p.shape) for p in PARTITION.parameters], codec=name)
          for name in NAMES}

TERNARY = get_codec('ternary')


def draw(seed, codec):
    """Draw two sets of values, and some segments in ascending order."""
    noise, partition = np.random.default_rng(seed), MODELS[codec]
    values = noise.standard_normal((2, partition.elements)).astype(np.float32)
    values[:, noise.random(partition.elements) < 0.1] = 0
    values[0, noise.random(partition.elements) < 0.05] = -0.0
    ids = np.flatnonzero(noise.random(partition.segments) < noise.random())
    return partition, values[0], values[1], ids


def covered(partition, ids):
    """Return whether each element is in one of the segments, bool (elements,)."""
    return np.repeat(np.isin(np.arange(partition.segments), ids), partition.lengths)


def magnitude(partition, values, ids):
    return difference_magnitude(values, np.zeros_like(values), partition.offsets)[ids]


@pytest.mark.parametrize('codec', NAMES)
@examples(30)
@given(seed=st.integers(0, 2 ** 32))
def test_a_codec_agrees_with_the_slow_reference(codec, seed):
    partition, values, other, ids = draw(seed, codec)
    sums, coder = magnitude(partition, values, ids), get_codec(codec)
    expected, decoded = reference(codec, partition, values, ids, sums)
    pending, target = values.copy(), other.copy()
    data = coder.take(partition, pending, ids, sums)
    assert data.dtype == np.uint8
    assert data.tobytes() == expected
    left = values - decoded
    left[covered(partition, ids)] *= np.float32(coder.kept)
    assert (pending == left).all()
    energy = float((decoded.astype(np.float64) ** 2).sum())
    assert coder.check(partition, ids, data) == pytest.approx(energy, rel=1e-9)
    coder.add(partition, target, ids, data, -0.5)
    assert np.array_equal(target, other - np.float32(0.5) * decoded)
    left, right = values.copy(), other.copy()
    difference = coder.difference(partition, left, right, ids, sums)
    assert difference.tobytes() == reference(codec, partition, values - other, ids, sums)[0]
    assert (left == values).all()
    assert (right == other).all()


floats = st.floats(-2.0 ** 120, 2.0 ** 120, width=32)
levels = st.sampled_from([0, -0.0, 1, -1, 2, -2, 1e-45, -1e-40, 2.0 ** 120]).map(np.float32)


@examples(50)
@given(seed=st.integers(0, 2 ** 32), codec=st.sampled_from(NAMES))
def test_what_is_encoded_and_what_stays_add_up_to_the_original(seed, codec):
    partition, values, _, ids = draw(seed, codec)
    pending, sums = values.copy(), magnitude(partition, values, ids)
    data = get_codec(codec).take(partition, pending, ids, sums)
    pending[covered(partition, ids)] /= np.float32(get_codec(codec).kept)
    get_codec(codec).add(partition, pending, ids, data)
    assert np.allclose(pending, values, rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize('codec', ['onebit', 'ternary', 'ternary:0.05', 'e3m0'])
def test_error_feedback_brings_everything_over_in_the_end(codec):
    partition, values, _, _ = draw(1, codec)
    codec, every = get_codec(codec), np.arange(partition.segments)
    pending, there = values.copy(), np.zeros_like(values)
    for _ in range(200):
        data = codec.take(partition, pending, every, magnitude(partition, pending, every))
        codec.add(partition, there, every, data)
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


@pytest.mark.parametrize('codec', ['raw', *SCALED])
@pytest.mark.parametrize('bits', [0x7fc0, 0xffc1, 0x7f80, 0xff80])
def test_values_that_are_nan_or_infinite_are_refused(codec, bits):
    partition, values, _, _ = draw(2, codec)
    ids = np.array([1, 3])
    data = get_codec(codec).take(partition, values, ids, np.ones(2, np.float32))
    get_codec(codec).check(partition, ids, data)
    at = 2 if codec == 'raw' else int(get_codec(codec).sizes(partition.lengths[1:2])[0])
    data[at:at + 2] = bits & 255, bits >> 8
    with pytest.raises(RemoteProtocolError, match='segment 3|NaN or infinite'):
        get_codec(codec).check(partition, ids, data)


@pytest.mark.parametrize('codec', SCALED)
def test_a_negative_scale_is_refused(codec):
    partition, values, _, _ = draw(2, codec)
    ids = np.array([4])
    data = get_codec(codec).take(partition, values, ids, np.ones(1, np.float32))
    data[1] |= 0x80
    with pytest.raises(RemoteProtocolError, match='scale of segment 4 .* negative'):
        get_codec(codec).check(partition, ids, data)


@pytest.mark.parametrize('codec', NAMES)
@pytest.mark.parametrize('change', [-1, 1, -10 ** 9])
def test_values_of_the_wrong_length_are_refused(codec, change):
    partition, values, _, _ = draw(2, codec)
    ids = np.array([1, 41, 42])
    data = get_codec(codec).take(partition, values, ids, np.ones(3, np.float32))
    wrong = np.append(data, np.uint8(0)) if change > 0 else data[:max(change, -data.size)]
    told = f'3 segments has {wrong.size} .* {data.size} are'
    with pytest.raises(RemoteProtocolError, match=told):
        get_codec(codec).check(partition, ids, wrong)


def one_row(length):
    """Return a partition of one segment of ``length`` elements, and an array with its id, 0."""
    return partition_of([('p', (length,))], codec='ternary'), np.zeros(1, np.int64)


@given(row=arrays.arrays(np.float32, st.integers(1, 200), elements=floats | levels, fill=levels))
def test_ternary_bytes_of_any_values_are_those_of_the_reference(row):
    (partition, ids), (expected, decoded) = one_row(row.size), ternary_reference(row)
    left = row.copy()
    data = TERNARY.take(partition, left, ids, None)
    TERNARY.check(partition, ids, data)
    assert data.tobytes() == expected
    assert np.array_equal(left, row - decoded)


def test_ternary_sends_the_first_of_the_largest_of_each_block():
    row = np.zeros(64 * 3 + 5, np.float32)
    row[[3, 17, 60]] = 1, -4, 4      # of equal magnitudes, the first one is sent, whatever its sign
    row[[64, 127]] = 0.5, 2          # index 127 is the last element of its block
    row[-1] = 3                      # the last block is short; the third block holds only zeros
    (partition, ids), left = one_row(row.size), row.copy()
    data = TERNARY.take(partition, left, ids, None)
    assert bfloat16_decode(data[:2].view('<u2')) == 3
    assert data[2:].tolist() == [0x80 | 0x40 | 17, 0x80 | 63, 0, 0x80 | 4]
    assert left[[3, 17, 60, 64, 127, -1]].tolist() == [1, -1, 4, 0.5, -1, 0]
    nothing = TERNARY.take(partition, np.full_like(row, -0.0), ids, None)
    assert nothing.tolist() == [0] * 6


BAD_BYTES = {
    'outside the short block': (5, 0x80 | 5, 'byte of segment 0 points outside'),
    'outside, negative': (5, 0x80 | 0x40 | 63, 'byte of segment 0 points outside'),
    'nothing sent, with a position': (3, 1, 'segment 0 .* sends nothing and is not 0'),
    'nothing sent, with a sign': (4, 0x40, 'segment 0 .* sends nothing and is not 0'),
    'infinite scale': (1, 0x7f, 'scale of segment 0'),
    'negative scale': (1, 0x80, 'scale of segment 0')}


@pytest.mark.parametrize('case', BAD_BYTES)
def test_a_chunk_with_malformed_ternary_bytes_is_refused_and_nothing_of_it_applied(case):
    at, byte, text = BAD_BYTES[case]
    partition, ids = one_row(64 * 3 + 5)
    receiver = Receiver(partition, frozenset({Kind.PUSH}), 1, TERNARY)
    good = np.array([0x80, 0x3f, 0x80, 0, 0, 0x80 | 4], np.uint8)
    bad = good.copy()
    bad[at] = byte
    chunk = Chunk(TransferId(1, Kind.PUSH, 1, 1), 0, TERNARY.number, 1, encode_ids(ids), bad)
    with pytest.raises(RemoteProtocolError, match=text):
        receiver.on_chunk(chunk, 0.0)
    assert receiver.transfer is None
    _, taken = receiver.on_chunk(replace(chunk, values=good), 0.0)
    assert taken.data is good


@given(lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4), data=st.data())
def test_any_bytes_are_refused_or_decode_to_one_element_a_block_inside_their_segments(lengths,
                                                                                      data):
    partition = partition_of([(f'p{k}', (n,)) for k, n in enumerate(lengths)], codec='ternary')
    ids = np.arange(1, partition.segments)
    size = int(TERNARY.sizes(partition.lengths[ids]).sum())
    code = np.array(data.draw(st.lists(st.sampled_from([0, 0x3f, 0x80, 0x85, 0xc0, 0xff])
                                       | st.integers(0, 255), min_size=size, max_size=size)),
                    np.uint8)
    try:
        TERNARY.check(partition, ids, code)
    except RemoteProtocolError:
        return
    values = np.full(partition.elements, 7, np.float32)
    TERNARY.add(partition, values, ids, code, 0.25)
    changed = np.flatnonzero(values != 7)
    blocks = sum(-(-n // 64) for n in lengths[1:])
    assert changed.size <= blocks
    assert (changed >= lengths[0]).all()


def test_ternary_segments_cost_a_scale_and_a_byte_for_every_64_elements():
    assert TERNARY.sizes(np.array([1, 64, 65, 8192])).tolist() == [3, 3, 4, 130]


def test_unaligned_raw_bytes_are_decoded():
    partition, values, _, ids = draw(6, 'raw')
    data = RAW.snapshot(partition, values, ids)
    shifted = np.concatenate([np.zeros(1, np.uint8), data])[1:]
    target = np.zeros_like(values)
    RAW.check(partition, ids, shifted)
    RAW.store(partition, target, ids, shifted)
    assert target[:34].tolist() == (values[:34].tolist() if ids[0] == 0 else [0] * 34)


@pytest.mark.parametrize('codec', NAMES)
def test_chunks_put_in_model_order_decode_to_the_same(codec):
    partition, values, _, _ = draw(3, codec)
    coder = get_codec(codec)
    order = np.random.default_rng(4).permutation(partition.segments)
    parts = [(ids, coder.take(partition, values, ids, np.ones(ids.size, np.float32)))
             for ids in (np.sort(order[:20]), np.sort(order[20:31]), np.sort(order[31:]))]
    expected, actual = np.zeros_like(values), np.zeros_like(values)
    for ids, data in parts:
        coder.add(partition, expected, ids, data)
    ids, data = in_model_order(coder, partition, parts)
    coder.add(partition, actual, ids, data)
    assert ids.tolist() == list(range(partition.segments))
    assert np.array_equal(actual, expected)
    assert in_model_order(coder, partition, [])[0].size == 0


def test_codecs_are_found_by_name_and_number_or_refused():
    for name in NAMES:
        codec = get_codec(name)
        assert codec is get_codec(name) is codec_on_wire(codec.number, codec)
    assert codec_on_wire(get_codec('onebit').number, RAW) is get_codec('onebit')
    known = ', '.join(sorted(name for name in NAMES if ':' not in name))
    with pytest.raises(ConfigError, match=f"'zip' is unknown; choose one of {known}, ternary:P"):
        get_codec('zip')
    with pytest.raises(RemoteProtocolError, match='codec 9'):
        codec_on_wire(9, RAW)
