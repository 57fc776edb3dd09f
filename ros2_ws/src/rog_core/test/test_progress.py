"""Robots that send heartbeats but make no progress hold up no other robot, and lose nothing."""

import math
from dataclasses import replace

import pytest
from configs import server_config
from fleet import Fleet
from fleet_testing import mostly_long
from rog_core.patience import ITERATIONS, TIMES, fleet_patience
from rog_core.protocol.messages import Chunk, Notice, Stop
from rog_core.protocol.states import AWAY, COUNTED, OPEN, RETIRED, SENDING, STOPPED
from schedules import SYNCS, check_end, run_until, settled
from watched import watched

PATIENCE = 0.8
CODED = ['gc', 'dgh-gc:1:2:5']
CAPACITIES = (1.0, 1.0, 1.0, 1.0)


def quick(sync, patience=PATIENCE, robots=3, codec='onebit', **network):
    """Return a fleet that trains, and whose robots all compute fast."""
    coded = sync.partition(':')[0] in ('gc', 'hgc', 'dgh-gc')
    network |= {'capacities': CAPACITIES} if coded else {}
    codec = 'raw' if 'svrg' in sync else codec
    fleet = Fleet(4, 4 if coded else robots, sync, codec, patience=patience, **network)
    for robot in fleet.robots.values():
        robot.compute_time = 0.1
    run_until(fleet, lambda: len(fleet.server.active()) == len(fleet.robots))
    fleet.run(2)
    return fleet


def iterations(fleet, *without):
    return {name: robot.machine.iteration for name, robot in fleet.robots.items()
            if name not in without}


def deaf(fleet, *names):
    """Let the links of some robots carry only heartbeats."""
    fleet.deaf_links.update(names)


@pytest.mark.parametrize('sync', mostly_long(
    [*SYNCS, 'gsgm+svrg=3', 'asp+svrg=3', 'ssp:1+svrg=2', *CODED],
    'rsp:6+pipeline+sparse', 'gsgm'))
def test_no_method_waits_for_a_robot_that_is_heard_but_makes_no_progress(sync):
    # The heartbeat limit is long, so that the robot need not register again during the test.
    fleet = quick(sync, heartbeat_limit=2.0)
    # Coded gradients tolerate one straggler, so two robots must be silent.
    silent = ('robot0', 'robot1') if sync in CODED else ('robot0',)
    deaf(fleet, *silent)
    # The staleness bound may allow the other robots some more iterations. Then they wait until the
    # silent robots are retired, and continue.
    fleet.run(8)
    fleet.check()
    before = iterations(fleet, *silent)
    fleet.run(6)
    fleet.check()
    for name, iteration in iterations(fleet, *silent).items():
        assert iteration > before[name] + 5, (name, sync)
    assert all(fleet.server.members[name].state != 'away' for name in silent), 'it is heard'
    assert fleet.counts['retired'] or sync in ('asp', 'asp+svrg=3') or not any(
        fleet.server.members[name].patience.place == RETIRED for name in silent)
    fleet.deaf_links.clear()
    check_end(fleet, 8) if sync not in CODED else fleet.run(8)
    assert fleet.counts['returned'] == fleet.counts['retired']
    assert {m.patience.place for m in fleet.server.members.values()} == {COUNTED}


@pytest.mark.parametrize('sync', mostly_long(
    ['bsp', 'ssp:2', 'dssp:1:4', 'flown:1:3', 'rsp:4', 'gsgm', 'gsgm:3', 'rsp:6+pipeline+sparse',
     'local:3'], 'rsp:6+pipeline+sparse', 'local:3'))
def test_it_is_taken_back_without_a_snapshot_as_soon_as_it_answers(sync):
    fleet = quick(sync)
    models = fleet.counts['SNAPSHOT']
    deaf(fleet, 'robot0')
    run_until(fleet, lambda: fleet.counts['retired'])
    fleet.run(3)
    fleet.check()
    fleet.deaf_links.clear()
    back = fleet.now
    run_until(fleet, lambda: fleet.counts['returned'])
    assert fleet.now - back < 2, 'in virtual seconds'
    assert fleet.counts['SNAPSHOT'] == models
    assert fleet.counts['resumed'] == 0, 'it did not have to register'
    fleet.check()
    check_end(fleet, 5)


def test_the_others_pause_no_longer_than_the_patience():
    fleet = quick('bsp')
    deaf(fleet, 'robot0')
    began = fleet.now
    run_until(fleet, lambda: fleet.counts['retired'])
    assert fleet.now - began < PATIENCE + 0.5
    before = iterations(fleet, 'robot0')
    fleet.run(0.5)
    assert all(n > before[name] for name, n in iterations(fleet, 'robot0').items())


def test_a_robot_whose_rows_arrive_is_not_away_though_its_heartbeats_are_lost():
    fleet = quick('asp')
    known = fleet.server.on_heartbeat
    fleet.server.on_heartbeat = lambda robot, *rest: [] if robot == 'robot0' else known(
        robot, *rest)
    before = fleet.robots['robot0'].machine.iteration
    for _ in range(50):
        fleet.run(0.1)
        assert fleet.server.members['robot0'].state != AWAY
    assert fleet.robots['robot0'].machine.iteration > before + 5
    fleet.check()


def test_a_robot_whose_rows_only_come_again_is_not_away_either():
    """Check that a robot is not away while the server receives only repeated chunks from it.

    On a real link, repeated chunks can fill the queue, so that nothing else arrives.
    """
    fleet = quick('asp', rate=2e4)
    push = fleet.server.members['robot0'].push
    run_until(fleet, lambda: push.state == OPEN)
    chunk = next(message for name, message, *_ in reversed(fleet.history)
                 if name == 'robot0' and isinstance(message, Chunk)
                 and message.transfer == push.transfer)
    fleet.dead_links.add('robot0')
    for _ in range(10):
        fleet.run(0.5)
        fleet.deliver_to_server('robot0', chunk)
    assert fleet.server.members['robot0'].state != AWAY
    fleet.run(2.0)
    assert fleet.server.members['robot0'].state == AWAY


@pytest.mark.parametrize('sync', mostly_long(['bsp', 'rsp:4', 'gsgm', 'local:3', 'gc'],
                                             'bsp', 'rsp:4'))
def test_a_slow_board_is_waited_for(sync):
    fleet = quick(sync, patience=0.0)
    fleet.robots['robot0'].compute_time = 5.0  # fifty times as long as the other robots take
    fleet.run(90)
    fleet.check()
    assert fleet.counts['retired'] == 0


def test_a_slow_link_that_moves_bytes_is_waited_for():
    fleet = quick('bsp', patience=3.0)
    carry = fleet.carry
    fleet.carry = lambda robot, up, nbytes, deliver: carry(
        # Each byte of robot0 counts 400 times, so the effective rate of its link is 2.5 kB/s.
        robot, up, nbytes * (400 if robot == 'robot0' else 1), deliver)
    fleet.run(60)
    fleet.check()
    assert fleet.counts['retired'] == 0
    assert 2 < fleet.robots['robot0'].machine.iteration


def test_a_program_that_hangs_is_not_waited_for():
    """A robot that reports `computing` far longer than any earlier gradient took is retired."""
    fleet = quick('bsp')
    fleet.robots['robot0'].compute_time = 1e9
    fleet.run(TIMES * max(0.2, PATIENCE) + 2)
    assert fleet.counts['retired'] == 1
    before = iterations(fleet, 'robot0')
    fleet.run(3)
    assert all(n > before[name] + 5 for name, n in iterations(fleet, 'robot0').items())


def test_a_program_that_hangs_in_its_first_gradient_is_not_waited_for():
    """Let robot0 hang in its first gradient, so that there is no earlier gradient to compare with.

    This happens, for example, if the camera gives no image.
    """
    fleet = quick('rsp:4')
    fleet.kill_robot('robot0')
    run_until(fleet, lambda: fleet.server.members['robot0'].state == AWAY)
    fleet.start_robot('robot0')
    fleet.robots['robot0'].compute_time = 1e9
    run_until(fleet, lambda: fleet.server.members['robot0'].patience.computes > 0)
    former = fleet.counts['retired']
    run_until(fleet, lambda: fleet.counts['retired'] > former)
    assert math.isnan(fleet.server.members['robot0'].patience.usual)
    before = iterations(fleet, 'robot0')
    fleet.run(6)
    fleet.check()
    assert all(i > before[name] + 5 for name, i in iterations(fleet, 'robot0').items())


def test_rows_that_overtake_the_receipt_of_a_pull_are_not_lost():
    """With pipelining, a push begins as soon as the receipt of the pull is sent.

    If the server dropped rows that arrive before the receipt, the robot would have to send them
    again after a time-out. Each time-out would double the next time-out.
    """
    fleet = quick('rsp:6+pipeline', patience=math.inf, robots=2)
    fleet.run(20)
    fleet.check()
    assert max(robot.machine.link.timeout for robot in fleet.robots.values()) < 0.2


def test_while_the_server_itself_does_not_run_nobody_is_silent_or_pauses():
    fleet = quick('bsp')
    server, now = fleet.server, fleet.now + 30.0
    # After the server process was held up for 30 s, it handled a message of robot1 first, and only
    # then noticed the delay.
    patience = {name: member.patience for name, member in server.members.items()}
    patience['robot1'].hear(now - 0.1)
    patience['robot1'].advance(now - 0.1)
    ages = {name: fleet.now - p.heard for name, p in patience.items() if name != 'robot1'}
    server.on_held_up(30.0, now)
    assert {name: now - patience[name].heard for name in ages} == pytest.approx(ages)
    assert all(p.heard <= now and p.progress <= now for p in patience.values())
    server.on_time(now)
    assert all(m.alive and m.patience.place == COUNTED for m in server.members.values())


def test_with_infinite_patience_the_others_wait():
    fleet = quick('bsp', patience=math.inf)
    deaf(fleet, 'robot0')
    fleet.run(3)
    before = iterations(fleet)
    fleet.run(60)
    assert iterations(fleet) == before and fleet.counts['retired'] == 0


def test_a_robot_that_nobody_waits_for_is_not_retired():
    fleet = quick('asp')
    deaf(fleet, 'robot0')
    fleet.run(10)
    assert fleet.counts['retired'] == 0


@pytest.mark.parametrize('links', ['dead_links', 'deaf_links'])
def test_the_end_of_a_run_has_a_limit(links):
    """Check that the run ends although robot0, unlike the other robots, never gets the model."""
    fleet = quick('rsp:4')
    getattr(fleet, links).add('robot0')
    fleet.run(0.3)
    fleet.act(None, fleet.server.stop(fleet.now))
    fleet.run(fleet.heartbeat_limit + PATIENCE + 5)
    assert fleet.stopped
    for name in ('robot1', 'robot2'):
        robot = fleet.robots[name]
        assert robot.machine.state == STOPPED
        assert (robot.store.weights == fleet.server.master).all()
    assert fleet.counts['given_up'] == (links == 'deaf_links')


@pytest.mark.parametrize('doing', ['computing', 'pushing', 'pulling'])
@pytest.mark.parametrize('sync', mostly_long(
    [*SYNCS, *CODED], 'bsp', 'rsp:6+pipeline+sparse', 'gsgm', 'gc'))
def test_the_end_waits_for_no_long_iteration_and_all_have_the_final_model(sync, doing):
    computes = doing == 'computing'
    # a push takes 1.2 s if it has all rows
    fleet = quick(sync, heartbeat_limit=5.0, codec='raw', rate=1e6 if computes else 1e4)
    robot = fleet.robots['robot0']
    if computes:
        robot.compute_time = 1e3
    run_until(fleet, lambda: robot.machine.state == doing)
    fleet.server.config = replace(fleet.server.config, drain_limit=0.2)
    began = fleet.now
    fleet.act(None, fleet.server.stop(began))
    run_until(fleet, lambda: fleet.stopped)
    assert fleet.now - began < 2, 'in virtual seconds'
    fleet.run(1)  # the last receipts arrive
    assert not fleet.counts['given_up']
    for name, one in fleet.robots.items():
        assert one.machine.state == STOPPED
        # rows that have not arrived in time are as the server knows them
        known = fleet.server.members[name].mirror.rows
        now = one.store.weights
        assert ((now == fleet.server.master) | (now == known)).all()
        assert not computes or (now == fleet.server.master).all()


def test_who_has_not_finished_at_the_last_moment_is_given_up():
    fleet, member = settled(sync='bsp')
    fleet.server.config = server_config(stop_limit=2.0, heartbeat_limit=1.0)
    for robot in fleet.robots.values():
        robot.compute_time = 1e9
    fleet.run(2)
    actions = fleet.server.stop(fleet.now)
    assert fleet.server.deadline <= fleet.now + 2
    actions = fleet.server.on_time(fleet.now + 2)
    assert any(isinstance(action, Stop) for action in actions)
    assert not member.alive


def test_adaptive_patience_follows_the_pace_of_the_fleet():
    fleet = quick('rsp:4', patience=0.0, heartbeat_limit=1.0)
    fast = fleet.server.patience
    assert fast == max(1.0, fast)
    for robot in fleet.robots.values():
        robot.compute_time = 3.0
    fleet.run(120)
    assert fleet.counts['retired'] == 0
    assert fleet.server.patience > ITERATIONS * 2
    assert fleet_patience([math.nan], 0.0, 3.0) == 3.0
    assert fleet_patience([1.0, 2.0], 7.5, 3.0) == 7.5


def test_retirement_is_told_with_its_reason():
    fleet = quick('bsp')
    told = []
    notice = fleet.notice
    fleet.notice = lambda action: told.append(action) or notice(action)
    deaf(fleet, 'robot0')
    run_until(fleet, lambda: fleet.counts['retired'])
    fleet.deaf_links.clear()
    run_until(fleet, lambda: fleet.counts['returned'])
    assert [(n.robot, n.what) for n in told if isinstance(n, Notice)] == [
        ('robot0', 'retired'), ('robot0', 'returned')]
    assert 'no progress for 0.8 s while' in told[0].detail


def test_after_an_outage_both_sides_send_again_at_once():
    """Check that the first message from the other side ends a time-out, even a long time-out."""
    fleet = quick('asp', heartbeat_limit=1e3)
    robot = fleet.robots['robot0']
    robot.compute_time = 0.3
    run_until(fleet, lambda: robot.machine.state == 'pushing'
              and robot.machine.push.state == SENDING)
    fleet.dead_links.add('robot0')
    run_until(fleet, lambda: robot.machine.link.timeout > 1)
    fleet.dead_links.clear()
    back = fleet.now
    run_until(fleet, lambda: robot.machine.state != 'pushing' and not robot.machine.link.timeouts)
    assert fleet.now < back + 2
    with watched():
        fleet.run(2)
    fleet.check()
