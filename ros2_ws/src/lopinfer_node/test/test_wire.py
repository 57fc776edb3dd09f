"""Tests of pieces, acknowledgements, the window and the estimate of the link."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from fleet_link.arrivals import Arrivals
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from lopinfer_node.errors import RemoteError
from lopinfer_node.ros.convert import (
    ack_of,
    open_of,
    open_to_ros,
    piece_of,
    plans_of,
    plans_to_ros,
    to_ros,
)
from lopinfer_node.runtime.outbox import Outbox, Route
from lopinfer_node.runtime.services import (
    OpenRequest,
    PlansRequest,
    decode_plans,
    encode_plans,
    first_difference,
)
from lopinfer_node.runtime.wire import MAX_PIECE, Ack, Inbox, Piece, acknowledge, bounds, parts_of

FEW = examples(100)
ROUTE = Route(3, 77, 5)


def piece(transfer=0, part=0, parts=1, data=b'', packet=0, size=100):
    return Piece(1, 77, packet, 3, transfer, part, parts, 5, 0.25, data, size=size).sealed()


@FEW
@given(st.integers(0, 10 ** 9), st.integers(1, 10 ** 6))
def test_parts_cover_a_transfer_once(size, piece_bytes):
    parts = parts_of(size, piece_bytes)
    edges = [bounds(size, p, parts) for p in (0, parts // 2, parts - 1)]
    assert edges[0][0] == 0 and edges[-1][1] == size
    assert all(hi - lo <= max(-(-size // parts), 0) for lo, hi in edges)
    assert bounds(size, 0, parts)[1] == (bounds(size, 1, parts)[0] if parts > 1 else size)


@FEW
@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_change_of_a_piece_is_noticed(data, draw):
    good = piece(data=data)
    good.verify()
    name = draw.draw(st.sampled_from(['incarnation', 'plan', 'packet', 'request', 'transfer', 'bin',
                                      'parts', 'size', 'data']))
    if name == 'data':
        damaged = bytearray(data)
        damaged[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
        bad = replace(good, data=bytes(damaged))
    else:
        bad = replace(good, **{name: getattr(good, name) + 1})
    with pytest.raises(RemoteError):
        bad.verify()


def test_a_piece_that_says_part_2_of_2_is_refused_whatever_its_checksum():
    with pytest.raises(RemoteError, match='part 2 of 2'):
        replace(piece(part=1, parts=2), part=2).sealed().verify()
    with pytest.raises(RemoteError, match='bytes'):
        piece(data=bytes(MAX_PIECE + 1)).verify()


@FEW
@given(st.permutations(range(7)), st.data())
def test_a_transfer_is_complete_once_whatever_the_order(order, draw):
    data = bytes(range(100))
    inbox, complete = Inbox({4: 100}), []
    for part in [*order, *draw.draw(st.lists(st.integers(0, 6), max_size=10)), *range(7)]:
        lo, hi = bounds(100, part, 7)
        whole = inbox.take(piece(4, part, 7, data[lo:hi]))
        if whole is not None:
            complete.append(bytes(whole))
    assert complete == [data]


@pytest.mark.parametrize(('bad', 'says'), [
    (piece(5, 0, 1, bytes(100)), 'no transfer 5'), (piece(4, 0, 2, bytes(49)), 'must have 50'),
    (piece(4, 0, 1, bytes(101), size=101), 'at most 100'),
    (piece(4, 0, 1, bytes(101)), 'must have 100'), (piece(4, 0, 4, bytes(25)), 'have 2 parts'),
    (piece(4, 0, 2, bytes(30), size=60), '100 bytes, got 2 and 60')])
def test_parts_that_do_not_fit_the_plan_are_refused(bad, says):
    inbox = Inbox({4: 100})
    inbox.take(piece(4, 1, 2, bytes(50)))
    with pytest.raises(RemoteError, match=says):
        inbox.take(bad)
    assert inbox.take(piece(4, 0, 2, b'\1' * 50)) == b'\1' * 50 + bytes(50)


def test_messages_keep_what_they_carry():
    original = piece(9, 0, 1, b'abc')
    again = piece_of(to_ros(original))
    again.verify()
    assert bytes(again.data) == b'abc' and replace(again, data=b'abc') == original
    ack = Ack(7, 2 ** 64 - 1, 1.25, 2 ** 63, 2)
    assert ack_of(to_ros(ack)) == ack
    request = OpenRequest(1, 'robot1', 2 ** 62, 'VGG', 'ab', ['w', 'b'], [2 ** 64 - 1, 0])
    assert open_of(open_to_ros(request)) == request
    table = PlansRequest('r', 1, 'ab', b'\0\1', np.arange(8, dtype=np.int32))
    again = plans_of(plans_to_ros(table))
    assert again.bins == table.bins and np.array_equal(again.own, table.own)


def test_plan_tables_survive_the_wire_and_nonsense_is_refused():
    own = [np.arange(12).reshape(2, 3, 2) + k for k in (0, 5, 0)]
    bins, flat = encode_plans(own)
    assert bins == [0, 1, 0] and flat.dtype == np.int32
    for a, b in zip(decode_plans(bins, flat, 3), own, strict=True):
        assert np.array_equal(a, b)
    for bad in ((bins, flat[:-1], 3), ([0, 2], flat, 3), ([], flat, 3), ([0], flat[:0], 3)):
        with pytest.raises(RemoteError, match='plan table'):
            decode_plans(*bad)


def test_the_first_parameter_that_differs_is_named():
    names, hashes = ['a', 'b', 'c'], [1, 2, 3]
    assert first_difference(names, hashes, names, hashes) == ''
    assert "'b'" in first_difference(names, hashes, names, [1, 9, 8])
    assert "'c'" in first_difference(names, hashes, names[:2], hashes[:2])
    assert "'x'" in first_difference(names, hashes, ['a', 'x', 'c'], hashes)


# -- the window -----------------------------------------------------------------------------------


def carry(box, rate, seconds, loss=0.0, latency=0.001, seed=0):
    """Carry the pieces of `box` over a link of `rate` bytes/s for `seconds` of virtual time.

    Returns the pieces that arrived, and the maximum number of bytes in flight.
    """
    draw, now, free, arrivals, out = random.Random(seed), 0.0, 0.0, Arrivals(), []
    coming, peak = [], 0
    while now < seconds:
        for p in box.poll(now):
            free = max(free, now) + len(p.data) / rate if rate else math.inf
            if draw.random() >= loss and free < math.inf:
                coming.append((free + latency, p))
        peak = max(peak, box.link.in_flight)
        if box.idle:
            break
        due = [c for c in coming if c[0] <= now]
        coming = [c for c in coming if c[0] > now]
        for at, p in due:
            out.append(p)
            box.on_ack(acknowledge(arrivals, p, at + 1000.0), now)
        now = min([now + 0.01, *(c[0] for c in coming if c[0] > now)])
    return out, peak


@FEW
@given(st.floats(0, 0.5), st.integers(0, 1000), st.integers(1, 300_000))
def test_everything_arrives_in_spite_of_loss(loss, seed, size):
    data = random.Random(seed).randbytes(size)
    box, inbox = Outbox(1, MAX_PIECE), Inbox({0: size})
    box.offer(ROUTE, 0, data)
    arrived, _ = carry(box, 5e6, 60.0, loss, seed=seed)
    whole = [w for p in arrived if (w := inbox.take(p)) is not None]
    assert whole == [data]


def test_nothing_queues_behind_a_dead_link():
    box = Outbox(1, MAX_PIECE)
    box.offer(ROUTE, 0, bytes(10_000_000))
    _, peak = carry(box, 0, 5.0)
    assert peak <= 300_000
    assert box.link.rate < 2e5 and box.bytes_sent < 2_000_000


def test_the_window_carries_30_megabytes_a_second_over_10_ms():
    box = Outbox(1, MAX_PIECE)
    for transfer in range(40):
        box.offer(ROUTE, transfer, bytes(500_000))
    carry(box, 30e6, 0.3, latency=0.01)     # this traffic lets `box` measure the rate
    before = box.bytes_sent
    carry(box, 30e6, 0.2, latency=0.01)
    assert box.bytes_sent - before > 0.9 * 30e6 * 0.2


def test_outbox_does_not_send_cleared_transfers():
    box = Outbox(1, MAX_PIECE)
    box.offer(ROUTE, 0, bytes(100_000))
    sent = box.poll(0.0)
    box.clear()
    assert sent and not box.poll(10.0) and box.idle


def test_an_acknowledgement_of_what_was_never_sent_is_refused():
    box = Outbox(1, MAX_PIECE)
    for bad in (Ack(0, 0, 1.0, 1), Ack(5, 0, 1.0, 1), Ack(0, 0, math.nan, 1)):
        with pytest.raises(RemoteError):
            box.on_ack(bad, 1.0)


@pytest.mark.parametrize('rate', [1e6, 2e6, 8e6, 20e6, 30e6])
def test_the_bandwidth_is_found_from_one_request_whatever_it_was(rate):
    for before in (1e5, 40e6):
        box = Outbox(1, MAX_PIECE)
        box.link.expect(before, 0.001)
        box.offer(ROUTE, 0, bytes(600_000))
        carry(box, rate, 10.0)
        assert box.link.rate == pytest.approx(rate, rel=0.15)


def test_a_probe_that_a_busy_receiver_finds_all_at_once_does_not_look_like_a_fast_link():
    box = Outbox(1, MAX_PIECE)
    box.link.expect(2e6, 0.001)
    box.probe(64_000, 4)
    arrivals = Arrivals()
    for k, p in enumerate(box.poll(0.0)):
        box.on_ack(acknowledge(arrivals, p, 1.0 + k * 1e-5), 0.03)
    assert box.link.rate <= 4e6


def test_one_probe_is_enough_to_see_a_fade():
    box = Outbox(1, MAX_PIECE)
    box.link.expect(20e6, 0.001)
    box.probe(64_000, 4)
    carry(box, 2e6, 5.0)
    assert box.link.rate == pytest.approx(2e6, rel=0.05)
