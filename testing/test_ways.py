"""The pictures of the ways through the code show the functions that run, in the order of calls."""

import re
import sys
from pathlib import Path

import pytest
from fleet_testing import PROGRAMS as LOADED
from fleet_testing import Forked

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / 'tools'))
from ways import IMAGES, WAYS, drawing  # noqa: E402

# Each program prepares what it needs, then runs one operation under `sys.setprofile(note)`.
PROGRAMS = {
    'gradient': '''
import numpy as np
from rog_core.loopback import Loopback
from rog_core.methods import Team
from rog_core.protocol.config import SgdConfig
team = Team(codec='onebit', momentum=0.9, capacities={'robot1': 1.0})
fleet = Loopback.small([('weight', (8, 64))], 'rsp:4', team)
fleet.start()
sys.setprofile(note)
worker = fleet.workers['robot1']
fleet.want('robot1', worker.on_gradient(np.ones(512, np.float32), SgdConfig(0.1, 0.9, 0.0, True),
                                        fleet.now))
fleet.deliver()
''',
    'inference': '''
from numpy_program import small_graph
from lopinfer_node.runtime.client import OPEN
from virtual import World
world = World(small_graph(), 1)
client = world.clients[0]
world.at(4.0, lambda: None)
world.run(lambda: world.now >= 4.0 and client.machine.state == OPEN, 10.0)
sys.setprofile(note)
client.request()
world.run(lambda: client.idle, world.now + 5.0)
''',
    'operator': '''
import torch
import remote
remote.start('replay')
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).cuda()
with torch.no_grad():
    for _ in range(8):
        model(torch.rand(2, 8).cuda()).cpu()
    sys.setprofile(note)
    model(torch.rand(2, 8).cuda()).cpu()
''',
}
TRACER = '''
import sys
package, calls = sys.argv[1], {}
def note(frame, event, argument):
    code = frame.f_code
    if event == 'call' and f'/{package}/{package}/' in code.co_filename:
        file = code.co_filename.rpartition(f'/{package}/{package}/')[2]
        owner = next((k.__qualname__ for k in type(frame.f_locals.get('self')).__mro__
                      if getattr(k.__dict__.get(code.co_name), '__code__', None) is code), '')
        calls.setdefault((file, f'{owner}.{code.co_name}'.lstrip('.')))
'''


def called(name, folder):
    """Run a way's program; return (file, name) of each function of the package, in order of calls.

    ``name``: name of the way. ``folder``: an empty one.
    """
    way = WAYS[name]
    tests = ROOT / 'ros2_ws/src' / way.package / 'test'
    program = folder / 'program.py'
    program.write_text(TRACER + f'sys.path.insert(0, {str(tests)!r})\n' + PROGRAMS[name]
                       + "sys.setprofile(None)\nfor call in calls:\n    print(*call)\n")
    with Forked(LOADED, [str(program), way.package]) as process:
        said, _ = process.communicate()
    assert not process.returncode, said
    return [tuple(line.split()) for line in said.splitlines()]


@pytest.mark.parametrize('name', WAYS)
def test_the_functions_are_called_in_the_order_of_the_picture(name, tmp_path):
    calls = called(name, tmp_path)
    steps = [(step.file, step.name) for step in WAYS[name].steps]
    assert [step for step in steps if step not in calls] == []
    assert sorted(steps, key=calls.index) == steps


@pytest.mark.parametrize('name', WAYS)
def test_the_picture_in_the_documents_is_the_one_that_is_drawn(name):
    assert (IMAGES / f'way_{name}.svg').read_text() == drawing(WAYS[name])


def test_the_files_to_open_are_there_and_as_many_as_the_page_says():
    text = (ROOT / 'docs/inside/ways.md').read_text()
    rows = re.findall(r'^\| [^|]*\((\d+)\) \| (.*) \|$', text, re.M)
    assert len(rows) == 5
    for count, listed in rows:
        folder, files = Path(), set()
        for name in map(Path, re.findall(r'`([\w/.]+)`', listed)):
            folder = name if not name.suffix else name.parent if name.parent.name else folder
            if name.suffix:
                files.add(folder / name.name)
        assert len(files) == int(count)
        assert not [f for f in files if not [*ROOT.glob(f'ros2_ws/src/*/{f}')]]
