"""The `rrto` command prints a one-line error if it cannot measure or run what is requested."""

from importlib.util import find_spec

import pytest
from rrto_bridge.cli import measure
from rrto_bridge.cli.main import main


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
