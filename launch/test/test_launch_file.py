"""`ros2 launch rog_bringup indoor.launch.py` with real processes."""

import os
import subprocess
import sys

import pytest
from fleet_env.summary import read_summary
from fleet_under_test import DEADLINE, environment, free_domain, write_fleet

pytest.importorskip('launch_ros', reason='launch_ros is not installed: no ROS 2 is sourced')
pytest.importorskip('ros2launch', reason='ros2launch is not installed: no ROS 2 is sourced')


def launch(folder, *arguments):
    """Run the launch file in a process of its own; its exit code and output."""
    done = subprocess.run(
        [sys.executable, '-c', 'import sys; from ros2cli.cli import main; sys.exit(main())',
         'launch', 'rog_bringup', 'indoor.launch.py', *arguments], cwd=folder, text=True,
        env={**environment(free_domain()), 'ROS_LOG_DIR': str(folder)}, timeout=2 * DEADLINE,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout


def test_a_fleet_trains_to_the_end(tmp_path):
    fleet = write_fleet(tmp_path, robots=2, minutes=0.03)
    code, output = launch(tmp_path, f'fleet:={fleet}', f'out:={tmp_path / "2024"}', 'sync:=bsp')
    assert code == 0, output
    summary = read_summary(tmp_path / '2024')
    assert summary.sync == 'bsp' and all(r.iterations for r in summary.robots.values())
    assert 'process has died' not in output and 'Traceback' not in output


@pytest.mark.parametrize('argument, message', [
    ('sync:=foo', "synchronisation method 'foo' is unknown"),
    ('pace:=fast', 'training.pace must be a number'),
    ('minutes:=-1', 'minutes is -1'),
    ('fleet:=nowhere', "no fleet is called 'nowhere'"),
    ('only:=robot9', 'only:=robot9 names robot9; the fleet has server, robot1'),
    ('resume:=perhaps', 'resume'),
])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    code, output = launch(tmp_path, f'out:={tmp_path / "out"}', argument)
    assert code == 1 and message in output
    assert 'process started' not in output and not os.path.exists(tmp_path / 'out')


def test_a_task_that_does_not_load_makes_it_fail(tmp_path):
    fleet = write_fleet(tmp_path, robots=1, task='tiny_task:Nope')
    code, output = launch(tmp_path, f'fleet:={fleet}', f'out:={tmp_path / "out"}')
    assert code == 1 and "tiny_task has no 'Nope'" in output


def test_every_argument_is_described(tmp_path):
    code, output = launch(tmp_path, '--show-args')
    assert code == 0 and 'no description given' not in output
    assert all(f"'{name}':" in output for name in ('sync', 'minutes', 'seed', 'task', 'resume'))
