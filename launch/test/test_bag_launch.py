"""examples/fleet_with_bag.launch.py starts a fleet and records it.

`rog plot` makes figures from the recording.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from fleet_testing import eventually
from fleet_under_test import write_fleet
from rog_cli.display.bag import state_of_bag

if find_spec('rosbag2_py') is None:
    pytest.skip('rosbag2 is not installed', allow_module_level=True)
from launched import COMMAND, Launched  # noqa: E402

FILE = Path(__file__).parents[2] / 'examples/fleet_with_bag.launch.py'


@pytest.mark.long
def test_a_fleet_leaves_its_results_and_a_recording_of_its_statuses(tmp_path, monkeypatch):
    # start the launch file by its path, not by a package and a file name
    monkeypatch.setattr('launched.COMMAND', COMMAND[:-1])
    shutil.copy(FILE, tmp_path)
    fleet = write_fleet(tmp_path, robots=2, minutes=0.1)
    launch = Launched(tmp_path, FILE.name, f'fleet:={fleet}', f'out:={tmp_path / "out"}').wait()
    assert 'Traceback' not in launch.output, launch.output
    eventually((tmp_path / 'out/summary.json').exists)
    (bag,) = tmp_path.glob('rosbag2_*')
    state, _ = state_of_bag(bag)
    assert state.robots.keys() == {'robot1', 'robot2'}
