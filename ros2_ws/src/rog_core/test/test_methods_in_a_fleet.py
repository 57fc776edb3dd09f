"""Tests of methods in a whole fleet: progress after any outage, and the bound of the method."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from rog_core.protocol.config import ServerConfig
from rog_core.server.member import leeway
from schedules import SYNCS, check_end


@pytest.mark.long
@pytest.mark.parametrize('sync', SYNCS)
@pytest.mark.parametrize('heartbeat_limit', [1.0, 1e4])
def test_links_that_die_for_minutes_stop_nobody_for_good(sync, heartbeat_limit):
    """Check that all robots continue after an outage.

    With the long heartbeat limit, the server considers no robot away. So during the outage the
    other robots wait.
    """
    fleet = Fleet(11, 3, sync, loss=0.05, rate=2e5, heartbeat_limit=heartbeat_limit)
    fleet.run(2)
    for names in (['robot0'], ['robot1', 'robot2'], list(fleet.robots)):
        before = [robot.machine.iteration for robot in fleet.robots.values()]
        fleet.black_out(names, 90.0)
        fleet.check()
        fleet.run(12)
        fleet.check()
        after = [robot.machine.iteration for robot in fleet.robots.values()]
        assert all(now > then for now, then in zip(after, before)), (names, before, after)
    check_end(fleet)
    assert bool(fleet.counts['resumed']) == (heartbeat_limit < 90)


@pytest.mark.parametrize('sync', mostly_long(
    ['bsp', 'ssp:2', 'dssp:1:4', 'flown:1:6', 'ssp:2+early', 'ssp:2+early-minimum', 'gsgm',
     'local:3', 'diloco:3', 'diloco:6:3-pipeline'],
    'ssp:2', 'flown:1:6', 'gsgm', 'diloco:6:3-pipeline'))
def test_iterations_never_part_by_more_than_the_highest_threshold(sync):
    fleet = Fleet(2, 3, sync, loss=0.05, rate=3e4)
    for robot, seconds in zip(fleet.robots.values(), (0.05, 0.1, 0.5)):
        robot.compute_time = seconds
    ahead = []
    check_start = fleet.check_start

    def spy(robot, iteration):
        check_start(robot, iteration)
        slowest = min(member.iteration for member in fleet.server.active())
        ahead.append(iteration - 1 - slowest)
    fleet.check_start = spy
    fleet.run(30)
    assert max(ahead) < fleet.server.method.most
    assert max(ahead) == fleet.server.method.most - 1 or sync.startswith('flown')


def without_age(config):
    """Return a copy of ``config`` in which the age of a row does not increase its importance."""
    if isinstance(config, ServerConfig):
        return replace(config, transfer=without_age(config.transfer))
    return replace(config, importance_age=0.0)


def test_rows_of_ssp_with_early_transmission_may_fall_behind_further_than_its_iterations():
    """The staleness of SSP counts iterations, so no row is sent only because of its age."""
    behind = {}
    for sync in ('ssp:2+early-minimum', 'rsp:3-minimum'):
        fleet = Fleet(2, 3, sync, rate=2e4)
        for machine in (fleet.server, *(robot.machine for robot in fleet.robots.values())):
            machine.config = without_age(machine.config)
        fleet.run(30)
        fleet.check()
        behind[sync] = max(member.iteration - member.versions.min()
                           for member in fleet.server.active())
    assert behind['rsp:3-minimum'] < 3 < behind['ssp:2+early-minimum']


# -- the smaller codec of sparse methods


def slow_robot(sync, rate=4e3):
    """Return a fleet in which only the pushes and pulls of robot0 are very slow."""
    fleet = Fleet(6, 3, sync, rate=1e6)
    carry = fleet.carry

    def crawl(robot, towards_server, nbytes, deliver):
        carry(robot, towards_server, nbytes * (1e6 / rate if robot == 'robot0' else 1), deliver)
    fleet.carry = crawl
    for robot in fleet.robots.values():
        robot.compute_time = 0.2
    used = {name: Counter() for name in fleet.robots}
    send = fleet.send

    def spy(side, action, robot):
        message = action.message
        if hasattr(message, 'codec') and hasattr(message, 'sequence') and message.transfer.kind < 2:
            used[action.robot][int(message.transfer.kind), message.codec] += 1
        send(side, action, robot)
    fleet.send = spy
    return fleet, used


def test_only_a_robot_on_a_bad_link_uses_the_smaller_code_and_only_if_asked_to():
    fleet, used = slow_robot('rsp:4+sparse')
    fleet.run(40)
    fleet.check()
    assert {(0, 2), (1, 2)} <= set(used['robot0'])
    assert set(used['robot1']) == set(used['robot2']) == {(0, 1), (1, 1)}
    sparse = fleet.counts['compute']
    fleet, used = slow_robot('rsp:4')
    fleet.run(40)
    fleet.check()
    assert all(set(chunks) == {(0, 1), (1, 1)} for chunks in used.values())
    assert sparse > fleet.counts['compute']


def test_what_the_smaller_code_leaves_out_arrives_later():
    """Because of error feedback nothing is lost, and in the end all robots have the same model."""
    fleet, used = slow_robot('rsp:4+pipeline+sparse')
    fleet.run(40)
    fleet.check()
    assert {(0, 2), (1, 2)} <= set(used['robot0'])
    held = np.abs(fleet.held(fleet.robots['robot0'])).sum()
    assert held > 0
    check_end(fleet)


def test_patience_is_what_a_robot_has_left_within_the_bound():
    fleet = Fleet(6, 3, 'rsp:6+sparse')
    fleet.run(5)
    server = fleet.server
    member = server.members['robot0']
    for other in server.members.values():
        other.period = 2.0
        other.iteration = other.slowest = 10
    assert leeway(member, server.active(), server.method) == pytest.approx(2.0)
    member.slowest = 7
    assert leeway(member, server.active(), server.method) == pytest.approx(2.0 * 3 / 6)
    member.slowest = 1  # the other robots already wait for this member
    assert leeway(member, server.active(), server.method) == pytest.approx(2.0 / 6)
    for other in server.members.values():
        other.period = math.nan
    assert leeway(member, server.active(), server.method) == math.inf
    fleet.set_sync('rsp:6')
    member.period = 2.0
    assert leeway(member, server.active(), server.method) == math.inf


def test_a_lone_robot_has_all_the_time():
    fleet = Fleet(6, 1, 'rsp:6+sparse', rate=3e3)
    fleet.run(20)
    assert fleet.robots['robot0'].machine.command.patience == math.inf
    assert fleet.counts['ternary'] == 0


# -- time statistics


@pytest.mark.parametrize('sync', mostly_long(
    ['bsp', 'rsp:4', 'rsp:20+pipeline+sparse', 'local:3', 'diloco:4:2', 'rsp:4+pipeline+local=2'],
    'bsp', 'rsp:20+pipeline+sparse', 'rsp:4+pipeline+local=2'))
def test_all_time_since_the_first_grant_is_computing_communicating_or_stalled(sync):
    fleet = Fleet(9, 3, sync, loss=0.05, rate=5e4)
    began = {}
    check_start = fleet.check_start

    def spy(robot, iteration):
        began.setdefault(robot.name, fleet.now)
        check_start(robot, iteration)
    fleet.check_start = spy
    fleet.run(10)
    fleet.black_out(['robot0'], 60.0)
    for robot in fleet.robots.values():
        report = robot.machine.report(fleet.now)
        total = report.compute_time + report.communicate_time + report.stall_time
        assert total == pytest.approx(fleet.now - began[robot.name])
