"""Segment ids on the wire, and how segments are cut into chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import decode_ids, encode_ids, split_into_chunks
from rog_core.errors import RemoteProtocolError
from rog_core.model.partition import partition_of

PARTITION = partition_of([('w', (70000, 2))])
id_sets = st.sets(st.integers(0, PARTITION.segments - 1), min_size=1, max_size=200).map(
    lambda found: np.array(sorted(found), np.int64))


@given(id_sets)
def test_ids_round_trip(ids):
    data = encode_ids(ids)
    assert decode_ids(data, ids.size, PARTITION).tolist() == ids.tolist()


@given(id_sets, st.integers(1, 400), st.integers(1, 300))
def test_every_chunk_is_decodable_alone_and_within_its_limit(ids, limit, size):
    sizes = np.full(ids.size, size)
    found, first, begin = [], 0, 0
    for stop, end, data in split_into_chunks(ids, sizes, limit):
        assert end - begin == sizes[first:stop].sum()
        assert stop - first == 1 or data.size + end - begin <= limit
        found += decode_ids(data, stop - first, PARTITION).tolist()
        first, begin = stop, end
    assert found == ids.tolist()


def test_neighbours_cost_a_byte_each():
    data = encode_ids(np.arange(1000))
    assert data.size == 1000


def leb128(*values):
    out = bytearray()
    for value in values:
        while value > 127:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)
    return np.frombuffer(bytes(out), np.uint8)


@pytest.mark.parametrize(('data', 'count', 'reason'), [
    (leb128(5, 0), 2, 'do not ascend'),
    (leb128(PARTITION.segments), 1, f'not below {PARTITION.segments}'),
    (leb128(5, PARTITION.segments - 5), 2, 'not below'),
    (leb128(1 << 34), 1, 'not below'),
    (np.full(12, 255, np.uint8), 1, 'do not hold'),
    (leb128(300)[:1], 1, 'do not hold'),
    (leb128(1, 2, 3), 2, 'do not hold'),
    (leb128(1, 2), 3, '3 segments but has 2 bytes'),
    (leb128(1), 0, '0 segments'),
    (leb128(1), -1, '-1 segments'),
    (leb128(), 1, '1 segments but has 0 bytes'),
    (leb128(1), 1 << 60, 'bytes of ids')])
def test_ids_that_break_the_format_are_refused(data, count, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_ids(data, count, PARTITION)


@given(st.binary(max_size=40), st.integers(0, 45))
def test_any_bytes_are_either_ascending_valid_ids_or_refused(data, count):
    try:
        ids = decode_ids(np.frombuffer(data, np.uint8), count, PARTITION)
    except RemoteProtocolError:
        return
    assert ids.size == count
    assert (np.diff(ids) > 0).all()
    assert 0 <= ids[0]
    assert ids[-1] < PARTITION.segments
