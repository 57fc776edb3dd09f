"""The `lopinfer` command: its arguments, its output and its exit codes.

testing/test_documents.py runs `lopinfer demo`, which starts processes.
"""

import json
import signal
import sys
from argparse import ArgumentTypeError

import pytest
import torch
from fleet_testing import eventually
from lopinfer_node.cli import rig
from lopinfer_node.cli.choice import bandwidths, picture
from lopinfer_node.cli.main import main
from lopinfer_node.errors import ModelError, ProfileError
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.profile import Profile
from lopinfer_node.planning.table import PlanTable
from runtime_models import small

MODEL = ['runtime_models:small', '--input', '1x3x32x40']
PNG = b'\x89PNG'


@pytest.fixture(scope='module')
def profile(tmp_path_factory):
    path = tmp_path_factory.mktemp('profile') / 'robot.json'
    assert main(['profile', *MODEL, '--repeats', '1', '--out', str(path)]) == 0
    return path


def test_a_profile_is_one_of_the_model(profile):
    graph = trace(small().eval(), torch.zeros(1, 3, 32, 40)).graph
    found = Profile.load(profile)
    found.check(graph)
    assert found.whole.sum() > 0


@pytest.mark.long
def test_plan_prints_a_row_per_bandwidth_writes_the_table_and_draws(profile, tmp_path, capsys):
    out, picture = tmp_path / 'plans.json', tmp_path / 'plan.png'
    assert main(['plan', *MODEL, '--profile', str(profile), '--bandwidth', '0:4:2', '--out',
                 str(out), '--plot', str(picture)]) == 0
    text = capsys.readouterr().out
    assert 'all on the robot' in text and '3 plans' in text
    graph = trace(small().eval(), torch.zeros(1, 3, 32, 40)).graph
    assert PlanTable.load(graph, out).bandwidths == (0.0, 2e6, 4e6)
    assert picture.read_bytes().startswith(PNG)
    with pytest.raises(ProfileError):
        PlanTable.load(trace(small().eval(), torch.zeros(1, 3, 16, 16)).graph, out)


@pytest.mark.parametrize('verb', [['compare', *MODEL], ['plan', *MODEL, '--plot']])
def test_pictures_without_matplotlib_are_refused_before_anything_is_computed(
        verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    for name in ('fleet_env.plot_style', 'lopinfer_node.planning.plots'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr('fleet_env.plot_style', raising=False)
    assert main(verb) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        '', 'lopinfer: pictures need the package matplotlib: pip install matplotlib\n')
    with pytest.raises(ArgumentTypeError, match='pip install matplotlib'):
        picture('plan.png')


@pytest.mark.parametrize(('text', 'found'), [
    ('0:4:2', (0.0, 2e6, 4e6)), ('4:0:-2', (0.0, 2e6, 4e6)), ('3:3:1', (3e6,)),
    ('10,2,5,2', (2e6, 5e6, 10e6))])
def test_bandwidths_ascend_in_whatever_order_they_are_given(text, found):
    assert bandwidths(text) == found


@pytest.mark.parametrize('text', ['0:30:1e-9', '0:1001:1', '0:1:1e-320', '1e308:-1e308:-1',
                                  ','.join(['1'] * 1001)])
def test_more_bandwidths_than_1000_are_refused_before_they_take_memory(text, monkeypatch):
    monkeypatch.setattr('numpy.arange', None)
    with pytest.raises(ArgumentTypeError, match='at most 1000 bandwidths'):
        bandwidths(text)


@pytest.mark.filterwarnings('error')
@pytest.mark.parametrize('text', [
    '0:inf:1', 'nan:1:1', '0:30:nan', '0:30:inf', '1,nan', '1e305', '0:1e308:1e307', '0:30:0',
    '1:2', '1:2:3:4', '', '-1:3:1', '-1e308:1e308:-1'])
def test_bandwidths_that_are_no_rates_are_refused(text):
    with pytest.raises(ArgumentTypeError, match='must be from:to:step or a list'):
        bandwidths(text)


@pytest.mark.long
def test_compare_writes_latencies_and_figures(profile, tmp_path, capsys):
    trace_file = tmp_path / 'link.txt'
    trace_file.write_text(''.join(f'{i * 0.5} {20 + 10 * (i % 3)}\n' for i in range(8)))
    assert main(['compare', *MODEL, '--profile', str(profile), '--trace', str(trace_file),
                 '--out', str(tmp_path)]) == 0
    found = json.loads((tmp_path / 'compare.json').read_text())
    assert set(found['latency']) == set(found['trace']) >= {'device-only', 'dsccs', 'lopinfer'}
    for k, seconds in enumerate(found['latency']['lopinfer']):
        others = [found['latency'][m][k] for m in found['latency']]
        assert seconds <= min(s for s in others if s is not None) * (1 + 1e-9)
    assert (tmp_path / 'bandwidth.png').read_bytes().startswith(PNG)
    assert (tmp_path / 'breakdown.png').read_bytes().startswith(PNG)
    assert 'over the trace' in capsys.readouterr().out


@pytest.mark.parametrize(('arguments', 'message'), [
    (['profile', 'no_such_model'], "there is no model 'no_such_model'"),
    (['profile', 'resnet5'], "did you mean 'resnet50'? Or name your own model as package.module:"),
    (['profile', 'no.such.module:f'], "there is no module 'no'; is it installed, or its folder on"),
    (['profile', 'runtime_models:smal'], "has no attribute 'smal'"),
    (['profile', ':'], "must be named package.module:factory, got ':'"),
    (['profile', '..x:y'], "must be named package.module:factory, got '..x:y'"),
    (['profile', 'runtime_models:small', '--input', '1x3x9999999x9999999'],
     'an input of 1x3x9999999x9999999 cannot be made'),
    (['profile', 'runtime_models:Untraceable', '--input', '4'], 'runtime_models.py'),
    (['plan', *MODEL, '--profile', '/nowhere/p.json'], '/nowhere/p.json: cannot be read'),
    (['plan', 'published.csv', '--profile', 'p.json'], 'leave out --profile'),
    (['compare', 'published.csv', '--server-profile', 'p.json'], 'leave out --profile'),
    (['compare', *MODEL, '--trace', '/nowhere/t.txt'], '/nowhere/t.txt'),
])
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and error.startswith('lopinfer: ') and '\n' not in error


@pytest.mark.long
def test_a_trace_in_which_the_link_fails_is_a_mistake(profile, tmp_path, capsys):
    trace_file = tmp_path / 'link.txt'
    trace_file.write_text('0 50\n1 0\n')
    assert main(['compare', *MODEL, '--profile', str(profile), '--trace', str(trace_file),
                 '--out', str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith('lopinfer: ') and 'the link fails' in error and '\n' not in error


@pytest.mark.parametrize('arguments', [
    ['profile', *MODEL, '--out', '/nowhere/x'], ['profile', *MODEL, '--out', '/'],
    ['plan', *MODEL, '--out', '/nowhere/x'], ['plan', *MODEL, '--plot', '/nowhere/x.png'],
    ['plan', *MODEL, '--plot', 'x.nonsense'],
    ['plan', *MODEL, '--bandwidth', 'fast'], ['plan', *MODEL, '--bandwidth', '0:1:0'],
    ['plan', *MODEL, '--bandwidth', '0:4:-1'], ['plan', *MODEL, '--bandwidth', '2:-2:-1'],
    ['plan', *MODEL, '--weight', '1', '--deadline', '1'],
    ['plan', 'resnet18', '--input', '1xtall'], ['plan', *MODEL, '--server-speed', '0'], ['play']])
def test_bad_options_are_refused(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2 and 'error:' in capsys.readouterr().err


def test_a_server_of_the_demo_that_does_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(rig, 'END', 0.1)
    monkeypatch.setattr(rig, 'SERVER', f"""
import pathlib, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path({str(tmp_path / 'deaf')!r}).touch()
signal.pause()
""")
    with rig.Rig(small().eval(), torch.zeros(1, 3, 32, 40), rate=None) as made:
        eventually((tmp_path / 'deaf').exists)
    assert made._process.returncode == -signal.SIGKILL


def test_a_model_that_cannot_be_traced_leaves_no_server_of_the_demo(monkeypatch):
    monkeypatch.setattr(rig, 'SERVER', 'import signal; signal.pause()')
    made = rig.Rig(small().train(), torch.zeros(1, 3, 32, 40), rate=None)
    with pytest.raises(ModelError, match='training mode'), made:
        pass
    assert made._process.returncode is not None


@pytest.mark.parametrize('verb', ['compare', 'demo'])
def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(
        verb, tmp_path, monkeypatch, capsys):
    (tmp_path / 'file').touch()
    for name in ('compare.problem', 'demo.measured'):
        monkeypatch.setattr(f'lopinfer_node.cli.{name}',
                            lambda *_, **__: pytest.fail('it measures'))
    assert main([verb, *MODEL, '--out', str(tmp_path / 'file')]) == 2
    assert capsys.readouterr().err == f"lopinfer: {tmp_path / 'file'}: File exists\n"
