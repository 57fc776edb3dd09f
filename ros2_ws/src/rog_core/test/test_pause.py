"""Robots and servers that are paused in the middle of training lose nothing."""

import math

import pytest
from fleet import Fleet
from rog_core.errors import LocalProtocolError
from rog_core.protocol.states import PAUSED, STOPPED
from schedules import run_until, settled, state_of
from test_rejoin import SYNCS


@pytest.mark.parametrize('state', ['computing', 'pushing', 'waiting', 'pulling'])
@pytest.mark.parametrize('codec', ['onebit', 'ternary'])
def test_a_robot_that_is_paused_loses_nothing_whatever_it_does(state, codec):
    """Each value that the robot has produced is applied or still on the robot, exactly once.

    `Fleet.check` tests this.
    """
    fleet, _ = settled(rate=1e5, codec=codec)
    worker = fleet.robots['robot0'].machine
    run_until(fleet, lambda: worker.state == state)
    fleet.pause('robot0')
    fleet.check()
    run_until(fleet, lambda: state_of(fleet) == STOPPED)
    others = sum(r.machine.iteration for r in fleet.robots.values())
    fleet.run(5)
    fleet.check()
    assert worker.state == PAUSED
    assert sum(r.machine.iteration for r in fleet.robots.values()) > others, 'they wait for it'
    snapshots = fleet.counts['SNAPSHOT']
    fleet.resume('robot0')
    run_until(fleet, lambda: state_of(fleet) == 'training')
    fleet.check()
    fleet.run(5)
    fleet.check()
    assert fleet.counts['SNAPSHOT'] == snapshots and fleet.counts['resumed'] == 1
    assert not fleet.errors


@pytest.mark.parametrize('sync', SYNCS)
def test_every_method_goes_on_after_a_pause_of_robots_and_server(sync):
    fleet, _ = settled(sync=sync, loss=0.1, duplicate=0.2, rate=2e5)
    for name in ('robot0', 'robot1'):
        fleet.pause(name)
        fleet.run(2)
        fleet.check()
    fleet.hold()
    fleet.run(2)
    fleet.check()
    for name in ('robot0', 'robot1'):
        fleet.resume(name)
    fleet.run(2)
    fleet.check()
    fleet.go_on()
    before = {name: robot.machine.iteration for name, robot in fleet.robots.items()}
    fleet.run(10)
    fleet.check()
    assert all(r.machine.iteration > before[name] for name, r in fleet.robots.items())
    assert not fleet.errors


def test_what_a_paused_robot_still_computes_is_pushed_when_it_is_back():
    fleet, _ = settled()
    robot = fleet.robots['robot0']
    run_until(fleet, lambda: robot.machine.state == 'computing')
    fleet.pause('robot0')
    produced = robot.store.produced.copy()
    fleet.run(5)
    late = robot.store.produced - produced
    assert late.any() and (robot.store.pending != 0).any()
    fleet.resume('robot0')
    fleet.run(5)
    fleet.check()


@pytest.mark.parametrize('patience', [0.6, math.inf])
@pytest.mark.parametrize('sync', ['bsp', 'asp', 'rsp:4', 'diloco:4+quorum=2'])
def test_a_paused_server_grants_nothing_and_takes_nobody_for_dead(sync, patience):
    fleet, _ = settled(sync=sync, patience=patience)
    fleet.hold()
    fleet.run(3)
    at = {name: robot.machine.iteration for name, robot in fleet.robots.items()}
    fleet.run(30)
    fleet.check()
    assert at == {name: robot.machine.iteration for name, robot in fleet.robots.items()}
    assert {m.state for m in fleet.server.members.values()} == {'waiting'}
    assert {r.machine.state for r in fleet.robots.values()} == {'waiting'}
    assert len(fleet.server.active()) == 3 and not fleet.counts['retired while waiting']
    fleet.go_on()
    fleet.run(5)
    fleet.check()
    assert all(r.machine.iteration > at[name] for name, r in fleet.robots.items())


def test_a_robot_joins_a_paused_fleet_and_trains_once_it_goes_on():
    fleet, _ = settled()
    fleet.hold()
    fleet.start_robot('robot3')
    fleet.run(5)
    assert fleet.server.members['robot3'].state == 'waiting'
    assert fleet.robots['robot3'].machine.iteration == 0
    fleet.go_on()
    fleet.run(5)
    fleet.check()
    assert fleet.robots['robot3'].machine.iteration > 0


def test_a_paused_fleet_can_be_stopped():
    fleet, _ = settled()
    fleet.pause('robot1')
    fleet.hold()
    fleet.run(5)
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(10)
    assert fleet.stopped
    fleet.check_conservation()
    for name in ('robot0', 'robot2'):
        robot = fleet.robots[name]
        assert robot.machine.state == STOPPED
        assert (robot.store.weights == fleet.server.master).all()


def test_who_comes_back_to_a_run_that_is_over_ends_in_order():
    fleet, _ = settled()
    fleet.pause('robot1')
    fleet.run(1)
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.stopped = False
    fleet.run(10)
    fleet.stopped = False
    fleet.resume('robot1')
    fleet.run(5)
    assert fleet.robots['robot1'].machine.state == STOPPED


def test_only_who_takes_part_can_pause_and_only_who_has_paused_can_come_back():
    fleet = Fleet(4, 1)
    fleet.run(2)
    machine = fleet.robots['robot0'].machine
    with pytest.raises(LocalProtocolError):
        machine.resume(fleet.now)
    machine.pause(fleet.now)
    with pytest.raises(LocalProtocolError):
        machine.pause(fleet.now)
    machine.leave(fleet.now)
    with pytest.raises(LocalProtocolError):
        machine.resume(fleet.now)


def test_news_of_a_pause_that_come_late_only_make_the_robot_register_again():
    fleet, _ = settled()
    fleet.pause('robot0')
    run_until(fleet, lambda: state_of(fleet) == STOPPED)
    fleet.resume('robot0')
    run_until(fleet, lambda: state_of(fleet) == 'training')
    robot = fleet.robots['robot0'].machine
    fleet.act(None, fleet.server.on_leave('robot0', robot.incarnation, fleet.now))
    at = robot.iteration
    fleet.run(5)
    fleet.check()
    assert fleet.server.is_member('robot0', robot.incarnation) and robot.iteration > at + 1
