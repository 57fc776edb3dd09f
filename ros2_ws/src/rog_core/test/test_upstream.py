"""A parameter server as a worker of a parent server: each change counts once and no child waits."""

import math

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from fleets import two_levels
from hypothesis import HealthCheck, given, note, settings
from hypothesis import Phase as Phases
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_core.protocol.messages import Compute
from rog_core.protocol.states import COMPUTING, STOPPED, WAITING
from rog_core.protocol.steps import Gradient
from rog_core.upstream import Upstream, worker_above
from schedules import NETWORK, SCHEDULES, run_until

ABOVE = ['local:2', 'diloco:3', 'diloco:4:2', 'diloco:4:2+quorum=1+grace=0.3', 'rsp:3+local=2',
         'rsp:4+local=2+rate=0.7+momentum=0.5', 'rsp:6+pipeline+sparse+local=2']
BELOW = ['rsp:3', 'bsp', 'gsgm', 'ssp:2', 'asp', 'diloco:2', 'rsp:6+pipeline+sparse']
EVENTS = ['run', 'cut', 'heal', 'gap', 'deaf', 'sync', 'replay', 'corrupt', 'checkpoint', 'crash',
          'crash below', 'cut below']

events = st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 1), st.floats(0.05, 1.5)),
                  max_size=8)
network = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in NETWORK.items()})


def play(fleet, events):
    names = list(fleet.below)
    checkpoint, lost = fleet.checkpoint(), False
    for event, number, seconds in events:
        name = names[number]
        if event == 'cut':
            fleet.dead_links.add(name)
        elif event == 'heal':
            fleet.dead_links.discard(name)
        elif event == 'gap':
            fleet.fade(name, fleet.heartbeat_limit * seconds ** 3)
        elif event == 'deaf':
            fleet.fall_deaf(name, 2 * seconds)
        elif event == 'sync':
            fleet.set_sync(ABOVE[int(100 * seconds) % len(ABOVE)])
        elif event == 'replay':
            fleet.replay(10)
        elif event == 'corrupt':
            fleet.corrupt(10)
        elif event == 'checkpoint':
            checkpoint = fleet.checkpoint()
        elif event == 'crash':
            fleet.restart_server(checkpoint)
        elif event == 'crash below':
            fleet.crash_below(name)
            lost = True
        elif event == 'cut below':
            fleet.below[name].fade('robot0', 2 * seconds)
        fleet.run(seconds)
        # If a child's server crashes, the changes that it reported to the parent are lost, unless
        # the parent has accepted them. The sums that `check` compares include these changes, so do
        # not check after such a crash.
        if not lost:
            fleet.check()
    return lost


@settings(max_examples=max(SCHEDULES // 10, 2), deadline=None, derandomize=SCHEDULES < 1000,
          suppress_health_check=list(HealthCheck), phases=[Phases.explicit, Phases.generate])
@given(seed=st.integers(0, 2 ** 32), above=st.sampled_from(ABOVE),
       below=st.tuples(st.sampled_from(BELOW), st.sampled_from(BELOW)), network=network,
       events=events)
def test_nothing_is_lost_between_the_levels_in_any_schedule(seed, above, below, network, events):
    fleet = two_levels(seed, above, below, **network)
    try:
        lost = play(fleet, events)
        fleet.dead_links.clear()
        fleet.loss, fleet.rate = 0.0, 1e6
        fleet.run(12)
        assert len(fleet.server.active()) == 2
        before = sum(robot.machine.iteration for robot in fleet.robots.values())
        fleet.run(12)
        assert sum(robot.machine.iteration for robot in fleet.robots.values()) > before
        if not lost:
            fleet.check()
    finally:
        note(f'at {fleet.now:.3f} s; {dict(fleet.counts)}')
    assert not fleet.errors, fleet.errors[0]


@pytest.mark.parametrize('sync', mostly_long(
    ABOVE, 'local:2', 'diloco:4:2+quorum=1+grace=0.3', 'rsp:6+pipeline+sparse+local=2'))
def test_every_method_of_local_steps_carries_what_fleets_learn_to_each_other(sync):
    fleet = two_levels(5, sync)
    for _ in range(4):
        fleet.run(1.5)
        fleet.check()
    counts = fleet.counts
    assert counts['below checked'] and counts['below checked in between'], counts
    assert counts['changed below'] > 2 and counts['account'] > 2, counts
    assert all(below.counts['mirror checked'] for below in fleet.below.values())


def quiet(fleet):
    """Let all child fleets report equally often to the parent fleet, then stop their reports.

    When the function returns, all messages have arrived.
    """
    robots = list(fleet.robots.values())
    for _ in range(80):
        waiting = [robot for robot in robots if robot.machine.state == WAITING]
        behind = [robot for robot in robots if robot.machine.state == COMPUTING]
        for robot in robots:
            late = robot in behind and waiting and len(waiting) + len(behind) == len(robots)
            robot.upstream._due = 0 if late else math.inf
        fleet.run(0.05)
    assert all(robot.machine.state == COMPUTING for robot in robots)


def test_the_model_above_moves_by_the_mean_of_what_the_fleets_have_changed():
    fleet = two_levels(3, 'local:2', codec='raw')
    run_until(fleet, lambda: len(fleet.server.active()) == 2)
    quiet(fleet)
    first, before = fleet.server.master.astype(float), fleet.produced
    for robot in fleet.robots.values():
        robot.upstream._due = 0  # the next report to the parent is due at once
    fleet.run(10)
    quiet(fleet)
    fleet.check()
    assert fleet.server.iteration > 3
    mean = (fleet.produced - before) / 2
    assert np.abs(mean).max() > 0.01
    assert np.allclose(first - fleet.server.master, mean, rtol=1e-3, atol=1e-4)


def test_a_fleet_has_the_model_above_and_what_it_has_changed_since():
    """A child's change comes back in the parent's model; the child must not add it twice."""
    fleet = two_levels(3, 'local:2', codec='raw')
    fleet.run(4)
    quiet(fleet)
    for name, below in fleet.below.items():
        up = fleet.robots[name].upstream
        since = up.base - below.server.master
        assert np.abs(since).max() > 0, 'the robots go on'
        assert np.allclose(below.server.master + since, fleet.server.master, atol=2e-5)


@pytest.mark.parametrize('sync', mostly_long(['local:2', 'diloco:4:2', 'rsp:3+local=2'],
                                             'rsp:3+local=2'))
def test_fleets_go_on_without_the_server_above_and_lose_nothing(sync):
    fleet = two_levels(7, sync)
    fleet.run(3)
    checkpoint = fleet.checkpoint()
    before = {name: below.server.iteration for name, below in fleet.below.items()}
    applied = fleet.server.iteration
    fleet.dead_links |= set(fleet.below)
    fleet.run(10)
    fleet.check()
    rounds = {name: below.server.iteration - before[name] for name, below in fleet.below.items()}
    assert min(rounds.values()) > 4, rounds
    assert fleet.server.iteration <= applied + 1
    fleet.restart_server(checkpoint)  # the parent server restarts from an older checkpoint
    fleet.dead_links.clear()
    fleet.run(6)
    fleet.check()
    assert fleet.server.iteration > applied + 1
    assert all(robot.machine.server == fleet.server.incarnation
               for robot in fleet.robots.values())


def test_a_server_below_that_is_killed_counts_nothing_twice():
    """Check that each change in the checkpoint of a killed child server counts once.

    The restarted child may lose changes that it reported to the parent before the crash. ``own``:
    the changes by the child's robots up to the checkpoint.
    """
    fleet = two_levels(9, 'local:3')
    fleet.run(4)
    fleet.crash_below('fleet0')
    below, robot = fleet.below['fleet0'], fleet.robots['fleet0']
    own, left = below.own.copy(), robot.upstream.base - below.server.master
    produced = sum(r.store.produced for r in fleet.lives_of_robots if r.name == 'fleet0')
    assert np.allclose(produced + left, own, atol=1e-4)
    fleet.run(6)
    fleet.check()
    assert fleet.counts['crash below'] == 1 and below.server.iteration > 4


def test_the_end_above_gives_every_fleet_the_final_model_and_they_go_on():
    fleet = two_levels(11, 'diloco:3')
    fleet.run(4)
    before = {name: below.server.iteration for name, below in fleet.below.items()}
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(20)
    assert fleet.stopped
    for name, below in fleet.below.items():
        robot = fleet.robots[name]
        assert robot.machine.state == STOPPED
        assert (robot.store.weights == fleet.server.master).all()
        below.run(3)
        below.check()
        assert below.server.iteration > before[name]


def test_only_methods_of_local_steps_can_be_above():
    below = Fleet(1, 1)
    worker = worker_above(below.server, 'fleet', 5, below.server.config.transfer)
    with pytest.raises(ConfigError, match=r'local:H, diloco:H\[:P\] or rsp:T\+local=H'):
        Upstream(below.server, worker).go_on(Compute(1, Gradient()))


@pytest.mark.parametrize('sync', ['gc', 'hgc', 'asp+svrg=3'])
def test_a_method_that_needs_one_model_in_a_round_has_no_fleet_above(sync):
    capacities = dict.fromkeys(['a', 'b', 'c'], 1.0)
    create(sync, Team(capacities))
    with pytest.raises(ConfigError, match='train without upstream'):
        create(sync, Team(capacities, above=True))


def test_the_two_levels_may_have_other_codecs_and_rows():
    fleet = two_levels(13, 'local:2', codec='onebit')
    robot = fleet.robots['fleet0']
    worker = worker_above(robot.below.server, 'x', 1, fleet.server.config.transfer.__class__(
        'layer', 'raw', 1.0, 1.0, 14000, 0.004))
    assert worker.partition.elements == fleet.partition.elements
    assert worker.partition.rows < fleet.partition.rows
