"""Runs every command and every block of code in the documents; some commands in a short form.

The test fails if a command is in none of the tables of this file. It skips commands that cannot
run here, and gives the reason.
"""

import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from fleet_env.settings.fleet_file import explained_fleet, load_fleet
from fleet_testing import PROGRAMS as LOADED
from fleet_testing import Forked, Lines, environment, eventually, free_domain
from rog_bringup import FLEETS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / name for name in ('README.md', 'SECURITY.md', 'CONTRIBUTING.md')] + \
    sorted((ROOT / 'docs').rglob('*.md'))
PROGRAMS = ('rog', 'fleet', 'rrto', 'lopinfer', 'make', 'ros2', 'colcon', 'python', 'python3',
            'pip', 'docker', 'pixi')
MADE = ('settings', 'messages', 'commands')  # pages that tools/*.py print
RECORD = ROOT.parent / 'shared/data/traces/rog_outdoors_record.txt'
NET = 'resnet18 --input 1x3x64x64'
UP = 'rog fleet up quick.yaml --plain --out up'


@dataclass(frozen=True)
class Beside:
    """A command that other commands need; it is ready when its output contains ``ready``.

    Several commands share one instance, so no command may change its state.
    """

    command: str
    ready: str


@dataclass(frozen=True)
class Short:
    """The short form of a command.

    ``command``: a line for bash; '' runs the command as the document has it. ``beside``: a command
    that must run at the same time, in the folder $BESIDE. ``until``: when this text is in the
    output, Ctrl+C ends the command. ``creates``: when this file exists, Ctrl+C ends the command.
    Without ``until`` and ``creates``, the command must end by itself with exit code 0. ``says``:
    text that the output of the command must contain. ``needs``: a file without which the test is
    skipped.
    """

    command: str = ''
    beside: Beside | None = None
    until: str = ''
    creates: str = ''
    says: str = ''
    needs: Path | None = None


DIGITS = ('rog sim examples/my_fleet.yaml --set training.task=own_task:Digits --minutes 10 '
          '--out runs/digits')
LEARNED = DIGITS.replace('--minutes 10', '--minutes 0.1')
# Writes a version of the model resnet18.
STREET = """
from pathlib import Path
from fleet_env.weights import state_bytes
from lopinfer_node.model.zoo import load
Path('runs/street/models/1').mkdir(parents=True)
Path('runs/street/models/1/model.safetensors').write_bytes(state_bytes(load('resnet18')))
"""
TRAINS = {'until': 'robot3: [1-9]', 'says': 'Results in'}
SERVER = Beside('rrto serve --name laptop', 'serving as laptop')
KEYED = Beside(f'rog key fleet.key && {UP} --only server,robot3 --set security.key=fleet.key',
               'robot3: [1-9]')
FLEET = Beside(f'{UP} --only server,robot3', 'robot3: [1-9]')
# Order of the tests, by the command that runs beside them. FLEET is the last of them, because the
# tests of Python code run after these tests, and some of them also need FLEET.
TURNS = [None, SERVER, KEYED, FLEET]

# Maps a command, as a document has it, to the command that the test runs.
RUN = {
    'make demo': Short(f'make -C {ROOT} demo FLEET=$PWD/quick.yaml', **TRAINS),
    'make soak': Short(f'make -C {ROOT} soak SCHEDULES=8 MINUTES=0', says=' passed'),
    'source .venv/bin/activate': Short(f'source {ROOT}/.venv/bin/activate; rog --help',
                                       says='VERB', needs=ROOT / '.venv/bin/activate'),
    'rog fleet up outdoor --minutes 2': Short(**TRAINS),
    'rog fleet up outdoor --bag statuses': Short('rog fleet up quick.yaml --bag there', **TRAINS),
    'rog sim outdoor --sync rsp:4 --minutes 60 --robots 4':
        Short('rog sim outdoor --sync rsp:4 --minutes 0.2 --robots 4'),
    'rog compare outdoor --sync bsp,ssp:4,asp,rsp:4,rsp:20':
        Short('rog compare outdoor --sync bsp,ssp:4,asp,rsp:4,rsp:20 --minutes 0.1 --seeds 1'),
    'rog fleet show outdoor': Short(says='robots:'),
    'rog key fleet.key': Short(says='wrote fleet.key'),
    'rog key fleet.key --robot robot1':
        Short('rog key fleet.key && rog key fleet.key --robot robot1', says='wrote robot1.key'),
    'rog control stop --key fleet.key --interface wlan0':
        Short('rog control stop --key $BESIDE/fleet.key', KEYED, says='stopping'),
    'rog view': Short('rog view --port 0', FLEET, until='http://127.0.0.1'),
    'rog view --interface wlan0 --key fleet.key': Short(
        'rog key fleet.key && rog view --port 0 --interface lo --key fleet.key', until='http://'),
    'rog view runs/outdoor-...': Short(
        'rog sim outdoor --minutes 0.2 --out runs/outdoor-1 && rog view --port 0 runs/outdoor-1',
        until='http://'),
    'rog status': Short('rog status --once', FLEET, says='robot3'),
    DIGITS: Short(LEARNED, says='models/latest/model.safetensors'),
    'rog models list': Short(f'{LEARNED} && rog models list', says='latest, best'),
    'rog models list runs/digits': Short(f'{LEARNED} && rog models list runs/digits',
                                         says='latest, best'),
    **{f'rog models export runs/digits {options}': Short(
        f'{LEARNED} && rog models export runs/digits {options}', says='^wrote digits.*accuracy')
       for options in ('--to digits.safetensors', '--version best --to digits.pt2',
                       '--version 1 --to digits.ts')},
    'rog models pin 7': Short('rog models pin 1', FLEET, says='version 1 is offered'),
    'rog models unpin': Short('', FLEET, says='is offered, the newest'),
    'lopinfer plan resnet18 --weights runs/street': Short(
        f'python -c "{STREET}" && lopinfer plan {NET} --weights runs/street --bandwidth 0:30:15',
        says='3 plans'),
    'rog plot runs/outdoor-...':
        Short('rog sim outdoor --minutes 0.2 --out runs/outdoor-1 && rog plot runs/outdoor-*',
              says='run.png'),
    'rog control sync rsp:4': Short('', FLEET, says='rsp:4'),
    'rog fleet show examples/my_fleet.yaml': Short(says='capacity'),
    'rog sim examples/my_fleet.yaml': Short('rog sim examples/my_fleet.yaml --minutes 0.2',
                                            says='Results in'),
    'rog fleet up examples/my_fleet.yaml --set training.sync=bsp':
        Short('rog fleet up examples/my_fleet.yaml --plain --set training.sync=bsp',
              until='robot2: [1-9]', says='Results in'),
    'rog sim outdoor --trace mylink.txt --sync rsp:4':
        Short('rog sim outdoor --trace mylink.txt --sync rsp:4 --minutes 0.2'),
    'rog fleet up outdoor --only robot1 --set network.interface=wlan0 --set link.emulate=false':
        Short('rog fleet up quick.yaml --only robot1 --plain --out r1 --set link.emulate=false',
              FLEET, until='robot1: [1-9]'),
    'rog status --interface wlan0':
        Short('rog status --interface lo --once', FLEET, says='robot3'),
    'rog doctor --interface wlan0': Short('rog doctor --interface lo --timeout 0',
                                          says='lo is up'),
    'rog doctor outdoor': Short('rog doctor outdoor --timeout 0', says='lo is up'),
    'rog trace stats mylink.txt': Short(),
    'rog sim outdoor --robots 5 --minutes 60 --seed 13 --set link.scale=0.25 '
    '--set channel.header=98':
        Short('rog sim outdoor --robots 5 --minutes 0.2 --seed 13 --set link.scale=0.25 '
              '--set channel.header=98'),
    'rog sim non_iid --sync gsgm --minutes 2': Short('rog sim non_iid --sync gsgm --minutes 0.1'),
    'lopinfer demo': Short(
        f'lopinfer demo {NET} --bandwidth 20 --requests 1 --out there && '
        'grep -c PNG there/demo.png',
        says='device-only(.|\\n)*dsccs(.|\\n)*lopinfer(.|\\n)*^[1-9]$'),
    'rrto run -- python your_program.py': Short(says='^10.0$'),
    'rog fleet up outdoor --only robot2 --out /tmp/r2':
        Short('rog fleet up quick.yaml --only robot2 --out r2', FLEET, until='robot2: [1-9]'),
    'rog compare outdoor --sync bsp,ssp:4,ssp:20,dssp:3:15,flown,asp,rsp:4,rsp:20':
        Short('rog compare outdoor --sync bsp,ssp:4,ssp:20,dssp:3:15,flown,asp,rsp:4,rsp:20 '
              '--minutes 0.1 --seeds 1'),
    'rog sim outdoor --sync rsp:20+pipeline+sparse --minutes 60 --robots 4':
        Short('rog sim outdoor --sync rsp:20+pipeline+sparse --minutes 0.2 --robots 4'),
    'rog sim crimp --minutes 10':
        Short('rog sim crimp --minutes 0.3', says='map.png'),
    'rog fleet up two_level': Short('rog fleet up two_level --plain --out up',
                                    until='blue: [1-9]', says='Results in'),
    'rog sim two_level': Short('rog sim two_level --minutes 0.1', says='summary.json'),
    'rog compare two_speeds':
        Short('rog compare two_speeds --minutes 0.1 --seeds 1 --sync bsp,asp'),
    'rog calibrate ../shared/data/traces/rog_outdoors_record.txt --fleet published':
        Short(f'rog calibrate {RECORD} --fleet published && rog compare published/published.yaml '
              '--seeds 1 --target 0.91 --sync bsp,rsp:4 --minutes 0.5', needs=RECORD),
    'rog calibrate ../shared/data/traces/rog_outdoors_record.txt':
        Short(f'rog calibrate {RECORD} --fleet fleet && ls fleet', needs=RECORD),
    **dict.fromkeys((
        'rog study gsgm --out runs/study-gsgm --only mnistnet --seeds 10',
        'rog study gsgm --out runs/study-gsgm --only lenet5,long,fading',
        'rog study gsgm --out runs/study-gsgm --only noisy --seeds 3',
        'rog study gsgm-svrg --seeds 3', 'rog study coding',
        'rog study coding --out runs/study-coding --only time-a-lenet5,groups-a',
        'rog study coding --out runs/study-coding --only time-b-lenet5 --seeds 3 --resume',
        'rog study coding --out runs/study-coding --only period-a --seeds 2 --resume',
        'rog study coding --out runs/study-coding --only accuracy-a-mnistnet --seeds 1 --resume',
        'rog study coding --out runs/study-sparsity --only sparsity-a-mnistnet --seeds 2'),
        Short(creates='runs/study-*', says='--resume')),
    'lopinfer plan resnet50 --bandwidth 0:30:5 --plot':
        Short(f'lopinfer plan {NET} --bandwidth 0:30:5 --plot', says='7 plans'),
    'fleet serve': Short(until='serving in /lopinfer', says='serving as'),
    'lopinfer serve': Short(until='serving'),
    'lopinfer serve --name second': Short(until='serving'),
    'lopinfer profile MODEL': Short(f'lopinfer profile {NET} --repeats 1 --out p.json'),
    'lopinfer compare MODEL': Short(f'lopinfer compare {NET}'),
    'rog doctor': Short('rog doctor --timeout 0', says='lo is up'),
    'rog doctor outdoor --json': Short('rog doctor quick.yaml --json', says='"what": "server"'),
    'rog fleet env indoor --profile fastdds': Short(says='useBuiltinTransports'),
    'eval "$(rog fleet env indoor)"': Short('eval "$(rog fleet env indoor)"; env',
                                            says='URI=.*"lo"'),
    'lopinfer bench': Short('lopinfer bench resnet18 --requests 2', says='resnet18'),
    'rrto serve --name laptop': Short(until='serving as laptop'),
    'rrto run --server laptop -- python3 app.py': Short(beside=SERVER, says='^10.0$'),
    'rrto run --link-rate': Short('rrto run --link-rate 100 -- python app.py', says='^10.0$'),
    'rrto status': Short(beside=SERVER, says='laptop: '),
    'rrto demo': Short('rrto demo --out there && ls there', says='replay +[0-9](.|\\n)*^demo.png'),
    'rrto bench': Short('rrto bench --round-trips 1 --count 2', says='"mode": "rpc"'),
}

IMAGE = "needs a base image; testing/test_docker.py runs what the containers of compose.yaml run"
BUILT = 'docs/start/install.md says what was tried'
ROS = 'needs ROS 2; launch/test starts the same launch files there'
AS_ROOT = "needs root; fleet_emulation's tests run it, in short"
EXAMPLE = 'testing/test_examples.py runs it, in short'
# Maps the beginning of a command to the reason why it is not run.
NOT_RUN = {
    'rog sim examples/my_fleet.yaml --set training.task=own_task': EXAMPLE,
    'rog fleet up examples/my_fleet.yaml --set training.task=own_task': EXAMPLE,
    'rog sim examples/my_fleet.yaml --set training.task=own_torchvision': EXAMPLE,
    'rog sim examples/my_fleet.yaml --set training.codec=own_codec': EXAMPLE,
    'rog compare examples/my_fleet.yaml': EXAMPLE,
    'PYTHONPATH=$PWD/examples:$PYTHONPATH ros2': ROS, 'python -m fleet_policy.main': EXAMPLE,
    'python -m fleet_policy.mock_robot': 'a test of fleet_policy runs it',
    'python -m fleet_policy.to_lerobot': 'a test of fleet_policy runs it where lerobot is',
    'export PYTHONPATH=$PWD/examples': 'for the two commands after it',
    'make chaos': AS_ROOT, 'rog chaos': AS_ROOT, 'rog fleet up outdoor --emulate': AS_ROOT,
    'rog compare outdoor --real': AS_ROOT, 'rog compare --real': AS_ROOT,
    'python bench/': 'a measurement; make bench runs it',
    'python ros2_ws/src/fleet_policy/bench/': 'a measurement of minutes',
    'python studies/bench/': 'a measurement of minutes',
    'rrto bench --model': 'a measurement of minutes',
    'lopinfer serve --device cuda': 'needs a GPU',
    'export OPENPI_PYTHON': 'for a measurement', 'build/openpi/bin/pip': 'for a measurement',
    'build/lerobot/bin/pip': 'for a measurement',
    'rog status --policies': "rog_cli's tests show such a table",
    'lopinfer serve --follow': 'a test of lopinfer_node runs such a server',
    'rog models rollback': 'launch/test runs it', 'rog models serve': "rog_cli's tests run it",
    **dict.fromkeys((
        'pip install tensorboard', 'rog fleet up outdoor --tensorboard', 'tensorboard --logdir',
        'rog plot runs/outdoor-... --tensorboard', 'MLFLOW_TRACKING_URI='),
        "rog_cli's tests send curves where TensorBoard and MLflow are installed"),
    'fleet serve --ray': "rog_cli's tests run it where Ray is installed",
    'rog fleet up outdoor --resume': 'launch/test continues a run',
    'source ~/rog-wheels': 'testing/test_package.py makes an environment for the wheels',
    'rog study rivals': "takes long; studies/test runs a shorter one",
    'rog study bounds': "takes long; studies/test runs a shorter one",
    'rog study whole_models': "takes long; studies/test runs a shorter one",
    'rog study peers': 'needs root and other programs; studies/test runs its short form',
    '--methods bsp': 'the second line of one of them',
    'rog compare published/published.yaml': 'the test of the line before it does, in short',
    '--sync bsp,ssp:4': 'the second line of it', '--sync bsp,own_method': EXAMPLE,
    'make setup': 'these tests run in what it made',
    'make lint': '.ci/run does it, after these tests',
    'make site': 'make lint does it',
    'make test': 'these tests are run by it',
    'make bench': 'measures for an hour and overwrites docs/results/benchmarks.md',
    'python -m pytest testing/test_ros_lint.py': 'make test runs it',
    'pip install torch numba': 'make setup does it', 'pip install ray': 'for the tests of Ray',
    'make wheels': 'testing/test_package.py builds and installs them',
    'make versions': 'downloads 8 GB', 'python tools/versions.py': 'downloads 8 GB',
    'pip install dist/': 'testing/test_package.py builds and installs them',
    'python -': 'options of Python, not commands',
    'make ros2-tools': 'needs sources that PyPI does not have',
    'rog trace record --iface': 'needs a radio',
    'docker ': IMAGE, 'pixi ': BUILT, 'echo "yaml': ROS, 'sudo rosdep init': ROS,
    'rosdep update': ROS, 'PIP_BREAK': ROS,
    'make reference': 'a test below compares what it writes',
    'pip install colcon': 'make setup does it',
    'sudo apt install': ROS, 'python3 -m venv': 'make setup does it',
    'source ~/rog-env': ROS, 'source /opt/ros': ROS,
    'pip install distributed': 'make setup does it',
    'pip install PyQt6-WebEngine': "a browser, for launch/test/test_view_of_two_runs.py",
    'pip install jupyterlab': 'for the notebook', 'jupyter lab': EXAMPLE,
    'python examples/learn_and_act/': EXAMPLE,
    'pip install cupy-cuda12x': 'for a machine with a GPU',
    'dask ': "rog_sim's tests start a scheduler and a worker",
    'rog study coding --cluster': "rog_sim's tests run on a cluster",
    'python tools/release.py 0.6.0': 'testing/test_package.py makes a release of copies',
    'python tools/settings.py': 'a test below compares what it prints with the page',
    'export ROS_SECURITY_ENABLE': ROS,
    'rog plot statuses': "rog_cli's tests write such a recording",
    'rog view statuses': "rog_cli's tests write such a recording",
    'colcon ': 'make test-all does it', 'ros2 ': ROS, 'source install/': ROS,
    'source .venv/setup': 'these tests run in it',
}

EXAMPLES_TOO = """
        import sys
        sys.path.append('examples')
        """
SERVED = EXAMPLES_TOO + '# beside `rog models serve`'
# Maps the first line of a block of Python to the code that the test runs before the block, and to
# the code that it runs after the block.
CODE = {
    'from rog_tasks.sources import open_source': ('''
        import math, pathlib, torch
        from PIL import Image
        for name in ('door', 'wall'):
            pathlib.Path('photos', name).mkdir(parents=True)
            Image.new('RGB', (64, 48), 'brown').save(f'photos/{name}/1.jpg')
        ''', '''
        task = Doors('folder:photos')
        task.batch_size = 2
        batch = next(task.batches(0, 1))
        assert batch[0].shape == (2, 3, 32, 32) and sorted(batch[1].tolist()) == [0, 1]
        assert abs(task.loss(task.model(), batch) - math.log(2)) < 1
        '''),
    'from rog_core.methods.ssp import Ssp': ('', '''
        from rog_core.errors import ConfigError
        from rog_core.method_check import check_named
        from rog_core.methods import Team, create
        check_named('__main__:Tight:8:robot2', Team())
        method = create('__main__:Tight:8:robot2')
        assert [method.bound_of(name) for name in ('robot1', 'robot2')] == [9, 4.5]
        try:
            check_named('__main__:Tight:8:robot2', Team({'robot1': 1.0, 'robot3': 1.0}))
            raise AssertionError('a robot that the fleet does not have')
        except ConfigError as error:
            assert str(error) == 'robot must be one of robot1, robot3, got robot2'
        '''),
    'from own_task import Digits': (EXAMPLES_TOO, '''
        from fleet_env.versions import Versions
        assert abs(task.evaluate(model) - Versions('runs/digits/models').read(1).accuracy) < 1e-6
        '''),
    'import torch                                    # and nothing of the task': (
        """
        from rog_cli.main import main
        assert main(['models', 'export', '--to', 'digits.pt2']) == 0
        """, 'assert program(torch.zeros(5, 64)).shape == (5, 10)'),
    'from fleet_env.weights import load_weights': (EXAMPLES_TOO, '''
        import torch
        new, filled = Further().model(), Further().model()
        Further().pretrain(filled)
        assert not torch.equal(new[0].weight, filled[0].weight)
        '''),
    '# on the robot': (
        EXAMPLES_TOO, 'torch.testing.assert_close(y, model(x))'),
    "# on a robot, or on any machine of the fleet's network": (
        SERVED + """
        import time
        import torch
        def pictures():
            while fleet.version is None:
                yield torch.zeros(1, 64)
        camera, act = pictures(), lambda said: time.sleep(0.02)
        """, """
        assert fleet.version.number == 1 and __import__('os').listdir('digits')
        """),
    '# on a robot: robot and server change together, between two inferences': (
        SERVED + """
        import torch
        from lopinfer_node import offload
        from own_task import Digits
        model, x = Digits().model().eval(), torch.zeros(1, 64)
        """, """
        assert y.shape == (1, 10)
        """),
    'from lopinfer_node import offload': ('''
        import torch
        model, x = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(), \\
            torch.ones(1, 3, 16, 16)
        ''', 'assert torch.equal(y, model(x))'),
}
# The examples whose code the documents show. The code is in the documents, because GitHub does
# not show files that Sphinx includes.
EXAMPLES = [(ROOT / f'examples/own_{name}.py').read_text() for name in ('codec', 'method', 'task')]
APP = 'import torch\nprint(torch.ones(10).cuda().sum().item())\n'


def blocks():
    """Yield (document, language, text) of every fenced block."""
    for document in DOCUMENTS:
        text = document.read_text()
        for match in re.finditer(r'^ *```([\w{}]*).*?\n(.*?)^ *```', text, re.M | re.S):
            yield document.relative_to(ROOT), match[1], textwrap.dedent(match[2])


def python_block(first):
    """Return the block of Python code that begins with ``first``."""
    return next(text for _, _, text in blocks() if text.startswith(first))


@cache
def commands():
    """Return a dict: command -> document that contains it, from code blocks and from the text."""
    said = {}
    for document, language, text in blocks():
        for line in text.splitlines() if language == 'bash' else ():
            for part in re.sub(r'(^|\s)#.*', '', line).split(' && '):
                if part.strip():
                    said.setdefault(part.strip(), document)
    for document in DOCUMENTS:
        text = re.sub(r'^ *```.*?^ *```', '', document.read_text(), flags=re.M | re.S)
        for code in re.findall(r'`([^`]+)`', text):
            code = ' '.join(code.split())
            if re.match(rf'({"|".join(PROGRAMS)}) [a-z.-]', code):
                said.setdefault(code, document.relative_to(ROOT))
    return said


def plain(command):
    """Return a command without the placeholders and optional arguments at its end."""
    return re.sub(r'( \[?[A-Z]+\]?)+$', '', command)


def not_run(command):
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


def is_mention(command):
    """Return whether the text is only the beginning of a tested command, such as `rog sim`."""
    return any(known.startswith(plain(command)) for known in RUN)


@pytest.mark.parametrize('command, document', [pytest.param(c, d, id=f'{d}: {c}')
                                               for c, d in commands().items()])
def test_a_command_in_a_document_is_run_here_or_it_is_said_why_not(command, document):
    assert command in RUN or not_run(command) or is_mention(command), \
        f'{document} says `{command}`; add its short form to RUN, or the reason to NOT_RUN'


def test_every_command_that_is_run_stands_in_a_document():
    assert not set(RUN) - set(commands())
    assert not [start for start in NOT_RUN if not any(c.startswith(start) for c in commands())]


def test_the_pages_that_users_read_stay_few_and_short():
    pages = [page for page in (ROOT / 'docs').rglob('*.md') if page.parent.name != 'results'
             and page.relative_to(ROOT / 'docs').as_posix() not in
             {f'reference/{name}.md' for name in MADE}]
    assert len(pages) <= 20 and sum(len(page.read_text().split()) for page in pages) <= 30_000


def anchors(page):
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    text = re.sub(r'^ *```.*?^ *```', '', page.read_text(), flags=re.M | re.S)
    heads = re.findall(r'^#+ (.*)', text, re.M)
    return {re.sub(r'[^\w\- ]', '', head.lower()).strip().replace(' ', '-') for head in heads}


@pytest.mark.parametrize('page', [
    *DOCUMENTS, ROOT / 'CHANGELOG.md', ROOT / 'QUALITY_DECLARATION.md'],
    ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_leads_to_a_file_and_to_a_heading(page):
    for link in re.findall(r'\]\(([^)\s]+)\)', page.read_text()):
        name, _, anchor = link.partition('#')
        target = page.parent / name if name else page
        if not re.match('[a-z]+:', link):
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize('page', [page for page in (ROOT / 'docs/results').glob('*.md')
                                  if page.stem != 'index'], ids=lambda page: page.stem)
def test_a_page_of_results_begins_with_the_command_that_makes_it(page):
    assert page.read_text().split('\n\n')[1].startswith('Made by ')


def test_every_block_is_of_a_kind_that_is_tested():
    python_blocks = [text for _, language, text in blocks() if language == 'python']
    assert [text for text in EXAMPLES if text not in python_blocks] == []
    assert {text.splitlines()[0] for text in python_blocks if text not in EXAMPLES} == {*CODE}
    # A block of the language '' contains no code. Sphinx reads the blocks in braces, and
    # testing/test_examples.py runs the files that they include.
    assert {language for _, language, _ in blocks()} <= {
        'bash', 'python', 'ini', '', '{toctree}', '{literalinclude}', '{include}'}


class Place:
    """A folder with the files that the documents mention; commands are started there."""

    def __init__(self, folder, beside=None):
        self.folder, self._started = folder, []
        self.domain = beside.domain if beside else free_domain()
        self._env = environment(self.domain, folder, BESIDE=str(beside and beside.folder))
        self._env['PATH'] = f'{Path(sys.executable).parent}:{self._env["PATH"]}'
        shutil.copytree(ROOT / 'examples', folder / 'examples')
        for name, text in {'app.py': APP, 'your_program.py': APP, 'quick.yaml': quick(),
                           'mylink.txt': '0 5\n1 0.2\n2 8\n'}.items():
            (folder / name).write_text(text)

    def start(self, command):
        # with exec, the exit code is that of the command instead of bash's
        simple = 'exec ' if not re.search('[;&|]', command) else ''
        # The tests ignore SIGINT if a shell starts them in the background; the started commands
        # must not ignore it.
        self._started.append(Lines(subprocess.Popen(
            ['bash', '-c', simple + command], env=self._env, cwd=self.folder, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))))
        return self._started[-1]

    def fork(self, *command):
        """Start a Python program as a fork of one that has loaded PyTorch."""
        self._started.append(Lines(Forked(LOADED, command, self._env, cwd=self.folder)))
        return self._started[-1]

    def close(self):
        for process in reversed(self._started):
            if process.process.poll() is None:
                process.interrupt()
        for results in (ROOT / 'runs').glob('documented-*'):  # the results of `make demo`
            shutil.rmtree(results)


@cache
def quick():
    """Return the text of quick.yaml: the outdoor fleet with a model that needs no preparation."""
    text = explained_fleet(load_fleet('outdoor', [FLEETS]))
    for key, value in {'name': 'documented', 'minutes': '120',
                       '  task': 'rog_tasks.classify:Classification'}.items():
        text = re.sub(f'^{key}: .*', f'{key}: {value}', text, flags=re.M)
    return text


class Besides:
    """Runs the `Beside` that commands need; replaces it when a command needs another `Beside`."""

    def __init__(self, folders):
        self._folders, self._beside, self._place = folders, None, None

    @contextmanager
    def place(self, beside, folder):
        """Yield a new `Place`, in the DDS domain of the command that runs beside it."""
        if self._beside != beside:
            self.close()
            if beside:
                self._place = Place(self._folders.mktemp('beside'))
                self._place.start(beside.command).wait(beside.ready)
            self._beside = beside
        place = Place(folder, self._place)
        try:
            yield place
        finally:
            place.close()

    def close(self):
        if self._place:
            self._place.close()
        self._beside = self._place = None


@pytest.fixture(scope='module')
def besides(tmp_path_factory):
    made = Besides(tmp_path_factory)
    yield made
    made.close()


def check(place, command, short):
    process = place.start(command)
    if short.until or short.creates:
        process.wait(short.until) if short.until else eventually(
            lambda: list(place.folder.glob(short.creates)) or process.process.poll() is not None)
        code, out = process.interrupt()
        assert code in (0, 130, -2), out
    else:
        code, out = process.ended()
        assert code == 0, out
    assert re.search(short.says, out, re.M) and 'Traceback' not in out, out


@pytest.mark.parametrize('command', [
    pytest.param(c, marks=[] if c == 'rog fleet show outdoor' else pytest.mark.long)
    for c in sorted(RUN, key=lambda command: TURNS.index(RUN[command].beside))])
def test_a_command_does_what_the_document_says(command, besides, tmp_path):
    short = RUN[command]
    if shutil.which(Path(sys.executable).with_name('rog')) is None:
        pytest.skip('the commands are not beside this Python')
    if short.needs and not short.needs.exists():
        pytest.skip(f'{short.needs} is not on this machine')
    with besides.place(short.beside, tmp_path) as place:
        check(place, short.command or command, short)


@pytest.mark.parametrize('command', [c for c in commands() if c not in RUN and not_run(c)])
def test_what_is_not_run(command):
    pytest.skip(not_run(command))


@pytest.fixture(scope='module')
def learned(besides, tmp_path_factory):
    """Return the folder `runs` of a run from which the blocks of Python take what was learned."""
    folder = tmp_path_factory.mktemp('learned')
    with besides.place(None, folder) as place:
        _, *arguments = shlex.split(LEARNED)
        code, out = place.fork('rog_cli.main', *arguments).ended()
    assert code == 0, out
    return folder / 'runs'


def write_block(folder, first):
    """Write a block of Python, with the code before and after it; return the path."""
    before, after = map(textwrap.dedent, CODE[first])
    path = folder / f'block{[*CODE].index(first)}.py'
    path.write_text(f'{before}\n{python_block(first)}\n{after}\n')
    return path


# A program that shares a model computes in threads up to its end, which a fork must not stand for.
SHARING = [first for first in CODE if 'with offload(' in python_block(first)]


@pytest.mark.parametrize('first', [first for first in CODE if first not in SHARING])
def test_a_block_of_python_runs(first, besides, learned, tmp_path):
    block = write_block(tmp_path, first)
    shutil.copytree(learned, tmp_path / 'runs')
    with besides.place(None, tmp_path) as place:
        if CODE[first][0].startswith(SERVED):
            place.fork('rog_cli.main', 'models', 'serve', 'runs/digits')
        code, out = place.fork(str(block)).ended()
    assert code == 0, out


def test_the_blocks_of_python_that_share_a_model_run(besides, learned, tmp_path):
    """One process runs one after the other, because each would take seconds to load PyTorch."""
    names = [write_block(tmp_path, first).name for first in SHARING]
    shutil.copytree(learned, tmp_path / 'runs')
    (tmp_path / 'all.py').write_text(
        "import runpy, sys\nfor name in sys.argv[1:]:\n"
        "    print(name, runpy.run_path(name, run_name='__main__')['y'].shape)\n")
    with besides.place(None, tmp_path) as place:
        place.fork('rog_cli.main', 'models', 'serve', 'runs/digits')
        code, out = place.start(shlex.join(['python', 'all.py', *names])).ended()
    assert code == 0 and len(names) > 2 and all(name in out for name in names), out


@pytest.mark.parametrize('name', MADE)
def test_a_page_that_is_made_from_code_is_up_to_date(name, besides, tmp_path):
    with besides.place(None, tmp_path) as place:
        code, made = place.fork(str(ROOT / f'tools/{name}.py')).ended()
    assert code == 0, made
    assert made == (ROOT / f'docs/reference/{name}.md').read_text(), 'make reference'
