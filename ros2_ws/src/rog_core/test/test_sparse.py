"""Sparse ternary codec: it sends the largest elements of a segment; the others stay pending."""

from dataclasses import replace

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from reference import sparse_reference
from rog_core.codecs import SMALLER, codec_on_wire, encode_ids, get_codec
from rog_core.codecs.base import bfloat16_decode
from rog_core.errors import ConfigError, RemoteProtocolError
from rog_core.model.partition import RowPartition, partition_of
from rog_core.protocol.messages import Chunk, Kind, TransferId
from rog_core.transfer.receiver import Receiver

NOTHING = 0xffff

sparsities = st.sampled_from([0.001, 0.01, 0.05, 0.1, 1 / 3, 0.5])
floats = st.floats(-2.0 ** 120, 2.0 ** 120, width=32)
levels = st.sampled_from([0, -0.0, 1, -1, 2, -2, 1e-45, -1e-45, 2 ** 120]).map(np.float32)


def rows(*lengths, codec='ternary:0.5'):
    """Return a partition with one segment for each of ``lengths``."""
    return partition_of([(f'p{k}', (n,)) for k, n in enumerate(lengths)], codec=codec)


def words(data):
    return data.view('<u2').tolist()


@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=5), sparsity=sparsities,
       data=st.data())
def test_the_bytes_of_any_values_are_those_of_the_reference(lengths, sparsity, data):
    codec, partition = get_codec(f'ternary:{sparsity}'), rows(*lengths)
    ids = np.array(sorted(data.draw(st.sets(st.sampled_from(range(len(lengths)))))), np.int64)
    values = data.draw(arrays.arrays(np.float32, partition.elements, elements=floats | levels,
                                     fill=levels))
    expected, decoded = b'', np.zeros_like(values)
    for segment in ids:
        lo, hi = partition.offsets[segment:segment + 2]
        code, decoded[lo:hi] = sparse_reference(values[lo:hi], sparsity)
        expected += code
    left, there = values.copy(), np.zeros_like(values)
    sent = codec.take(partition, left, ids, None)
    codec.check(partition, ids, sent)
    assert sent.tobytes() == expected
    assert sent.size == codec.sizes(partition.lengths[ids]).sum()
    assert np.array_equal(left, values - decoded)
    codec.add(partition, there, ids, sent)
    assert np.array_equal(there, decoded)
    difference = codec.difference(partition, values, np.zeros_like(values), ids, None)
    assert difference.tobytes() == expected


@pytest.mark.parametrize('length', [1024, 8191, 8192])
@pytest.mark.parametrize('sparsity', [0.0001, 0.05, 0.5])
def test_long_segments_are_written_as_the_reference_does(length, sparsity):
    noise = np.random.default_rng(length)
    partition, ids = RowPartition(rows(length).parameters, 'row', 8192), np.zeros(1, np.int64)
    for values in (noise.standard_normal(length), noise.integers(-3, 4, length),
                   10.0 ** noise.uniform(-44, 38, length)):
        values = values.astype(np.float32)
        expected, decoded = sparse_reference(values, sparsity)
        codec, left = get_codec(f'ternary:{sparsity}'), values.copy()
        code = codec.take(partition, left, ids, None)
        assert code.tobytes() == expected
        assert np.array_equal(left, values - decoded)


def test_the_first_of_the_largest_are_sent_in_order_and_zeros_never():
    partition, ids, codec = rows(8), np.zeros(1, np.int64), get_codec('ternary:0.5')
    row = np.array([1, -4, 4, 2, -2, 2, 0, -4], np.float32)
    data = codec.take(partition, row, ids, None)
    assert bfloat16_decode(data[:2].view('<u2')) == 3.5
    assert words(data[2:]) == [0x8001, 2, 3, 0x8007]
    assert row.tolist() == [1, -0.5, 0.5, -1.5, -2, 2, 0, -0.5]
    row = np.array([0, -0.0, 0, -1e-45, 0, 0, 0, 0], np.float32)
    data = codec.take(partition, row, ids, None)
    assert words(data[2:]) == [0x8003, NOTHING, NOTHING, NOTHING]
    nothing = codec.take(partition, np.full(8, -0.0, np.float32), ids, None)
    assert words(nothing) == [0] + [NOTHING] * 4


def test_a_segment_costs_a_scale_and_two_bytes_for_each_element_sent():
    lengths = np.array([1, 9, 30, 50, 1000, 8192])
    assert get_codec('ternary:0.05').sizes(lengths).tolist() == [4, 4, 6, 6, 102, 822]
    assert get_codec('ternary:1e-9').sizes(lengths).tolist() == [4] * 6


@pytest.mark.parametrize(('sparsity', 'elements'), [('0.5', 1024), ('0.1', 5120), ('0.05', 8192),
                                                    ('5e-324', 8192)])
def test_long_rows_are_cut_so_that_a_segment_fits_a_datagram(sparsity, elements):
    partition = partition_of([('long', (1, 20000))], codec=f'ternary:{sparsity}')
    assert partition.lengths.max() == elements


def test_a_sparsity_has_one_name_and_one_codec():
    codec = get_codec('ternary:0.05')
    assert codec is get_codec('ternary:0.05')
    assert codec.name == get_codec('ternary:5e-2').name == 'ternary:0.05'
    assert get_codec('ternary') is SMALLER


@pytest.mark.parametrize('text', ['', '0', '-0.1', '0.51', '1', 'nan', 'inf', 'half', '0.1:2'])
def test_a_bad_sparsity_is_refused(text):
    for ask in (get_codec, lambda name: partition_of([('p', (3,))], codec=name)):
        with pytest.raises(ConfigError, match=f"'ternary:{text}'.*above 0 and at most 0.5"):
            ask(f'ternary:{text}')


def receiver(codec):
    return Receiver(rows(8, 5), frozenset({Kind.PUSH, Kind.SNAPSHOT}), 1, get_codec(codec))


GOOD = [0x3f80, 0x8001, 2, 3, NOTHING] + [0x3f80, 0, 4]  # two segments, of 8 and 5 elements
TRANSFER = TransferId(1, Kind.PUSH, 1, 1)


def chunk(code, number=3):
    values = np.array(code, '<u2').view(np.uint8)
    return Chunk(TRANSFER, 0, number, 2, encode_ids(np.arange(2)), values)


BAD = {'outside': (3, 8, 'outside segment 0'),
       'outside the second': (7, 0x8005, 'outside segment 1'),
       'largest position': (4, 0x7fff, 'outside segment 0'),
       'twice': (2, 1, 'segment 0 do not ascend'),
       'twice, with the other sign': (2, 0x8001, 'segment 0 do not ascend'),
       'descending': (3, 0, 'segment 0 do not ascend'),
       'after nothing': (1, NOTHING, 'segment 0 do not ascend'),
       'infinite scale': (0, 0x7f80, 'scale of segment 0'),
       'scale that is NaN': (5, 0x7fc0, 'scale of segment 1'),
       'negative scale': (5, 0xbf80, 'scale of segment 1')}


@pytest.mark.parametrize('case', BAD)
def test_a_malformed_chunk_is_refused_and_nothing_of_it_applied(case):
    at, word, text = BAD[case]
    bad = GOOD.copy()
    bad[at] = word
    ours = receiver('ternary:0.5')
    with pytest.raises(RemoteProtocolError, match=text):
        ours.on_chunk(chunk(bad), 0.0)
    assert ours.transfer is None
    _, taken = ours.on_chunk(chunk(GOOD), 0.0)
    assert taken.data.tobytes() == np.array(GOOD, '<u2').tobytes()


@pytest.mark.parametrize('code', [[], GOOD[:-1], [*GOOD, 0]])
def test_a_chunk_of_the_wrong_length_is_refused(code):
    ours = receiver('ternary:0.5')
    with pytest.raises(RemoteProtocolError, match=f'{2 * len(code)} bytes .* 16 are needed'):
        ours.on_chunk(chunk(code), 0.0)
    assert ours.transfer is None


@st.composite
def encoded(draw, lengths):
    """Draw the words of encoded segments at sparsity 0.5; at most one word may be invalid."""
    code = []
    for length in lengths:
        positions = draw(st.sets(st.integers(0, length - 1), max_size=length // 2))
        named = [k + 0x8000 * draw(st.booleans()) for k in sorted(positions)]
        code += [draw(st.integers(0, 0x7f7f)), *named]
        code += [NOTHING] * (length // 2 - len(named))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(code) - 1))
        code[at] = draw(st.integers(0, 9) | st.integers(0x8000, 0x8009) | st.integers(0, NOTHING))
    return code


def decode(code, length):
    """Return the decoded values of one segment; None if its words are malformed."""
    scale, named = code[0], code[1:]
    while named and named[-1] == NOTHING:
        named = named[:-1]
    positions = [word % 0x8000 for word in named]
    if scale > 0x7f7f or positions != sorted({k for k in positions if k < length}):
        return None
    decoded = np.zeros(length, np.float32)
    for word in named:
        sign = -1 if word & 0x8000 else 1
        decoded[word % 0x8000] = sign * bfloat16_decode(np.array([scale], np.uint16))[0]
    return decoded


@examples(300)
@given(encoded([8, 4]))
def test_any_bytes_are_refused_or_add_what_they_name(code):
    partition, codec, ids = rows(3, 8, 4), get_codec('ternary:0.5'), np.array([1, 2])
    data = np.array(code, '<u2').view(np.uint8)
    expected = decode(code[:5], 8), decode(code[5:], 4)
    if any(part is None for part in expected):
        with pytest.raises(RemoteProtocolError):
            codec.check(partition, ids, data)
        return
    codec.check(partition, ids, data)
    values = np.full(partition.elements, 7, np.float32)
    codec.add(partition, values, ids, data, 0.25)
    assert (values[:3] == 7).all()
    assert np.array_equal(values[3:], 7 + np.float32(0.25) * np.concatenate(expected))


def test_the_sparsity_of_a_chunk_is_that_of_the_fleet():
    ours = receiver('ternary:0.5')
    _, taken = ours.on_chunk(chunk(GOOD), 0.0)
    assert taken.codec is get_codec('ternary:0.5') is codec_on_wire(3, ours.codec)
    ours = receiver('ternary:0.5')  # a new receiver, because one transfer accepts a row only once
    _, taken = ours.on_chunk(replace(chunk([0] * 3, SMALLER.number), sequence=1), 0.0)
    assert taken.codec is SMALLER


def test_sparse_chunks_are_refused_where_the_fleet_has_another_codec_and_as_model_values():
    ours = receiver('onebit')
    with pytest.raises(RemoteProtocolError, match="codec 3, .* not the one of .*, 'onebit'"):
        ours.on_chunk(chunk(GOOD), 0.0)
    ours = receiver('ternary:0.5')
    with pytest.raises(RemoteProtocolError, match="'ternary:0.5'; it must be 'raw'"):
        ours.on_chunk(replace(chunk(GOOD), transfer=replace(TRANSFER, kind=Kind.SNAPSHOT)), 0.0)
