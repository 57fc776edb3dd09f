"""Every example runs as its first lines say, and README and a page of the documentation name it."""

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_env.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_testing import Lines, environment, free_domain

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / 'examples').iterdir() if path.is_file())
SHORT = 60  # lines
INCLUDED = re.compile(r'^```\{(?:literal)?include\} \.\./examples/(\S+)', re.M)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Starts programs in a domain of their own, in a folder with a copy of the examples."""
    shutil.copytree(ROOT / 'examples', tmp_path / 'examples')
    reach = {**dds_environment(ReachConfig()), 'ROS_DOMAIN_ID': str(free_domain())}
    running = []

    def start(text):
        command = [sys.executable, *shlex.split(text)]
        running.append(Lines(subprocess.Popen(
            command, cwd=tmp_path, env=environment(1, **reach), text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))))
        return running[-1]

    yield start
    for program in reversed(running):
        if program.process.poll() is None:
            program.interrupt()


def done(program):
    code, text = program.ended()
    assert code == 0 and 'Traceback' not in text, text
    return text


@pytest.mark.parametrize('name', EXAMPLES)
def test_an_example_is_short_and_the_documents_name_it(name):
    assert len((ROOT / 'examples' / name).read_text().splitlines()) < SHORT
    assert f'examples/{name}' in (ROOT / 'README.md').read_text()
    pages = [page.read_text() for page in (ROOT / 'docs').glob('*.md')]
    assert any(name in INCLUDED.findall(page) for page in pages), f'no page includes {name}'


def test_own_task_is_learnt_in_virtual_time(run):
    text = done(run('-m rog_cli.main sim examples/my_fleet.yaml --out there --minutes 0.5 '
                    '--set training.task=own_task:Digits'))
    assert 'robot2' in text and 'summary.json' in text


def test_own_method_trains_beside_another_one(run):
    text = done(run('-m rog_cli.main compare examples/my_fleet.yaml --sync '
                    'bsp,own_method:Lag:4,own_method:Lag:4+fast --minutes 0.2 --seeds 1 --jobs 1'))
    assert re.search(r'^ *own_method:Lag:4\+fast ', text, re.M), text


def test_own_loop_trains_two_robots_with_a_server(run):
    server = run('-m rog_cli.main fleet up examples/my_fleet.yaml --only server --plain '
                 '--out there --set training.task=own_task:Digits --minutes 0.1')
    robots = [run(f'examples/own_loop.py robot{n}') for n in (1, 2)]
    for robot in robots:
        assert re.search(r'robot\d: iteration 20, .*(.|\n)*done, accuracy \d', done(robot))
    assert 'Results in' in done(server)


def test_offload_model_shares_its_inferences(run):
    run('-m lopinfer_node.cli.main serve').wait('serving')
    text = done(run('examples/offload_model.py'))
    assert 'alone: equal' in text and 'shared: equal' in text
    assert int(re.search(r'(\d+) of them shared', text)[1]) > 0, text


def test_offload_program_runs_on_a_server_that_is_started_for_it(run):
    text = done(run(f'-m rrto_bridge.cli.main run -- {sys.executable} examples/offload_program.py'))
    assert '40 of 40 answers equal' in text, text


def test_a_recorded_link_is_trained_over_again(run):
    text = (ROOT / 'examples/record_a_link.md').read_text()
    commands = re.findall(r'^rog (.*?)(?: +#.*)?$', text, re.M)
    needs_radio = [command for command in commands if '--iface' in command]
    assert len(needs_radio) == 1 and len(commands) == 6
    for command in commands:
        if command not in needs_radio:
            short = command + ' --minutes 0.3' * bool(re.match('sim|compare', command))
            assert done(run(f'-m rog_cli.main {short}'))
