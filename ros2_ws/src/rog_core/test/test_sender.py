"""Tests of the sender (SendWithTimeout in the paper): its budget, its minimum, and every row."""

import math

import numpy as np
import pytest
from hostile import fingerprint
from rog_core.codecs import RAW, decode_ids, get_codec
from rog_core.errors import RemoteProtocolError
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, TransferId
from rog_core.protocol.states import CLOSING, DONE, SENDING
from rog_core.transfer.link import MIN_CHUNK, RowLink
from rog_core.transfer.plan import Plan
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import Sender

PARTITION = partition_of([('w', (64, 8000))])  # each row is a chunk of about 1 kB
RAW_LIKE = get_codec('onebit')
ROW_BYTES = 1002
TRANSFER = TransferId(5, Kind.PUSH, 1, 1)
COMMAND = Command(2, 0.1, 0, 'rsp:4')


class Rows:
    """Rows whose encoded values are the number of the row.

    Records which rows were encoded, and how many rows each call encoded.
    """

    def __init__(self, at_once):
        self.encoded, self.calls, self.at_once = [], [], at_once

    def encode(self, codec, ids):
        assert codec is RAW_LIKE
        self.encoded.extend(ids.tolist())
        self.calls.append(ids.size)
        out = np.zeros((ids.size, ROW_BYTES), np.uint8)
        out[:, 2:] = ids[:, None]
        return out.reshape(-1)


def sender(windows=64, mandatory=16, budget=math.inf, rate=1e6, now=0.0, at_once=0):
    """Return a sender with one row per window, and the list of encoded rows."""
    rows = Rows(at_once)
    plan = Plan([np.array([i]) for i in range(windows)], mandatory, windows, budget)
    return Sender(TRANSFER, PARTITION, plan, RAW_LIKE, rows, link_of(rate), now,
                  COMMAND), rows.encoded


def link_of(rate, most=1300):
    """Return a link that is believed to carry ``rate`` bytes/s."""
    link = RowLink(most, 0.004)
    link.expect(rate, 0.01)
    return link


def ack(newest, mask=0, at=0.01):
    return Ack(newest, mask, at, TRANSFER.incarnation)


def run(machine, rate=1e6, round_trip=0.01, until=1e3, lose=lambda n: False, dead=(1e9, 1e9)):
    """Carry all messages over a link of ``rate`` bytes/s, in virtual time.

    Return the sent messages, each with its time, and the time at the end.
    """
    taker = Receiver(PARTITION, frozenset({Kind.PUSH}), 5, RAW_LIKE)
    now, free, number, sent, events = machine.started, machine.started, 0, [], []
    while machine.state != DONE and now < until:
        for message in machine.poll(now):
            sent.append((now, message))
            size = message.ids.size + message.values.size if isinstance(message, Chunk) else 50
            free = max(free, now) + size / rate
            if not lose(number) and not dead[0] <= now < dead[1]:
                events.append((free + round_trip, number, message))
            number += 1
        events.sort(key=lambda e: e[:2])
        due = machine.deadline
        if events and events[0][0] <= due:
            now, _, message = events.pop(0)
            if isinstance(message, Chunk):
                answer, _ = taker.on_chunk(message, now)
                machine.on_ack(answer, now)
                if taker.is_closed(message.transfer):
                    machine.on_receipt(taker.receipt, now)
                elif taker.due is not None:
                    machine.on_receipt(taker.on_end(taker.due)[0], now)
            elif (closed := taker.on_end(message)) is not None:
                machine.on_receipt(closed[0], now)
        else:
            assert due < math.inf, 'nothing to wait for'
            assert due >= now, 'time goes backwards'
            now = due
    return sent, now


@pytest.mark.parametrize('at_once, calls', [
    (0, 64 * [1]), (4 * ROW_BYTES - 1, [*21 * [3], 1]), (4 * ROW_BYTES, 16 * [4]), (1 << 24, [64])])
def test_windows_that_are_encoded_by_one_call_make_the_same_chunks(at_once, calls):
    sent = []
    for machine in (sender()[0], sender(at_once=at_once)[0]):
        chunks = [m for _, m in run(machine)[0] if isinstance(m, Chunk)]
        sent.append([(c.sequence, c.ids.tobytes(), c.values.tobytes()) for c in chunks])
        assert machine.complete()
    assert sent[0] == sent[1]
    assert machine.rows.calls == calls


@pytest.mark.parametrize('budget, rows', [(0.01, 16), (0.2, 19), (math.inf, 64)])
def test_only_rows_that_the_budget_is_likely_to_carry_are_encoded_ahead(budget, rows):
    machine, encoded = sender(budget=budget, rate=1e5, now=5.0, at_once=1 << 24)
    sent = machine.poll(5.0)
    assert machine.rows.calls == [rows]
    assert 0 < len(sent) < rows
    machine.abort()
    parts = machine.untaken()
    assert [int(ids[0]) for ids, _ in parts] == encoded == list(range(rows))
    assert all(values.size == ROW_BYTES and values[2] == ids[0] for ids, values in parts)


def test_without_a_budget_every_row_arrives_whatever_is_lost():
    noise = np.random.default_rng(1)
    machine, encoded = sender()
    sent, _ = run(machine, lose=lambda n: noise.random() < 0.3)
    assert sorted(machine.taken().tolist()) == encoded == list(range(64))
    assert machine.untaken() == []
    assert len(sent) > 64 * 1.2


def test_it_stops_at_the_budget_and_what_was_not_sent_was_never_encoded():
    machine, encoded = sender(budget=0.4, rate=4e4)
    sent, now = run(machine, rate=4e4)
    taken = machine.taken().tolist()
    assert taken[:16] == list(range(16))
    assert 16 <= len(taken) <= len(encoded) < 30
    assert {m.chunks for _, m in sent if isinstance(m, End)} == {machine.receipt.chunks}
    assert all(isinstance(m, End) for t, m in sent if t > 0.4)


def test_the_minimum_goes_on_past_the_budget_and_nothing_else_does():
    machine, encoded = sender(budget=0.05, rate=2e4)
    sent, now = run(machine, rate=2e4)
    assert now > 16 * 1002 / 2e4
    assert machine.taken().tolist() == encoded == list(range(16))
    assert machine.mta_duration == pytest.approx(now, rel=0.2)


def test_no_budget_at_all_sends_exactly_the_minimum():
    machine, _ = sender(budget=0.0)
    run(machine)
    assert machine.taken().tolist() == list(range(16))


def test_a_transfer_is_over_when_the_answer_to_its_last_chunk_is_there():
    # One transfer has no budget limit, so all windows are sent; the other has a small budget.
    for budget, rate in ((math.inf, 1e6), (0.4, 4e4)):
        machine, _ = sender(budget=budget, rate=rate)
        sent, now = run(machine, rate=rate, round_trip=0.1)
        last = max(t for t, message in sent if isinstance(message, Chunk))
        flight = machine.link.window / rate
        assert now <= last + flight + 1.1 * 0.1
        assert machine.complete() == (budget == math.inf)
        assert machine.untaken() == []


def test_a_lost_chunk_or_end_costs_no_more_than_sending_it_again():
    _, undisturbed = run(sender(windows=8, mandatory=8)[0])
    for number in range(8 + 1):
        machine, _ = sender(windows=8, mandatory=8)
        sent, now = run(machine, lose=lambda n, number=number: n == number)
        assert machine.complete()
        ends = [message.whole for _, message in sent if isinstance(message, End)]
        assert ends == [True, False] if number == 8 else ends[0]
        assert now < undisturbed + 2 * machine.link.timeout


def test_an_empty_plan_is_an_end_and_a_receipt():
    machine, _ = sender(windows=0, mandatory=0)
    sent, _ = run(machine)
    assert [type(m) for _, m in sent] == [End]
    assert sent[0][1] == End(TRANSFER, 0, 0.0, 0.0, COMMAND)
    assert machine.taken().size == 0


def test_the_end_is_repeated_with_growing_pauses_until_its_receipt_is_there():
    machine, _ = sender(windows=1, mandatory=1)
    chunk, first = machine.poll(0.0)
    assert (type(chunk), first.whole) == (Chunk, True)
    machine.on_ack(ack(0), 0.01)
    assert machine.poll(0.01) == []  # the first End message is still on its way
    times, now = [], machine.deadline
    for _ in range(8):
        last, = machine.poll(now)
        assert type(last) is End and not last.whole
        assert machine.poll(now) == []
        times.append(now)
        now = machine.deadline
    pauses = np.diff(times)
    assert (np.diff(pauses) >= 0).all()
    assert pauses.max() > 3
    assert machine.on_receipt(Receipt(TRANSFER, 1, b'\1'), now)
    assert machine.state == DONE
    assert machine.poll(now + 9) == []
    assert machine.deadline == math.inf


def test_rows_that_the_receipt_does_not_name_stay_with_the_sender():
    machine, _ = sender(windows=4, mandatory=1, budget=0.1)
    *first, end = machine.poll(0.0)
    assert len(first) == end.chunks == 4
    machine.on_ack(ack(1, 1), 0.05)
    machine.poll(0.1 + machine.link.timeout)
    assert machine.state == CLOSING
    assert machine.on_receipt(Receipt(TRANSFER, 4, bytes([0b1011])), 1.0)
    assert machine.taken().tolist() == [0, 1, 3]
    (ids, values), = machine.untaken()
    assert ids.tolist() == [2]
    assert values.size == first[2].values.size
    assert [i.tolist() for i, _ in machine.taken_chunks()] == [[0], [1], [3]]


def test_an_aborted_transfer_keeps_everything_or_what_a_receipt_says():
    for receipt, taken in ((None, []), (Receipt(TRANSFER, 2, bytes([2])), [1]),
                           (Receipt(TRANSFER, 99, bytes([255] * 13)), [0, 1, 2, 3])):
        machine, _ = sender(windows=4, mandatory=4)
        machine.poll(0.0)
        machine.abort(receipt)
        assert machine.taken().tolist() == taken
        assert len(machine.untaken()) == 4 - len(taken)


@pytest.mark.parametrize('wrong', [ack(2), ack(2 ** 32 - 1, 1), ack(0, at=math.nan)])
def test_an_acknowledgement_of_what_was_not_sent_is_refused_with_nothing_changed(wrong):
    machine, _ = sender(windows=2, mandatory=2)
    machine.poll(0.0)
    before = fingerprint(machine)
    with pytest.raises(RemoteProtocolError, match='acknowledged packet'):
        machine.on_ack(wrong, 0.1)
    assert fingerprint(machine) == before


@pytest.mark.parametrize('receipt', [Receipt(TRANSFER, 3, b'\1'), Receipt(TRANSFER, 2, b''),
                                     Receipt(TRANSFER, -1, b''), Receipt(TRANSFER, 2, b'\1\1')])
def test_a_receipt_that_does_not_fit_is_refused_and_the_end_goes_on(receipt):
    machine, _ = sender(windows=2, mandatory=2)
    machine.poll(0.0)
    machine.on_ack(ack(1, 1), 0.1)
    machine.poll(0.1)
    with pytest.raises(RemoteProtocolError, match='receipt'):
        machine.on_receipt(receipt, 0.2)
    assert machine.state == CLOSING


def test_messages_of_another_transfer_are_ignored():
    machine, _ = sender(windows=2, mandatory=2)
    machine.poll(0.0)
    other = TransferId(5, Kind.PUSH, 1, 2)
    before = fingerprint(machine)
    machine.on_ack(Ack(1, 1, 0.05, other.incarnation + 1), 0.1)
    assert not machine.on_receipt(Receipt(other, 2, b'\3'), 0.1)
    assert machine.state == SENDING and fingerprint(machine) == before


@pytest.mark.parametrize('receipt', [Receipt(TRANSFER, 3, b'\1'), Receipt(TRANSFER, -1, b''),
                                     Receipt(TRANSFER, 2, b''), Receipt(TRANSFER, 1, b'\1\1')])
def test_an_early_receipt_that_does_not_fit_is_refused_with_nothing_changed(receipt):
    machine, _ = sender(windows=2, mandatory=2)
    machine.poll(0.0)
    with pytest.raises(RemoteProtocolError, match='receipt'):
        machine.on_receipt(receipt, 0.1)
    assert (machine.state, machine.receipt) == (SENDING, None)


def test_a_receipt_before_the_end_closes_the_transfer_for_the_receiver_wants_no_more():
    machine, encoded = sender(windows=64, mandatory=64)
    sent = len(machine.poll(0.0))
    assert 4 < sent < 64
    assert machine.on_receipt(Receipt(TRANSFER, 4, bytes([0b1011])), 0.1)
    assert (machine.state, machine.complete()) == (DONE, False)
    assert machine.taken().tolist() == [0, 1, 3]
    assert [int(ids[0]) for ids, _ in machine.untaken()] == [2, *range(4, len(encoded))]
    assert machine.poll(9.0) == []


@pytest.mark.parametrize(('taken', 'complete'), [(0b11, True), (0b01, False)])
def test_a_transfer_is_complete_if_all_of_the_plan_was_taken(taken, complete):
    machine, _ = sender(windows=2, mandatory=2)
    machine.poll(0.0)
    machine.on_receipt(Receipt(TRANSFER, 2, bytes([taken])), 0.1)
    assert machine.complete() == complete


def test_a_chunk_is_sent_again_when_three_later_ones_have_arrived():
    machine, _ = sender(windows=5, mandatory=5)
    assert len(machine.poll(0.0)) == 5 + 1  # five chunks and the End message
    machine.on_ack(ack(2, 0b1), 0.01)
    assert machine.poll(0.01) == []
    machine.on_ack(ack(3, 0b11), 0.01)
    assert [c.sequence for c in machine.poll(0.01)] == [0]


def test_a_dead_link_is_not_flooded_and_is_found_again_soon_after_it_is_back():
    machine, _ = sender()
    sent, now = run(machine, dead=(0.02, 5.0))
    during = [m for t, m in sent if 0.2 <= t < 5.0]
    assert 1 <= len(during) < 80
    assert machine.state == DONE
    assert now < 5.0 + 2.0 + 1.0


def test_no_queue_builds_up_on_a_link_far_slower_than_expected():
    machine, _ = sender(windows=40, mandatory=40, rate=250e3)
    sent, now = run(machine, rate=5e3)
    assert len(machine.taken()) == 40
    assert len(sent) < 2 * 40
    assert now < 2 * 40 * 1002 / 5e3


@pytest.mark.parametrize('windows', [4, 8, 30])
@pytest.mark.parametrize('rate', [2e4, 1e6])
@pytest.mark.parametrize('round_trip', [0.002, 0.1])
@pytest.mark.parametrize('believed', [2e4, 1e6])
def test_small_transfers_show_what_a_link_carries(windows, rate, round_trip, believed):
    """The estimated rate is right within 50 %, although small transfers leave the sender idle.

    They do not fill the window.
    """
    link, now = link_of(believed), 0.0
    for _ in range(60):
        machine, _ = sender(windows, windows, now=now)
        machine.link = link
        _, now = run(machine, rate, round_trip)
    assert link.rate == pytest.approx(rate, rel=0.5)


def test_a_chunk_takes_four_milliseconds_on_the_link():
    link = RowLink(14000, 0.004, scale=10)
    for rate, size in ((10e6, 1400), (1e6, 400), (50e3, MIN_CHUNK // 10)):
        link.expect(rate, 0.01)
        assert link.chunk_bytes == size and link.rate == rate / 10


def test_a_receiver_that_ended_early_may_have_acknowledged_more_than_it_took():
    machine, _ = sender(windows=4, mandatory=4)
    machine.poll(0.0)
    machine.on_ack(ack(3, 0b111), 0.05)
    machine.poll(0.05)
    assert machine.state == CLOSING
    assert machine.on_receipt(Receipt(TRANSFER, 2, bytes([0b11])), 0.1)
    assert machine.taken().tolist() == [0, 1] and not machine.complete()


def test_after_the_budget_a_time_out_repeats_what_is_mandatory():
    machine, _ = sender(windows=8, mandatory=2, budget=0.05)
    first = [m.sequence for m in machine.poll(0.0) if isinstance(m, Chunk)]
    assert first == list(range(8))
    machine.on_ack(ack(0), 0.01)
    now = machine.deadline
    while not (again := [m for m in machine.poll(now) if isinstance(m, Chunk)]):
        now = machine.deadline
        assert now < 1
    assert [m.sequence for m in again] == [1]


def test_small_windows_share_a_chunk_of_one_frame_but_not_across_the_minimum():
    partition = partition_of([('w', (400, 8))])
    windows = [np.arange(k, 400, 40) for k in range(40)]
    link = link_of(1e7, 14000)

    class Ones:
        at_once = 0

        def encode(self, codec, ids):
            assert (np.diff(ids) > 0).all()
            return np.concatenate([np.full(size, row % 251, np.uint8) for row, size in zip(
                ids.tolist(), partition.sizes(codec)[ids].tolist(), strict=True)])

    machine = Sender(TRANSFER, partition, Plan(windows, 3, 400, math.inf), RAW, Ones(), link, 0.0)
    chunks, now = [], 0.0
    while machine.state == SENDING:
        for message in machine.poll(now):
            if isinstance(message, Chunk):
                chunks.append(message)
                machine.on_ack(ack(message.packet, at=now), now + 1e-3)
        now += 2e-3
    rows = [decode_ids(c.ids, c.segments, partition).tolist() for c in chunks]
    assert sorted(row for each in rows for row in each) == list(range(400))
    assert sorted(rows[0]) == sorted(np.concatenate(windows[:3]).tolist())
    assert all(c.ids.size + c.values.size <= MIN_CHUNK for c in chunks) and len(chunks) < 20
    for chunk, each in zip(chunks, rows, strict=True):
        assert chunk.values.tolist() == [row % 251 for row in each for _ in range(32)]
