"""The node as a process: signals leave the robot in its safe state."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from fleet_policy.contract import make_contract
from fleet_policy.mock_robot import MockRobot
from fleet_testing import Lines, environment, eventually, free_domain
from policies import CONTRACT
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

HERE = Path(__file__).parent


@pytest.fixture
def robot(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain()))
    context = Context()
    rclpy.init(context=context)
    made = MockRobot(make_contract(CONTRACT), namespace='/robot1', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(made)
    made.step = lambda: executor.spin_once(timeout_sec=0.02)
    yield made
    executor.shutdown()
    made.destroy_node()
    context.try_shutdown()


@pytest.fixture
def process():
    started = []

    def start(*parameters):
        started.append(subprocess.Popen(
            [sys.executable, '-m', 'fleet_policy.main', '--ros-args', '-r', '__ns:=/robot1',
             *(part for p in ('inference:=alone', 'threads:=1', *parameters)
               for part in ('-p', p))],
            env=environment(int(os.environ['ROS_DOMAIN_ID']), HERE), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return Lines(started[0])
    yield start
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.parametrize('number', [
    signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_leaves_the_robot_in_its_safe_state(robot, process, number):
    lines = process('policy:=policies:Small')
    eventually(lambda: any(name == 'wheels' and values.any()
                           for name, _, values in robot.received),
               lambda: str(lines.lines()), step=robot.step)
    lines.process.send_signal(number)
    eventually(lambda: lines.process.poll() is not None, step=robot.step)
    code, said = lines.ended()
    for _ in range(20):
        robot.step()
    assert code == 0 and 'Traceback' not in said, said
    wheels = [values.tolist() for name, _, values in robot.received if name == 'wheels']
    assert wheels[-1] == [0.0, 0.0]


def test_a_wrong_contract_is_one_line_with_its_place(tmp_path, robot, process):
    path = tmp_path / 'contract.yaml'
    path.write_text('rate: 30.0\nobservations:\n  a: {topic: b, type: std_msgs/msg/Nothing}\n'
                    'actions: {}\n')
    code, said = process('policy:=policies:Small', f'contract:={path}').ended()
    assert code == 1 and 'Traceback' not in said
    assert f'{path}, line 3: observations.a.type' in said
