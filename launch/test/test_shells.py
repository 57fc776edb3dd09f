"""A fleet makes the same decisions in virtual time as with nodes over real DDS.

Every method trains over real DDS.
"""

import threading

import fleet_link.estimate
import numpy as np
import pytest
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import (
    FleetConfig,
    HeartbeatConfig,
    LinkConfig,
    RobotConfig,
    TrainingConfig,
)
from fleet_testing import LIMIT
from fleet_under_test import Fleet
from rclpy.parameter import Parameter
from rog_core.protocol.states import REGISTERING
from rog_core.worker.worker import REGISTER_INTERVAL
from rog_msgs.srv import Register, SetSync
from rog_worker.node import WorkerNode
from rog_worker.training import Training
from spun_nodes import SpunNodes
from two_shells import in_virtual_time, over_dds

PUSHES = 26  # pushes to complete before the run is ended
PACES = (1.0, 1.37, 1.71, 2.93)


def scenario(folder, sync):
    """Return a fleet of four robots on good links; three of them are faster than the fourth."""
    trace = folder / 'good.txt'
    trace.write_text('0 200\n')
    link = LinkConfig(trace=str(trace), latency=0.001)
    return FleetConfig(
        name='four', seed=3, minutes=10.0, heartbeat=HeartbeatConfig(period=5.0, limit=600.0),
        robots=tuple(RobotConfig(name=f'robot{n}', link=link, pace=pace)
                     for n, pace in enumerate(PACES, 1)),
        training=TrainingConfig(task='exact_task:Exact', sync=sync, codec='raw',
                                learning_rate=1 / 16, momentum=0.0, batch_size=1,
                                evaluate_every=0))


def real_links(fleet):
    """Return ``fleet`` with links that do not limit the rate."""
    return changed(fleet, robots=tuple(
        changed(robot, link=LinkConfig(emulate=False)) for robot in fleet.robots))


QUICK = [('rsp:4', {9: 'bsp', 15: 'ssp:2+early'}),
         ('gsgm:3', {9: 'gsgm', 15: 'rsp:3'}),
         ('ssp:1+svrg=3', {}),
         ('dgh-gc', {12: 'rsp:3', 20: 'gcc'}),
         ('diloco:2+quorum=3+rate=1+momentum=0.5', {13: 'rsp:3'}),
         ('rsp:4+pipeline+local=2', {12: 'diloco:4:4+rate=1+momentum=0.5'})]
MORE = [('bsp', {}), ('rsp:3', {}), ('rsp:4+pipeline', {}), ('gsgm', {}), ('hgc', {}),
        ('local:3', {9: 'bsp', 15: 'local:2'}), ('diloco:4:2+rate=1+momentum=0.5', {}),
        ('rsp:4+local=8+rate=1+momentum=0.5', {})]


@pytest.mark.parametrize(('sync', 'changes'), [
    *QUICK, *(pytest.param(*each, marks=pytest.mark.long) for each in MORE)])
def test_both_shells_decide_the_same(tmp_path, monkeypatch, sync, changes):
    def patient():  # sets timeouts so long that no chunk counts as lost on a slow host
        monkeypatch.setattr(fleet_link.estimate, 'INITIAL_TIMEOUT', 20.0)
        monkeypatch.setattr(fleet_link.estimate, 'GRANULARITY', 20.0)

    script = {pushes: lambda server, now, to=to: server.set_sync(to, now)
              for pushes, to in changes.items()}
    script[PUSHES] = lambda server, now: server.stop(now)
    fleet = scenario(tmp_path, sync)
    patient()
    virtual = in_virtual_time(fleet, script)
    monkeypatch.undo()
    real = over_dds(real_links(fleet), script, virtual.turns, patient)
    assert len(virtual.turns) >= PUSHES and real.turns == virtual.turns
    for name, decisions in virtual.decided.items():
        assert real.decided[name] == decisions, name
    told = {d[3] for log in virtual.decided.values() for d in log if d[0] == 'told'}
    assert told == {sync, *changes.values()}
    final = virtual.weights()
    for name, weights in real.weights().items():
        assert np.array_equal(weights, final[name]) and np.array_equal(weights, final['server'])


def test_a_node_that_asks_again_before_the_answer_goes_on_by_the_last_answer():
    asked = []

    def accept(request, response):
        asked.append(request.number)
        response.accepted, response.incarnation, response.attempt = True, 7, 1
        response.sync = 'rsp:4'
        return response

    with SpunNodes() as nodes:
        nodes.node('server').create_service(Register, '/rog/register', accept)
        # With this latency, the worker repeats its request before the previous request has left the
        # link.
        values = {'task': 'exact_task:Exact', 'link.latency': 1.1 * REGISTER_INTERVAL}
        worker = nodes.add(WorkerNode(
            context=nodes.context, namespace='robot1',
            parameter_overrides=[Parameter(name, value=value) for name, value in values.items()]))
        stop = threading.Event()
        thread = threading.Thread(target=Training(worker.settings).run,
                                  args=[worker, stop], daemon=True)
        thread.start()
        try:
            nodes.until(lambda: worker.machine is not None and worker.machine.state != REGISTERING)
            assert len(asked) > 1
        finally:
            worker.leave()
            stop.set()
            thread.join(LIMIT)


METHODS = ['bsp', 'ssp:4', 'dssp:3:15', 'flown', 'asp', 'rsp:4', 'rsp:20', 'rsp:auto',
           'rsp:4+pipeline', 'rsp:4+sparse', 'ssp:4+early', 'rsp:4-order', 'gsgm', 'gsgm:4', 'gc:1',
           'dgh-gc:0', 'local:3', 'diloco:4', 'diloco:4:2', 'diloco:4:2+quorum=2+grace=0.2',
           'rsp:4+local=4', 'bsp']


@pytest.mark.long
def test_every_method_trains_over_dds_and_may_follow_any_other(tmp_path):
    with Fleet(tmp_path, robots=2) as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2')
        client = fleet.node.create_client(SetSync, '/rog/set_sync')
        fleet.until(client.service_is_ready, '/rog/set_sync is there')
        for method in METHODS:
            answer = client.call_async(SetSync.Request(sync=method))
            fleet.until(answer.done, f'set_sync {method} is answered')
            told = answer.result().message
            assert answer.result().success and told.startswith(method.partition(':auto')[0])
            fleet.until(lambda told=told: all(
                r.sync.partition(':')[0] == told.partition(':')[0] for r in fleet.robots.values()),
                f'the robots are told of {told}')
            fleet.until_trained('robot1', 'robot2', iterations=3)
            assert {fleet.state(name) for name in ('robot1', 'robot2')} <= {'training', 'waiting'}
        assert 'Traceback' not in ''.join(fleet.log(name) for name in fleet.processes)
