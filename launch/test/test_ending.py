"""However a fleet ends, none of its processes is left, and its results exist."""

import math
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fleet_env.records.events import Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_testing import LIMIT, Lines, environment, eventually, free_domain, mostly_long
from fleet_under_test import HERE, write_fleet

MARK = 'ROG_TEST_ENDING'


class Launcher:
    """Runs `rog fleet up`. An environment variable marks all processes that this command starts."""

    def __init__(self, folder, *options, **fleet):
        self.out = folder / 'out'
        self.mark = f'{MARK}={folder}'
        file = write_fleet(folder, **fleet)
        self.lines = Lines(subprocess.Popen(
            [sys.executable, '-m', 'rog_cli.main', 'fleet', 'up', str(file), '--plain', '--out',
             str(self.out), *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env=environment(free_domain(), HERE, **{MARK: str(folder)})))

    def left(self):
        """Return the process ids of the launcher and of all its processes that still run."""
        return [int(path.parent.name) for path in Path('/proc').glob('[0-9]*/environ')
                if self.mark.encode() in _read(path)]

    def ended(self):
        code, text = self.lines.ended()
        eventually(lambda: not self.left(), lambda: f'nothing is left, but {self.left()}\n{text}')
        return code, text


def _read(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile, or is a zombie
        return b''


@pytest.mark.parametrize('number', mostly_long([signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
                                               signal.SIGTERM))
def test_a_signal_ends_the_fleet_and_its_results_are_written(tmp_path, number):
    launcher = Launcher(tmp_path)
    launcher.lines.wait('robot1: [1-9]')
    launcher.lines.process.send_signal(number)
    code, text = launcher.ended()
    assert code == (128 + number if 'had to be killed' in text else 0), text
    assert read_summary(launcher.out).notes['reason'] == 'interrupted'
    assert 'Traceback' not in text + ''.join(
        path.read_text() for path in (launcher.out / 'logs').iterdir())


@pytest.mark.long
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_it_at_once_and_is_its_exit_code(tmp_path, number):
    launcher = Launcher(tmp_path)
    launcher.lines.wait('robot1: [1-9]')
    launcher.lines.process.send_signal(number)
    launcher.lines.wait('stopping the fleet')
    # The launcher may receive several signals as one, so repeat the signal until the launcher ends.
    while launcher.lines.process.poll() is None:
        launcher.lines.process.send_signal(number)
        try:
            launcher.lines.process.wait(0.2)
        except subprocess.TimeoutExpired:
            pass
    code, _ = launcher.ended()
    assert code in (0, 128 + number)  # 0 if the run ended regularly before the second signal
    assert read_summary(launcher.out).sync == 'rsp:4'


@pytest.mark.long
@pytest.mark.parametrize('there', ['out/fleet.yaml', 'out/logs/robot2.log'])
def test_a_signal_before_the_run_begins_ends_it_too(tmp_path, there):
    """A signal ends the fleet even if it arrives before all processes have started."""
    launcher = Launcher(tmp_path)
    eventually((tmp_path / there).exists)
    launcher.lines.process.send_signal(signal.SIGTERM)
    code, text = launcher.ended()
    assert code in (0, 128 + signal.SIGTERM) and 'Traceback' not in text
    assert (code == 0) == (launcher.out / 'summary.json').exists()


@pytest.mark.long
@pytest.mark.skipif(not find_spec('tensorboard'),
                    reason='TensorBoard is not installed: pip install tensorboard')
def test_curves_are_complete_after_ctrl_c_and_go_on_when_the_run_is_resumed(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = tmp_path / 'board'
    for options in ([], ['--resume']):
        launcher = Launcher(tmp_path, '--tensorboard', str(board), *options)
        launcher.lines.wait('robot1: [1-9]')
        launcher.lines.interrupt()
        code, text = launcher.ended()
        assert code == 0 and 'rog: ' not in text, text
        found = EventAccumulator(str(board / 'out'), size_guidance={'scalars': 0}).Reload()
        losses = [(e.iteration, e.loss) for e in read_run(launcher.out)
                  if isinstance(e, Iteration) and e.robot == 'robot1' and math.isfinite(e.loss)]
        curve = found.Scalars('loss/robot1')
        assert [(e.step, e.value) for e in curve] == [(k, pytest.approx(v)) for k, v in losses]
        assert losses and sorted(e.wall_time for e in curve) == [e.wall_time for e in curve]


@pytest.mark.long
def test_what_a_launcher_has_started_ends_with_it_even_by_kill_9(tmp_path):
    launcher = Launcher(tmp_path)
    launcher.lines.wait('robot1: [1-9]')
    launcher.lines.process.kill()
    assert launcher.ended()[0] == -signal.SIGKILL
    assert read_summary(launcher.out).notes['reason'] == 'interrupted'


@pytest.mark.long
def test_a_server_that_does_not_start_ends_it_with_the_servers_own_words(tmp_path):
    first = Launcher(tmp_path, '--minutes', '0.02')
    assert first.ended()[0] == 0
    for checkpoint in first.out.glob('checkpoint-*.safetensors'):
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    code, text = Launcher(tmp_path, '--resume').ended()
    assert code == 1
    said = re.search('rog: server ended with exit code 1: (.*)', text)
    assert said and 'checkpoint' in said[1], text
    assert 'rog: robot' not in text  # no robot is named as the cause


@pytest.mark.long
def test_a_robot_that_does_not_start_ends_it_with_the_robots_own_words(tmp_path):
    code, text = Launcher(tmp_path, '--set', 'training.device=cuda:7').ended()
    assert code == 1
    assert re.search("rog: robot. ended with exit code 1: .*'cuda:7' cannot be used", text)


IMPORTING = """
import os, runpy, signal, sys

class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as libraries do that try whether an import works
                pass

sys.meta_path.insert(0, AtImport())
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module(sys.argv[1], run_name='__main__')
"""


@pytest.mark.parametrize('slow', mostly_long(['pydantic', 'rclpy'], 'rclpy'))
@pytest.mark.parametrize('program', ['rog_ps.main', 'rog_worker.main'])
def test_ctrl_c_while_a_process_imports_ends_it_at_once_without_a_word(program, slow):
    done = subprocess.run([sys.executable, '-c', IMPORTING, program, slow], text=True,
                          capture_output=True, env=environment(free_domain(), HERE), timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, '', '')
