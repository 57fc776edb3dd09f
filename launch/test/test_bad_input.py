"""If a node cannot start, it prints one clear line, exits with an error and writes nothing."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from fleet_ros.ending import SIGNALS
from fleet_testing import free_domain
from rclpy.utilities import get_rmw_implementation_identifier
from rog_core.model.partition import partition_of
from rog_core.server.aggregation import ServerState
from rog_ps import checkpoint, duplicate_server_check
from rog_ps import main as server
from rog_ps.directory import kept
from rog_worker import main as worker


@pytest.fixture(autouse=True)
def alone(monkeypatch, tmp_path):
    """Run the nodes in this process, in a domain of their own."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain()))
    # do not search for a second server, because this domain contains no other node
    for limit in ('SECONDS', '_LEAST'):
        monkeypatch.setattr(duplicate_server_check, limit, 0.0)
    monkeypatch.chdir(tmp_path)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(node, capfd, namespace='/robot1', **parameters):
    """Run a node that cannot start; return its standard error.

    ``parameters``: ROS parameters of the node.
    """
    arguments = ['node', '--ros-args', '-r', f'__ns:={namespace}']
    for name, value in parameters.items():
        arguments += ['-p', f'{name}:={json.dumps(value)}']
    threads = torch.get_num_threads()
    try:
        code = node.main(arguments)
    finally:
        torch.set_num_threads(threads)
    out, err = capfd.readouterr()
    assert code == 1, err
    assert not os.path.exists('out')
    return err


def refused(err):
    assert 'Traceback' not in err
    lines = [line for line in err.splitlines() if line.startswith('error: ')]
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize('parameters, message', [
    ({'sync': 'rspp:4'}, "synchronisation method 'rspp:4' is unknown; choose one of bsp"),
    ({'sync': 'rsp:0'}, 'must be 1 to 1000'),
    ({'task': 'tiny_task:Nope'}, "tiny_task has no 'Nope'"),
    ({'task': 'no.such:Task'}, "there is no module 'no'"),
    ({'task_options': '{"colour": 1}'}, "has no option 'colour'"),
    ({'task_options': '{colour'}, 'parameter task_options is not JSON'),
    ({'task_options': '[1]'}, 'parameter task_options must be a mapping of keys to values'),
    ({'robots': 'a'}, 'robots'),
    ({'robots': ['a b']}, "a robot's name is 'a b'"),
    ({'robots': ['a', 'a']}, "two robots are called 'a'"),
    ({'robots': ['a'], 'a.link.trace': '/no/such/trace'}, '/no/such/trace'),
    ({'robots': ['a'], 'a.capacity': 0.0}, 'parameter a.capacity is 0.0'),
    ({'codec': 'zip'}, "codec 'zip' is unknown; choose one of e3m0, onebit, raw"),
    ({'codec': 'ternary:2'}, 'at most 0.5'),
    ({'granularity': 'atom'}, "parameter granularity is 'atom'; it must be one of model, layer"),
    ({'minutes': -1.0}, 'minutes'),
    ({'seed': 'x'}, 'seed'),
])
def test_the_server_refuses(parameters, message, capfd):
    given = {'task': 'tiny_task:Tiny', 'out': 'out', **parameters}
    assert message in refused(run(server, capfd, '/rog', **given))


@pytest.mark.parametrize('parameters, message', [
    ({'link.trace': '/no/such/trace'}, '/no/such/trace'),
    ({'link.scale': -1.0}, 'link.scale'),
    ({'link.latency': 'long'}, 'link.latency'),
    ({'power.stalled': -1.0}, 'power.stalled'),
    ({'stragglers.probability': 2.0}, 'stragglers.probability'),
    ({'device': 'gpu'}, "parameter device is 'gpu'; it must be text like this: cpu, cuda"),
    ({'task_options': 'x'}, 'parameter task_options is not JSON'),
    ({'codec': 'zip'}, "codec 'zip' is unknown; choose one of e3m0, onebit, raw"),
    ({'task': 'tiny_task:Nope'}, "tiny_task has no 'Nope'"),
    ({'learning_rate': float('nan')}, 'learning_rate'),
    ({'batch_size': 0}, 'batch_size'),
])
def test_a_worker_refuses(parameters, message, capfd):
    given = {'task': 'tiny_task:Tiny', **parameters}
    assert message in refused(run(worker, capfd, **given))


def test_a_worker_needs_a_namespace_because_it_is_the_robots_name(capfd):
    assert '__ns:=/robot1' in refused(run(worker, capfd, '/'))


@pytest.mark.parametrize('domain', ['300', 'seven'])
def test_a_domain_that_cannot_be(domain, capfd, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', domain)
    assert 'ROS_DOMAIN_ID' in refused(run(worker, capfd))


@pytest.mark.skipif(get_rmw_implementation_identifier() != 'rmw_cyclonedds_cpp',
                    reason='reads CYCLONEDDS_URI; Fast DDS goes on without any interface')
def test_a_network_interface_that_is_not_there(capfd, monkeypatch):
    monkeypatch.setenv('CYCLONEDDS_URI', '<CycloneDDS><Domain><General><Interfaces>'
                       '<NetworkInterface name="nope0"/>'
                       '</Interfaces></General></Domain></CycloneDDS>')
    assert 'profile of DDS' in refused(run(worker, capfd, **{'security.open': True}))


def make_checkpoint(folder, hidden):
    partition = partition_of([('0.weight', (hidden, 12)), ('0.bias', (hidden,)),
                              ('2.weight', (4, hidden)), ('2.bias', (4,))], 'row', 'onebit')
    state = ServerState(7, 'rsp:4', np.zeros(partition.rows, np.int64), {})
    zeros = np.zeros(partition.elements, np.float32)
    return checkpoint.write(kept(folder), partition, zeros, state, 1.0)


@pytest.mark.parametrize('spoil, message', [
    (lambda path: path.write_bytes(path.read_bytes()[:-20]), 'was changed after it was written'),
    (lambda path: path.write_bytes(b"\xff" * 100), 'was changed after it was written'),
    (lambda path: None, 'another model'),
])
def test_a_checkpoint_that_does_not_fit(spoil, message, tmp_path, capfd):
    folder = tmp_path / 'run'
    path = make_checkpoint(folder, hidden=97)
    spoil(path)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    err = refused(run(server, capfd, '/rog', task='tiny_task:Tiny', out=str(folder), resume=True))
    assert message in err and path.name in err
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_directory_that_already_holds_a_run(tmp_path, capfd):
    (tmp_path / 'run.jsonl').write_text('')
    err = refused(run(server, capfd, '/rog', task='tiny_task:Tiny', out=str(tmp_path)))
    assert 'already holds a run' in err
