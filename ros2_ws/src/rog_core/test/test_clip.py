"""Tests of ``clip``: the server limits each push to a multiple of the usual norm of a push."""

import numpy as np
import pytest
from fleet import Fleet
from ledger import decode
from rog_core.codecs import codec_names, get_codec
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_core.model.partition import partition_of
from rog_core.protocol.messages import Kind, TransferId
from rog_core.server.push_filter import PushFilter
from rog_core.transfer.receiver import Receiver, Rows
from schedules import SYNCS

SHAPES = [('w', (40, 30)), ('b', (30,))]
ROBOTS = ('robot1', 'robot2', 'robot3', 'robot4')


@pytest.mark.parametrize('codec', codec_names())
@pytest.mark.parametrize('factor', [0.0, 1e-30, 0.3, 1.0])
def test_an_encoding_is_scaled_without_decoding_it_and_never_up(codec, factor):
    partition, codec = partition_of(SHAPES, 'row', codec), get_codec(codec)
    values = np.random.default_rng(1).standard_normal(partition.elements, np.float32)
    ids = np.arange(1, len(partition.lengths), 2)
    sums = np.add.reduceat(np.abs(values), partition.offsets[:-1])[ids].astype(np.float32)
    data = codec.take(partition, values, ids, sums)
    before, kept = decode(partition, codec, ids, data), data.copy()
    data.setflags(write=False)
    scaled = codec.scaled(partition, ids, data, factor)
    assert (data == kept).all()
    codec.check(partition, ids, scaled)
    after = decode(partition, codec, ids, scaled)
    assert (np.abs(after) <= np.abs(before) * np.float32(factor)).all()
    assert np.allclose(after, factor * before, rtol=0.01, atol=1e-30)


class Pushes:
    """Makes pushes of raw rows.

    All elements of a row are equal. They are chosen so that the sum of their squares, the energy of
    the row, has a given value.
    """

    def __init__(self, limit):
        self.partition = partition_of(SHAPES, 'row', 'raw')
        self.filter = PushFilter(0.0, limit, np.zeros(self.partition.elements, np.float32))

    def push(self, robot, *energies, kind=Kind.PUSH, robots=ROBOTS):
        """Make one push with a row for each of ``energies``, the sums of squares of the rows.

        Return the sums of squares of the rows that the filter returns, and whether the push was
        scaled down.
        """
        raw = get_codec('raw')
        receiver = Receiver(self.partition, frozenset({kind}), 1, raw, TransferId(1, kind, 1, 1))
        counted = []
        for row, energy in enumerate(energies):
            data = np.full(30, np.sqrt(energy / 30), np.float32).view(np.uint8)
            rows = Rows(receiver.transfer, np.array([row]), raw, data, energy)
            rows = self.filter.passed(receiver, rows, len(robots))
            counted.append(float((rows.data.view(np.float32).astype(float) ** 2).sum()))
        return pytest.approx(counted, rel=1e-4), self.filter.learn(robot, receiver, robots)


def test_rows_count_until_the_budget_of_their_push_is_spent():
    pushes = Pushes(2.0)
    for robot in ROBOTS[:3]:
        pushes.push(robot, 1.0)
    assert pushes.push('robot4', 1.0, 2.0) == ([1.0, 2.0], False)
    assert pushes.push('robot4', 1.0, 2.0, 3.0, 4.0) == ([1.0, 2.0, 1.0, 0.0], True)
    assert pushes.push('robot4', 1e20) == ([4.0], True)


def test_the_first_push_of_all_has_no_measure_and_does_not_count():
    pushes = Pushes(1.5)
    assert pushes.push('robot1', 1e4) == ([0.0], False)
    assert pushes.push('robot2', 1.0) == ([1.0], False)
    assert pushes.push('robot1', 1e4) == ([2.25], True)


def test_a_robot_that_pushes_more_often_or_less_than_others_moves_the_median_no_further():
    pushes = Pushes(1.0)
    for robot in ROBOTS:
        pushes.push(robot, 1.0)
    for energy in (100.0, 1e-4):
        for _ in range(50):
            pushes.push('robot1', energy)
        assert pushes.push('robot2', 1.0) == ([1.0], False)
        assert pushes.push('robot3', 2.0)[0] == [1.0]
        pushes.push('robot3', 1.0)


def test_two_robots_have_no_majority_and_who_is_gone_has_no_voice():
    pushes = Pushes(1.0)
    for energy in (1.0, 100.0):
        assert pushes.push('robot1', energy, robots=ROBOTS[:2]) == ([energy], False)
    for robot in ROBOTS:
        pushes.push(robot, 1.0 if robot in ROBOTS[:2] else 4.0)
    for robot in ROBOTS[2:]:
        pushes.push(robot, 4.0, robots=ROBOTS[2:])
    assert pushes.push('robot3', 4.0, robots=ROBOTS[1:]) == ([4.0], False)


def test_full_gradients_have_a_measure_of_their_own_and_without_a_limit_all_counts():
    pushes = Pushes(1.0)
    for robot in ROBOTS:
        pushes.push(robot, 1.0)
        pushes.push(robot, 100.0, kind=Kind.ANCHOR)
    assert pushes.push('robot1', 100.0, kind=Kind.ANCHOR) == ([100.0], False)
    assert pushes.push('robot1', 100.0)[0] == [1.0]
    for energy in (1.0, 1e9):
        assert Pushes(0.0).push('robot1', energy) == ([energy], False)


@pytest.mark.parametrize('sync', ['gc:1', 'dgh-gc'])
def test_coded_gradients_cannot_be_scaled_and_say_so(sync):
    with pytest.raises(ConfigError, match='server.clip: 0'):
        create(sync, Team(dict.fromkeys(ROBOTS, 1.0), clip=2.0))
    create('rsp:4', Team(dict.fromkeys(ROBOTS, 1.0), clip=2.0))


@pytest.mark.parametrize('sync', [*SYNCS[:4], 'rsp:4', 'rsp:6+pipeline+sparse', 'gsgm',
                                  'trimmed:1'])
def test_a_server_clips_one_robot_of_four_and_holds_up_nobody(sync):
    fleet = Fleet(3, 4, sync, clip=2.0)
    for _ in range(12):
        fleet.exploding = {'robot1'}
        fleet.run(0.5)
    assert fleet.server.clipped['robot1'] >= 2
    assert not fleet.server.refused['robot0']
    fleet.check_mirrors()
    before = [robot.machine.iteration for robot in fleet.robots.values()]
    fleet.run(5)
    assert all(r.machine.iteration > b for r, b in zip(fleet.robots.values(), before, strict=True))
    assert not fleet.errors
