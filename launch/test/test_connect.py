"""A user's own training loop joins a fleet through the optimizer alone."""

import os
import signal
import threading

import pytest
import rclpy
import tiny_task
import torch
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_ros.spinning import Spinning
from fleet_testing import free_domain
from fleet_under_test import Fleet
from rclpy.publisher import Publisher
from rog_core.errors import ConfigError
from rog_worker.connect import connect


@pytest.mark.parametrize('name', ['_x', '2x', 'a__b', 'a-b', 'x' * 65, '', '/'])
def test_a_name_that_no_robot_can_have_is_refused_before_anything_starts(name):
    with pytest.raises(ConfigError, match="a robot's name"), connect(name):
        pass
    assert not rclpy.ok()


def test_a_signal_while_it_connects_leaves_no_thread_behind(monkeypatch):
    start = Spinning.__init__

    def interrupted(spinning, node):
        start(spinning, node)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # a launcher may send it again at once

    for name, value in dds_environment(ReachConfig(domain_id=free_domain())).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Spinning, '__init__', interrupted)
    threads = threading.active_count()
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other tests set handlers
    try:
        with pytest.raises(SystemExit) as ended, connect('robot1'):
            pass
    finally:
        signal.signal(signal.SIGTERM, former)
    assert (ended.value.code, threading.active_count()) == (143, threads)
    assert not rclpy.ok()


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path, robots=1) as running:
        running.start('server')
        yield running


def test_replacing_the_optimizer_trains_with_the_fleet(fleet, monkeypatch):
    monkeypatch.setitem(os.environ, 'ROS_DOMAIN_ID', str(fleet.domain))
    task = tiny_task.Tiny(seed=3)
    model = task.model()
    with torch.no_grad():
        model[0].weight.fill_(9.0)  # a wrong value, which the server's model must replace
    batches = task.batches(0, 1)
    assert not rclpy.ok()
    wait, waits = Publisher.wait_for_all_acked, []
    monkeypatch.setattr(Publisher, 'wait_for_all_acked', lambda publisher, limit: waits.append(
        (publisher.topic_name, wait(publisher, limit))))
    with connect('robot1') as fleet_connection:
        optimizer = fleet_connection.optimizer(model, lr=0.02)
        joined = task.evaluate(model)
        assert joined == pytest.approx(task.evaluate(task.model()), abs=1e-6)
        for expected in range(1, 21):
            assert optimizer.iteration == expected
            optimizer.zero_grad()
            task.loss(model, next(batches)).backward()
            optimizer.step()
        with pytest.raises(ConfigError, match='from 0 to 1'):
            fleet_connection.report(accuracy=92)
        fleet_connection.report(loss=0.25, accuracy=0.5)
        fleet.until(lambda: 'robot1' in fleet.robots and fleet.robots['robot1'].accuracy == 0.5,
                    'its own word is heard')
        heard = fleet.robots['robot1']
        assert (heard.loss, heard.evaluated_at) == (0.25, 20)
        assert not optimizer.stopped
        assert task.evaluate(model) > joined
    assert not rclpy.ok()
    # before the robot left, it waited until its last status had arrived
    assert waits == [('/robot1/training_status', True)]
    # On a busy machine the server possibly considered the robot away before the robot left.
    fleet.until(lambda: fleet.state('robot1') in ('stopped', 'away'),
                'the server knows that it left')
    fleet.interrupt('server')
    assert fleet.ended('server') == 0


@pytest.mark.long
def test_a_program_whose_model_is_not_the_servers_is_told_why_it_cannot_join(fleet, monkeypatch):
    monkeypatch.setitem(os.environ, 'ROS_DOMAIN_ID', str(fleet.domain))
    with connect('robot1') as connection, pytest.raises(
            ConfigError, match='robot1 cannot join the fleet: .+'):
        connection.optimizer(torch.nn.Linear(3, 2))
