"""How a model is divided into rows, and long rows into segments."""

import numpy as np
import pytest
from convmlp import convmlp_m
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError, PartitionMismatchError
from rog_core.model.partition import GRANULARITIES, partition_of

shapes = st.lists(st.lists(st.integers(1, 12), max_size=4), min_size=1, max_size=6).map(
    lambda found: [(f'p{i}', tuple(shape)) for i, shape in enumerate(found)])


def rows_of(*shape):
    return partition_of([('p', shape)]).rows


def test_convmlp_m_has_the_published_tensors_rows_and_elements():
    partition = partition_of(convmlp_m())
    assert (len(partition.parameters), partition.rows) == (226, 33307)
    assert partition.elements == 16_948_804
    assert partition.segments == partition.rows


@pytest.mark.parametrize(('shape', 'rows'), [
    ((), 1), ((5000,), 1), ((999,), 1), ((9, 111), 1), ((10, 100), 10), ((1, 1000), 1),
    ((64, 3, 3, 3), 64), ((32, 1, 3, 3), 1)])
def test_small_and_one_dimensional_parameters_are_one_row_others_a_row_per_first_index(shape, rows):
    assert rows_of(*shape) == rows


@given(shapes, st.sampled_from(GRANULARITIES), st.sampled_from(['onebit', 'raw']))
def test_rows_and_segments_tile_the_storage(found, granularity, codec):
    partition = partition_of(found, granularity, codec)
    size = sum(int(np.prod(shape)) for _, shape in found)
    assert partition.elements == size == partition.offsets[-1] == partition.row_offsets[-1]
    assert partition.offsets[0] == partition.row_offsets[0] == 0
    assert (partition.lengths == np.diff(partition.offsets)).all()
    assert (partition.row_lengths == np.diff(partition.row_offsets)).all()
    assert 1 <= partition.lengths.min() <= partition.lengths.max() <= partition.segment_elements
    assert (partition.offsets[partition.first_segment] == partition.row_offsets[:-1]).all()
    expected = {'model': 1, 'layer': len(found), 'element': size}
    assert partition.rows == expected.get(granularity, partition.rows)


def test_a_long_row_is_cut_into_segments_and_is_complete_only_with_all_of_them():
    partition = partition_of([('a', (3,)), ('long', (20000,)), ('b', (4,))])
    assert (partition.rows, partition.segments) == (3, 5)
    assert partition.lengths.tolist() == [3, 8192, 8192, 3616, 4]
    assert partition.segment_row.tolist() == [0, 1, 1, 1, 2]
    assert partition.rows_complete(np.array([3, 0, 1])).tolist() == [True, False, False]
    assert partition.rows_complete(np.array([3, 2, 1])).tolist() == [False, True, False]
    assert partition.row_sum(np.arange(5.0)).tolist() == [0, 6, 4]


def test_raw_segments_fit_a_datagram():
    assert partition_of([('p', (601,))], codec='raw').lengths.tolist() == [256, 256, 89]


def test_the_raw_cut_has_the_same_rows_in_segments_of_a_datagram():
    partition = partition_of([('a', (3,)), ('long', (2, 601))])
    assert partition.raw_partition.lengths.tolist() == [3, 256, 256, 89, 256, 256, 89]
    assert (partition.raw_partition.row_offsets == partition.row_offsets).all()
    raw = partition_of([('a', (3,))], codec='raw')
    assert raw.raw_partition is raw


@pytest.mark.parametrize(('change', 'named'), [
    ([('a', (20, 60)), ('b', (8,))], None),
    ([('a', (20, 60)), ('c', (8,))], r'parameter 1 is b \(8\) here but c \(8\) there'),
    ([('a', (20, 61)), ('b', (8,))], r'parameter 0 is a \(20x60\) here but a \(20x61\) there'),
    ([('a', (20, 60))], r'2 parameters here but 1 there.*b \(8\)'),
    ([('a', (20, 60)), ('b', (8,)), ('c', ())], r'2 parameters here but 3 there.*c \(scalar\)')])
def test_the_first_difference_is_named(change, named):
    ours, theirs = partition_of([('a', (20, 60)), ('b', (8,))]), partition_of(change)
    if named is None:
        ours.require_same(theirs)
        assert ours.digest == theirs.digest
        return
    assert ours.digest != theirs.digest
    with pytest.raises(PartitionMismatchError, match=named):
        ours.require_same(theirs)


def test_granularity_and_codec_are_part_of_the_digest():
    ours = partition_of([('a', (20, 60))])
    with pytest.raises(PartitionMismatchError, match="'row' here but 'layer' there"):
        ours.require_same(partition_of([('a', (20, 60))], 'layer'))
    with pytest.raises(PartitionMismatchError, match='same codec'):
        ours.require_same(partition_of([('a', (20, 60))], codec='raw'))


@pytest.mark.parametrize(('arguments', 'text'), [
    (([],), 'no parameters'), (([('p', (0, 3))],), r'p \(0x3\) has no elements'),
    (([('p', (3,))], 'rows'), "'rows' is unknown; choose one of model, layer, row, element"),
    (([('p', (3,))], 'row', 'zip'), "'zip' is unknown; choose one of e3m0, onebit, raw")])
def test_what_cannot_be_cut_is_refused(arguments, text):
    with pytest.raises(ConfigError, match=text):
        partition_of(*arguments)
