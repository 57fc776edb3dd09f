"""`ros2 launch rog_bringup indoor.launch.py` with real processes."""

import pytest
from fleet_env.fleet import FleetSettings
from fleet_env.settings import knobs
from fleet_env.summary import read_summary
from fleet_under_test import write_fleet
from launched import Launched, check_clean_end, check_described, check_refused

FILE = 'indoor.launch.py'


def test_a_fleet_trains_to_the_end(tmp_path):
    fleet = write_fleet(tmp_path, robots=2, minutes=0.03)
    check_clean_end(Launched(tmp_path, FILE, f'fleet:={fleet}', f'out:={tmp_path / "2024"}',
                             'sync:=bsp').wait())
    summary = read_summary(tmp_path / '2024')
    assert summary.sync == 'bsp' and all(r.iterations for r in summary.robots.values())


@pytest.mark.parametrize('argument, message', [
    ('sync:=foo', "synchronisation method 'foo' is unknown"),
    ('pace:=fast', 'training.pace must be a number'),
    ('minutes:=-1', 'minutes is -1'),
    ('chunk_bytes:=1', 'network.chunk_bytes is 1 B; it must be'),
    ('link.emulate:=maybe', 'link.emulate must be true or false'),
    ('fleet:=nowhere', "no fleet is called 'nowhere'"),
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('resume:=perhaps', 'resume'),
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
