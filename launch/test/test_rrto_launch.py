"""`ros2 launch rog_bringup rrto.launch.py` with real processes."""

import sys

import pytest
from fleet_under_test import HERE
from launched import Launched, check_clean_end, check_described, check_refused

FILE = 'rrto.launch.py'


@pytest.mark.long
def test_programs_of_two_robots_replay_on_the_server_and_end_cleanly(tmp_path):
    from fleet_ros.qos import STATUS
    from rrto_msgs.msg import BridgeStatus
    replays = {}
    with Launched(tmp_path, FILE, 'robots:=robot1,robot2', 'threads:=1', 'device:=cpu',
                  f'program:={sys.executable} {HERE / "gpu_program.py"}') as launch:

        def watch(robot):
            launch.node.create_subscription(
                BridgeStatus, f'/{robot}/rrto/status', lambda status:
                replays.__setitem__(robot, status) if status.inferences else None, STATUS)

        for robot in ('robot1', 'robot2'):
            watch(robot)
        launch.spin_until(lambda: len(replays) == 2)
    assert set(replays) == {'robot1', 'robot2'}, launch.output
    for status in replays.values():
        assert (status.server, status.mode, status.state) == ('server', 'replay', 'connected')
        assert status.sequences == 1 and status.round_trips_last == 1
    check_clean_end(launch)


@pytest.mark.parametrize('argument, message', [
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('mode:=fast', "mode is 'fast'; it must be one of replay, async, cached, rpc"),
    ('memory:=much', "memory must be a whole number, not 'much'"),
    ('interface:=nowhere', "network.interface is 'nowhere'"),
])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    check_refused(Launched(tmp_path, FILE, argument), message)


def test_every_argument_is_described(tmp_path):
    check_described(tmp_path, FILE, 'program', 'robots', 'mode', 'on_loss', 'name', 'memory',
                    'lease', 'link.rate')
