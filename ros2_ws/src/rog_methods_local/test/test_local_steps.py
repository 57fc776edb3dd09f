"""Methods whose robots take local steps: phases, fragments, the outer step, quorum and grace."""

import math

import numpy as np
import pytest
from configs import server_config
from fleet import Fleet
from fleet_testing import examples, mostly_long
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import RAW
from rog_core.errors import ConfigError
from rog_core.method_check import check_named
from rog_core.methods import Team, create
from rog_core.methods.base import Model, Standing
from rog_core.model.partition import partition_of
from rog_core.protocol.steps import Phase
from rog_core.server.server import Server
from schedules import check_end, come_back, lose, play, run_until, settled

NEW = ['diloco:3', 'diloco:6:3', 'diloco:6+pipeline', 'diloco:4:2+quorum=2+grace=0.3',
       'rsp:4+local=8', 'rsp:4+local=8+rate=0.7+momentum=0.5', 'rsp:6+pipeline+sparse+local=2']
ANY = pytest.mark.parametrize('sync', mostly_long(
    NEW, 'diloco:4:2+quorum=2+grace=0.3', 'rsp:4+local=8+rate=0.7+momentum=0.5'))


def named(sync, team=None):
    check_named(sync, team or Team())
    return create(sync, team)


# -- which rows travel


@given(rows=st.integers(1, 60), fragments=st.integers(1, 60), first=st.integers(0, 60))
def test_every_row_travels_once_in_a_cycle_of_fragments(rows, fragments, first):
    sent_at = np.full(rows, first - 1)
    sent = np.zeros(rows, int)
    for iteration in range(first, first + 3 * fragments):
        turn = Phase(1, fragments, iteration % fragments).turn(iteration - sent_at)
        sent_at[turn] = iteration
        sent += turn
    assert (sent == 3).all()


def test_a_row_that_misses_its_turns_travels_with_another_fragment():
    """Check that a row that was not sent for a whole cycle of fragments is sent at once.

    A robot that skips rounds may miss the turns of some rows.
    """
    age = np.array([3, 1, 2, 4, 0, 5])
    assert Phase(1, 4, 0).turn(age).tolist() == [True, False, False, True, True, True]


# -- the outer step


class Aggregator:
    """A server with a method and two robots, which push with codec raw."""

    def __init__(self, sync, robots=2):
        self.partition = partition_of([('w', (5, 300)), ('b', (7,))], 'row', 'raw')
        self.method, self.robots = named(sync), robots
        self.master = np.zeros(self.partition.elements, np.float32)
        self.method.begin(Model(self.partition, self.master, RAW), 0)

    def push(self, delta, rows=None):
        ids = np.arange(self.partition.segments)
        if rows is not None:
            ids = ids[np.isin(self.partition.segment_row, rows)]
        data = RAW.snapshot(self.partition, delta, ids)
        self.method.take('robot', ids, RAW, data, self.robots)


def deltas(server, rounds, seed=3):
    noise = np.random.default_rng(seed)
    shape = rounds, server.robots, server.partition.elements
    return noise.standard_normal(shape).astype(np.float32)


def by_the_paper(changes, rate, momentum):
    """Compute DiLoCo's Algorithm 1 with Nesterov momentum, in double precision.

    Model and momentum are zero at first.
    """
    model = velocity = np.zeros(changes.shape[2])
    for delta in changes.astype(float).mean(1):
        velocity = momentum * velocity + delta
        model = model - rate * (delta + momentum * velocity)
    return model


@pytest.mark.parametrize(('sync', 'rate', 'momentum'), [
    ('diloco:3', 0.7, 0.9), ('diloco:4:2+rate=0.4+momentum=0.5', 0.4, 0.5),
    ('diloco:3+rate=1+momentum=0', 1.0, 0.0), ('rsp:4+local=2+rate=0.5+momentum=0.3', 0.5, 0.3),
    ('local:3', 1.0, 0.0), ('rsp:4+local=2', 1.0, 0.0)])
def test_the_outer_step_is_that_of_the_paper(sync, rate, momentum):
    server = Aggregator(sync)
    changes = deltas(server, 6)
    for round_ in changes:
        for delta in round_:
            server.push(delta)
    expected = by_the_paper(changes, rate, momentum)
    assert np.allclose(server.master, expected, rtol=1e-4, atol=1e-5)


@examples(30)
@given(order=st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_every_row_has_a_momentum_of_its_own(order):
    """A row moves as if it were the only row; pushes of other rows have no effect on it."""
    server = Aggregator('rsp:4+local=2+rate=0.5+momentum=0.5')
    changes = deltas(server, len(order))[:, 0]
    for row, delta in zip(order, changes, strict=True):
        server.push(delta, [row])
    for row in range(6):
        alone = Aggregator('rsp:4+local=2+rate=0.5+momentum=0.5')
        for other, delta in zip(order, changes, strict=True):
            if other == row:
                alone.push(delta, [row])
        part = slice(*server.partition.row_offsets[row:row + 2])
        assert np.array_equal(server.master[part], alone.master[part])


def test_a_restarted_server_goes_on_with_the_momentum_in_the_middle_of_a_round():
    one, other = Aggregator('diloco:3'), Aggregator('diloco:3')
    changes = deltas(one, 5)
    for round_ in changes[:2]:
        one.push(round_[0])
        one.push(round_[1])
    one.push(changes[2, 0])
    other.method.load_arrays({name: value.copy()
                              for name, value in one.method.arrays().items()})
    other.master[:] = one.master
    for server in (one, other):
        server.push(changes[2, 1])
        server.push(changes[3, 0])
    assert np.array_equal(one.master, other.master)
    assert np.allclose(one.method.velocity, other.method.velocity)


# -- who waits for whom


def standings(**iterations):
    return {name: Standing(n, n) for name, n in iterations.items()}


def test_nobody_waits_for_more_than_a_quorum_and_its_grace():
    method = named('diloco:4:2+quorum=2+grace=3')
    method.on_push('a', standings(a=5, b=4, c=4), 10.0)
    assert method.held_up_by('a', standings(a=5, b=4, c=4)) == ['b', 'c']
    assert method.deadline == math.inf
    fleet = standings(a=5, b=5, c=4)
    method.on_push('b', fleet, 11.0)
    assert method.held_up_by('a', fleet) == method.held_up_by('b', fleet) == ['c']
    assert method.deadline == 14.0
    method.on_time(14.0)
    assert method.held_up_by('a', fleet) == method.held_up_by('b', fleet) == []
    assert method.deadline == math.inf
    assert method.grant('a', 5) == (6, Phase(2, 2, 0)) and method.grant('a', 5)[1].fragment == 0
    # A robot that comes late waits for no robot, and continues with the present round of the fleet.
    assert method.held_up_by('c', fleet) == []
    assert method.grant('c', 4)[0] == 6


def test_who_pushes_within_the_grace_sets_all_free_at_once():
    method = named('diloco:4+quorum=2+grace=3')
    for robot in 'ab':
        method.on_push(robot, standings(a=5, b=5, c=4), 10.0)
    fleet = standings(a=5, b=5, c=5)
    assert [method.held_up_by(robot, fleet) for robot in 'abc'] == [[], [], []]


def test_without_a_quorum_all_wait_for_all():
    method = named('diloco:4:2')
    assert method.held_up_by('a', standings(a=5, b=5, c=4)) == ['c']
    assert method.grant('a', 5)[0] == 6 and method.grant('c', 4)[0] == 5


def slow_link(fleet, name, factor):
    carry = fleet.carry
    fleet.carry = lambda robot, up, nbytes, deliver: carry(
        robot, up, nbytes * (factor if robot == name else 1), deliver)


@pytest.mark.parametrize('sync', ['diloco:4:2', 'diloco:4:2+quorum=2+grace=0.2'])
def test_a_robot_whose_link_fades_holds_up_those_who_have_no_quorum(sync):
    fleet = Fleet(6, 3, sync, rate=1e6)
    for robot in fleet.robots.values():
        robot.compute_time = 0.1
    fleet.run(2)  # long enough to send the snapshots
    began = fleet.server.iteration
    slow_link(fleet, 'robot0', 300)
    fleet.run(15)
    fleet.check()
    iterations = {name: robot.machine.iteration for name, robot in fleet.robots.items()}
    late = fleet.server.members['robot0']
    assert late.iteration > began, 'it contributes'
    if 'quorum' in sync:
        assert min(iterations['robot1'], iterations['robot2']) > 25
        assert fleet.server.iteration - late.iteration < 25, 'it goes on with the others'
    else:
        assert max(iterations.values()) - min(iterations.values()) <= 1
    del fleet.carry
    check_end(fleet, 5)


# -- in a whole fleet


@pytest.mark.parametrize('sync', ['diloco:6:3', 'rsp:6+pipeline+local=2'])
def test_a_robots_own_model_has_its_steps_that_the_server_has_not(sync):
    """With codec raw, `drift` is the sum of the robot's steps that the server has not applied.

    Only rounding errors may differ.
    """
    fleet = Fleet(3, 3, sync, 'raw', loss=0.05, duplicate=0.1, rate=1e5)
    compute, drifts = fleet.compute, []

    def spy(robot, order):
        store = robot.store
        assert (store.model == store.weights - store.drift).all()
        held = fleet.held(robot) if robot.machine.push is None else None
        if held is not None:
            assert np.allclose(store.drift, held, atol=1e-4)
        drifts.append(float(np.abs(store.drift).sum()))
        compute(robot, order)
    fleet.compute = spy
    fleet.run(20)
    fleet.check()
    assert len(drifts) > 20 and max(drifts) > 0
    check_end(fleet)
    # The final model is the fleet's model; a robot's own local steps are not in it.
    for robot in fleet.robots.values():
        assert (robot.store.model == fleet.server.master).all()


@pytest.mark.parametrize(('sync', 'share'), mostly_long(
    [('diloco:6', 1), ('diloco:6:2', 2), ('diloco:6:3', 3)], ('diloco:6:3', 3)))
def test_a_fragment_is_one_row_in_so_many_both_ways(sync, share):
    fleet = Fleet(5, 3, sync, rate=1e6)
    fleet.run(10)
    rows = fleet.partition.rows
    for name, member in fleet.server.members.items():
        machine = fleet.robots[name].machine
        for count in (member.rows_pushed, machine.last_pushed_rows, member.rows_pulled):
            assert abs(count - rows / share) < 1, (name, count)
    check_end(fleet)


def test_fragments_are_applied_late_so_that_transmission_hides_behind_computing():
    """On links that are as slow as the computation, pipelining hides much of the transmission."""
    exchanges = {}
    for sync in ('diloco:6:3', 'diloco:6:3-pipeline'):
        fleet = Fleet(7, 2, sync, 'raw', rate=6e4)
        for robot in fleet.robots.values():
            robot.compute_time = 0.3
        fleet.run(60)
        fleet.check()
        exchanges[sync] = min(robot.machine.iteration for robot in fleet.robots.values())
        assert bool(fleet.counts['computed ahead']) == ('-' not in sync)
    assert exchanges['diloco:6:3'] > 1.3 * exchanges['diloco:6:3-pipeline']


@ANY
@pytest.mark.parametrize('state', ['computing', 'pushing'])
def test_a_robot_that_is_lost_in_a_local_phase_comes_back_with_what_it_has(sync, state):
    fleet, _ = settled(sync=sync, rate=1e5)
    worker = fleet.robots['robot0'].machine
    run_until(fleet, lambda: worker.state == state)
    lose(fleet)
    assert come_back(fleet) == 0
    check_end(fleet)


@ANY
def test_a_robot_that_is_killed_in_a_local_phase_and_started_again_joins_the_others(sync):
    fleet, _ = settled(sync=sync, rate=1e5, patience=0.0)
    run_until(fleet, lambda: fleet.robots['robot0'].machine.state == 'computing')
    fleet.kill_robot('robot0')
    before = fleet.robots['robot1'].machine.iteration
    fleet.run(8)
    fleet.check()
    assert fleet.robots['robot1'].machine.iteration > before + 2, 'the others go on'
    fleet.start_robot('robot0')
    fleet.run(5)
    fleet.check()
    assert fleet.server.members['robot0'].iteration > before
    check_end(fleet)


@pytest.mark.long
@pytest.mark.parametrize('sync', NEW)
def test_the_server_may_crash_and_the_method_change_in_a_local_phase(sync):
    fleet = Fleet(8, 3, sync, loss=0.05, rate=1e5)
    play(fleet, [('run', 0, 1.5), ('checkpoint', 0, 1.0), ('crash', 0, 1.5), ('sync', 1, 1.0),
                 ('run', 0, 1.0), ('fade', 1, 1.0)], ['bsp', 'rsp:4', 'local:3'])
    fleet.set_sync(sync)
    fleet.run(4)
    fleet.check()
    check_end(fleet)


# -- what is refused


@pytest.mark.parametrize(('sync', 'granularity', 'what'), [
    ('diloco:8:8', 'layer', '8 fragments are more than the 2 rows'),
    ('diloco:900:900', 'row', '900 fragments are more than the 6 rows'),
    ('diloco:2:2', 'model', '2 fragments are more than the 1 rows')])
def test_more_fragments_than_rows_are_refused_and_nothing_has_changed(sync, granularity, what):
    partition = partition_of([('w', (5, 300)), ('b', (7,))], granularity, 'raw')
    zeros = np.zeros(partition.elements, np.float32)
    check_named(sync, Team())
    with pytest.raises(ConfigError, match=f"'{sync}': {what}"):
        Server(partition, zeros, 1, server_config(sync, 'raw'))
    server = Server(partition, zeros, 1, server_config('rsp:4', 'raw'))
    method = server.method
    with pytest.raises(ConfigError, match=what):
        server.set_sync(sync, 0.0)
    assert server.method is method


def test_a_quorum_above_the_fleet_is_refused():
    team = Team({'a': 1.0, 'b': 1.0})
    assert named('diloco:4+quorum=2', team).quorum == 2
    with pytest.raises(ConfigError, match='the quorum is 3 robots; the fleet has 2'):
        named('diloco:4+quorum=3', team)
