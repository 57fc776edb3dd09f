"""The `rrto` command prints a one-line error if it cannot measure or run what is requested."""

import subprocess
import venv
from contextlib import nullcontext
from importlib.util import find_spec

import pytest
from rclpy.exceptions import InvalidNamespaceException
from rrto_bridge.cli import bench, measure, run, status
from rrto_bridge.cli.main import main
from rrto_bridge.client import shell
from rrto_bridge.client.shell import Link, LinkOptions
from rrto_bridge.program import children
from rrto_bridge.protocol import discovery
from rrto_bridge.protocol.errors import ConfigError
from rrto_bridge.protocol.names import private_name


def test_a_trace_that_is_not_there_is_named_before_anything_is_measured(capsys):
    with pytest.raises(SystemExit, match='rrto: nowhere.txt: cannot be read'):
        main(['bench', '--traces', 'nowhere.txt'])
    assert capsys.readouterr().out == ''


@pytest.mark.skipif(find_spec('torchvision') is None, reason='torchvision is not installed')
def test_a_model_that_is_not_there_is_named():
    with pytest.raises(SystemExit, match="unknown model 'nope': choose small"):
        measure.load('nope')


@pytest.mark.parametrize('program', ['nosuchprogram', '/nowhere/app', '/'])
def test_a_program_that_is_not_there_is_said_before_a_server_is_started(program, capfd):
    assert main(['run', '--', program]) == 127
    out, err = capfd.readouterr()
    assert out == '' and err == (
        f'rrto: {program}: there is no such program, or it is not executable\n')


def test_a_python_without_the_suite_is_named(tmp_path):
    venv.create(tmp_path)
    python, = tmp_path.glob('bin/python')
    (tmp_path / 'torch.py').touch()
    ended = subprocess.run(
        [python, '-c', 'import torch'], capture_output=True, text=True, cwd=tmp_path,
        env={'RRTO_SETTINGS': '{}', 'PYTHONPATH': children.BOOTSTRAP})
    assert ended.returncode == 1
    assert f'rrto: {python} has no rrto_bridge: install the suite' in ended.stderr
    assert 'ModuleNotFoundError' not in ended.stderr


@pytest.mark.parametrize(('error', 'said'), [
    (OSError(28, 'No space left on device'), 'rrto: [Errno 28] No space left on device\n'),
    (OSError(28, 'No space left on device', '/out'), 'rrto: /out: No space left on device\n'),
    (InvalidNamespaceException('1', 'it is wrong', 0), 'rrto: Invalid namespace: it is wrong')])
def test_an_error_of_the_machine_or_of_ros_is_said_without_a_traceback(
        error, said, monkeypatch, capsys):
    def fail(options):
        raise error

    monkeypatch.setattr(status, 'call', fail)
    assert main(['status']) == 2
    assert capsys.readouterr().err.startswith(said)


def test_an_error_of_rrto_itself_has_a_traceback(monkeypatch):
    monkeypatch.setattr(status, 'call', lambda options: {}['no such key'])
    with pytest.raises(KeyError):
        main(['status'])


def test_a_program_whose_node_cannot_start_is_told_why_by_ros(monkeypatch):
    monkeypatch.setattr(shell, 'find_server', lambda node: pytest.fail('there is a node'))
    with pytest.raises(ConfigError, match='Invalid namespace'):
        Link(LinkOptions('rpc', namespace='1 2'))


def test_a_server_that_ends_in_its_start_is_not_said_to_be_invisible(monkeypatch):
    class Killed:
        def poll(self):
            return -9

    monkeypatch.setattr(run, 'server_process', lambda: nullcontext(('s', Killed())))
    monkeypatch.setattr(run, 'in_domain', lambda: nullcontext(None))
    monkeypatch.setattr(discovery, 'servers', lambda node: [])
    with pytest.raises(SystemExit, match='on this machine was ended by SIGKILL'), run.own_server():
        pass


@pytest.mark.parametrize(('seen', 'taken'), [
    ([[]] * 500 + [['far']], 'far'), ([[], ['own']], 'own'), ([[], ['far', 'own']], 'own'),
    ([['local_7'], ['local_7', 'own']], 'own'), ([['local_7']] * 3, ''), ([[]] * 3, '')])
def test_a_running_server_is_looked_for_until_the_own_one_is_seen(seen, taken, monkeypatch):
    """On a busy machine, a server that runs may be seen late, but before one that is starting.

    It may also be seen only when the program that has used it has ended. The server of another
    `rrto run` would end with its program.
    """
    ahead = list(seen)
    monkeypatch.setattr(discovery, 'servers', lambda node: ahead.pop(0))
    monkeypatch.setattr(discovery.time, 'sleep', lambda duration: None)
    assert discovery.first_of(None, lambda: len(ahead) > 1, 'own') == taken


def test_a_server_that_another_program_has_started_is_used_only_by_name(monkeypatch):
    own = private_name()
    monkeypatch.setattr(discovery, 'servers', lambda node: [own, 'for_all', 'local_x'])
    assert discovery.usable(None) == ['for_all', 'local_x']
    assert discovery.usable(None, own)[0] == own


@pytest.mark.parametrize('option', [['--count', '0'], ['--size', '-3']])
def test_numbers_below_1_are_refused_before_anything_is_measured(option, capsys):
    with pytest.raises(SystemExit):
        main(['bench', *option])
    assert 'must be a whole number of at least 1' in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(
        tmp_path, monkeypatch, capsys):
    (tmp_path / 'file').touch()
    monkeypatch.setattr(bench, '_run', lambda *arguments: pytest.fail('it measures'))
    assert main(['demo', '--out', str(tmp_path / 'file')]) == 2
    assert capsys.readouterr().err == f"rrto: {tmp_path / 'file'}: File exists\n"
