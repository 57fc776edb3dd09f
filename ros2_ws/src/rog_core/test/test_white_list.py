"""GSGM: the white list and global momentum, for every order of pushes."""

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import RAW
from rog_core.methods import Team, create
from rog_core.methods.base import Model, Standing
from rog_core.model.partition import partition_of
from schedules import check_end, run_until

PARTITION = partition_of([('w', (3,))], 'row', 'raw')
ELEMENTS, MOMENTUM, RATE = PARTITION.elements, 0.7, 0.1
FEW = examples(150)


def gradient(robot, count):
    """Return the ``count``-th gradient of a robot; this gradient does not depend on the model.

    The result is float32 (elements,).
    """
    return np.random.default_rng((ord(robot), count)).standard_normal(ELEMENTS).astype(np.float32)


def algorithm_2(robots, arrivals):
    """Compute Algorithm 2 of the GSGM paper.

    Returns the model w after each push, the robots in the order in which their pushes were applied,
    the queue, and the white list. The learning rate of the algorithm is RATE divided by the number
    of robots: see `rog_core.methods.gsgm`.
    """
    rate = RATE / len(robots)
    w, v, g_pa = (np.zeros(ELEMENTS) for _ in range(3))
    white, queue, weights, applied = set(robots), [], [], []
    for k, g_k in arrivals:
        def apply(k, g_k):
            nonlocal w, g_pa
            white.remove(k)
            unbiased = MOMENTUM * v + g_k
            g_pa = g_pa + unbiased / len(robots)
            w = w - rate * unbiased
            applied.append(k)
        if not white:
            v, g_pa = g_pa, np.zeros(ELEMENTS)
            white |= set(robots)
            for name, held in queue:
                apply(name, held)
            queue.clear()
        if k in white:
            apply(k, g_k)
        else:
            queue.append((k, g_k))
        weights.append(w)
    return weights, applied, queue, white


def names_of(count):
    return list('abcdefgh'[:count])


class Drive:
    """Plays the robots of a fleet with the method ``gsgm``; a waiting robot does not push."""

    def __init__(self, robots):
        self.method = create('gsgm', Team(momentum=MOMENTUM))
        self.master = np.zeros(ELEMENTS, np.float32)
        self.method.begin(Model(PARTITION, self.master, RAW), 0)
        self.fleet = {name: Standing(0, 0) for name in robots}
        self.gone, self.held, self.pushes = set(), set(), dict.fromkeys(robots, 0)
        self.applied, self.rounds = [], [[]]
        contribute, end_round = self.method.contribute, self.method.end_round

        def contributes(robot, robots):
            contribute(robot, robots)
            self.applied.append(robot)
            self.rounds[-1].append(robot)

        def ends():
            end_round()
            self.rounds.append([])
        self.method.contribute, self.method.end_round = contributes, ends

    @property
    def free(self):
        return [name for name in self.fleet if name not in self.held]

    def push(self, name):
        self.pushes[name] += 1
        data = (np.float32(RATE) * gradient(name, self.pushes[name])).view(np.uint8)
        self.method.take(name, np.arange(1), RAW, data, len(self.fleet))
        done = self.fleet[name].iteration + 1
        self.fleet[name] = Standing(done, done)
        self.method.pushed(name, True, self.fleet, 0.0)
        self.held.add(name)
        self.settle()

    def settle(self):
        self.method.settle(self.fleet, frozenset(self.gone), max(len(self.fleet), 1))
        self.held = {name for name in self.held if name in self.fleet
                     and self.method.held_up_by(name, self.fleet)}

    def die(self, name):
        del self.fleet[name]
        self.gone.add(name)
        self.held.discard(name)
        self.settle()

    def join(self, name):
        start = min((p.iteration for p in self.fleet.values()), default=0)
        self.fleet[name] = Standing(start, start)
        self.pushes.setdefault(name, 0)
        self.gone.discard(name)
        self.method.on_join(name)
        self.settle()


orders = st.tuples(st.integers(1, 6), st.lists(st.integers(0, 999), min_size=1, max_size=60))


@FEW
@given(orders)
def test_without_deaths_it_is_the_listing_of_the_paper_whatever_the_order(order):
    """Check that the method equals `algorithm_2`, except at a push that refills the white list.

    For this exception see `rog_core.methods.gsgm`.
    """
    count, picks = order
    drive, arrivals = Drive(names_of(count)), []
    for pick in picks:
        name = drive.free[pick % len(drive.free)]
        drive.push(name)
        arrivals.append((name, gradient(name, drive.pushes[name]).astype(np.float64)))
    weights, applied, queue, white = algorithm_2(names_of(count), arrivals)
    if white:  # if `white` is empty, the algorithm refills it only at the next push
        assert np.allclose(drive.master, weights[-1], rtol=1e-5, atol=1e-6)
        assert drive.applied == applied
    else:
        assert drive.applied == applied + [name for name, _ in queue]


@FEW
@given(orders)
def test_every_learner_contributes_once_per_round_and_nobody_gets_ahead_by_more_than_one(order):
    count, picks = order
    drive = Drive(names_of(count))
    for pick in picks:
        drive.push(drive.free[pick % len(drive.free)])
        counts = [drive.applied.count(name) for name in names_of(count)]
        assert max(counts) - min(counts) <= 1
        assert drive.free, 'everybody waits'
    assert all(sorted(names) == names_of(count) for names in drive.rounds[:-1])
    assert len(set(drive.rounds[-1])) == len(drive.rounds[-1])


@FEW
@given(orders)
def test_the_queue_keeps_its_order(order):
    count, picks = order
    drive = Drive(names_of(count))
    for pick in picks:
        before = drive.method.state()['queue']
        name = drive.free[pick % len(drive.free)]
        ended, contributed = len(drive.rounds), len(drive.rounds[-1])
        drive.push(name)
        if len(drive.rounds) == ended:
            now = drive.rounds[-1][contributed:]
            assert drive.method.state()['queue'] == before + [name] * (name not in now)
        else:  # this push ended the round, so the robots in the queue contribute, in order
            assert drive.rounds[-2][-1] == name
            assert drive.rounds[-1] == before


@FEW
@given(orders)
def test_the_partly_averaged_gradient_is_the_average_of_the_updates_of_the_last_round(order):
    count, picks = order
    drive, updates = Drive(names_of(count)), [[]]
    contribute, end_round = drive.method.contribute, drive.method.end_round

    def contributes(robot, robots):
        before = drive.master.astype(np.float64)
        contribute(robot, robots)
        updates[-1].append((before - drive.master) * count)

    def ends():
        updates.append([])
        end_round()
    drive.method.contribute, drive.method.end_round = contributes, ends
    for pick in picks:
        drive.push(drive.free[pick % len(drive.free)])
        if len(updates) > 1:
            assert np.allclose(drive.method.velocity, np.mean(updates[-2], axis=0), rtol=1e-4,
                               atol=1e-5)
        assert np.allclose(drive.method.partly_averaged, np.sum(updates[-1], axis=0) / count
                           if updates[-1] else 0.0, rtol=1e-4, atol=1e-5)


events = st.lists(st.tuples(st.sampled_from(['push', 'push', 'push', 'die', 'join']),
                            st.integers(0, 999)), max_size=60)


@FEW
@given(st.integers(1, 5), events)
def test_who_dies_or_joins_blocks_the_list_for_nobody(count, events):
    drive = Drive(names_of(count))
    for event, pick in events:
        if event == 'join':
            name = 'abcdef'[pick % 6]
            if name not in drive.fleet:
                drive.join(name)
        elif event == 'die' and drive.fleet:
            drive.die(list(drive.fleet)[pick % len(drive.fleet)])
        elif drive.fleet:
            drive.push(drive.free[pick % len(drive.free)])
        assert not drive.fleet or drive.free, 'everybody waits'
        assert all(len(set(names)) == len(names) for names in drive.rounds)
    # From now on the robots that are present take turns, each once per round.
    names = list(drive.fleet)
    for _ in range(4):
        for name in names:
            while name in drive.held:
                drive.push(drive.free[0])
            drive.push(name)
    assert all(set(drive.rounds[-k]) >= set(names) for k in (2, 3) if names)


def test_it_waits_by_name_for_those_that_are_still_on_the_list():
    drive = Drive(['a', 'b', 'c'])
    drive.push('a')
    drive.push('a')
    assert drive.method.held_up_by('a', drive.fleet) == ['b', 'c']
    drive.push('c')
    assert drive.method.held_up_by('a', drive.fleet) == ['b']
    drive.die('b')
    assert drive.method.held_up_by('a', drive.fleet) == []
    assert drive.applied == ['a', 'c', 'a']


def test_a_restarted_server_goes_on_in_the_middle_of_a_round():
    whole, first = Drive('abc'), Drive('abc')
    before, after = 'aab', 'cbaca'
    for name in before:
        whole.push(name)
        first.push(name)
    second = Drive('abc')
    state = first.method.state()
    assert state == {'contributed': ['a', 'b'], 'queue': ['a'], 'list': ['c']}
    second.method.load_state(state)
    second.method.load_arrays({name: held.copy() for name, held in first.method.arrays().items()})
    second.master[:], second.fleet, second.held = first.master, first.fleet, first.held
    second.pushes = first.pushes
    second.settle()
    assert (second.method.state(), second.rounds) == (state, [[]])
    for name in after:
        whole.push(name)
        second.push(name)
    assert whole.applied == first.applied + second.applied
    assert (second.master == whole.master).all()


# -- in a whole fleet


@pytest.mark.parametrize('sync', ['gsgm', 'gsgm:4'])
@pytest.mark.parametrize('codec', ['onebit', 'raw'])
def test_in_a_fleet_everybody_contributes_once_per_round(sync, codec):
    fleet = Fleet(3, 4, sync, codec, loss=0.1, duplicate=0.2, delay=0.1, rate=2e5)
    for robot, seconds in zip(fleet.robots.values(), (0.02, 0.05, 0.2, 0.5)):
        robot.compute_time = seconds
    run_until(fleet, lambda: len(fleet.server.active()) == 4)
    fleet.run(5)  # meanwhile a robot that joined one iteration ahead waits for the others
    start = len(fleet.update.contributed)
    fleet.run(20)
    fleet.check()
    rounds = fleet.update.contributed
    assert len(rounds) > start + 5
    assert all(sorted(names) == sorted(fleet.robots) for names in rounds[start:-1])
    check_end(fleet, 4)


@pytest.mark.parametrize('sync', ['gsgm', 'gsgm:4'])
def test_in_a_fleet_who_dies_is_not_waited_for_and_who_joins_takes_part(sync):
    fleet = Fleet(4, 3, sync, loss=0.05)
    fleet.run(3)
    fleet.kill_robot('robot1')
    fleet.run(3)
    start = len(fleet.update.contributed)
    fleet.run(6)
    assert {frozenset(names) for names in fleet.update.contributed[start:-1]} == {
        frozenset({'robot0', 'robot2'})}
    fleet.start_robot('robot1')
    fleet.start_robot('robot3')
    fleet.run(4)
    start = len(fleet.update.contributed)
    fleet.run(6)
    assert {frozenset(names) for names in fleet.update.contributed[start:-1]} == {
        frozenset(fleet.robots)}
    check_end(fleet, 4)


def test_a_restarted_server_waits_for_who_was_on_the_list_until_that_robot_is_gone():
    first, second = Drive('abc'), Drive('')
    for name in 'aab':
        first.push(name)
    second.method.load_state(first.method.state())
    second.fleet = {'a': first.fleet['a']}  # only robot a has come back so far
    second.settle()
    assert second.rounds == [[]]
    assert second.method.held_up_by('a', second.fleet) == ['c']
    second.gone.add('c')
    second.settle()
    assert second.rounds == [[], ['a'], []]


@pytest.mark.parametrize('comes_back', [True, False])
def test_in_a_fleet_a_restarted_server_goes_on_with_what_it_held(comes_back):
    """The checkpoint contains the queued gradients, and each of them counts once."""
    fleet = Fleet(8, 3, 'gsgm', 'raw')
    for robot, seconds in zip(fleet.robots.values(), (0.05, 0.05, 1.4)):
        robot.compute_time = seconds
    for _ in range(2000):
        if len(fleet.server.method.held) == 2 and len(fleet.server.method.state()['queue']) == 2:
            break
        fleet.run(0.01)
    state, held = fleet.server.method.state(), dict(fleet.server.method.held)
    assert len(held) == 2 and state['contributed']
    fleet.restart_server(fleet.checkpoint())
    assert fleet.server.method.state() == state
    for name, values in held.items():
        assert (fleet.server.method.held[name] == values).all()
    if not comes_back:
        fleet.kill_robot('robot2')
    fleet.run(5)
    assert fleet.update.contributed[0] == ['robot2'] * comes_back
    assert fleet.update.contributed[1][:2] == state['queue']
    check_end(fleet, 4)
