"""The receiver applies each chunk once, whatever the channel does, and refuses invalid chunks."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hostile import fingerprint
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import RAW, encode_ids, get_codec
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Chunk, End, Kind, TransferId
from rog_core.transfer.receiver import Receiver

PARTITION = partition_of([('w', (300, 8))])
SESSION = 0xabcdef
PUSH = TransferId(SESSION, Kind.PUSH, 7, 3)
ONEBIT = get_codec('onebit')
PACKETS = itertools.count()


def chunk(sequence, *ids, transfer=PUSH):
    ids = np.array(ids or [10 * sequence, 10 * sequence + 5])
    values = np.tile(np.array([128, 63, 0b10101010], np.uint8), ids.size)  # the scale is 1.0
    return Chunk(transfer, sequence, ONEBIT.number, ids.size, encode_ids(ids), values)


class Taker(Receiver):
    """A receiver that records in `applied` the transfer and the ids of all rows that it accepts.

    Its `on_chunk` returns only the rows; each call is another packet.
    """

    def __init__(self, **fields):
        super().__init__(**fields)
        self.applied = []

    def on_chunk(self, chunk):
        packet = next(PACKETS)
        ack, rows = super().on_chunk(replace(chunk, packet=packet), 1.5)
        assert (ack.packet, ack.arrived, ack.incarnation) == (packet, 1.5, SESSION)
        if rows is not None:
            assert rows.codec is self.codec and rows.data is chunk.values
            self.applied.append((rows.transfer, rows.ids.tolist()))
        return rows


def receiver(**changes):
    """Return a receiver, and its list `applied` of the rows that it accepts, as (transfer, ids)."""
    taker = Taker(**{'partition': PARTITION, 'kinds': frozenset({Kind.PUSH}),
                     'incarnation': SESSION, 'codec': ONEBIT, 'floor': PUSH.attempt} | changes)
    return taker, taker.applied


def flags(receipt):
    bits = np.unpackbits(np.frombuffer(receipt.taken, np.uint8), bitorder='little')
    return bits[:receipt.chunks].tolist()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(0, 5))
def test_any_order_and_number_of_doubles_applies_each_chunk_once(order, missing):
    taker, applied = receiver()
    for sequence in order:
        taker.on_chunk(chunk(sequence))
        assert taker.has(sequence)
    seen = sorted(set(order))
    assert sorted(ids for _, ids in applied) == [[10 * s, 10 * s + 5] for s in seen]
    total = max(seen) + 1 + missing
    receipt, taken = taker.on_end(End(PUSH, total))
    assert flags(receipt) == [int(s in seen) for s in range(total)]
    assert sorted(taken.tolist()) == [i for s in seen for i in (10 * s, 10 * s + 5)]


def test_a_closed_transfer_takes_no_more_and_repeats_its_receipt():
    taker, applied = receiver()
    taker.on_chunk(chunk(0))
    receipt, taken = taker.on_end(End(PUSH, 2))
    assert taken.size == 2
    assert taker.on_chunk(chunk(1)) is None
    assert taker.on_end(End(PUSH, 2)) == (receipt, None)
    assert taker.on_end(End(PUSH, 9)) == (receipt, None)
    assert len(applied) == 1


@given(st.permutations([0, 1, 2, 'end', 'end']))
def test_an_end_that_wants_all_chunks_holds_when_the_last_of_them_is_there(order):
    taker, applied = receiver()
    end, missing = End(PUSH, 3, whole=True), {0, 1, 2}
    for index, what in enumerate(order):
        if what == 'end':
            closed = taker.on_end(end)
        else:
            missing.discard(what)
            taker.on_chunk(chunk(what))
            closed = taker.due and taker.on_end(taker.due)
        if not missing and 'end' in order[:index + 1]:
            assert closed is not None and taker.is_closed(PUSH) and flags(closed[0]) == [1, 1, 1]
        else:
            assert closed is None and not taker.is_closed(PUSH)
    assert len(applied) == 3 and taker.due is None


def test_an_end_that_wants_all_chunks_gives_way_to_one_that_does_not():
    taker, _ = receiver()
    taker.on_chunk(chunk(0))
    assert taker.on_end(End(PUSH, 2, whole=True)) is None
    receipt, taken = taker.on_end(End(PUSH, 2))
    assert flags(receipt) == [1, 0] and taken.size == 2
    later = replace(PUSH, attempt=4)
    taker.on_chunk(chunk(0, transfer=later))
    assert taker.due is None  # the stored End belonged to the former transfer


def test_a_former_transfer_is_dropped_and_a_later_one_opens():
    taker, applied = receiver()
    taker.on_chunk(chunk(0))
    taker.on_end(End(PUSH, 1))
    later, former = replace(PUSH, attempt=4), replace(PUSH, attempt=2)
    assert taker.on_chunk(chunk(0, transfer=later)).transfer == later
    assert taker.on_chunk(chunk(1, transfer=PUSH)) is None
    assert taker.on_chunk(chunk(1, transfer=former)) is None
    assert taker.on_end(End(former, 1)) is None
    assert [transfer for transfer, _ in applied] == [PUSH, later]


def test_transfers_below_the_floor_belong_to_the_past():
    taker, applied = receiver(floor=4)
    assert taker.on_chunk(chunk(0)) is None
    assert taker.on_end(End(PUSH, 1)) is None
    assert not taker.is_open(PUSH)
    assert taker.is_open(replace(PUSH, attempt=4))
    assert not applied


GOOD = chunk(1, 3, 4, 9)
REFUSED = {
    'foreign session': (replace(GOOD, transfer=replace(PUSH, incarnation=1)), 'of another robot'),
    'wrong direction': (replace(GOOD, transfer=replace(PUSH, kind=Kind.PULL)), 'got 1'),
    'codec of another fleet': (replace(GOOD, codec=RAW.number), "'raw'; it must be 'onebit'"),
    'unknown codec': (replace(GOOD, codec=9), 'codec 9'),
    'negative sequence': (replace(GOOD, sequence=-1), 'sequence number'),
    'sequence without end': (replace(GOOD, sequence=1 << 22), 'sequence number'),
    'no segments': (replace(GOOD, segments=0), '0 segments'),
    'more segments than ids': (replace(GOOD, segments=4), '4 segments'),
    'ids that do not ascend': (replace(GOOD, ids=np.array([3, 0, 1], np.uint8)), 'ascend'),
    'ids out of range': (replace(GOOD, ids=np.array([3, 255, 127, 1], np.uint8)), 'below 300'),
    'values cut short': (replace(GOOD, values=GOOD.values[:-1]), '8 bytes of onebit values; 9'),
    'values too long': (replace(GOOD, values=np.append(GOOD.values, GOOD.values)), '18 bytes'),
    'scale that is NaN': (replace(GOOD, values=np.array([192, 127, 0] * 3, np.uint8)), 'segment 3'),
}


@pytest.mark.parametrize('name', REFUSED)
@pytest.mark.parametrize('before', ['nothing', 'open', 'closed'])
def test_a_refused_chunk_changes_nothing(name, before):
    bad, reason = REFUSED[name]
    taker, applied = receiver()
    if before != 'nothing':
        taker.on_chunk(chunk(0))
    if before == 'closed':  # give the bad chunk the attempt number of a new transfer
        taker.on_end(End(PUSH, 1))
        bad = replace(bad, transfer=replace(bad.transfer, attempt=4))
    state = fingerprint(taker)
    with pytest.raises(RemoteProtocolError, match=reason):
        taker.on_chunk(bad)
    assert fingerprint(taker) == state


def test_a_former_life_is_told_apart_by_type():
    with pytest.raises(StaleMessageError):
        receiver()[0].on_end(End(replace(PUSH, incarnation=SESSION + 1), 1))


@pytest.mark.parametrize('chunks', [-1, 1, 1 << 23])
def test_an_end_that_contradicts_what_has_arrived_is_refused_and_the_transfer_stays_open(chunks):
    taker, applied = receiver()
    taker.on_chunk(chunk(0))
    taker.on_chunk(chunk(1))
    with pytest.raises(RemoteProtocolError, match='end of transfer'):
        taker.on_end(End(PUSH, chunks))
    assert taker.on_chunk(chunk(2)) is not None
    assert len(applied) == 3


def test_model_values_must_be_raw():
    snapshot = TransferId(SESSION, Kind.SNAPSHOT, 7, 3)
    taker, _ = receiver(kinds=frozenset({Kind.SNAPSHOT}))
    with pytest.raises(RemoteProtocolError, match="SNAPSHOT has codec 'onebit'; it must be 'raw'"):
        taker.on_chunk(chunk(0, transfer=snapshot))


def test_known_says_what_has_been_taken_before_the_end():
    taker, _ = receiver()
    assert taker.known() is None
    assert taker.close().size == 0
    taker.on_chunk(chunk(2))
    assert flags(taker.known()) == [0, 0, 1]
    assert taker.close().tolist() == [20, 25]
    assert taker.on_chunk(chunk(0)) is None
    assert taker.close().size == 0
    restarted, _ = receiver()
    restarted.restore(taker.known())
    assert restarted.on_end(End(PUSH, 3)) == (taker.known(), None)
