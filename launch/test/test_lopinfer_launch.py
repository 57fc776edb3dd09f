"""`ros2 launch rog_bringup lopinfer.launch.py` with real processes."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import rclpy
from fleet_under_test import DEADLINE, environment, free_domain
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

pytest.importorskip('launch_ros', reason='launch_ros is not installed: no ROS 2 is sourced')
pytest.importorskip('ros2launch', reason='ros2launch is not installed: no ROS 2 is sourced')

LAUNCH = [sys.executable, '-c', 'import sys; from ros2cli.cli import main; sys.exit(main())',
          'launch', 'rog_bringup', 'lopinfer.launch.py']


def start(folder, domain, *arguments):
    return subprocess.Popen(
        [*LAUNCH, *arguments], cwd=folder, text=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        env={**environment(domain), 'ROS_LOG_DIR': str(folder), 'HOME': str(folder)})


def test_two_robots_answer_images_with_the_server_and_end_cleanly(tmp_path):
    from lopinfer_msgs.msg import Result
    from lopinfer_node.qos import IMAGE, RESULT
    from sensor_msgs.msg import Image
    domain = free_domain()
    launch = start(tmp_path, domain, 'robots:=robot1,robot2', 'model:=tiny_net:make', 'height:=32',
                   'width:=40', 'method:=server-only', f'directory:={tmp_path}')
    context = Context()
    rclpy.init(context=context, domain_id=domain)
    node = Node('camera', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    image = Image(height=32, width=40, encoding='rgb8', step=120)
    image.data = np.zeros(3840, np.uint8).tobytes()
    offloaded = set()

    def watch(robot):
        images = node.create_publisher(Image, f'/{robot}/image', IMAGE)
        node.create_timer(0.1, lambda: images.publish(image))
        node.create_subscription(
            Result, f'/{robot}/lopinfer/result',
            lambda result: offloaded.add(robot) if result.offloaded else None, RESULT)

    for robot in ('robot1', 'robot2'):
        watch(robot)
    until = time.monotonic() + 2 * DEADLINE
    try:
        while len(offloaded) < 2 and launch.poll() is None and time.monotonic() < until:
            executor.spin_once(0.1)
    finally:
        node.destroy_node()
        context.try_shutdown()
        if launch.poll() is None:
            os.killpg(launch.pid, signal.SIGINT)
        output = launch.communicate(timeout=DEADLINE)[0]
    assert offloaded == {'robot1', 'robot2'}, output
    assert launch.returncode == 0, output
    assert 'process has died' not in output and 'Traceback' not in output


@pytest.mark.parametrize('argument, message', [
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1'),
    ('height:=tall', 'height:=tall must be of type int'),
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
    assert all(f"'{name}':" in output for name in ('robots', 'model', 'server_threads', 'threads',
                                                   'link_rate', 'server', 'directory'))
