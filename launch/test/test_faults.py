"""Robots and servers die, leave and return.

All tests except the last share one fleet. The first three tests check that this fleet trains on.
The fourth test ends it.
"""

import signal

import pytest
from fleet_env.records.events import Fault, read_run
from fleet_env.records.summary import read_summary
from fleet_under_test import Fleet

pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def fleet(tmp_path_factory):
    with Fleet(tmp_path_factory.mktemp('faults'), robots=3) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2', 'robot3')
        yield fleet


def test_a_robot_that_is_killed_is_missed_by_nobody_and_may_come_back(fleet):
    fleet.kill('robot3')
    fleet.until(lambda: fleet.state('robot3') == 'away', 'robot3 is declared away')
    fleet.until_trained('robot1', 'robot2', iterations=10)
    here = fleet.iteration('robot1')
    fleet.start('robot3')
    fleet.until(lambda: fleet.state('robot3') == 'training', 'robot3 is back')
    assert fleet.iteration('robot3') == 0 or fleet.iteration('robot3') >= here - 4
    fleet.until_trained('robot1', 'robot2', 'robot3')
    faults = [(e.robot, e.what) for e in read_run(fleet.out) if isinstance(e, Fault)]
    assert faults == [('robot3', 'peer_lost'), ('robot3', 'rejoined')]


def test_a_server_that_is_killed_goes_on_from_its_checkpoint(fleet):
    former = fleet.status.incarnation
    reached = min(r.iteration for r in fleet.robots.values())
    fleet.kill('server')
    fleet.start('server', resume=True)
    fleet.until(lambda: fleet.status.incarnation != former, 'the server is back')
    fleet.until(lambda: all(fleet.iteration(f'robot{n}') > reached + 5
                            and fleet.state(f'robot{n}') == 'training' for n in (1, 2, 3)),
                'the robots register by themselves and train beyond where they were')
    assert 'going on from' in fleet.log('server')


def test_a_robot_that_is_interrupted_leaves_in_order(fleet):
    fleet.interrupt('robot2')
    assert fleet.ended('robot2') == 0
    fleet.until(lambda: fleet.state('robot2') == 'stopped', 'the server knows that robot2 has left')
    fleet.until_trained('robot1', 'robot3', iterations=10)


def test_interrupting_the_server_ends_everybody_in_order(fleet):
    fleet.interrupt('server')
    assert [fleet.ended(name) for name in ('server', 'robot1', 'robot3')] == [0, 0, 0]
    summary = read_summary(fleet.out)
    assert summary.notes['reason'] == 'interrupted'
    assert summary.robots['robot1'].accuracy.after == summary.robots['robot3'].accuracy.after
    # this accuracy was measured before the server's restart
    assert summary.robots['robot1'].accuracy.before > 0
    assert 'Traceback' not in ''.join(fleet.log(name) for name in fleet.processes)


def test_sigterm_is_as_good_as_ctrl_c(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1')
        fleet.processes['server'].send_signal(signal.SIGTERM)
        assert [fleet.ended(name) for name in fleet.processes] == [0, 0]
