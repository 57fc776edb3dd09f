"""How `make setup` installs the wheels of ROS 2: tools/ros.py, tools/needed.py."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def tool(name, monkeypatch):
    """Import a file of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    spec = importlib.util.spec_from_file_location(name, ROOT / 'tools' / f'{name}.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def ros(monkeypatch):
    return tool('ros', monkeypatch)


def test_a_ros_that_is_sourced_is_told_from_our_own_environment(ros, monkeypatch, tmp_path):
    theirs, ours = tmp_path / 'opt', tmp_path / 'venv'
    for prefix in (theirs, ours):
        (prefix / 'share' / 'rclpy').mkdir(parents=True)
    (ours / 'pyvenv.cfg').touch()
    for path, sourced in (('', False), (str(ours), False), (str(theirs), True),
                          (f'{ours}:{theirs}', True), (f'{ours}:{tmp_path}', False)):
        monkeypatch.setenv('AMENT_PREFIX_PATH', path)
        assert ros.is_sourced() is sourced, path


def test_a_distribution_without_a_list_of_wheels_is_refused_with_those_there_are(ros):
    with pytest.raises(SystemExit, match='ROS must be one of jazzy, kilted, got humble'):
        ros.install('humble')


def test_both_lists_pin_every_wheel_to_one_version():
    names = {}
    for path in sorted(ROOT.glob('ros-*.txt')):
        lines = [line for line in path.read_text().splitlines() if not line.startswith('#')]
        assert all(line.count('==') == 1 for line in lines)
        names[path.stem] = [line.partition('==')[0] for line in lines]
        assert len(set(names[path.stem])) == len(lines)
    assert {'ros-rclpy', 'ros-rmw-fastrtps-cpp'} <= set.intersection(*map(set, names.values()))


def test_what_is_missing_is_named_with_what_brings_it(monkeypatch):
    needed = tool('needed', monkeypatch)
    monkeypatch.setenv('AMENT_PREFIX_PATH', '')
    monkeypatch.setenv('PATH', '')
    monkeypatch.delenv('CXX', raising=False)
    monkeypatch.setattr(needed.platform, 'machine', lambda: 'aarch64')
    monkeypatch.setattr(needed.sysconfig, 'get_path', lambda name: '/nowhere')
    found = '\n'.join(needed.lacking())
    for part in ('apt install g++', '-dev', 'PyPI has none for Linux on aarch64'):
        assert part in found


@pytest.mark.skipif(not (Path(sys.prefix) / 'share' / 'rclpy').is_dir(),
                    reason='ROS 2 is sourced, not of this environment')
def test_ros_starts_without_a_library_path_and_without_a_second_start_of_python():
    environment = {name: value for name, value in os.environ.items() if name not in (
        'LD_LIBRARY_PATH', 'AMENT_PREFIX_PATH', 'PYTHONPATH', '_ROS_WHEELS_BOOTSTRAP_COMPLETE')}
    done = subprocess.run([sys.executable, '-c', '''
import os, rclpy, sys
from rclpy.serialization import serialize_message
from rog_msgs.msg import RowChunk
from lopinfer_msgs.srv import Open
from fleet_msgs.msg import Frame
for message in (RowChunk(), Open.Request(), Frame()):
    serialize_message(message)
rclpy.init()
rclpy.create_node('one')
print(rclpy.__file__.startswith(sys.prefix), 'LD_LIBRARY_PATH' in os.environ,
      '_ROS_WHEELS_BOOTSTRAP_COMPLETE' in os.environ)
'''], env=environment, text=True, capture_output=True, check=False)
    assert (done.stdout, done.stderr) == ('True False False\n', '')


def test_ros2_tools_fetches_only_missing_sources_and_says_where_to_put_them(monkeypatch, tmp_path):
    tools = tool('ros2_tools', monkeypatch)
    for repository in tools.REPOSITORIES:
        (tmp_path / repository.partition('/')[2]).mkdir()
    calls = []

    def run(command, **_):
        calls.append(command)
        return subprocess.CompletedProcess(command, 128)

    monkeypatch.setattr(tools.subprocess, 'run', run)
    tools.fetch('jazzy', tmp_path)
    assert not calls
    (tmp_path / 'launch').rmdir()
    with pytest.raises(SystemExit, match=r'its branch jazzy in .*launch, or name a folder'):
        tools.fetch('jazzy', tmp_path)
    assert calls[0][-4:] == ['--branch', 'jazzy', 'https://github.com/ros2/launch',
                             str(tmp_path / 'launch')]
