"""Tests of the server as a managed node: its transitions, and what robots do while it is paused."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
from fleet_testing import INFERENCE, LIMIT, Forked, Lines, environment, eventually, free_domain
from lifecycle_driver import driving
from lopinfer_node.api import offload
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.ros.server_node import ServerNode
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.parameter import Parameter
from runtime_models import Small
from spun_nodes import SpunNodes
from test_nodes import SHAPE, halves, same, tried_once  # noqa: F401

SERVER = '/lopinfer_server'


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Return a function that starts a server process in the DDS domain of the test."""
    domain, started = free_domain(), []
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))

    def start(**parameters):
        settings = {'threads': 1, 'directory': tmp_path, **parameters}
        process = Forked(
            INFERENCE, ['lopinfer_node.nodes:server_main', '--ros-args',
                        *(part for k, v in settings.items() for part in ('-p', f'{k}:={v}'))],
            environment(domain, *sys.path, Path(__file__).parent))
        started.append(process)
        return Lines(process)

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_transitions_of_a_server_also_wrong_ones(server):
    process = server(autostart='false')
    with driving(int(os.environ['ROS_DOMAIN_ID'])) as driver:
        assert driver.state(SERVER) == 'unconfigured'
        assert not driver.change(SERVER, 'activate') and not driver.change(SERVER, 'cleanup')
        for _ in range(2):
            assert driver.change(SERVER, 'configure') and driver.state(SERVER) == 'inactive'
            assert not driver.change(SERVER, 'configure')
            assert driver.change(SERVER, 'activate') and driver.state(SERVER) == 'active'
            assert not driver.change(SERVER, 'cleanup') and not driver.change(SERVER, 'activate')
            assert driver.change(SERVER, 'deactivate', 'cleanup')
        assert driver.change(SERVER, 'configure', 'activate', 'shutdown')
        code, said = process.ended()
        assert code == 0 and 'Traceback' not in said


def test_a_model_that_cannot_be_loaded_fails_the_configuration(tmp_path, capfd):
    settings = {'autostart': False, 'models': 'no_such_model', 'directory': str(tmp_path)}
    with SpunNodes() as nodes:
        node = nodes.add(ServerNode(context=nodes.context, parameter_overrides=[
            Parameter(name, value=value) for name, value in settings.items()]))
        assert node.trigger_configure() == TransitionCallbackReturn.FAILURE
        assert re.search('configure failed: .*no_such_model', capfd.readouterr().err)
        assert not node.configured
        assert node.trigger_shutdown() == TransitionCallbackReturn.SUCCESS and node.drained


@pytest.mark.long
def test_robots_go_on_alone_while_the_server_is_paused(server):
    model, x = Small().eval(), torch.rand(SHAPE)
    server()
    with driving(int(os.environ['ROS_DOMAIN_ID'])) as driver, \
            offload(model, example=x, options=ClientOptions(halves)) as shared:
        assert shared.wait(LIMIT)
        for _ in range(2):
            eventually(lambda: shared(x) is not None and shared.shared)
            same(shared(x), model(x))
            assert driver.change(SERVER, 'deactivate')
            eventually(lambda: shared(x) is not None and 'paused' in shared.reason)
            served = shared.report.offloaded
            for _ in range(5):
                same(shared(x), model(x))
            assert shared.report.offloaded == served
            assert driver.change(SERVER, 'activate')
            eventually(lambda n=served: shared(x) is not None and shared.report.offloaded > n)
