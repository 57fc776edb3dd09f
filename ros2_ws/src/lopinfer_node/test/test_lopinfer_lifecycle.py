"""The server as a managed node, a process over DDS: transitions, and what a pause is for robots."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fleet_testing import LIMIT, Lines, environment, eventually, free_domain
from lifecycle_driver import driving
from lopinfer_node.api import offload
from lopinfer_node.ros.client_shell import ClientOptions
from runtime_models import Small
from test_nodes import NODE, SHAPE, halves, same

SERVER = '/lopinfer_server'


@pytest.fixture
def server(monkeypatch, tmp_path):
    """Starts the server's process with parameters; it is in a domain of its own, as we are."""
    domain, started = free_domain(), []
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))

    def start(**parameters):
        settings = {'threads': 1, 'directory': tmp_path, **parameters}
        process = subprocess.Popen(
            [sys.executable, '-c', NODE.format('server'), '--ros-args',
             *(part for k, v in settings.items() for part in ('-p', f'{k}:={v}'))],
            env=environment(domain, *sys.path, Path(__file__).parent), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
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


def test_a_model_that_cannot_be_loaded_fails_the_configuration(server):
    process = server(autostart='false', models='no_such_model')
    with driving(int(os.environ['ROS_DOMAIN_ID'])) as driver:
        assert not driver.change(SERVER, 'configure') and driver.state(SERVER) == 'unconfigured'
        process.wait('configure failed: .*no_such_model')
        assert driver.change(SERVER, 'shutdown') and process.ended()[0] == 0


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
