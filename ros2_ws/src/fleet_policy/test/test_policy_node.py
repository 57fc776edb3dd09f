"""A policy's node and a robot in one process: the node moves the robot.

When the node ends, it puts the robot into its safe state and says why.
"""

import os
import time
from contextlib import contextmanager

import numpy as np
import pytest
import rclpy
import torch
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from fleet_env.settings.base import changed
from fleet_policy import node as node_module
from fleet_policy import qos
from fleet_policy.contract import make_contract
from fleet_policy.errors import PolicyError
from fleet_policy.mock_robot import FRAMES, MockRobot
from fleet_policy.node import LAST_WORDS, PolicyNode
from fleet_policy.sources import made_up
from fleet_testing import eventually, free_domain
from lopinfer_node.ros.server_shell import Server, ServerOptions
from policies import CONTRACT, Small
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class Bench:
    """A policy's node together with a robot.

    ``health``: the last health that the node has published.
    """

    def __init__(self, content=CONTRACT, **parameters):
        self.context = Context()
        rclpy.init(context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.contract = make_contract(content)
        self.robot = self.add(MockRobot(self.contract, namespace='/robot1', context=self.context))
        self.health = DiagnosticStatus()
        ear = self.add(Node('ear', context=self.context))
        ear.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics,
                                qos.DIAGNOSTICS)
        values = {'policy': 'policies:Small', 'inference': 'alone', 'threads': 1, **parameters}
        try:
            self.node = self.add(PolicyNode(
                namespace='/robot1', context=self.context, parameter_overrides=[
                    Parameter(name, value=value) for name, value in values.items()]))
        except Exception:
            self.close()
            raise

    def add(self, node):
        self.executor.add_node(node)
        return node

    def _on_diagnostics(self, message):
        self.health = message.status[0]

    def until(self, condition, what=lambda: 'the condition'):
        eventually(condition, what, step=lambda: self.executor.spin_once(timeout_sec=0.05))

    def until_acts(self):
        before = self.node.machine.counts['executed']
        self.until(lambda: self.node.machine.counts['executed'] > before + 5,
                   lambda: str(self.node.report))

    def until_safe(self, reason):
        self.until(lambda: self.health.level == ERROR and reason in self.health.message,
                   lambda: f'{reason}: {self.health.message}')
        assert self.node.machine.state == 'safe' and reason in self.node.machine.reason

    def last(self, name):
        return next(values.tolist() for entry, _, values in reversed(self.robot.received)
                    if entry == name)

    def close(self):
        for node in list(self.executor.get_nodes()):
            node.destroy_node()
        self.executor.shutdown()
        self.context.try_shutdown()


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain()))
    made = []

    def make(**parameters):
        made.append(Bench(**parameters))
        return made[0]
    yield make
    for one in made:
        one.close()


def test_a_policy_acts_and_a_stop_leaves_the_robot_safe(bench):
    made = bench()
    made.until_acts()
    made.until(lambda: {name for name, *_ in made.robot.received} == {'arm', 'wheels'})
    made.until(lambda: made.health.level == OK and made.health.message == 'acts',
               lambda: made.health.message)
    assert made.health.name == '/robot1/policy: policy' and made.health.hardware_id == 'robot1'
    values = {value.key: value.value for value in made.health.values}
    assert values['computed by'] == 'robot' and float(values['action age (s)']) >= 0
    assert np.any(made.last('wheels'))
    made.node.trigger_deactivate()
    made.until(lambda: made.last('wheels') == [0.0, 0.0])
    count = made.node.machine.counts['ticks']
    made.until(lambda: made.health.message == 'inactive')
    assert made.node.machine.counts['ticks'] == count
    made.node.trigger_activate()
    made.until_acts()


def test_a_robot_that_no_longer_listens_delays_the_end_once_and_not_for_each_topic(bench):
    made, waits = bench(), []

    class Deaf:
        """A publisher whose messages nobody acknowledges."""

        def publish(self, message):
            """Send nothing."""

        def wait_for_all_acked(self, limit):
            waits.append(limit.nanoseconds / 1e9)
            time.sleep(waits[-1])

    made.until_acts()
    made.node._publishers_of = dict.fromkeys(made.node._publishers_of, Deaf())
    made.node.interrupt()
    made.executor.remove_node(made.node)
    made.node.destroy_node()
    assert len(waits) == 2 and sum(waits) <= LAST_WORDS


def test_a_simulated_clock_that_stands_still_or_jumps_back_stops_neither_actions_nor_reports(bench):
    made = bench(use_sim_time=True)
    made.until_acts()
    made.until(lambda: made.health.message == 'acts')
    clock = made.add(Node('simulator', context=made.context)).create_publisher(Clock, '/clock', 10)
    for seconds in (1000, 500):
        message = Clock()
        message.clock.sec = seconds
        clock.publish(message)
        made.until(lambda at=seconds: made.node.get_clock().now().nanoseconds == at * 10 ** 9)
        made.health = DiagnosticStatus()
        made.until_acts()
        made.until(lambda: made.health.message == 'acts')


def test_a_second_node_that_commands_the_robot_is_said(bench):
    made = bench()
    made.until_acts()
    second = made.add(PolicyNode(namespace='/robot1', context=made.context, parameter_overrides=[
        Parameter(name, value=value) for name, value in
        {'policy': 'policies:Small', 'inference': 'alone', 'threads': 1}.items()]))
    made.until(lambda: made.health.level == WARN and
               '/robot1/arm has other publishers' in made.health.message)
    made.executor.remove_node(second)
    second.destroy_node()
    made.until(lambda: made.health.level == OK, lambda: made.health.message)


def test_images_of_another_size_in_the_midst_are_scaled(bench):
    made = bench()
    made.until_acts()
    entry = made.contract.observations['top']
    made.robot._frames['top'] = [made_up(changed(entry, height=48, width=20),
                                         np.random.default_rng(0))] * FRAMES
    chunks = made.node.machine.counts['chunks']
    made.until(lambda: made.node.machine.counts['chunks'] > chunks + 3)
    assert made.node.machine.state == 'running'


def test_a_robot_is_commanded_by_control_msgs(bench, tmp_path):
    pytest.importorskip('control_msgs', reason='control_msgs is not installed')
    content = {**CONTRACT, 'actions': {
        'arm': {'topic': 'arm', 'type': 'control_msgs/msg/MultiDOFCommand', 'names': ['a', 'b']},
        'wheels': {'topic': 'wheels', 'type': 'control_msgs/msg/JointJog', 'kind': 'velocity',
                   'names': ['left', 'right']}}}
    path = tmp_path / 'contract.yaml'
    path.write_text(yaml.safe_dump(content))
    made = bench(content=content, contract=str(path))
    made.until_acts()
    made.until(lambda: {name for name, *_ in made.robot.received} == {'arm', 'wheels'})
    assert np.any(made.last('arm')) and np.any(made.last('wheels'))
    made.node.trigger_deactivate()
    made.until(lambda: made.last('wheels') == [0.0, 0.0])


def test_a_camera_that_stops_ends_in_the_safe_state_until_it_is_back(bench):
    made = bench()
    made.until_acts()
    made.robot.silent = {'top'}
    made.until_safe('observations.top: camera_top has stopped')
    made.until(lambda: made.last('wheels') == [0.0, 0.0])
    made.robot.silent = set()
    made.until_acts()
    assert made.node.machine.reason == ''


def test_a_second_publisher_of_an_observation_ends_in_the_safe_state_until_it_is_gone(bench):
    made = bench()
    made.until_acts()
    other = made.add(Node('driver', namespace='/robot2', context=made.context))
    other.create_publisher(JointState, '/robot1/joint_states', qos.OBSERVATION)
    made.until_safe('/robot1/joint_states has 2 publishers (/robot1/mock_robot, /robot2/driver)')
    made.executor.remove_node(other)
    other.destroy_node()
    made.until_acts()


def test_arm_and_gripper_may_publish_on_one_topic_if_the_contract_says_so(bench, tmp_path):
    content = {**CONTRACT, 'observations': {**CONTRACT['observations'], 'state': {
        **CONTRACT['observations']['state'], 'publishers': 3}}}
    path = tmp_path / 'contract.yaml'
    path.write_text(yaml.safe_dump(content))
    made = bench(content=content, contract=str(path))
    made.robot.silent = {'state'}
    drivers = made.add(Node('drivers', context=made.context))
    arm, grip = (drivers.create_publisher(JointState, '/robot1/joint_states', 10)
                 for _ in range(2))

    def both():
        arm.publish(JointState(name=['a', 'b'], position=[0.1, 0.2]))
        grip.publish(JointState(name=['c'], position=[0.3]))
    drivers.create_timer(0.05, both)
    made.until_acts()
    np.testing.assert_allclose(made.node.observer.newest()['state'], [0.1, 0.2, 0.3], rtol=1e-6)
    executed = made.node.machine.counts['executed']
    made.until(lambda: made.node.machine.counts['executed'] > executed + 40)
    assert made.node.machine.counts['dropped'] == 0 and made.node.machine.state == 'running'


def test_another_type_on_a_topic_is_named(bench):
    made = bench(first=0.5)
    made.robot.silent = {'state'}
    context = Context()   # a participant of DDS has one type for each topic
    rclpy.init(context=context, domain_id=int(os.environ['ROS_DOMAIN_ID']))
    other = Node('driver', namespace='/robot1', context=context)
    other.create_publisher(Float64MultiArray, 'joint_states', qos.OBSERVATION)
    try:
        made.until_safe('/robot1/driver publishes it as std_msgs/msg/Float64MultiArray, the '
                        'contract has sensor_msgs/msg/JointState')
    finally:
        other.destroy_node()
        context.try_shutdown()


def test_the_newest_reason_for_the_safe_state_is_given(bench):
    made = bench()
    made.until_acts()
    for encoding in ('yuv422', 'bayer_rggb8'):
        for frame in made.robot._frames['top']:
            frame.encoding = encoding
        made.until_safe(f"encoding '{encoding}' is not one of")


def test_a_topic_that_is_missing_is_named(bench):
    made = bench(first=0.5)
    made.robot.silent = {'state'}
    made.until_safe('observations.state: no message on joint_states')


@pytest.mark.parametrize('trouble, reason', [
    ('nan', 'finite actions of shape (n, 4) with n at least 1, got nan at (3, 1)'),
    ('shape', 'got shape (40, 3)'),
    ('observe', 'the policy raised in observe: RuntimeError: no idea')])
def test_a_policy_that_fails_ends_in_the_safe_state_with_its_name(bench, trouble, reason):
    made = bench(policy='policies:Sabotaged')
    made.until_acts()
    made.node.policy.trouble = trouble
    made.until_safe(reason)
    made.until(lambda: made.last('wheels') == [0.0, 0.0])
    made.node.policy.trouble = ''
    made.node.trigger_deactivate()
    made.node.trigger_activate()
    made.until_acts()


def test_images_of_another_form_end_in_the_safe_state(bench):
    made = bench()
    made.until_acts()
    for frame in made.robot._frames['top']:
        frame.encoding = 'yuv422'
    made.until_safe("encoding 'yuv422' is not one of")


def test_an_image_that_cannot_be_decoded_ends_in_the_safe_state_until_the_next_good_one(
        bench, tmp_path):
    top = {**CONTRACT['observations']['top'], 'type': 'sensor_msgs/msg/CompressedImage'}
    content = {**CONTRACT, 'observations': {**CONTRACT['observations'], 'top': top}}
    path = tmp_path / 'contract.yaml'
    path.write_text(yaml.safe_dump(content))
    made = bench(content=content, contract=str(path))
    made.until_acts()
    good = [bytes(frame.data) for frame in made.robot._frames['top']]
    for frame in made.robot._frames['top']:
        frame.data = b'no picture'
    made.until_safe('observations.top: camera_top: cannot be decoded')
    made.until(lambda: made.last('wheels') == [0.0, 0.0])
    for frame, data in zip(made.robot._frames['top'], good, strict=True):
        frame.data = data
    made.until_acts()
    made.until(lambda: made.health.level == OK, lambda: made.health.message)


@pytest.mark.parametrize('parameters, message', [
    ({'policy': ''}, 'policy must be package.module:Class, got nothing'),
    ({'policy': 'policies:Misfit'}, r'the policy raised in its model: RuntimeError: mat1 and .*'
                                    r'\(policies.py line \d+, in forward\); the contract gives it '
                                    r'uint8 \(1, 3, \d+, \d+\), float32 \(1, 3\)'),
    ({'policy': 'policies:NoFile'}, r'the policy raised in its constructor: FileNotFoundError: .*'
                                    r'\(policies.py line \d+, in __init__\)'),
    ({'policy': 'policies:WrongSize'}, r'must have the shape \(n, 4\), by the contract, got'),
    ({'policy': 'policies:Missing'}, "policies has no 'Missing'"),
    ({'policy': 'policies:Net'}, 'contract must name a file'),
    ({'inference': 'rrto'}, 'the node must run in `rrto run`')])
def test_a_wrong_parameter_fails_the_configuration_in_words(bench, parameters, message):
    with pytest.raises(PolicyError, match=message):
        bench(**parameters)


def noted(place):
    """Return a list to which each later computation of ``place`` appends (inputs, output).

    ``place``: an object that computes the policy at one place, on the robot or on the server.
    """
    seen, network = [], place._network

    def noting(*inputs):
        output = network(*inputs)
        seen.append((inputs, output))
        return output
    place._network = noting
    return seen


@pytest.fixture
def other_device(monkeypatch):
    """A robot with a device besides the CPU.

    The type float64 stands for this device, because `Tensor.to` and `Module.to` take a type in
    place of a device: a model that was moved there does not accept inputs that were not.
    """
    monkeypatch.setattr(node_module, 'own_device', {'cpu': torch.device('cpu'),
                                                      'cuda': torch.float64}.get)


class Wide(Small):
    """A policy whose model works with any type of numbers."""

    contract = {**CONTRACT, 'observations': {'state': CONTRACT['observations']['state']}}

    def model(self):
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Tanh(),
                                   torch.nn.Linear(16, 160), torch.nn.Unflatten(1, (40, 4))).eval()

    def observe(self, batch):
        return (batch['state'],)


@contextmanager
def lopinfer_server(made, folder):
    """Run a server for the policy of `made`; yield a function that turns both once."""
    context = Context()
    rclpy.init(context=context, domain_id=int(os.environ['ROS_DOMAIN_ID']))
    node = Node('lopinfer_server', context=context)
    server = Server(node, ServerOptions(folder))
    other = SingleThreadedExecutor(context=context)
    other.add_node(node)

    def both():
        made.executor.spin_once(timeout_sec=0.01)
        other.spin_once(timeout_sec=0.01)
    try:
        yield both
    finally:
        other.shutdown()
        server.close()
        node.destroy_node()
        context.try_shutdown()


def test_a_server_of_lopinfer_shares_and_the_robot_goes_on_after_its_end(bench, tmp_path):
    made = bench(inference='lopinfer', method='server-only')
    seen = noted(made.node._computing['server'])
    made.until_acts()
    with lopinfer_server(made, tmp_path) as both:
        eventually(lambda: made.node.machine.command.place == 'shared',
                   lambda: str(made.node.report), step=both)
        inputs, output = seen[-1]
        # The server and the robot together compute the same output as the whole policy in this
        # process.
        with torch.no_grad():
            torch.testing.assert_close(output, Small().model()(*inputs))
    made.until(lambda: made.node.machine.command.place == 'robot', lambda: str(made.node.report))
    executed = made.node.machine.counts['executed']
    made.until(lambda: made.node.machine.counts['executed'] > executed + 20,
               lambda: str(made.node.report))


def test_robot_and_server_share_a_model_that_is_on_the_robots_own_device(
        bench, tmp_path, other_device):
    made = bench(content=Wide.contract, policy=f'{__name__}:Wide', inference='lopinfer',
                 method='server-only', device='cuda')
    shared, alone = (noted(made.node._computing[place]) for place in ('server', 'robot'))
    model = made.node._shared.model
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    with lopinfer_server(made, tmp_path) as both:
        eventually(lambda: made.node.machine.command.place == 'shared' and alone,
                   lambda: str(made.node.report), step=both)
        assert not made.node._shared.reason
    for inputs, output in shared[-1], alone[-1]:
        # The policy itself has only tensors of the CPU; both places have the same weights.
        assert inputs[0].dtype == torch.float32
        with torch.no_grad():
            torch.testing.assert_close(output, model(inputs[0].double()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_robot_and_server_share_a_model_that_is_on_the_robots_gpu(bench, tmp_path):
    made = bench(inference='lopinfer', method='server-only', device='cuda')
    seen = noted(made.node._computing['server'])
    with lopinfer_server(made, tmp_path) as both:
        eventually(lambda: made.node.machine.command.place == 'shared',
                   lambda: str(made.node.report), step=both)
    inputs, output = seen[-1]
    assert inputs[0].device.type == output.device.type == 'cpu'
    with torch.no_grad():
        torch.testing.assert_close(output, Small().model()(*inputs), rtol=1e-2, atol=1e-2)
