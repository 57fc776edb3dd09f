"""A robot whose gradient explodes, and an attacker, can neither ruin the model nor stop a robot."""

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from rog_core.codecs import encode_ids, get_codec
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Chunk, End, Kind, TransferId
from rog_core.server.push_filter import ENOUGH, FIRST, LARGEST, LEAST, UNKNOWN, PushFilter
from rog_core.transfer.receiver import Receiver, Rows
from schedules import SYNCS, check_end

PARTITION = partition_of([('w', (300, 8))])


def push(energy, kind=Kind.PUSH):
    """Return the receiver of a new push, and rows with this energy (sum of squares)."""
    transfer = TransferId(1, kind, 1, 1)
    receiver = Receiver(PARTITION, frozenset({kind}), 1, get_codec('onebit'), transfer)
    return receiver, Rows(transfer, np.arange(1), receiver.codec, np.empty(0, np.uint8), energy)


def admitted(guard, norm, robot='robot'):
    receiver, rows = push(norm ** 2)
    passed = guard.passed(receiver, rows, 1)
    guard.learn(robot, receiver, [robot])
    return passed is not None


def test_the_usual_norm_is_the_median_of_the_last_pushes_of_the_fleet():
    guard = PushFilter(100.0, 0.0, np.full(PARTITION.elements, 0.01, np.float32))
    for norm in (0.1, 0.3, 0.2, 0.25, 0.15, 0.2, 0.22, 0.18):
        assert admitted(guard, norm)
    assert guard.usual(Kind.PUSH) == pytest.approx(0.2)
    assert admitted(guard, 19.9)       # a valid gradient may be larger than usual
    assert not admitted(guard, 21.0)
    assert guard.usual(Kind.PUSH) == pytest.approx(0.2)


def test_one_robot_of_three_cannot_move_the_usual_norm():
    guard = PushFilter(100.0, 0.0, np.zeros(PARTITION.elements, np.float32))
    for _ in range(200):
        assert admitted(guard, 1.0) and admitted(guard, 1.1, 'another')
        admitted(guard, 90 * guard.usual(Kind.PUSH), 'liar')
    assert guard.usual(Kind.PUSH) == pytest.approx(1.1)


@pytest.mark.parametrize('norm', [1e-38, 1e-3, 90.0])
def test_nor_can_one_that_pushes_far_more_often(norm):
    guard = PushFilter(100.0, 0.0, np.zeros(PARTITION.elements, np.float32))
    for _ in range(100):
        assert admitted(guard, 1.0) and admitted(guard, 1.1, 'another')
        for _ in range(10):
            admitted(guard, norm * guard.usual(Kind.PUSH), 'liar')
    assert 1.0 <= guard.usual(Kind.PUSH) <= 1.1


@pytest.mark.parametrize('first', [0, 100])
def test_tiny_pushes_of_one_robot_have_none_of_another_refused(first):
    """Check that tiny pushes of an attacker do not make the server refuse another robot's pushes.

    With two robots neither has a majority, and the first pushes may all be the attacker's.
    """
    guard = PushFilter(100.0, 0.0, np.full(PARTITION.elements, 0.1, np.float32))
    for _ in range(first):
        assert admitted(guard, 1e-38, 'liar')
    for _ in range(100):
        assert admitted(guard, 0.1) and admitted(guard, 1e-38, 'liar')


def test_before_there_are_pushes_the_model_itself_is_the_measure():
    master = np.full(PARTITION.elements, 0.1, np.float32)
    norm = float(np.linalg.norm(master))
    assert admitted(PushFilter(100.0, 0.0, master), 99 * norm)
    assert not admitted(PushFilter(100.0, 0.0, master), 101 * norm)


@pytest.mark.parametrize('filled, start, size', [
    (1.0, 0.0, FIRST), (0.02, 0.01, FIRST), (1.0, 0.01, LEAST), (1.0, 0.3, 0.3)])
def test_a_model_that_is_zero_or_nearly_zero_takes_honest_first_pushes_and_no_absurd_one(
        filled, start, size):
    master = np.zeros(PARTITION.elements, np.float32)
    master[:int(filled * master.size)] = start
    one = np.sqrt(PARTITION.elements)  # norm of a push that changes each value by 1
    assert admitted(PushFilter(100.0, 0.0, master), 99 * size * one)
    assert not admitted(PushFilter(100.0, 0.0, master), 101 * size * one)


def test_the_first_full_gradient_may_be_large_since_it_has_no_learning_rate():
    zeros = np.zeros(PARTITION.elements, np.float32)
    for norm, taken in ((99 * UNKNOWN, True), (101 * UNKNOWN, False)):
        assert (PushFilter(100.0, 0.0, zeros).passed(*push(norm ** 2, Kind.ANCHOR), 1)
                is not None) == taken


def test_a_large_first_push_of_one_robot_does_not_open_the_way_for_larger_ones():
    guard = PushFilter(100.0, 0.0, np.full(PARTITION.elements, 0.1, np.float32))
    norm = guard.usual(Kind.PUSH)
    assert admitted(guard, 90 * norm, 'liar')  # no push yet says that this is much
    for _ in range(2):
        assert admitted(guard, 0.1 * norm) and admitted(guard, 0.1 * norm, 'another')
        assert not admitted(guard, 110 * norm, 'liar')


def test_without_a_limit_only_what_float32_cannot_add_up_is_refused():
    guard = PushFilter(0.0, 0.0, np.zeros(PARTITION.elements, np.float32))
    for norm in (1e-3,) * ENOUGH + (1e6, 0.9 * LARGEST):
        assert admitted(guard, norm)
    assert not admitted(guard, 1.1 * LARGEST)


def test_what_follows_refused_rows_of_a_push_is_refused_too():
    guard = PushFilter(100.0, 0.0, np.ones(PARTITION.elements, np.float32))
    receiver, rows = push(1e12)
    assert guard.passed(receiver, rows, 1) is None
    assert guard.passed(receiver, rows._replace(energy=1e-6), 1) is None
    assert receiver.refused == 2


def test_full_gradients_have_a_measure_of_their_own():
    """The norm of a full gradient is compared only with the norms of other full gradients.

    A full gradient is larger than a push, because it is not yet multiplied by the learning rate.
    """
    guard = PushFilter(100.0, 0.0, np.full(PARTITION.elements, 1e-3, np.float32))
    for _ in range(ENOUGH):
        assert admitted(guard, 1e-4)
    assert guard.passed(*push(1e6, Kind.ANCHOR), 1) is not None
    assert guard.passed(*push(1e6), 1) is None


@pytest.mark.parametrize('sync', mostly_long(
    [*SYNCS[:3], 'rsp:4', 'rsp:6+pipeline+sparse', 'gsgm', 'gsgm:3'],
    'bsp', 'rsp:6+pipeline+sparse', 'gsgm'))
@pytest.mark.parametrize('codec', ['onebit', 'raw', 'ternary'])
def test_a_gradient_that_explodes_is_not_applied_is_counted_and_holds_up_nobody(sync, codec):
    fleet = Fleet(3, 3, sync, codec)
    fleet.run(4)
    before = fleet.server.master.copy()
    # With this limit, the push of the exploding gradient is refused. A push below the limit is too
    # small to disturb the float32 sums that the test checks.
    fleet.server.filter.implausible = 8.0
    fleet.exploding = {'robot1'}
    fleet.run(4)
    assert fleet.server.refused['robot1'] >= 1 and set(fleet.server.refused) == {'robot1'}
    assert fleet.robots['robot1'].machine.statistics.refused >= 1
    assert fleet.counts['refused']
    # The exploding gradient has not changed the model; all other pushes change it only a little.
    assert np.abs(fleet.server.master - before).max() < 2.0
    refused = fleet.server.refused['robot1']
    check_end(fleet)
    assert fleet.server.refused['robot1'] <= refused + 1, 'the same poison comes again and again'


@pytest.mark.parametrize('sync', ['gc:1', 'dgh-gc'])
def test_a_coded_gradient_that_explodes_does_not_count_and_the_rounds_go_on(sync):
    fleet = Fleet(3, 4, sync, capacities=(1.0,) * 4)
    fleet.run(4)
    fleet.exploding, fleet.blast = {'robot1'}, 1e5
    fleet.run(4)
    assert fleet.server.refused['robot1'] >= 1
    rounds = len(fleet.update.rounds)
    fleet.run(6)
    assert len(fleet.update.rounds) > rounds
    assert np.isfinite(fleet.server.master).all() and np.abs(fleet.server.master).max() < 20


def test_the_largest_scale_there_is_changes_nothing_and_its_push_still_closes():
    """Send a push whose scale is the largest bfloat16; check that it is refused and still closes.

    This scale, 3.4e38, is finite, but the sum of two such values is not.
    """
    fleet = Fleet(3, 2, 'rsp:4')
    fleet.run(3)
    while not (training := [m for m in fleet.server.active() if m.state == 'training']):
        fleet.run(0.01)
    member, server = training[0], fleet.server
    transfer = TransferId(member.incarnation ^ server.incarnation, Kind.PUSH, member.granted,
                          member.push.transfer.attempt + 1)
    before = server.master.copy()
    values = np.zeros(2 + -(-34 // 8), np.uint8)
    values[:2] = 0x7f, 0x7f
    chunk = Chunk(transfer, 0, 1, 1, encode_ids(np.array([2])), values)
    server.on_chunk(member.robot, chunk, fleet.now)
    assert (server.master == before).all()
    assert server.refused == {member.robot: 1}
    receipt = server.on_end(member.robot, End(transfer, 1), fleet.now)[0].message
    assert (receipt.taken, receipt.refused) == (b'\1', 1)


@pytest.mark.parametrize('attempt, iteration', [(1000, 0), (0, 2 ** 32 - 1), (2 ** 32 - 1, 5)])
def test_nothing_beyond_what_was_granted_opens_a_transfer(attempt, iteration):
    fleet = Fleet(3, 2, 'rsp:4')
    fleet.run(3)
    while not (training := [m for m in fleet.server.active() if m.state == 'training']):
        fleet.run(0.01)
    member, server = training[0], fleet.server
    transfer = TransferId(member.incarnation ^ server.incarnation, Kind.PUSH,
                          member.granted + iteration, member.push.transfer.attempt + 1 + attempt)
    errors = len(fleet.errors)
    fleet.deliver_to_server(member.robot, End(transfer, 0))
    fleet.deliver_to_server(member.robot, Chunk(
        transfer, 0, 1, 1, encode_ids(np.array([2])), np.zeros(7, np.uint8)))
    assert len(fleet.errors) == errors + 2
    robot = fleet.robots[member.robot]
    pull = TransferId(transfer.incarnation, Kind.PULL, 0, member.attempt + 1 + attempt + 1)
    fleet.deliver_to_robot(robot, End(pull, 0), server)
    assert len(fleet.errors) == errors + 3
    fleet.errors.clear()
    check_end(fleet)
