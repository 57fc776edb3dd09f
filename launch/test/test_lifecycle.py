"""Server and robots, real processes over DDS, lose nothing when they are paused in training."""

import numpy as np
import pytest
from counting_task import MOST, RATE
from fleet_env.records.events import Fault, read_run
from fleet_env.records.summary import read_summary
from fleet_under_test import Fleet
from lifecycle_driver import Driver
from rog_ps.directory import kept
from safetensors.numpy import load

SERVER = '/rog/parameter_server'
ROBOT = '/robot1/worker'


def until_still(fleet):
    """Spin until training stands still.

    Training stands still if the iteration and the elapsed time have not changed in more than three
    statuses of the server. One status is not enough, because a pull may still be under way.
    """
    seen, since = None, 0

    def still():
        nonlocal seen, since
        now = fleet.iteration('robot1'), fleet.status.elapsed
        if now != seen:
            seen, since = now, fleet.status.count
        return fleet.status.count > since + 3

    fleet.until(still, 'training stands still')


@pytest.mark.long
def test_every_gradient_counts_once_whenever_robot_and_server_are_paused(tmp_path):
    with Fleet(tmp_path, robots=1, task='counting_task:Counting', sync='bsp') as fleet:
        exact = {'learning_rate': RATE, 'momentum': 0.0, 'weight_decay': 0.0, 'nesterov': False,
                 # with this limit the server considers no robot away
                 'codec': 'raw', 'pace': 0.02, 'heartbeat.limit': 60.0}
        fleet.start('server', **{k: exact[k] for k in ('momentum', 'codec', 'heartbeat.limit')})
        fleet.start('robot1', **exact)
        driver = Driver(fleet.node, fleet.until)
        fleet.until_trained('robot1')
        for _ in range(6):
            assert driver.change(ROBOT, 'deactivate')
            fleet.until(lambda: fleet.state('robot1') == 'paused', 'the server knows of it')
            assert driver.change(ROBOT, 'activate')
            fleet.until_trained('robot1', iterations=2)
            assert driver.change(SERVER, 'deactivate')
            fleet.until(lambda: fleet.status.state == 'paused'
                        and fleet.robots['robot1'].state == 'waiting', 'the robot waits')
            until_still(fleet)
            assert driver.change(SERVER, 'activate')
            fleet.until_trained('robot1', iterations=2)
        assert driver.change(ROBOT, 'deactivate') and driver.change(SERVER, 'deactivate')
        assert driver.change(SERVER, 'activate') and driver.change(ROBOT, 'activate')
        fleet.until_trained('robot1', iterations=2)
        assert driver.change(SERVER, 'shutdown')
        assert fleet.ended('server') == 0 and fleet.ended('robot1') == 0
        assert not [e for e in read_run(fleet.out) if isinstance(e, Fault)]
        model = load(kept(fleet.out).newest().content)
        weights, = [v for name, v in model.items() if not name.startswith('rog/')]
        gradients = MOST * read_summary(fleet.out).robots['robot1'].accuracy.after
        assert gradients >= fleet.iteration('robot1') > 12
        assert (weights == -np.float32(RATE * gradients)).all(), \
            (np.unique(weights / RATE, return_counts=True), gradients)
        assert read_summary(fleet.out).notes['reason'] == 'shut down'
        assert 'Traceback' not in fleet.log('server') + fleet.log('robot1')


@pytest.mark.long
def test_a_manager_brings_a_fleet_up_and_others_train_on_without_who_is_paused(tmp_path):
    with Fleet(tmp_path, robots=2) as fleet:
        fleet.start('server', autostart=False)
        fleet.start('robot1', 'robot2', autostart=False)
        driver = Driver(fleet.node, fleet.until)
        nodes = SERVER, ROBOT, '/robot2/worker'
        for node in nodes:
            assert driver.state(node) == 'unconfigured'
            assert not driver.change(node, 'activate') and not driver.change(node, 'deactivate')
            assert driver.change(node, 'configure') and driver.state(node) == 'inactive'
            assert not driver.change(node, 'configure')
        fleet.until(lambda: fleet.status is not None and fleet.status.state == 'paused',
                    'the server is heard')
        for node in nodes:
            assert driver.change(node, 'activate')
            assert not driver.change(node, 'cleanup')
        fleet.until_trained('robot1', 'robot2')
        # Deactivate a robot, clean it up, and let it return like a restarted robot.
        assert driver.change(ROBOT, 'deactivate')
        fleet.until_trained('robot2', iterations=10)
        assert driver.change(ROBOT, 'cleanup') and driver.state(ROBOT) == 'unconfigured'
        assert driver.change(ROBOT, 'configure', 'activate')
        fleet.until_trained('robot1', 'robot2')
        # Deactivate the server, too, and clean it up. It resumes from the checkpoint that it has
        # written.
        former, reached = fleet.status.incarnation, fleet.iteration('robot2')
        assert driver.change(SERVER, 'deactivate', 'cleanup')
        assert read_summary(fleet.out).notes['reason'] == 'cleaned up'
        assert driver.change(SERVER, 'configure', 'activate')
        fleet.until(lambda: fleet.status.incarnation != former, 'the server is another')
        fleet.until(lambda: fleet.iteration('robot2') > reached + 5, 'robot2 trains on')
        assert 'going on from' in fleet.log('server')
        assert driver.change(ROBOT, 'shutdown') and fleet.ended('robot1') == 0
        fleet.interrupt('server')
        assert [fleet.ended(name) for name in ('server', 'robot2')] == [0, 0]
        assert not any('Traceback' in fleet.log(name) for name in fleet.processes)


@pytest.mark.long
def test_a_configuration_that_cannot_be_fails_with_a_reason(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server', autostart=False, task='tiny_task:Nothing')
        fleet.start('robot1', autostart=False, **{'link.rate': -1.0})
        driver = Driver(fleet.node, fleet.until)
        for node, name, reason in ((SERVER, 'server', 'Nothing'), (ROBOT, 'robot1', 'link.rate')):
            for _ in range(2):
                assert not driver.change(node, 'configure')
                assert driver.state(node) == 'unconfigured'
            assert 'configure failed: ' in fleet.log(name) and reason in fleet.log(name)
            assert driver.change(node, 'shutdown') and fleet.ended(name) == 0
            assert 'Traceback' not in fleet.log(name)


@pytest.mark.long
def test_nobody_drives_the_nodes_of_a_fleet_that_takes_no_control_calls(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server', **{'security.control': False})
        fleet.until(lambda: fleet.status is not None, 'the server is heard')
        services = dict(fleet.node.get_service_names_and_types())
        assert '/rog/register' in services and f'{SERVER}/change_state' not in services
