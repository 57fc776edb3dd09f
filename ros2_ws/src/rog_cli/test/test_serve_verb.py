"""`fleet serve`: one process that serves models and programs, under one name and one key."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet_env.settings.fleet import AccessConfig
from fleet_link.key import new_key, write_key
from fleet_testing import LIMIT, PROGRAMS, Forked, Lines, environment, eventually, free_domain
from lopinfer_node.api import offload
from lopinfer_node.planning.plan import Plan
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.runtime.choice import PlannedTable
from lopinfer_node.runtime.client import OPEN
from rog_cli.fleet_main import main

PROGRAM = """
import torch
model = torch.nn.Linear(4, 4).cuda()
with torch.no_grad():
    while True:
        model(torch.ones(1, 4).cuda()).cpu()
        print('computed', flush=True)
"""


class Processes:
    def __init__(self):
        self.env = environment(free_domain())
        self.running = []

    def start(self, *arguments):
        self.running.append(subprocess.Popen(
            [sys.executable, *arguments], env=self.env, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE))
        return Lines(self.running[-1])

    def serve(self, *options):
        self.running.append(Forked(
            PROGRAMS, ['rog_cli.fleet_main', 'serve', '--device', 'cpu', '--threads', '1',
                       *options], self.env))
        return Lines(self.running[-1])


@pytest.fixture
def processes(monkeypatch):
    made = Processes()
    monkeypatch.setenv('ROS_DOMAIN_ID', made.env['ROS_DOMAIN_ID'])
    yield made
    for process in made.running:
        process.kill()
        process.wait()


def children(pid):
    return Path(f'/proc/{pid}/task/{pid}/children').read_text().split()


def on_the_server(traced, fixed, per_share):
    yield PlannedTable([0.0], [Plan.server_only(traced.graph)], np.array([[0]]), np.array([[2.0]]))


@pytest.mark.long
def test_one_process_serves_models_and_programs_and_tells_all_that_it_ends(processes, tmp_path):
    key = tmp_path / 'fleet.key'
    write_key(key, new_key())
    processes.env['FLEET_KEY'] = str(key)
    server = processes.serve('--name', 'gpu')
    server.wait('serving as gpu')
    server.wait('serving in /gpu')
    program = processes.start('-m', 'rrto_bridge.cli.main', 'run', '--server', 'gpu', '--',
                              sys.executable, '-c', PROGRAM)
    program.wait('computed')
    model, x = torch.nn.Linear(4, 4).eval(), torch.ones(1, 4)
    options = ClientOptions(on_the_server, '/gpu', access=AccessConfig(key=str(key)))
    with torch.no_grad(), offload(model, example=x, robot='arm', options=options) as shared:
        assert shared.wait(LIMIT), shared.reason
        torch.testing.assert_close(shared(x), model(x))
        assert shared.report.offloaded == 1
        assert len(children(server.process.pid)) == 1    # it forks the processes of the programs
        server.process.send_signal(signal.SIGTERM)
        code, text = server.ended()
        assert code == 0 and 'Traceback' not in text
        program.wait("server 'gpu' is lost: the server has ended")
        eventually(lambda: not shared.shared)
        torch.testing.assert_close(shared(x), model(x))


def test_a_server_that_cannot_start_leaves_no_process(processes):
    server = processes.serve('--models', 'a,b', '--weights', 'a,b,c')
    server.wait('serving as')
    fork_server, = children(server.process.pid)
    code, text = server.ended()
    assert code == 1 and 'must name weights for the 2 models' in text
    eventually(lambda: not os.path.exists(f'/proc/{fork_server}'))


def test_a_name_that_robots_could_not_use_is_refused(capsys):
    assert main(['serve', '--name', 'my-gpu']) == 2
    assert "letters a to z, digits and single underscores" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.skipif(not find_spec('ray'), reason='Ray is not installed: pip install ray')
def test_ray_starts_a_killed_server_again_and_its_robot_loses_nothing(processes):
    servers = processes.serve('--ray', 'local', '--replicas', '2', '--name', 's')
    places = [int(re.search(r'process (\d+)', servers.wait(f'^s{k}: process'))[1])
              for k in (1, 2)]
    for k in (1, 2):
        servers.wait(f'serving in /s{k}')
    model = torch.nn.Linear(4, 4).eval()
    options = ClientOptions(on_the_server, '/s1,/s2')

    def infer(until):
        """Infer until a condition holds; each result is right."""
        end = time.monotonic() + LIMIT
        while not until():
            assert time.monotonic() < end
            x = torch.rand(1, 4)
            torch.testing.assert_close(shared(x), model(x))

    with torch.no_grad(), offload(model, '/s1,/s2', torch.ones(1, 4), options=options) as shared:
        clients = shared._client._clients
        infer(lambda: all(c.machine.state == OPEN for c in clients))
        first = clients.index(shared._client.present)
        known = clients[first].machine._server
        os.kill(places[first], signal.SIGKILL)
        infer(lambda: clients[1 - first] is shared._client.present)
        done = shared.report.offloaded
        infer(lambda: shared.report.offloaded > done)
        # another process of the server that was killed
        infer(lambda: clients[first].machine.state == OPEN
              and clients[first].machine._server != known)
    servers.process.send_signal(signal.SIGTERM)
    assert servers.ended()[0] == 0


def test_without_ray_the_error_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'ray', None)
    assert main(['serve', '--ray', 'local', '--device', 'cpu']) == 2
    assert 'pip install ray' in capsys.readouterr().err


@pytest.mark.parametrize(('options', 'reason'), [
    (['--replicas', '2'], '--replicas needs --ray'),
    (['--ray', 'local', '--device', 'cuda:1'], '--device must be cuda or cpu'),
    (['--ray', 'local', '--domain-id', '300'], 'at most 232')])
def test_options_that_do_not_fit_are_refused(options, reason, capsys):
    assert main(['serve', *options]) == 2
    assert reason in capsys.readouterr().err
