"""Buffers, and parameters that are frozen or unfrozen during a run, in a fleet with faults."""

from dataclasses import replace

import numpy as np
import pytest
from fleet import Fleet
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from rog_core.codecs import RAW, decode_ids, encode_ids
from rog_core.errors import RemoteProtocolError
from rog_core.model.partition import Parameter, Role, partition_of
from rog_core.protocol.messages import Chunk
from rog_core.protocol.steps import Gradient, Local
from rog_core.server import buffers
from schedules import CODECS, EVENTS, NETWORK, SCHEDULES, SYNCS, check_end, play

network = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in NETWORK.items()})
events = st.lists(st.tuples(st.sampled_from([*EVENTS, *['switch'] * 6]), st.integers(0, 3),
                            st.floats(0.05, 1.5)), max_size=12)


@settings(max_examples=max(1, SCHEDULES // 2), deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])
@given(seed=st.integers(0, 2 ** 32), robots=st.integers(1, 4), sync=st.sampled_from(SYNCS),
       codec=st.sampled_from(CODECS), network=network, events=events)
def test_the_invariants_hold_for_a_whole_model(seed, robots, sync, codec, network, events):
    fleet = Fleet(seed, robots, sync, codec, whole=True, **network)
    try:
        play(fleet, events, SYNCS)
        check_end(fleet)
    finally:
        note(f'at {fleet.now:.3f} s; {dict(fleet.counts)}')


# -- how the server averages buffers -----------------------------------------------------------

PARTITION = partition_of([('w', (40, 34)), Parameter('var', (300,), Role.AVERAGE),
                          Parameter('count', (), Role.MAXIMUM)])
IDS = np.arange(PARTITION.buffer_segments.start, PARTITION.buffer_segments.stop)


def pushed(master, mirror, own, weight):
    """Apply to ``master`` the push of a robot whose buffers ``mirror`` have become ``own``."""
    change = np.zeros(PARTITION.elements, np.float32)
    change[PARTITION.buffers] = mirror[PARTITION.buffers] - own
    data = RAW.snapshot(PARTITION, change, IDS)
    buffers.apply(PARTITION, master, mirror, IDS, data, weight)


def whole(value, count):
    """Return rows whose averaged buffers are ``value`` and whose counter is ``count``."""
    rows = np.ones(PARTITION.elements, np.float32)
    rows[PARTITION.buffers], rows[-1] = value, count
    return rows


@given(values=st.lists(st.floats(0, 1e4), min_size=1, max_size=5), start=st.floats(0, 1e4))
def test_in_lock_step_buffers_become_the_mean_and_counters_the_maximum(values, start):
    master, mirror = whole(start, 4), whole(start, 4)
    for rank, value in enumerate(values):
        pushed(master, mirror, whole(value, 5 + rank)[PARTITION.buffers], 1 / len(values))
    assert np.allclose(master[PARTITION.buffers][:-1], np.mean(values), rtol=1e-4, atol=1e-2)
    assert master[-1] == 4 + len(values)
    assert (master[:PARTITION.buffers.start] == 1).all()


def test_a_variance_stays_positive_however_old_a_push_is():
    master, old = whole(1.0, 0), whole(1.0, 0)
    for _ in range(6):
        mirror = master.copy()
        pushed(master, mirror, whole(0.01, 1)[PARTITION.buffers], 0.5)
    pushed(master, old, whole(0.01, 1)[PARTITION.buffers], 0.5)
    assert (master[PARTITION.buffers][:-1] >= 0.00499).all()


def test_a_robot_with_more_batches_counts_more():
    assert buffers.share(Local(3), [Local(3), Gradient()]) == 0.75
    assert buffers.share(Gradient(), []) == 1


@pytest.mark.parametrize('energy', [float('inf'), float('nan'), 1e30])
def test_an_absurd_change_of_buffers_is_refused(energy):
    assert buffers.is_absurd(PARTITION, whole(1.0, 0), energy)
    assert not buffers.is_absurd(PARTITION, whole(0.0, 0), 2e5)  # pictures of 0 to 255


def test_a_push_that_would_ruin_the_statistics_is_refused_and_its_robot_named():
    fleet = Fleet(3, 2, 'rsp:4', whole=True)
    fleet.run(2)
    before = fleet.server.master[fleet.partition.buffers].copy()
    one, part = fleet.robots['robot1'], fleet.partition.buffers
    kept = one.store.keep_buffers

    def spoilt(change):
        kept(np.where(np.arange(change.size) == part.start, np.float32(1e30), change))
    one.store.keep_buffers = spoilt
    fleet.run(2)
    one.store.keep_buffers = kept
    fleet.run(2)
    assert fleet.server.refused['robot1'] >= 1 and not fleet.server.refused['robot0']
    after = fleet.server.master[fleet.partition.buffers]
    assert np.isfinite(after).all() and np.abs(after).max() < 10 + np.abs(before).max()


def test_a_chunk_never_mixes_buffers_and_parameters():
    fleet = Fleet(3, 1, 'bsp', 'raw', whole=True)
    receiver = fleet.server.members
    fleet.run(1)
    chunks = [m for _, m, up, _ in fleet.history if up and isinstance(m, Chunk)]
    assert receiver and chunks
    grown = fleet.partition.grown
    kinds = {grown.are_buffers(decode_ids(c.ids, c.segments, grown)) for c in chunks}
    assert kinds == {True, False}
    member, first = fleet.server.members['robot0'], fleet.partition.buffer_segments.start
    ids = np.array([first - 1, first])
    size = int(fleet.partition.lengths[ids].sum())
    mixed = replace(chunks[-1], ids=encode_ids(ids), segments=2,
                    values=np.zeros(4 * size, np.uint8), transfer=member.push.transfer)
    with pytest.raises(RemoteProtocolError, match='segments of buffers alone'):
        member.push._codec_of(mixed, ids)


@pytest.mark.parametrize('sync', ['bsp', 'asp', 'rsp:20+pipeline', 'rsp:8'])
def test_a_counter_lies_between_the_batches_of_one_robot_and_those_of_all(sync):
    fleet = Fleet(4, 3, sync, whole=True)
    fleet.run(8)
    iterations = [robot.machine.iteration for robot in fleet.robots.values()]
    at = int(np.flatnonzero(fleet.partition.are_integers)[0])
    # the robots begin at 7, see `fleet.Robot`, and with rsp:20 push buffers every five iterations
    counted = fleet.server.master[fleet.partition.buffers][at] - 7
    assert max(iterations) - 12 <= counted <= sum(iterations), (counted, iterations)


def test_an_unchanged_buffer_is_not_sent():
    fleet = Fleet(3, 2, 'bsp', whole=True)
    fleet.run(3)
    start = int(fleet.partition.starts[[p.name for p in fleet.partition.parameters].index(
        'constant')])
    constant = int(np.searchsorted(fleet.partition.offsets, start))
    sent = set()
    for _, message, _, _ in fleet.history:
        if isinstance(message, Chunk) and not message.transfer.kind.is_raw:
            sent |= set(decode_ids(message.ids, message.segments, fleet.partition).tolist())
    assert constant not in sent and constant - 1 in sent
