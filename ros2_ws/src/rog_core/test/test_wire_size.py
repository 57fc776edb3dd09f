"""Tests the message sizes in bytes that the documents state; measures no times."""

from pathlib import Path

import numpy as np
import pytest
from convmlp import convmlp_m
from rog_core.codecs import get_codec
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, TransferId
from rog_core.protocol.steps import Full, Gradient, Local, Shards
from rog_core.transfer.link import MIN_CHUNK
from wire_size import TARGETS, cdr_size, push

PUSH = TransferId(1, Kind.PUSH, 1, 1)
MESSAGES = Path(__file__).parents[2] / 'rog_msgs' / 'msg'


@pytest.mark.parametrize(('name', 'max_chunk', 'largest'), [
    ('chunk_14000', 14000, 14048), ('datagram_1200', MIN_CHUNK, 1208)])
def test_a_full_push_in_random_order_stays_within_its_bytes(name, max_chunk, largest):
    result = push(max_chunk)
    assert result['bytes'] <= TARGETS[name]
    assert result['id_bytes_per_row'] <= TARGETS['id_bytes_per_row']
    assert result['largest_message'] <= largest


def test_ternary_values_of_a_full_push_are_at_most_a_sixth_of_those_of_one_bit():
    sizes = {}
    for name in ('onebit', 'ternary'):
        partition = partition_of(convmlp_m(), codec=name)
        sizes[name] = int(get_codec(name).sizes(partition.lengths).sum())
    assert sizes['onebit'] <= 2.19e6
    assert sizes['ternary'] <= sizes['onebit'] / 6


@pytest.mark.parametrize('sparsity', [0.001, 0.01, 0.05, 0.1, 0.3, 0.5])
def test_a_sparse_segment_fits_a_datagram_and_a_push_costs_two_bytes_an_element_sent(sparsity):
    codec = get_codec(f'ternary:{sparsity}')
    partition = partition_of([*convmlp_m(), ('long', (1, 100003))], codec=codec.name)
    sizes = codec.sizes(partition.lengths)
    assert sizes.max() + 5 <= MIN_CHUNK
    sent = np.maximum(np.abs(sparsity * partition.lengths), 1)
    assert np.abs(sizes - 2 - 2 * sent).max() <= 1 + 1e-6


def test_counted_sizes_are_those_of_the_serialised_messages():
    typesys = pytest.importorskip('rosbags.typesys')
    if not MESSAGES.is_dir():
        pytest.skip('rog_msgs is not beside this package')
    store = typesys.get_typestore(typesys.Stores.ROS2_JAZZY)
    for name in ('RowChunk', 'RowAck', 'Command', 'TransferEnd', 'TransferReceipt'):
        text = (MESSAGES / f'{name}.msg').read_text()
        store.register(typesys.get_types_from_msg(text, f'rog_msgs/msg/{name}'))

    def serialised(name, *fields):
        tag = [] if name == 'RowChunk' else [np.zeros(0, np.uint8)]
        return len(store.serialize_cdr(store.types[f'rog_msgs/msg/{name}'](*fields, *tag),
                                       f'rog_msgs/msg/{name}'))

    for ids in range(9):
        for values in (0, 1, 5):
            id_bytes, data = np.zeros(ids, np.uint8), np.zeros(values, np.uint8)
            assert cdr_size(Chunk(PUSH, 0, 1, 1, id_bytes, data)) == serialised(
                'RowChunk', 1, 1, 0, 1, 0, 0, 1, 1, id_bytes, data)
    assert cdr_size(Ack(0, 0, 0.0, 1)) == serialised('RowAck', 1, 0, 0.0, 0)
    steps = [Gradient(), Full(), Local(3)] + [
        Shards(9, tuple(range(count)), (0.5,) * count) for count in range(4)]
    for sync in ('', 'rsp:4', 'dgh-gc'):
        for step in steps:
            command = Command(sync=sync, step=step)
            told = [] if command == Command() else [store.types['rog_msgs/msg/Command'](
                0, 0, sync, False, 0., 0., 1., 0, False, 0., False, step.name,
                np.array(step.integers(), np.uint32), np.array(step.numbers(), np.float64))]
            assert cdr_size(End(PUSH, 0, command=command)) == serialised(
                'TransferEnd', 1, 1, 0, 1, 0, False, 0., 0., told, np.zeros(0, np.uint32)), step
    assert cdr_size(Receipt(PUSH, 1, bytes(21))) == serialised(
        'TransferReceipt', 1, 1, 0, 1, 0, np.zeros(21, np.uint8), 0)
