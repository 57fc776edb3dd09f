"""`ros2 launch rog_bringup rrto.launch.py` with real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest
import rclpy
from fleet_under_test import DEADLINE, HERE, environment, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

pytest.importorskip('launch_ros', reason='launch_ros is not installed: no ROS 2 is sourced')
pytest.importorskip('ros2launch', reason='ros2launch is not installed: no ROS 2 is sourced')

LAUNCH = [sys.executable, '-c', 'import sys; from ros2cli.cli import main; sys.exit(main())',
          'launch', 'rog_bringup', 'rrto.launch.py']


def start(folder, domain, *arguments):
    return subprocess.Popen(
        [*LAUNCH, *arguments], cwd=folder, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**environment(domain), 'ROS_LOG_DIR': str(folder), 'HOME': str(folder)})


def test_programs_of_two_robots_replay_on_the_server_and_end_cleanly(tmp_path):
    from rrto_bridge.qos import STATUS
    from rrto_msgs.msg import BridgeStatus
    domain = free_domain()
    launch = start(tmp_path, domain, 'robots:=robot1,robot2', 'threads:=1', 'device:=cpu',
                   f'program:={sys.executable} {HERE / "gpu_program.py"}')
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = Node('observer', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    replays = {}

    def watch(robot):
        node.create_subscription(BridgeStatus, f'/{robot}/rrto/status', lambda status:
                                 replays.__setitem__(robot, status) if status.inferences else None,
                                 STATUS)

    for robot in ('robot1', 'robot2'):
        watch(robot)
    until = time.monotonic() + 2 * DEADLINE
    try:
        while len(replays) < 2 and launch.poll() is None and time.monotonic() < until:
            executor.spin_once(0.1)
    finally:
        node.destroy_node()
        context.try_shutdown()
        if launch.poll() is None:
            os.killpg(launch.pid, signal.SIGINT)
        output = launch.communicate(timeout=DEADLINE)[0]
    assert set(replays) == {'robot1', 'robot2'}, output
    for status in replays.values():
        assert (status.server, status.mode, status.state) == ('server', 'replay', 'connected')
        assert status.sequences == 1 and status.round_trips_last == 1
    assert launch.returncode == 0, output
    assert 'process has died' not in output and 'Traceback' not in output


@pytest.mark.parametrize('argument, message', [
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('mode:=fast', "'replay', 'async', 'cached', 'rpc'"),
    ('memory:=much', 'much'),
    ('interface:=nowhere', "network.interface is 'nowhere'"),
])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    launch = start(tmp_path, free_domain(), argument)
    output = launch.communicate(timeout=DEADLINE)[0]
    assert launch.returncode == 1 and message in output
    assert 'process started' not in output


def test_every_argument_is_described(tmp_path):
    launch = start(tmp_path, free_domain(), '--show-args')
    output = launch.communicate(timeout=DEADLINE)[0]
    assert launch.returncode == 0 and 'no description given' not in output
    assert all(f"'{name}':" in output for name in ('program', 'robots', 'mode', 'on_loss', 'name',
                                                   'memory', 'lease', 'link_rate'))
