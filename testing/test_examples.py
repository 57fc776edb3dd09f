"""Every example runs as its first lines say, and a page of the documentation names it."""

import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
from fleet_env.records.summary import read_summary
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_testing import PROGRAMS, Forked, Lines, environment, free_domain, mostly_long
from rog_core.codecs import get_codec
from rog_core.errors import RemoteProtocolError
from rog_core.model.partition import partition_of

ROOT = Path(__file__).parent.parent
SHOWN = ROOT / 'docs/outputs'  # outputs that the documents show; WRITE_OUTPUTS=1 writes them
EXAMPLES = sorted(path.name for path in (ROOT / 'examples').iterdir() if path.is_file())
SHORT = 60  # maximum lines of code of an example
INCLUDED = re.compile(r'^```\{(?:literal)?include\} (?:\.\./)+examples/(\S+)', re.M)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Yield a function that starts programs in one DDS domain, in a folder with the examples."""
    shutil.copytree(ROOT / 'examples', tmp_path / 'examples')
    reach = {**dds_environment(ReachConfig()), 'ROS_DOMAIN_ID': str(free_domain())}
    running = []

    def start(text):
        running.append(Lines(Forked(
            PROGRAMS, shlex.split(text.removeprefix('-m ')),
            environment(1, tmp_path / 'examples', **reach), cwd=tmp_path)))
        return running[-1]

    yield start
    for program in reversed(running):
        if program.process.poll() is None:
            program.interrupt()


def done(program):
    code, text = program.ended()
    assert code == 0 and 'Traceback' not in text, text
    return text


def cells(notebook):
    """Return the lines of each cell that has code."""
    return [cell['source'] for cell in json.loads(notebook)['cells'] if cell['cell_type'] == 'code']


def form(text):
    """Return the distinct lines of an output, with `#` in place of every number."""
    lines = (re.sub(r'\s+', ' ', re.sub(r'-?\d+(\.\d+)?', '#', line)).strip()
             for line in text.splitlines())
    return list(dict.fromkeys(re.sub('[━─]+', '─', line) for line in lines if line))


def check_shown(name, text):
    """Check that the documents show this output; numbers may differ, as they do between runs."""
    shown = ''.join(f'{line.rstrip()}\n' for line in text.strip().splitlines())
    if os.environ.get('WRITE_OUTPUTS'):
        (SHOWN / name).write_text(shown)
    assert form((SHOWN / name).read_text()) == form(shown)


@pytest.mark.parametrize('name', EXAMPLES)
def test_an_example_is_short_and_the_documents_name_it(name):
    text = (ROOT / 'examples' / name).read_text()
    assert sum(map(len, cells(text)) if name.endswith('.ipynb') else [
        len(text.splitlines())]) < SHORT
    pages = [page.read_text() for page in (ROOT / 'docs').rglob('*.md')]
    included = name.endswith(('.ipynb', '.md')) or any(
        name in INCLUDED.findall(page) or text in page for page in pages)
    assert included and any(f'examples/{name}' in page for page in pages), f'no page has {name}'


def test_own_task_is_learnt_in_virtual_time(run):
    text = done(run('-m rog_cli.main sim examples/my_fleet.yaml --out there --minutes 0.5 '
                    '--set training.task=own_task:Digits'))
    assert 'robot2' in text and 'summary.json' in text
    check_shown('own_task.txt', text)


FROZEN = '--set training.task_options.frozen=4'
PLAIN = '''
import sys
sys.path.insert(0, {folder!r})
from fleet_env.vision import import_torchvision
import_torchvision()
from own_torchvision import Resnet
from safetensors.torch import load_file
task = Resnet()
model = task.model()
print(model.load_state_dict(load_file(sys.argv[1]), strict=True))
count = int(model.bn1.num_batches_tracked)
print(f'{{100 * task.evaluate(model.eval()):.1f}} %, {{count}} batches')
'''


@pytest.mark.parametrize('options', mostly_long(['', FROZEN], FROZEN))
def test_own_torchvision_leaves_a_model_that_plain_pytorch_loads(run, tmp_path, options):
    text = done(run('-m rog_cli.main sim examples/my_fleet.yaml --out there --minutes 0.02 --set '
                    f'link.scale=0.5 --set training.task=own_torchvision:Resnet {options}'))
    accuracy, = re.findall(r"The server's model at iteration .*: ([0-9.]+ %)", text)
    robots = re.findall(r'^robot\d +\S+ % +(\S+ %)', text, re.M)
    assert robots == [accuracy, accuracy]
    file, = re.findall(r'(\S+model.safetensors)', text)
    (tmp_path / 'plain.py').write_text(PLAIN.format(folder=str(ROOT / 'examples')))
    plain = done(run(f'plain.py {file}'))
    assert '<All keys matched successfully>' in plain
    found, batches = plain.splitlines()[-1].split(', ')
    assert found == accuracy and batches != '0 batches'


@pytest.mark.long
def test_own_method_trains_beside_another_one(run):
    text = done(run('-m rog_cli.main compare examples/my_fleet.yaml --set link.offset=100 --set '
                    'link.scale=0.01 --sync bsp,own_method:Lag:20,own_method:Lag:20+local '
                    '--minutes 3 --seeds 1 --jobs 1 --out there'))
    (bsp, lag) = (float(re.search(rf'^Accuracy(?:.*\n)+?{method} +\S+ +(\S+)', text, re.M)[1])
                  for method in ('bsp', 'own_method:Lag:20'))
    assert lag > bsp, text  # the documentation says that own_method is more accurate than bsp
    check_shown('own_method.txt', text)


def test_own_codec_keeps_what_it_loses_and_refuses_what_is_not_finite(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / 'examples')
    codec = get_codec('own_codec:Half')
    partition = partition_of([('w', (3, 700)), ('b', (5,))], codec=codec.name)
    values = np.random.default_rng(0).standard_normal(partition.elements).astype(np.float32)
    ids = np.arange(1, partition.segments)
    first = partition.offsets[1]
    values[first] = 1e6  # more than float16 can represent
    pending, sums = values.copy(), np.zeros_like(values)
    data = codec.take(partition, pending, ids, sums)
    codec.check(partition, ids, data)
    codec.add(partition, sums, ids, data)
    assert np.allclose(pending + sums, values, rtol=1e-6)
    assert not sums[:first].any() and sums[first] == 65504
    assert np.allclose(sums[first + 1:], values[first + 1:], rtol=0.001)
    assert data.size == 2 * partition.lengths[ids].sum()
    half = codec.scaled(partition, ids, data, 0.5)
    assert codec.check(partition, ids, half) == pytest.approx(
        codec.check(partition, ids, data) / 4, rel=0.01)
    mirror = np.zeros_like(values)
    assert (codec.difference(partition, values, mirror, ids, sums) == data).all()
    for wrong in (data[1:], np.full_like(data, 255)):
        with pytest.raises(RemoteProtocolError):
            codec.check(partition, ids, wrong)


@pytest.mark.long
def test_own_codec_trains_in_virtual_time(run):
    said, = re.findall(r'^rog (sim.*own_codec.*)$',
                       (ROOT / 'docs/howto/codec.md').read_text(), re.M)
    assert 'summary.json' in done(run(f'-m rog_cli.main {said} --minutes 0.5'))


@pytest.mark.long
def test_own_loop_trains_two_robots_with_a_server(run, tmp_path):
    server = run('-m rog_cli.main fleet up examples/my_fleet.yaml --only server --plain '
                 '--out there --set training.task=own_task:Digits --minutes 10')
    robots = [run(f'examples/own_loop.py robot{n}') for n in (1, 2)]
    for robot in robots:
        robot.wait(': iteration 60')
    server.interrupt()
    printed = {}
    for text in map(done, robots):
        name, accuracy = re.search(r'(robot\d): iteration \d+, .*(?:.|\n)*done, accuracy (\S+)',
                                   text).groups()
        printed[name] = float(accuracy)
        said = re.findall(r'^robot.*', text, re.M)
    check_shown('own_loop.txt', '\n'.join([*said[:3], said[-1]]))
    assert 'Results in' in done(server)
    summary = read_summary(tmp_path / 'there')
    assert printed == {name: round(100 * robot.accuracy.after, 1)
                       for name, robot in summary.robots.items()}


@pytest.mark.long
def test_offload_model_shares_its_inferences(run):
    run('-m lopinfer_node.cli.main serve').wait('serving')
    text = done(run('examples/offload_model.py'))
    # the number is 0 if this machine is as fast as the server
    assert re.search(r'^\d+ of 21 inferences', text, re.M), text
    said = re.findall(r'^(?:alone:|connected:|\d+ of) .*', text, re.M)
    assert {'alone: equal', 'connected: equal'} < {*said}
    check_shown('offload_model.txt', '\n'.join(said))


@pytest.mark.long
def test_offload_program_runs_on_a_server_that_is_started_for_it(run):
    text = done(run(f'-m rrto_bridge.cli.main run -- {sys.executable} examples/offload_program.py'))
    assert '40 of 40 answers equal' in text, text
    check_shown('offload_program.txt', ''.join(re.findall('^(?:inference|CPU).*\n', text, re.M)))


def test_my_policy_acts_on_its_contract_in_recorded_time(monkeypatch):
    from fleet_policy.policy import load_contract, load_policy
    from fleet_policy.replay import replay
    from fleet_policy.sources import generated
    monkeypatch.syspath_prepend(ROOT / 'examples')
    contract = load_contract('my_policy:Reach')
    assert contract == load_contract('my_policy:Reach', str(ROOT / 'examples/reach.yaml'))
    made = replay(contract, load_policy('my_policy:Reach', {}, contract), generated(contract, 3.0))
    assert made.actions.shape[1] == 2 and len(made.actions) > 60 and not made.starved
    assert not made.reason


@pytest.mark.long
def test_my_policy_runs_in_the_node_of_a_robot(run):
    said, = re.findall(r'^python (-m fleet_policy\.main.*)$',
                       (ROOT / 'docs/howto/policy.md').read_text(), re.M)
    run(f'{said} -p threads:=1').wait('my_policy:Reach acts at 30 Hz')


@pytest.mark.long
def test_a_recorded_link_is_trained_over_again(run):
    text = (ROOT / 'examples/record_a_link.md').read_text()
    commands = re.findall(r'^rog (.*?)(?: +#.*)?$', text, re.M)
    needs_radio = [command for command in commands if '--iface' in command]
    assert len(needs_radio) == 1 and len(commands) == 6
    for command in commands:
        if command not in needs_radio:
            short = command + ' --minutes 0.3' * bool(re.match('sim|compare', command))
            assert done(run(f'-m rog_cli.main {short}'))


@pytest.mark.long
def test_two_arms_act_with_what_the_fleet_learns_from_both(run, tmp_path):
    text = done(run('examples/learn_and_act/run.py --minutes 0.35 --out there'))
    found = json.loads(text.splitlines()[-1])
    curves = json.loads((tmp_path / 'there/results.json').read_text())['curves']
    for name, curve in curves.items():
        assert found['versions'][name] >= 2 and found['reaches'][name] > 5
        assert curve[-1][2] == found['success'][name] > curve[0][2], curve
    assert found['sent_bytes'] > 0 and (tmp_path / 'there/success.png').stat().st_size > 0


@pytest.mark.long
def test_two_arms_end_with_ctrl_c(run):
    program = run('examples/learn_and_act/run.py --out there')
    program.wait('^ *0 s  arm1')
    code, text = program.interrupt()
    assert code == 0 and 'ending' in text and 'Traceback' not in text, text
    assert json.loads(text.splitlines()[-1])['code'] == 0


@pytest.mark.parametrize('there', [True, False])
def test_the_fleet_with_a_recording_starts_only_where_ros2_bag_is(there, monkeypatch):
    for module in ('launch', 'launch.actions', 'launch.launch_description_sources',
                   'launch.substitutions', 'launch_ros', 'launch_ros.substitutions'):
        monkeypatch.setitem(sys.modules, module, MagicMock())
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: there or None)
    made = runpy.run_path(str(ROOT / 'examples/fleet_with_bag.launch.py'))
    missing = nullcontext() if there else pytest.raises(RuntimeError, match='`ros2 bag` is missing')
    with missing:
        made['generate_launch_description']()
    assert sys.modules['launch.actions'].ExecuteProcess.called == there


@pytest.mark.long
def test_the_notebook_runs_without_ros(run, tmp_path, monkeypatch):
    monkeypatch.setenv('MPLBACKEND', 'agg')
    text = (tmp_path / 'examples/compare.ipynb').read_text()
    program = '\n'.join(''.join(cell) for cell in cells(text))
    before = "import os, sys\nos.chdir('examples')\nsys.modules['rclpy'] = None  # no ROS 2\n"
    after = 'assert [len(line.get_xdata()) > 1 for line in axes.lines] == 4 * [True]\n'
    (tmp_path / 'cells.py').write_text(f'{before}{program}\n{after}')
    text = done(run('cells.py'))
    for method in ('rsp:4', 'rsp:20+pipeline+sparse'):
        assert re.search(f'^ *{re.escape(method)} ', text, re.M), text
