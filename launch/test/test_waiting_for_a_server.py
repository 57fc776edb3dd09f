"""A program that waits for a server says which server is missing, and ends at once on a signal."""

import os
import signal

import pytest
import rclpy
import tiny_task
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_testing import PROGRAMS, Forked, Lines, environment, free_domain, mostly_long
from fleet_under_test import HERE, Fleet
from rog_core.errors import ConfigError
from rog_worker.connect import NoServerError, connect

TRAIN = '''
import tiny_task
from rog_worker.connect import connect
try:
    with connect('robot1') as fleet:
        fleet.optimizer(tiny_task.Tiny(seed=3).model())
except KeyboardInterrupt:
    print('the program sees it')
    raise
'''
THEIR_RCLPY = f'import rclpy\nrclpy.init()\n{TRAIN}\nprint("goes on")\n'


@pytest.fixture
def domain(monkeypatch):
    domain = free_domain()
    monkeypatch.setitem(os.environ, 'ROS_DOMAIN_ID', str(domain))
    return domain


def started(domain, *command):
    """Start a Python program in this domain."""
    return Lines(Forked(PROGRAMS, command, environment(domain, HERE, **{
        **dds_environment(ReachConfig()), 'ROS_DOMAIN_ID': str(domain)})))


def written(folder, text):
    path = folder / 'program.py'
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(('number', 'code', 'says'), mostly_long(
    [(signal.SIGINT, -signal.SIGINT, 'the program sees it'),
     (signal.SIGTERM, 128 + signal.SIGTERM, '')],
    (signal.SIGINT, -signal.SIGINT, 'the program sees it')))
def test_a_signal_ends_a_program_that_waits_for_a_server(domain, number, code, says, tmp_path):
    program = started(domain, written(tmp_path, TRAIN))
    program.wait(f'robot1 waits for the parameter server at /rog in DDS domain {domain}; '
                 'rog doctor looks for the reason')
    program.process.send_signal(number)
    ended, text = program.ended()
    assert ended == code and 'Traceback' not in text and says in text, text


def test_a_program_with_its_own_rclpy_goes_on_when_that_is_shut_down(domain, tmp_path):
    program = started(domain, written(tmp_path, THEIR_RCLPY))
    program.wait('waits for the parameter server')
    program.process.send_signal(signal.SIGTERM)
    code, text = program.ended()
    assert code == 0 and 'goes on' in text and 'Traceback' not in text, text


@pytest.mark.parametrize('number', mostly_long([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_a_signal_ends_rog_status_that_waits_for_a_server(domain, number):
    status = started(domain, 'rog_cli.main', 'status', '--timeout', '1000')
    status.wait(f'waiting for a parameter server in DDS domain {domain}')
    status.process.send_signal(number)
    code, text = status.ended()
    assert code == 128 + number and 'Traceback' not in text, text


@pytest.mark.parametrize('number', mostly_long([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_a_signal_ends_rog_view_that_waits_for_a_server(domain, number):
    pytest.importorskip('nicegui', reason='nicegui is not installed')
    view = started(domain, 'rog_cli.main', 'view', '--port', '0')
    view.wait('Whoever reaches this page')
    view.process.send_signal(number)
    code, text = view.ended()
    assert code == 0 and 'Traceback' not in text, text


def test_rog_status_into_a_file_writes_a_line_per_robot_now_and_then(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1')
        status = started(fleet.domain, 'rog_cli.main', 'status')
        status.wait(r'^ *\d+ s  robot1: \d+ .*loss .*accuracy')
        fleet.interrupt('server')
        assert fleet.ended('server') == 0
        code, text = status.ended()
    assert code == 0 and 'Traceback' not in text, text


def test_connect_waits_no_longer_than_it_is_told(domain):
    with connect('robot1', timeout=0.5) as fleet, pytest.raises(
            NoServerError, match=f'within 0.5 s at /rog in DDS domain {domain}.*rog doctor'):
        fleet.optimizer(tiny_task.Tiny(seed=3).model())
    assert not rclpy.ok()


@pytest.mark.parametrize('timeout', [-1, float('nan'), float('inf')])
def test_connect_refuses_a_timeout_that_is_no_time(timeout):
    with pytest.raises(ConfigError, match='timeout must be a number of seconds'), \
            connect('robot1', timeout=timeout):
        pass
