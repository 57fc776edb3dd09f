"""The page shows a recorded run."""

import pytest
from fleet_env.records.events import Evaluation, Fault, Iteration, RunWriter, Start
from fleet_env.records.summary import RobotSummary, Summary, write_summary
from rog_view.recorded import Recorded


@pytest.fixture
def folder(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write(Start(0.0, '', 'a:B', 'rsp:4', 1, 'toy', ['robot1', 'robot2']))
        for robot in ('robot1', 'robot2'):
            for k in range(1, 5):
                writer.write(Iteration(k * 1.0, robot, k, 1.0 / k, .5, .2, .1, 10 + k, 5, 20,
                                       bandwidth=3.0, staleness=1))
            writer.write(Evaluation(4.0, robot, 4, .8))
        writer.write(Fault(2.5, 'robot2', 'peer_lost', 'no heartbeat'))
    return tmp_path


def test_a_run_is_shown_as_it_was_at_its_end(folder):
    write_summary(folder, Summary('rsp:4', 'a:B', 1, 5.0, {'robot1': RobotSummary(4)}, 'toy'))
    view = Recorded(folder).view
    assert (view.fleet.state, view.fleet.sync, view.fleet.elapsed) == ('stopped', 'rsp:4', 5.0)
    robot = view.fleet.robots[0]
    assert (robot.name, robot.iteration, robot.rows_pushed, robot.accuracy) == ('robot1', 4, 14, .8)
    assert robot.compute == pytest.approx(2.0) and robot.stall == pytest.approx(.4)
    assert view.curves['rows']['robot2'] == [(k, 100 * (10 + k) / 20) for k in range(1, 5)]
    assert (2.5, 'robot2', 'peer_lost: no heartbeat') in view.events


def test_a_run_that_has_no_summary_yet_is_shown_as_far_as_it_got(folder):
    fleet = Recorded(folder).view.fleet
    assert (fleet.state, fleet.elapsed) == ('not ended', 4.0)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match='run.jsonl'):
        Recorded(tmp_path / 'nowhere')
