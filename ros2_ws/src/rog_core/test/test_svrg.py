"""SVRG in a fleet: a full gradient at a barrier, then corrected gradients, despite all faults."""

import numpy as np
import pytest
from fleet import CHUNK, Fleet
from ledger import RATE
from rog_core.errors import ConfigError
from rog_core.model.partition import partition_of
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.steps import Full
from rog_core.server.full_gradient import FullGradient
from schedules import check_end, come_back, lose, run_until

METHODS = ['gsgm+svrg=3', 'asp+svrg=3', 'bsp+svrg=1']
BATCHES = 4


class Quadratics:
    """Robots whose batches have quadratic losses.

    The loss of a batch is sum(curves * (weights - centre) ** 2) / 2. All batches of a robot have
    the same centre, but different curves.

    ``corrected``: for each corrected gradient, the robot, the iteration, and the weights and the
    full gradient of the anchor that the correction used. ``plain``: number of gradients without
    correction.
    """

    def __init__(self, elements, seed):
        self.noise = np.random.default_rng(seed)
        self.elements, self.curves, self.centres = elements, {}, {}
        self.plain, self.corrected = 0, []

    def batches(self, name):
        if name not in self.curves:
            self.curves[name] = self.noise.uniform(.5, 2, (BATCHES, self.elements))
            self.centres[name] = self.noise.standard_normal(self.elements)
        return self.curves[name], self.centres[name]

    def gradient(self, name, weights, batch):
        curves, centre = self.batches(name)
        return curves[batch] * (weights - centre)

    def full(self, name, weights):
        curves, centre = self.batches(name)
        return curves.mean(axis=0) * (weights - centre)

    def of(self, robot, order):
        store, batch = robot.store, int(self.noise.integers(BATCHES))
        if isinstance(order.step, Full):
            return self.full(robot.name, store.model).astype(np.float32)
        gradient = self.gradient(robot.name, store.model, batch)
        if store.anchor is None:
            self.plain += 1
        else:
            weights, full = store.anchor
            gradient = gradient - self.gradient(robot.name, weights, batch) + full
            self.corrected.append((robot.name, order.iteration, weights.copy(), full.copy()))
        return gradient.astype(np.float32)


def quadratic_fleet(sync, seed=8, robots=3, **network):
    fleet = Fleet(seed, robots, sync, 'raw', **network)
    fleet.gradients = Quadratics(fleet.partition.elements, seed)
    for robot, seconds in zip(fleet.robots.values(), (0.1, 0.2, 0.4)):
        robot.compute_time = seconds
    return fleet


def outer_loops(fleet):
    """Return the anchors that corrected gradients used, for each outer loop and each robot.

    The result maps the number of an outer loop to a dict. This dict maps each robot to a pair: the
    weights of its anchor, and the full gradient.
    """
    period = fleet.server.method.period + 1
    loops = {}
    for name, iteration, weights, full in fleet.gradients.corrected:
        loops.setdefault((iteration - 1) // period, {})[name] = weights, full
    return loops


@pytest.mark.parametrize('sync', METHODS)
def test_all_hold_the_same_model_and_the_mean_of_their_full_gradients_of_it(sync):
    fleet = quadratic_fleet(sync, loss=0.05, duplicate=0.1, delay=0.05)
    masters, joined = {}, {}
    pushed = fleet.update.pushed

    def spy(member, active, now):
        # All robots compute this full gradient in the same iteration, so on the same model.
        if member.push.transfer.kind.name == 'ANCHOR':
            model = masters.setdefault(member.iteration, fleet.server.master.copy())
            joined.setdefault(member.iteration, []).append(member.robot)
            assert (model == fleet.server.master).all(), 'the model changes behind the barrier'
        pushed(member, active, now)
    fleet.update.pushed = spy
    fleet.run(12)
    fleet.check()
    period = fleet.server.method.period + 1
    loops = outer_loops(fleet)
    assert len(loops) >= 3 and fleet.gradients.plain == 0
    for loop, anchors in loops.items():
        model = masters[loop * period + 1]
        names = joined[loop * period + 1]  # a robot that joins late is not in the first of them
        mean = sum(fleet.gradients.full(name, model) for name in names) / len(names)
        for weights, full in anchors.values():
            assert np.allclose(weights, model, rtol=1e-6, atol=1e-6)
            assert np.allclose(full, mean, rtol=1e-4, atol=1e-5)
    assert {name for anchors in loops.values() for name in anchors} == set(fleet.robots)
    assert sorted(joined[max(loops) * period + 1]) == list(fleet.robots)
    check_end(fleet, 4)


def distance(fleet):
    """Return the distance of the master rows from the minimum of the mean of all losses."""
    names = list(fleet.robots)
    curves = np.array([fleet.gradients.batches(name)[0].mean(axis=0) for name in names])
    centres = np.array([fleet.gradients.batches(name)[1] for name in names])
    best = (curves * centres).sum(axis=0) / curves.sum(axis=0)
    return np.abs(fleet.server.master - best).max()


def test_it_comes_closer_to_the_minimum_than_without():
    """Check that SVRG comes closer to the minimum than plain BSP: its gradient noise goes to 0.

    The learning rate is constant.
    """
    left = {}
    for sync in ('bsp', 'bsp+svrg=3'):
        fleet = quadratic_fleet(sync)
        for robot in fleet.robots.values():
            robot.compute_time = 0.1
        fleet.sgd = SgdConfig(20 * RATE, 0.0, 0.0, True)
        fleet.run(15)
        left[sync] = distance(fleet)
    assert left['bsp+svrg=3'] < left['bsp'] / 10, left


@pytest.mark.parametrize('sync', METHODS[:2])
def test_who_joins_between_two_full_gradients_has_plain_ones(sync):
    fleet = quadratic_fleet(sync)
    run_until(fleet, lambda: len(outer_loops(fleet)) > 1, 0.05)
    fleet.start_robot('robot3')
    period = fleet.server.method.period + 1
    seen = len(fleet.gradients.corrected)
    run_until(fleet, lambda: any(name == 'robot3' for name, *_ in fleet.gradients.corrected), 0.05)
    first = next(iteration for name, iteration, *_ in fleet.gradients.corrected[seen:]
                 if name == 'robot3')
    assert (first - 1) % period == 1  # this is the first iteration after a full gradient
    fleet.run(5)
    loops = outer_loops(fleet)
    assert max(map(len, loops.values())) == 4
    for anchors in loops.values():
        (_, first), *others = anchors.values()
        assert all((full == first).all() for _, full in others)
    check_end(fleet, 4)


@pytest.mark.parametrize('sync', METHODS[:2])
@pytest.mark.parametrize('when', ['computes', 'pushes', 'waits'])
def test_a_robot_that_dies_at_the_barrier_stops_nobody_and_counts_whole_or_not_at_all(sync, when):
    fleet = quadratic_fleet(sync, rate=2e5)
    fleet.robots['robot1'].compute_time = {'computes': 1.4, 'pushes': 0.3, 'waits': 0.05}[when]
    machine = fleet.robots['robot1'].machine
    state = {'computes': 'computing', 'pushes': 'pushing', 'waits': 'waiting'}[when]
    fleet.run(4)

    def at_barrier():
        full = isinstance(machine.command.step, Full)
        if when == 'pushes':
            there = fleet.server.members['robot1'].push
            return full and machine.state == 'pushing' \
                and there.transfer == machine.push.transfer and there.bytes_received > 2 * CHUNK
        return full and machine.state == state
    run_until(fleet, at_barrier)
    iteration = machine.iteration
    fleet.kill_robot('robot1')
    run_until(fleet, lambda: min(m.iteration for m in fleet.server.active()) > iteration + 1, 0.1)
    names = set(fleet.robots) if when == 'waits' else {'robot0', 'robot2'}
    found = [(weights, full) for name, n, weights, full in fleet.gradients.corrected
             if n == iteration + 1]
    assert found
    for weights, full in found:
        mean = sum(fleet.gradients.full(name, weights) for name in names) / len(names)
        assert np.allclose(full, mean, rtol=1e-4, atol=1e-5)
    fleet.start_robot('robot1')
    check_end(fleet, 4)


@pytest.mark.parametrize('sync', METHODS[:2])
def test_a_robot_that_was_out_of_reach_is_corrected_by_what_it_holds(sync):
    fleet = quadratic_fleet(sync, rate=2e5)
    run_until(fleet, lambda: len(fleet.server.active()) == 3)
    fleet.run(3)
    lose(fleet, 4.0)
    come_back(fleet)
    fleet.run(5)
    loops = outer_loops(fleet)
    anchors = loops[max(loops) - 1]
    weights = [weights for weights, _ in anchors.values()]
    assert len(weights) == 3
    assert all(np.allclose(other, weights[0], rtol=1e-5, atol=1e-5) for other in weights)
    check_end(fleet, 4)


@pytest.mark.parametrize('sync', METHODS)
def test_it_can_be_begun_and_ended_at_any_time(sync):
    fleet = quadratic_fleet('rsp:4', loss=0.05, rate=3e5)
    fleet.run(2.0)
    for seconds in (1.0, 1.13, 1.31, 1.57):
        fleet.set_sync(sync)
        fleet.run(seconds)
        fleet.check()
        fleet.set_sync('rsp:4')
        fleet.run(seconds / 2)
        fleet.check()
    fleet.set_sync(sync)
    seen = len(fleet.gradients.corrected)
    fleet.run(10)
    assert len(fleet.gradients.corrected) > seen
    check_end(fleet, 4)


@pytest.mark.parametrize('loses', ['the robot', 'the server'])
def test_who_joins_again_has_no_full_gradient_until_the_next(loses):
    """A robot that joins again drops the fleet's full gradient, which may be of an old model."""
    fleet = quadratic_fleet('asp+svrg=50')
    machine, store = fleet.robots['robot0'].machine, fleet.robots['robot0'].store
    run_until(fleet, lambda: store.anchor is not None)
    fleet.run(1)
    if loses == 'the server':
        fleet.restart_server(fleet.checkpoint())
    else:
        lose(fleet)
        fleet.dead_links.discard('robot0')
    run_until(fleet, lambda: machine.state == 'joining')
    run_until(fleet, lambda: machine.state == 'pushing')
    assert store.anchor is None


def test_it_goes_on_after_a_restart_of_the_server():
    fleet = quadratic_fleet('gsgm+svrg=3')
    fleet.run(4)
    checkpoint = fleet.checkpoint()
    fleet.run(1)
    fleet.restart_server(checkpoint)
    seen = len(fleet.gradients.corrected)
    fleet.run(10)
    assert len(fleet.gradients.corrected) > seen
    check_end(fleet, 4)


def test_a_lossy_codec_is_refused_with_nothing_changed():
    with pytest.raises(ConfigError, match="'bsp.svrg' needs exact gradients, so codec raw"):
        Fleet(1, 2, 'bsp+svrg', 'onebit')
    fleet = Fleet(1, 2, 'gsgm', 'ternary:0.1')
    fleet.run(2)
    method = fleet.server.method
    with pytest.raises(ConfigError, match='codec raw'):
        fleet.set_sync('gsgm+svrg=5')
    assert fleet.server.method is method
    check_end(fleet, 4)


def test_who_does_not_hold_the_model_of_the_barrier_gets_rows_and_no_full_gradient():
    """A robot whose model differs from the fleet's gets rows and no full gradient.

    The full gradient would correct the gradients of this robot wrongly.
    """
    fleet = quadratic_fleet('asp+svrg=3')
    pushed = fleet.update.pushed

    def spy(member, active, now):
        if member.robot == 'robot0':
            member.pulled_at[:] = -9  # as if this robot had been out of reach
            fleet.server.master += 0.01  # as if the other robots had trained in the meantime
        pushed(member, active, now)
    fleet.update.pushed = spy
    fleet.run(8)
    assert fleet.robots['robot0'].store.anchor is None
    assert fleet.robots['robot1'].store.anchor is not None


def test_a_full_gradient_that_a_robot_pushed_in_part_does_not_count():
    partition = partition_of([('w', (4,)), ('b', (2,))], 'row', 'raw')
    full = FullGradient(partition, np.zeros(6, np.float32), 0)

    def push(robot, iteration, value, ids=(0, 1)):
        data = np.full(sum((4, 2)[row] for row in ids), value, np.float32).view(np.uint8)
        full.take(robot, iteration, np.array(ids), data)
        full.close(robot, iteration, len(ids) == 2)

    assert full.of(1) is None
    push('a', 1, 1.0)
    push('b', 1, 3.0)
    push('c', 1, 50.0, [0])
    assert (full.of(1) == 2.0).all()
    push('c', 1, 5.0)
    push('a', 1, 70.0)  # a delayed message that robot a sent before it was away; it has no effect
    assert (full.of(1) == 3.0).all()
    push('b', 5, 4.0)
    push('a', 1, 9.0)  # a delayed message of an outer loop that has ended; it has no effect
    assert full.of(1) is None
    assert (full.of(5) == 4.0).all()
