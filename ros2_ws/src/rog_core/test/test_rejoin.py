"""A robot that was out of reach rejoins without a snapshot, whatever transfer was under way."""

from dataclasses import replace

import numpy as np
import pytest
from fleet_testing import mostly_long
from rog_core.protocol.messages import Kind, RegisterRequest
from schedules import come_back, lose, run_until, settled, state_of

SYNCS = mostly_long(
    ['bsp', 'ssp:2', 'asp', 'dssp:1:4', 'flown', 'rsp:4', 'rsp:20+pipeline+sparse', 'rsp:auto',
     'gsgm', 'gsgm:4', 'local:3', 'diloco:4:2', 'diloco:4+quorum=2', 'rsp:4+local=8+momentum=0.5'],
    'bsp', 'asp', 'rsp:20+pipeline+sparse', 'gsgm', 'diloco:4+quorum=2')


@pytest.mark.parametrize('state', ['computing', 'pushing', 'waiting', 'pulling'])
@pytest.mark.parametrize('codec', ['onebit', 'ternary'])
def test_no_model_bytes_travel_whatever_the_worker_did_when_it_was_lost(state, codec):
    fleet, _ = settled(rate=1e5, codec=codec)
    worker = fleet.robots['robot0'].machine
    run_until(fleet, lambda: worker.state == state)
    lose(fleet)
    assert come_back(fleet) == 0
    assert fleet.counts['resumed'] == 1
    assert worker.iteration >= fleet.server.members['robot0'].iteration > 0


@pytest.mark.parametrize('sync', SYNCS)
def test_every_method_goes_on_with_a_robot_that_is_back(sync):
    fleet, _ = settled(sync=sync, loss=0.1, duplicate=0.2, rate=2e5)
    lose(fleet, 5.0)
    assert come_back(fleet) == 0
    assert fleet.counts['resumed'] >= 1  # more than once if an answer was lost
    assert not fleet.errors


def test_a_pull_that_was_taken_in_part_counts_as_far_as_it_was_taken():
    fleet, member = settled(rate=2e4)
    robot = fleet.robots['robot0']

    def under_way():
        pull = robot.machine.pull
        return member.sender is not None and pull.transfer == member.sender.transfer \
            and pull.known().taken and not pull.is_closed(pull.transfer)
    run_until(fleet, under_way)
    lose(fleet)
    sender, pull = member.sender, robot.machine.pull
    assert sender is not None and sender.transfer.kind == Kind.PULL
    assert pull.transfer == sender.transfer
    assert (member.mirror.rows != robot.store.weights).any()
    run_until(fleet, lambda: fleet.dead_links.discard('robot0') or fleet.counts['resumed'])
    resumed = fleet.server.members['robot0']
    # Before any further row arrives, the robot's rows equal the mirror in every bit.
    assert (resumed.mirror.rows == robot.store.weights).all()
    assert 0 < sender.taken().size and not sender.complete()
    come_back(fleet)


def test_after_a_restart_of_the_server_it_gets_a_snapshot():
    fleet, _ = settled()
    lose(fleet)
    fleet.restart_server(fleet.checkpoint())
    assert come_back(fleet) > 0
    assert fleet.counts['resumed'] == 0
    fleet.run(3)
    fleet.check()


def test_a_robot_that_was_restarted_gets_a_snapshot():
    fleet, _ = settled()
    lose(fleet)
    fleet.start_robot('robot0')
    assert come_back(fleet) > 0
    assert fleet.counts['resumed'] == 0


def test_a_robot_whose_snapshot_was_cut_off_gets_a_new_one():
    fleet, _ = settled(rate=1e5)
    fleet.start_robot('robot0')
    fleet.dead_links.add('robot0')
    fleet.run(2)
    fleet.dead_links.discard('robot0')
    run_until(fleet, lambda: state_of(fleet) == 'joining'
              and (fleet.robots['robot0'].store.weights != 7).any())
    lose(fleet)
    assert come_back(fleet) > 0
    assert fleet.counts['resumed'] == 0


def test_registrations_that_come_twice_or_late_change_nothing():
    fleet, _ = settled()
    seen = []
    register = fleet.server.on_register

    def spy(request, now):
        seen.append(request)
        return register(request, now)
    fleet.server.on_register = spy
    lose(fleet)
    come_back(fleet)
    last = seen[-1]
    assert isinstance(last, RegisterRequest) and last.pull is not None
    member, server = fleet.server.members['robot0'], fleet.server
    run_until(fleet, lambda: member.state == 'training')
    for request in (last, *(replace(last, number=n) for n in range(1, last.number))):
        before = (member.mirror.rows.copy(), member.attempt, member.iteration, member.state)
        answer, actions = register(request, fleet.now)
        assert actions == [] and answer == member.answer
        assert server.members['robot0'] is member
        assert (member.mirror.rows == before[0]).all()
        assert (member.attempt, member.iteration, member.state) == before[1:]
    fleet.run(3)
    fleet.check()


def test_what_it_had_computed_and_not_sent_is_still_there():
    """Check that a robot that is away keeps the rows that it has not sent; no value may be lost."""
    fleet, _ = settled(rate=1e5)
    worker = fleet.robots['robot0'].machine
    run_until(fleet, lambda: worker.state == 'pushing')
    lose(fleet)
    held = np.abs(fleet.held(fleet.robots['robot0'])).sum()
    assert held > 0
    assert come_back(fleet) == 0
