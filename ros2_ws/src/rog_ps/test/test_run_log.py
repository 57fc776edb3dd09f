"""The log of a run, without ROS: its record, its time, who is present, and when it is over."""

import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from fleet_env.errors import RecordError
from fleet_env.records.events import Fault, read_run
from fleet_env.records.run_recorder import RobotReport
from fleet_env.records.summary import read_summary
from kept_log import Log
from rog_core.errors import ConfigError
from rog_core.loopback import Loopback
from rog_core.methods import Team
from rog_ps.run_log import ACCURACY, RunLog

LIMIT, STOP_BY, MOMENT = 3.0, 60.0, 10.0
OPENS = "import sys; sys.modules['rclpy'] = None; import rog_ps.run_log"


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Run:
    """A run of a server whose robots are ``members`` (name -> state)."""

    def __init__(self, out='', resume=False, members=()):
        self.clock, self.log = Clock(), Log()
        self.server = Loopback.small([('w', (3, 4))], 'rsp:4', Team({'robot1': 1.0})).server
        self.server.stop_by = self.clock.now + STOP_BY
        self.server.members = {name: SimpleNamespace(robot=name, state=state)
                               for name, state in dict(members).items()}
        training = SimpleNamespace(task='a:B', sync='rsp:4', codec='onebit')
        self.run = RunLog(SimpleNamespace(
            out=str(out), resume=resume, fleet='small', seed=1, training=training,
            server=SimpleNamespace(keep=3), heartbeat=SimpleNamespace(limit=LIMIT)),
            self.log, self.clock)

    def begin(self, baseline=(math.nan, .25)):
        self.run.begin(self.server, ['robot1'], baseline)
        return self

    def after(self, seconds):
        self.clock.now += seconds
        return self.run

    def over(self, evaluating=False):
        return self.run.is_over(evaluating, False)


def test_it_needs_no_ros():
    subprocess.run([sys.executable, '-c', OPENS], check=True)


def test_the_time_of_training_begins_with_the_first_robot_and_stands_still_in_a_pause():
    one = Run()
    run = one.run
    assert run.elapsed == 0
    one.after(5.0)
    assert run.on_joined('robot1', 1) and not run.on_joined('robot2', 1)
    run.go_on()
    assert one.after(4.0).elapsed == 4
    run.pause()
    assert one.after(7.0).elapsed == 4
    run.go_on()
    assert one.after(1.0).elapsed == 5


def test_a_robot_that_joins_in_a_pause_waits_for_its_end():
    one = Run()
    one.run.on_joined('robot1', 1)
    assert one.after(9.0).elapsed == 0
    one.run.go_on()
    assert one.after(2.0).elapsed == 2


def test_a_resumed_run_goes_on_with_the_model_and_the_time_of_its_checkpoint(tmp_path):
    one = Run(tmp_path).begin()
    one.run.go_on()
    one.run.on_joined('robot1', 1)
    one.after(30.0).save_or_say(one.server.master + 1, one.server.checkpoint())
    assert one.run.faults == [] and one.run.close('finished', 'rsp:4') == ''
    with pytest.raises(ConfigError, match='already holds a run'):
        Run(tmp_path)
    other = Run(tmp_path, resume=True)
    master, state = other.run.newest_checkpoint(other.server.partition, other.server.master)
    assert (master == one.server.master + 1).all() and state.sync == 'rsp:4'
    assert other.run.elapsed == 30
    other.begin(None).run.go_on()
    other.run.on_joined('robot1', 1)
    assert other.after(3.0).elapsed == 33


def test_who_goes_away_and_comes_back_is_recorded_once(tmp_path):
    one = Run(tmp_path, members={'robot1': 'training', 'robot2': 'away'}).begin()
    one.run.report_away()
    one.run.report_away()
    assert one.run.away == {'robot2'}
    one.run.on_joined('robot2', 4)
    assert one.run.away == set()
    one.run.close('finished', 'rsp:4')
    faults = [(e.robot, e.what) for e in read_run(tmp_path) if isinstance(e, Fault)]
    assert faults == [('robot2', 'peer_lost'), ('robot2', 'rejoined')]
    assert read_summary(tmp_path).notes['faults'] == {'peer_lost': 1, 'rejoined': 1}


@pytest.mark.parametrize(('then', 'said'), [('computing', ['robot1 is back from its pause']),
                                            ('stopped', [])])
def test_a_pause_of_a_robot_is_logged_when_it_begins_and_when_it_ends(then, said):
    one = Run()
    for state in ('computing', 'paused', 'paused', then):
        one.run.on_status('robot1', state)
    assert one.log.said == ['robot1 has paused; the others go on', *said]
    assert not one.run.paused


def test_what_is_not_saved_is_told_until_it_is_saved_again(tmp_path):
    one = Run(tmp_path).begin()
    one.run.save_or_say(np.full_like(one.server.master, np.nan), one.server.checkpoint())
    fault, = one.run.faults
    assert fault.startswith('no checkpoint: ') and one.log.said == [fault]
    one.run.save_or_say(one.server.master, one.server.checkpoint())
    assert one.run.faults == [] and one.log.said[-1] == 'mended: no checkpoint'


def test_a_record_that_cannot_be_written_is_a_fault_until_it_can(tmp_path):
    one = Run(tmp_path).begin()

    def full(recorder):
        raise RecordError('No space left on device', str(tmp_path))

    for _ in range(2):
        one.run.record(full)
        assert one.run.faults == [f'no record: {tmp_path}: No space left on device']
    one.run.fault('robot1', 'peer_lost', '')
    assert one.run.faults == []
    assert 'not complete' in one.run.close('finished', 'rsp:4')


def test_a_model_that_cannot_be_evaluated_leaves_the_files_complete(tmp_path):
    one = Run(tmp_path).begin()
    one.run.note(ACCURACY, 'the task failed')
    assert one.run.faults == ['no accuracy: the task failed']
    assert one.run.close('finished', 'rsp:4') == ''


def test_it_is_over_when_the_server_has_evaluated_the_final_model():
    one = Run().begin()
    assert not one.over()
    one.run.begin_end()
    for _ in range(int(4 * LIMIT)):  # longer than the server waits for a silent robot
        one.after(1.0)
        assert not one.over(evaluating=True)
    assert one.over()


def test_an_evaluation_without_end_does_not_hold_up_the_end_of_the_run():
    one = Run().begin()
    one.run.begin_end()
    for _ in range(int(STOP_BY) - 1):
        one.after(1.0)
        assert not one.over(evaluating=True)
    one.after(1.0)
    assert one.over(evaluating=True)


def test_a_launcher_that_ends_the_server_leaves_the_evaluation_a_moment():
    one = Run().begin()
    one.run.begin_end()
    one.run.hurry(MOMENT)
    one.after(MOMENT / 2)
    assert not one.over(evaluating=True)
    one.after(MOMENT / 2)
    assert one.over(evaluating=True)


def test_the_end_waits_for_the_last_status_of_each_robot_that_is_there(tmp_path):
    one = Run(tmp_path, members={'robot1': 'training', 'robot2': 'away', 'robot3': 'stopped'}
              ).begin()
    one.run.on_status('robot3', 'paused')
    one.run.begin_end()
    assert one.log.said[-1] == 'waiting until the final model is evaluated by robot1'
    assert not one.over()
    one.run.record(lambda recorder: recorder.status(1.0, RobotReport('robot1', state='stopped')))
    assert one.over()


def test_a_robot_that_is_too_late_is_named(tmp_path):
    one = Run(tmp_path, members={'robot1': 'training'}).begin()
    one.run.begin_end()
    one.after(2 * LIMIT)
    assert one.over() and 'robot1 has not evaluated the final model in time' in one.log.said[-1]
