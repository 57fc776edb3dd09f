"""The node as a process: after a signal, the node puts the robot into its safe state."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rclpy
import torch
from diagnostic_msgs.msg import DiagnosticStatus
from fleet_policy import qos
from fleet_policy.contract import make_contract
from fleet_policy.mock_robot import MockRobot
from fleet_policy.observer import image
from fleet_ros.own_gpu import OWN_DEVICE
from fleet_testing import INFERENCE, Forked, Lines, environment, eventually, free_domain
from policies import CONTRACT, Small
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState

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
    made.said = {}   # the values of the last `policy_status` message, by their keys
    made.create_subscription(DiagnosticStatus, 'policy_status', lambda status: made.said.update(
        {pair.key: pair.value for pair in status.values}), qos.STATUS)
    yield made
    executor.shutdown()
    made.destroy_node()
    context.try_shutdown()


@pytest.fixture
def process():
    started = []

    def start_any(*arguments, forked=True):
        env = environment(int(os.environ['ROS_DOMAIN_ID']), HERE)
        started.append(Forked(INFERENCE, arguments, env) if forked else subprocess.Popen(
            [sys.executable, '-m', *arguments], env=env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return Lines(started[-1])

    def start(*parameters, inside=(), **more):
        return start_any(*inside, 'fleet_policy.main', '--ros-args', '-r', '__ns:=/robot1',
                         *(part for p in ('inference:=alone', 'threads:=1', *parameters)
                           for part in ('-p', p)), **more)
    start.any = start_any
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
    code, said = process('policy:=policies:Small', f'contract:={path}', forked=False).ended()
    assert code == 1 and 'Traceback' not in said
    assert f'{path}, line 3: observations.a.type' in said


def test_the_mock_robot_runs_as_a_process_and_says_what_it_needs(robot, process):
    code, said = process.any('fleet_policy.mock_robot').ended()
    assert code == 1 and "the parameter 'policy' must be package.module:Class" in said
    robot.silent = {*robot.contract.observations}   # so the messages are those of the process
    names = []
    robot.create_subscription(JointState, 'joint_states', lambda m: names.extend(m.name),
                              qos.OBSERVATION)
    process.any('fleet_policy.mock_robot', '--ros-args', '-r', '__ns:=/robot1', '-p',
                'policy:=policies:Small').wait('a mock robot publishes ')
    eventually(lambda: names[:3] == ['a', 'b', 'c'], step=robot.step)


@pytest.mark.long
@pytest.mark.parametrize('on_loss, own', [('local', ''), ('error', ''), ('local', 'cpu')])
def test_a_server_of_rrto_computes_and_the_robot_goes_on_after_its_end(robot, process, on_loss,
                                                                       own, monkeypatch, tmp_path):
    monkeypatch.setenv(OWN_DEVICE, own)   # what stands for the robot's GPU, if it has one
    server = process.any('rrto_bridge.server.main', '--ros-args', '-p', 'name:=s', '-p',
                         f'directory:={tmp_path}', forked=False)
    server.wait('serving as s')
    # With device:=auto the robot must not compute on cuda, which is the server's device here.
    inside = ('rrto_bridge.cli.main', 'run', '--server', 's', '--namespace', 'robot1', '--on-loss',
              on_loss, '--', sys.executable, '-m')
    lines = process('policy:=policies:Small', 'inference:=rrto', 'patience:=60.0', 'device:=auto',
                    inside=inside, forked=False)

    # The mock robot repeats an action in an observation only if both have the same number of
    # values. No action has 3 values, so the 3 joints in the observations are always 0.
    joints = torch.zeros(1, 3)
    frames = [image('top', robot.contract.observations['top'], f) for f in robot._frames['top']]
    with torch.no_grad():
        planned = torch.cat([Small().model()(frame, joints)[0, :, :2] for frame in frames]).numpy()

    def acts(more, requests=0):
        goal = len(robot.received) + more
        eventually(lambda: len(robot.received) > goal and robot.said['state'] == 'running'
                   and int(robot.said['server requests']) >= requests,
                   lambda: f'{robot.said}, {lines.lines()}', step=robot.step)
    acts(40, requests=3)
    assert float(robot.said['server latency (s)']) > 0 and robot.said['server lost'] == '0'
    group = [server.process.pid]
    for one in group:   # the server, and then the processes that it has started
        os.kill(one, signal.SIGSTOP)
        group += map(int, Path(f'/proc/{one}/task/{one}/children').read_text().split())
    for one in group:
        os.kill(one, signal.SIGKILL)
    acts(200)
    if own:
        eventually(lambda: 'continuing on this machine, on its CPU' in ''.join(lines.lines()),
                   lambda: str(lines.lines()), step=robot.step)
        acts(40)
    for arm in (values for name, _, values in robot.received if name == 'arm'):
        # Each executed action equals an action that the policy computes in this process.
        assert np.abs(planned - arm).max(1).min() < 1e-5
    lines.process.send_signal(signal.SIGTERM)
    eventually(lambda: lines.process.poll() is not None, step=robot.step)
    code, said = lines.ended()
    assert code == 0 and 'Traceback' not in said, said
    eventually(lambda: [values.tolist() for name, _, values in robot.received
                        if name == 'wheels'][-1] == [0.0, 0.0], step=robot.step)
