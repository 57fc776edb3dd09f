"""`ros2 launch rog_bringup indoor.launch.py` with real processes."""

import os
import signal
from pathlib import Path

import pytest
from fleet_env.records.summary import read_summary
from fleet_env.settings.base import knobs
from fleet_env.settings.fleet import FleetSettings
from fleet_testing import eventually
from fleet_under_test import write_fleet
from launched import Launched, check_clean_end, check_described, check_refused
from rog_msgs.msg import TrainingStatus
from rog_ros import qos

FILE = 'indoor.launch.py'


def test_a_fleet_trains_to_the_end(tmp_path):
    fleet = write_fleet(tmp_path, robots=2, minutes=0.03)
    fleet.write_text(fleet.read_text().replace('name: tiny', 'name: inf'))  # a text, not a number
    check_clean_end(Launched(tmp_path, FILE, f'fleet:={fleet}', f'out:={tmp_path / "2024"}',
                             'sync:=bsp').wait())
    summary = read_summary(tmp_path / '2024')
    assert summary.sync == 'bsp' and all(r.iterations for r in summary.robots.values())


def until_trained(launch, robots=1):
    """Wait until ``robots`` robots have trained; return name of a robot -> process id."""
    found = {}

    def on_status(status):
        if status.iteration:
            found[status.robot] = int(status.host.split()[-1])

    for n in range(robots):
        launch.node.create_subscription(TrainingStatus, f'/robot{n + 1}/training_status', on_status,
                                        qos.STATUS)
    launch.spin_until(lambda: len(found) == robots)
    return found


@pytest.mark.long
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_whatever_ends_the_launcher_ends_all_and_results_are_written(tmp_path, number):
    fleet, out = write_fleet(tmp_path, robots=2), tmp_path / 'out'
    with Launched(tmp_path, FILE, f'fleet:={fleet}', f'out:={out}') as launch:
        robots = until_trained(launch, 2)
        launch.signal(number)
        launch.wait()
    assert launch.code in (0, -number) and 'exit code' not in launch.output, launch.output
    eventually(lambda: not any(Path(f'/proc/{pid}').exists() for pid in robots.values()))
    eventually((out / 'summary.json').exists)
    assert read_summary(out).notes['reason'] == 'interrupted'


@pytest.mark.long
def test_a_process_that_was_killed_makes_the_launch_fail(tmp_path):
    fleet = write_fleet(tmp_path, robots=2)
    with Launched(tmp_path, FILE, f'fleet:={fleet}', f'out:={tmp_path / "out"}') as launch:
        os.kill(until_trained(launch, 2)['robot1'], signal.SIGKILL)
    assert launch.code == 1 and 'exit code -9' in launch.output, launch.output


@pytest.mark.parametrize('argument, message', [
    ('sync:=foo', "synchronisation method 'foo' is unknown"),
    ('pace:=fast', 'training.pace must be a number'),
    ('minutes:=-1', 'minutes is -1'),
    ('chunk_bytes:=1', 'network.chunk_bytes is 1 B; it must be'),
    ('link.emulate:=maybe', 'link.emulate must be true or false'),
    ('fleet:=nowhere', "no fleet is called 'nowhere'"),
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('resume:=perhaps', 'resume'),
    ('enclave:=/fleet', 'ROS_SECURITY_ENABLE is not true: the nodes would talk unprotected'),
])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    check_refused(Launched(tmp_path, FILE, f'out:={tmp_path / "out"}', argument), message)
    assert not (tmp_path / 'out').exists()


def test_a_task_that_does_not_load_makes_it_fail(tmp_path):
    fleet = write_fleet(tmp_path, robots=1, task='tiny_task:Nope')
    launch = Launched(tmp_path, FILE, f'fleet:={fleet}', f'out:={tmp_path / "out"}').wait()
    assert launch.code == 1 and "tiny_task has no 'Nope'" in launch.output


def test_every_argument_is_described(tmp_path):
    check_described(tmp_path, FILE, 'resume', *(knob.name for knob in knobs(FleetSettings)))
