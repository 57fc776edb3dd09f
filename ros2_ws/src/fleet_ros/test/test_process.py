"""A node as a process: whatever ends the process, it prints a reason and sets an exit code."""

import signal
import subprocess
import sys

import pytest
from fleet_ros.process import explained
from fleet_testing import LIMIT, Lines, environment, free_domain
from rclpy._rclpy_pybind11 import RCLError

PROGRAM = '''
import sys
from fleet_ros.process import run

def build():
    sys.exit(0)

sys.exit(run(build, None, [], ()))
'''


def test_sys_exit_in_loaded_code_is_an_error():
    done = subprocess.run([sys.executable, '-c', PROGRAM], env=environment(free_domain()),
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and 'error: the task or model called sys.exit(0)' in done.stderr


def test_an_error_of_torchvisions_library_has_the_line_of_pip(monkeypatch):
    monkeypatch.setattr('fleet_env.vision.metadata.version', lambda name: '0.28.0')
    said = explained(RuntimeError('operator torchvision::nms does not exist'), ())
    assert said.startswith('RuntimeError: operator torchvision::nms')
    assert 'pip install --force-reinstall' in said and explained(ValueError(said), ()).count(
        'pip install') == 1


@pytest.mark.parametrize(('error', 'advice'), [
    ('failed to initialize logging: Failed to create log directory', 'Set ROS_LOG_DIR to a folder'),
    ('error creating node: failed to create participant', 'Check the arguments, ROS_DOMAIN_ID')])
def test_an_error_of_ros_has_advice_that_fits(error, advice):
    assert f'{error}. {advice}' in explained(RCLError(error), ())


BUSY = '''
import gc, threading
from concurrent.futures import ThreadPoolExecutor
from fleet_ros.process import run, spin_until
from rclpy.node import Node

def serve(node, interruption):
    ThreadPoolExecutor(1).submit(threading.Event().wait)
    print('serves,', 'ignores' if gc.get_freeze_count() > 10_000 else 'collects', 'what it has '
          f'loaded, {gc.get_threshold() == usual}', flush=True)
    spin_until(node, lambda: bool(interruption), interruption)
    return 7

usual = gc.get_threshold()
run(lambda: Node('thing'), serve, None, ())
'''


def test_a_process_that_gets_a_signal_waits_for_no_thread_that_still_computes():
    process = Lines(subprocess.Popen([sys.executable, '-c', BUSY], env=environment(free_domain()),
                                     stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        process.wait('serves')
        process.process.send_signal(signal.SIGTERM)
        assert process.ended() == (7, 'serves, ignores what it has loaded, True\n')
    finally:
        process.process.kill()


EARLY = """
import os, signal
from fleet_ros.process import run
from fleet_ros.spinning import Spinning
from rclpy.guard_condition import GuardCondition
from rclpy.node import Node

made = GuardCondition.__init__

def interrupted(self, *arguments, **named):
    if type(self) is not GuardCondition:
        os.kill(os.getpid(), signal.SIGINT)
    made(self, *arguments, **named)

def build():
    node = Node('thing')
    GuardCondition.__init__ = interrupted
    Spinning(node)
    raise AssertionError('it was not interrupted')

run(build, lambda node, interruption: 7, None, ())
"""


def test_a_signal_while_an_executor_is_made_ends_the_process_without_a_traceback():
    done = subprocess.run([sys.executable, '-c', EARLY], env=environment(free_domain()),
                          capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, '')


HANGS = """
import ctypes
from fleet_ros import ending
from fleet_ros.process import run
from rclpy.node import Node

class Hangs(Node):
    def destroy_node(self):
        ctypes.PyDLL(None).pause()   # holds the GIL

ending.LEAVING = 0.1
run(lambda: Hangs('thing'), lambda node, interruption: 0, None, ())
"""


def test_a_node_that_hangs_while_it_is_destroyed_is_ended():
    ended = subprocess.run([sys.executable, '-c', HANGS], env=environment(free_domain()),
                           check=False, timeout=LIMIT)
    assert ended.returncode == -signal.SIGALRM


TWICE = """
import os, signal
from fleet_ros import ending

ending._SAME = 0.0
interruption = ending.Interruption()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGTERM)
print(interruption.at_once, 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= ending.LAST)
"""


def test_a_process_that_must_end_at_once_has_the_time_that_its_launcher_gives_it():
    done = subprocess.run([sys.executable, '-c', TWICE], env=environment(free_domain()),
                          capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.stdout == 'True True\n', done.stderr


LIMITS = """
import signal
from fleet_ros.ending import LEAVING, limit_leaving

def left():
    limit_leaving()
    return signal.getitimer(signal.ITIMER_REAL)[0]

signal.alarm(5)                     # a limit that comes sooner
assert left() <= 5
signal.alarm(100)                   # a limit that comes later
assert 5 < left() <= LEAVING
signal.signal(signal.SIGALRM, lambda *_: None)
signal.alarm(5)                     # a timer of the user's code
assert 5 < left() <= LEAVING
"""


def test_only_a_sooner_limit_of_our_own_replaces_the_time_to_leave():
    done = subprocess.run([sys.executable, '-c', LIMITS], env=environment(free_domain()),
                          capture_output=True, text=True, check=False, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, '')
