"""The node as a process: signals leave the robot in its safe state."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from fleet_policy import qos
from fleet_policy.contract import make_contract
from fleet_policy.mock_robot import MockRobot
from fleet_testing import Lines, environment, eventually, free_domain
from policies import CONTRACT
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor

HERE = Path(__file__).parent
NODE = ('-m', 'fleet_policy.main', '--ros-args', '-r', '__ns:=/robot1')


def parameters(*given):
    return [part for one in ('threads:=1', *given) for part in ('-p', one)]


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

    def start(*command):
        started.append(subprocess.Popen(
            [sys.executable, *command], env=environment(int(os.environ['ROS_DOMAIN_ID']), HERE),
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return Lines(started[-1])

    def policy(*given):
        return start(*NODE, *parameters('inference:=alone', *given))
    policy.start = start
    yield policy
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


@pytest.mark.long
def test_with_rrto_the_server_computes_and_its_end_costs_no_tick(robot, process):
    said = []
    robot.create_subscription(DiagnosticStatus, 'policy_status', said.append, qos.STATUS)

    def value(key):
        return next((pair.value for pair in said[-1].values if pair.key == key), '') if said else ''
    server = process.start('-m', 'rrto_bridge.cli.main', 'serve', '--name', 'policys')
    server.wait('serving as policys')
    node = process.start(
        '-m', 'rrto_bridge.cli.main', 'run', '--server', 'policys', '--on-loss', 'local', '--',
        sys.executable, *NODE, *parameters('policy:=policies:Small', 'inference:=rrto'))
    eventually(lambda: value('computed by') == 'server', lambda: str(node.lines()[-20:]),
               step=robot.step)
    server.process.kill()
    executed = int(value('chunks'))
    eventually(lambda: int(value('chunks')) > executed + 3, lambda: str(node.lines()[-20:]),
               step=robot.step)
    assert int(value('starved ticks')) == 0, node.lines()[-20:]


def test_a_wrong_contract_is_one_line_with_its_place(tmp_path, robot, process):
    path = tmp_path / 'contract.yaml'
    path.write_text('rate: 30.0\nobservations:\n  a: {topic: b, type: std_msgs/msg/Nothing}\n'
                    'actions: {}\n')
    code, said = process('policy:=policies:Small', f'contract:={path}').ended()
    assert code == 1 and 'Traceback' not in said
    assert f'{path}, line 3: observations.a.type' in said
