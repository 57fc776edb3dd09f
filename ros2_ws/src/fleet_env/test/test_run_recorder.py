"""The record of a run covers all processes of its robots and server, including restarted ones."""

import dataclasses
from pathlib import Path

import pytest
from fleet_env.records import events
from fleet_env.records.run_recorder import Recorder, RobotReport
from fleet_env.records.summary import read_summary

MESSAGE = Path(__file__).parents[2] / 'rog_msgs/msg/TrainingStatus.msg'

START = events.Start(0.0, '', 'tiny:Tiny', 'rsp:4', 1, 'team', ['robot1'])


def status(iteration, life=1, state='computing', **fields):
    return RobotReport(robot='robot1', incarnation=life, state=state, iteration=iteration,
                       loss=0.5, compute_time=float(iteration), energy=2.0 * iteration,
                       bytes_sent=100 * iteration, rows_pushed=iteration, **fields)


def kinds(folder):
    return [type(event).__name__ for event in events.read_run(folder)]


def test_a_run_of_one_robot(tmp_path):
    recorder = Recorder(tmp_path, START)
    recorder.baseline(0.9, 0.4)
    for message in (status(0), status(1), status(1), status(3, evaluated_at=3, accuracy=0.8),
                    status(3, state='stopped', evaluated_at=3, accuracy=0.8)):
        recorder.status(5.0, message)
    recorder.stop(6.0, 'finished')
    assert kinds(tmp_path) == ['Start', 'Evaluation', 'Evaluation', 'Status', 'Iteration',
                               'Iteration', 'Evaluation', 'Status', 'Stop']
    assert recorder.final_statuses() == {'robot1'}
    robot = read_summary(tmp_path).robots['robot1']
    assert (robot.iterations, robot.compute_s, robot.energy_j, robot.bytes_sent) == (3, 3, 6, 300)
    assert robot.rows_pushed_mean == 2.0
    assert (robot.accuracy.clean, robot.accuracy.before, robot.accuracy.after) == (0.9, 0.4, 0.8)
    assert robot.evaluations == [(5.0, 3, 0.8)]
    steps = [e for e in events.read_run(tmp_path) if isinstance(e, events.Iteration)]
    assert [(step.compute_s, step.energy_j) for step in steps] == [(1.0, 2.0), (2.0, 4.0)]


def test_the_energies_of_iterations_begin_where_that_of_the_first_status_ends(tmp_path):
    recorder = Recorder(tmp_path, START)
    for message in (status(4), status(6), status(9, state='stopped')):
        recorder.status(5.0, message)
    states = [e for e in events.read_run(tmp_path) if isinstance(e, events.Status)]
    steps = [e for e in events.read_run(tmp_path) if isinstance(e, events.Iteration)]
    assert [state.energy for state in states] == [8.0, 18.0]
    assert [step.energy_j for step in steps] == [0.0, 4.0, 6.0]


def test_the_summary_names_the_last_method(tmp_path):
    Recorder(tmp_path / 'same', START).stop(6.0, 'finished')
    Recorder(tmp_path / 'changed', START).stop(6.0, 'finished', 'rsp:20')
    assert [read_summary(tmp_path / name).sync for name in ('same', 'changed')] == [
        'rsp:4', 'rsp:20']


def test_the_final_model_counts_though_the_one_of_before_has_its_iteration(tmp_path):
    recorder = Recorder(tmp_path, START)
    for message in (status(3, evaluated_at=3, accuracy=0.8),
                    status(3, state='evaluating', evaluated_at=3, accuracy=0.8),
                    status(3, state='stopped', evaluated_at=3, accuracy=0.9)):
        assert not recorder.final_statuses()
        recorder.status(5.0, message)
    assert recorder.stop(6.0, 'finished').robots['robot1'].accuracy.after == 0.9


def test_a_robot_that_comes_back_goes_on_counting(tmp_path):
    recorder = Recorder(tmp_path, START)
    for message in (status(4), status(0, life=2), status(6, life=2), status(6, 2, 'stopped')):
        recorder.status(1.0, message)
    recorder.stop(2.0, 'finished')
    robot = read_summary(tmp_path).robots['robot1']
    assert robot.iterations == 6 and robot.compute_s == 10 and robot.energy_j == 20


@pytest.mark.parametrize('life, computed, energy', [(1, 7.0, 14.0), (2, 12.0, 24.0)])
def test_a_server_that_comes_back_takes_up_the_records(tmp_path, life, computed, energy):
    """A restarted server continues the records, whether the robot's process is the same or new.

    ``life``: 1: the robot's process has continued, and keeps its counters. 2: the process is new.
    """
    first = Recorder(tmp_path, START)
    first.baseline(0.9, 0.4)
    first.status(1.0, status(5, evaluated_at=5, accuracy=0.6))
    del first  # as if its process had been killed: the file is closed, and not locked any more
    second = Recorder(tmp_path, START, events.read_run(tmp_path))
    second.status(9.0, status(7, life, 'stopped', evaluated_at=7, accuracy=0.7))
    second.stop(9.0, 'finished')
    robot = read_summary(tmp_path).robots['robot1']
    assert robot.compute_s == computed and robot.iterations == 7 and robot.energy_j == energy
    assert robot.accuracy.before == 0.4 and robot.accuracy.after == 0.7
    assert [e[1] for e in robot.evaluations] == [5, 7]


def test_without_a_directory_nothing_is_written_and_the_outcome_is_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def outcome(directory):
        recorder = Recorder(directory, START)
        recorder.baseline(0.9, 0.4)
        recorder.status(1.0, status(3, evaluated_at=3, accuracy=0.8))
        recorder.fault(1.5, 'robot1', 'link_down', 'for 2 s')
        return recorder.stop(2.0, 'finished')
    summary = outcome(None)
    assert list(tmp_path.iterdir()) == [] and summary.robots['robot1'].iterations == 3
    assert outcome(tmp_path) == summary == read_summary(tmp_path)


@pytest.mark.skipif(not MESSAGE.is_file(), reason='rog_msgs is not beside this package')
def test_a_report_has_the_fields_of_the_message():
    lines = [line.split('#')[0].split() for line in MESSAGE.read_text().splitlines()]
    # fields about the process, not about training
    of_the_process = {'header', 'host', 'version', 'session', 'count', 'tag'}
    there = [words[1] for words in lines if words and words[1] not in of_the_process]
    assert [field.name for field in dataclasses.fields(RobotReport)] == there


def test_the_last_accuracy_of_the_server_s_model_is_in_the_summary_also_after_a_restart(tmp_path):
    recorder = Recorder(tmp_path, START)
    recorder.status(1.0, status(1, evaluated_at=1, accuracy=0.3))
    recorder.server(2.0, 5, 0.6)
    recorder.server(4.0, 9, 0.7)
    del recorder  # as if its process had been killed
    again = Recorder(tmp_path, START, events.read_run(tmp_path))
    summary = again.stop(6.0, 'finished')
    assert summary.notes['server'] == {'accuracy': 0.7, 'iteration': 9}
    assert sorted(summary.robots) == ['robot1'], 'the server is no robot'
    assert 'server' not in Recorder(None, START).stop(6.0, 'finished').notes
