"""Tests of runs in virtual time: their files and times, failing links, and refused settings."""

import os
import re
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest
import virtual_fleet
from fleet_env.records.events import Evaluation, Fault, Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import ChannelConfig
from fleet_env.settings.fleet_file import dump_fleet, read_fleet
from fleet_env.settings.power_model import PowerModel
from fleet_testing import LIMIT, examples, mostly_long
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError, GradientError
from rog_sim.simulation import Simulation, simulate
from rog_tasks.errors import TaskError, TaskFailed
from virtual_fleet import GOOD_LINK, METHODS, fleet_of

FILES = ('run.jsonl', 'summary.json')


def files(out):
    return [(out / name).read_bytes() for name in FILES]


def iterations(out):
    """Return a dict that maps the name of each robot to its iteration events, in order."""
    events = defaultdict(list)
    for event in read_run(out):
        if isinstance(event, Iteration):
            events[event.robot].append(event)
    return dict(events)


def run_silently(simulation):
    return simulation.run(lambda done: None)


# -- equal seeds give equal files

SCRIPT = """
import sys
from pathlib import Path
from fleet_env.settings.fleet_file import read_fleet
from rog_sim.simulation import simulate
simulate(read_fleet(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize('sync', ['flown', 'rsp:auto+pipeline+sparse'])
def test_the_same_seed_gives_the_same_files_here_and_in_another_process(tmp_path, sync):
    path = tmp_path / 'toy.yaml'
    path.write_text(dump_fleet(fleet_of(tmp_path, sync, 0.5)))
    fleet = read_fleet(path)
    for name in ('one', 'two'):
        simulate(fleet, tmp_path / name)
    here = os.path.dirname(virtual_fleet.__file__)
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join([here, *filter(None, sys.path)]),
           'PYTHONHASHSEED': '77'}
    subprocess.run([sys.executable, '-c', SCRIPT, str(path), str(tmp_path / 'three')], env=env,
                   check=True, timeout=LIMIT)
    assert files(tmp_path / 'one') == files(tmp_path / 'two') == files(tmp_path / 'three')
    simulate(changed(fleet, seed=4), tmp_path / 'four')
    assert not set(files(tmp_path / 'four')) & set(files(tmp_path / 'one'))


def test_writing_nothing_gives_the_same_summary(tmp_path):
    fleet = fleet_of(tmp_path, minutes=0.5)
    assert simulate(fleet) == simulate(fleet, tmp_path / 'out') == read_summary(tmp_path / 'out')


# -- what the records say

@pytest.mark.parametrize('sync', mostly_long(METHODS, 'flown', 'rsp:auto+pipeline+sparse'))
def test_times_add_up_and_energy_follows_from_them(tmp_path, sync):
    power = PowerModel(computing=10.0, communicating=5.0, stalled=3.0)
    fleet = fleet_of(tmp_path, sync)
    robots = [changed(robot, power=power) for robot in fleet.robots]
    summary = simulate(changed(fleet, robots=tuple(robots)), tmp_path / 'out')
    assert summary.duration_s == 60 and list(summary.robots) == [r.name for r in robots]
    for config in robots:
        robot = summary.robots[config.name]
        assert robot.compute_s + robot.communicate_s + robot.stall_s == pytest.approx(60)
        assert robot.energy_j == pytest.approx(
            10 * robot.compute_s + 5 * robot.communicate_s + 3 * robot.stall_s)
        # Each gradient takes the time `pace`; the last gradient may be unfinished.
        extra = robot.compute_s - robot.iterations * config.pace
        assert -1e-6 <= extra <= 2 * config.pace + 1e-6, extra
        events = iterations(tmp_path / 'out')[config.name]
        assert [e.iteration for e in events] == list(range(1, robot.iterations + 1))
        assert min(robot.bytes_sent, robot.bytes_received) > 0
        assert robot.evaluations[-1][1] == robot.iterations
        assert robot.accuracy.after > robot.accuracy.before


def test_under_bsp_every_push_holds_the_whole_model_and_all_keep_step(tmp_path):
    simulation = Simulation(fleet_of(tmp_path, 'bsp'), tmp_path / 'out')
    partition = simulation.server.partition
    summary = run_silently(simulation)
    assert spread(tmp_path / 'out') == 1
    least = int(simulation.server.codec.sizes(partition.lengths).sum())
    for robot in summary.robots.values():
        assert robot.rows_pushed_mean == partition.rows
        on_air = simulation._traffic * least
        assert on_air <= robot.bytes_sent / robot.iterations <= 1.5 * on_air
    done = [robot.iterations for robot in summary.robots.values()]
    assert 20 < min(done) <= 60 / 1.1  # the slowest robot needs 1.1 s for a gradient


def spread(out):
    """Return the largest number of iterations by which a robot was ever ahead of another robot."""
    done, most = dict.fromkeys(read_summary(out).robots, 0), 0
    for event in read_run(out):
        if isinstance(event, Iteration):
            done[event.robot] = event.iteration
            most = max(most, max(done.values()) - min(done.values()))
    return most


def test_under_asp_nobody_waits_and_the_fast_one_runs_ahead(tmp_path):
    summary = simulate(fleet_of(tmp_path, 'asp'), tmp_path / 'out')
    # a robot waits only between its push and its pull: for round trips or for the channel
    for robot in summary.robots.values():
        assert robot.stall_s < 0.03 * summary.duration_s
    assert spread(tmp_path / 'out') > 10


@pytest.mark.parametrize(('sync', 'bound'), mostly_long(
    [('rsp:4', 4), ('rsp:3+pipeline', 3), ('ssp:2', 3), ('dssp:1:4', 5), ('flown:1:4', 5),
     ('rsp:6+pipeline+sparse', 6)], ('rsp:6+pipeline+sparse', 6), ('ssp:2', 3)))
def test_nobody_is_further_ahead_than_the_bound(tmp_path, sync, bound):
    links = (GOOD_LINK, GOOD_LINK, '0 20\n5 3\n8 40\n20 20\n')
    simulate(fleet_of(tmp_path, sync, 2.0, links, paces=(0.5, 0.7, 2.9)), tmp_path / 'out')
    for events in iterations(tmp_path / 'out').values():
        assert len(events) > 10 and max(e.staleness for e in events) < bound
    # An iteration is recorded when its pull is complete. Before that, the other robots may have
    # pushed once more.
    assert 1 < spread(tmp_path / 'out') <= bound


@pytest.mark.long
@pytest.mark.parametrize('granularity', ['model', 'layer', 'row', 'element'])
def test_every_granularity_trains(tmp_path, granularity):
    summary = simulate(fleet_of(tmp_path, 'rsp:4', 1.0, granularity=granularity), tmp_path / 'out')
    assert all(r.accuracy.after > r.accuracy.before for r in summary.robots.values())
    rows = {'model': 1, 'layer': 2, 'row': 65, 'element': 1344}[granularity]
    assert {e.rows_total for own in iterations(tmp_path / 'out').values() for e in own} == {rows}


@pytest.mark.long
def test_traffic_is_that_of_the_published_model_and_the_model_stays_small(tmp_path):
    bytes_of, losses = {}, {}
    for traffic in ('', 'convmlp-m'):
        fleet = fleet_of(tmp_path, 'bsp', 1.5, codec='onebit', traffic=traffic)
        simulation = Simulation(fleet, tmp_path / f'out{traffic}')
        offered = simulation.channel.offer
        sent = bytes_of[traffic] = []

        def offer(name, uplink, nbytes, *rest, offered=offered, sent=sent):
            if uplink:
                sent.append(nbytes)
            return offered(name, uplink, nbytes, *rest)

        simulation.channel.offer = offer
        summary = run_silently(simulation)
        pushes = sum(robot.iterations for robot in summary.robots.values())
        # The last push of each robot may still be under way when the time is up.
        bytes_of[traffic] = sum(sent) / pushes, sum(sent) / (pushes - len(summary.robots))
        losses[traffic] = {(name, e.iteration): e.loss for name, events in
                           iterations(tmp_path / f'out{traffic}').items() for e in events}
    # The codec onebit sends 2 bytes of scale per row and 1 bit per element. There are 64 rows of 20
    # elements, and one row of 64 elements.
    own = 64 * (2 + 3) + 2 + 8
    for traffic, size, factor in (('', own, 2), ('convmlp-m', 2123965, 1.2)):
        least, most = bytes_of[traffic]
        # The bytes on the air include headers and row ids.
        assert size < most and least < factor * size
    shorter = losses['convmlp-m']
    assert 60 < len(shorter) < len(losses[''])
    for key, loss in shorter.items():
        assert loss == pytest.approx(losses[''][key], rel=1e-3)


@pytest.mark.long
def test_robots_that_share_the_air_have_less_of_it(tmp_path):
    fleet = fleet_of(tmp_path, 'bsp', paces=(0.5, 0.5, 0.5))
    apart = changed(fleet, channel=ChannelConfig(shared=False))
    done = [sum(r.iterations for r in simulate(f).robots.values()) for f in (fleet, apart)]
    assert done[0] < 0.8 * done[1]


def test_headers_and_acknowledgements_take_air_time(tmp_path):
    fleet = fleet_of(tmp_path, 'bsp', 0.5, ('0 80\n',) * 3, (0.5,) * 3)
    bare, dds, more = (simulate(changed(fleet, channel=ChannelConfig(header=size)))
                       .robots['robot1'] for size in (0, 98, 400))
    assert bare.iterations > dds.iterations > more.iterations


class Exploding(virtual_fleet.Linear):
    """A task whose gradients are finite, but far too large."""

    def loss(self, model, batch):
        return 1e20 * super().loss(model, batch)

    def evaluate(self, model):
        return 0.5


@pytest.mark.parametrize('task, refused', [('Exploding', True), ('Linear', False)])
def test_refused_pushes_are_recorded_and_counted(tmp_path, task, refused):
    where = __name__ if task == 'Exploding' else 'virtual_fleet'
    summary = simulate(fleet_of(tmp_path, minutes=0.2, task=f'{where}:{task}'), tmp_path / 'out')
    faults = [e for e in read_run(tmp_path / 'out') if isinstance(e, Fault)]
    assert bool(faults) == refused
    assert all(e.what == 'push_refused' and '100 times the usual' in e.detail for e in faults)
    assert summary.notes.get('faults', {}) == ({'push_refused': len(faults)} if refused else {})


def wrong_numbers(folder, robots, sync='rsp:4', minutes=0.3, task='WrongNumbers', **options):
    # the robot whose numbers are wrong is the fastest: nobody has pushed before it
    return fleet_of(folder, sync, minutes, (GOOD_LINK,) * robots, (0.5, 0.8, 1.1, 1.1)[:robots],
                    task=f'virtual_fleet:{task}', task_options=options, traffic='')


@pytest.mark.parametrize('sync', mostly_long(
    ['rsp:4', 'bsp', 'rsp:auto+pipeline+sparse', 'rsp:4+local=4', 'gsgm'], 'rsp:4'))
@pytest.mark.parametrize('factor', ['nan', 'inf'])
def test_a_robot_whose_gradient_is_not_finite_is_named_and_leaves_and_the_others_go_on(
        tmp_path, sync, factor):
    summary = simulate(wrong_numbers(tmp_path, 3, sync, factor=factor, first=6), tmp_path / 'out')
    (fault,) = (e for e in read_run(tmp_path / 'out') if isinstance(e, Fault))
    batch = 2 if 'local' in sync else 6
    assert (fault.robot, fault.what) == ('robot1', 'failed')
    assert fault.detail.startswith(f'iteration {batch}: the gradient holds NaN or infinite values')
    assert summary.notes == {'reason': 'finished', 'faults': {'failed': 1},
                             'failed': {'robot1': fault.detail}}
    done = {name: robot.iterations for name, robot in summary.robots.items()}
    assert done['robot1'] == batch - 1 and min(done['robot2'], done['robot3']) > batch
    after = {name: robot.accuracy.after for name, robot in summary.robots.items()}
    assert min(after['robot2'], after['robot3']) > summary.robots['robot2'].accuracy.before
    assert read_summary(tmp_path / 'out').notes == summary.notes


def test_a_robot_whose_task_fails_is_named_and_leaves_and_the_others_go_on(tmp_path):
    fleet = wrong_numbers(tmp_path, 3, task='Checking', factor='nan', first=6)
    summary = simulate(fleet, tmp_path / 'out')
    said, = summary.notes['failed'].items()
    assert said[0] == 'robot1' and re.fullmatch(
        r'iteration 6: the task failed: ValueError: wrong numbers \(virtual_fleet\.py line \d+, in '
        r'loss\)', said[1])
    done = {name: robot.iterations for name, robot in summary.robots.items()}
    assert done['robot1'] == 5 and min(done['robot2'], done['robot3']) > 6


def test_if_the_task_of_all_robots_fails_the_run_ends_with_its_error_and_complete_records(tmp_path):
    fleet = wrong_numbers(tmp_path, 2, task='Checking', factor='nan', bad=2, first=3)
    with pytest.raises(TaskFailed, match='wrong numbers'):
        simulate(fleet, tmp_path / 'out', server_every=2.0)
    assert set(read_summary(tmp_path / 'out').notes['failed']) == {'robot1', 'robot2'}


def test_if_no_robot_is_left_the_run_ends_with_all_names_and_complete_records(tmp_path):
    out = tmp_path / 'out'
    with pytest.raises(GradientError, match='no robot is left.*robot1, .*robot2, iteration 3'):
        simulate(wrong_numbers(tmp_path, 2, factor='nan', bad=2, first=3), out)
    summary = read_summary(out)
    assert summary.notes['reason'] == 'failed' and set(summary.notes['failed']) == {
        'robot1', 'robot2'}
    assert summary.duration_s < 18 and max(e.t for e in read_run(out)) == summary.duration_s


def test_one_robots_numbers_are_not_the_divergence_of_a_fleet_whose_server_is_measured(tmp_path):
    summary = simulate(wrong_numbers(tmp_path, 2, factor='nan', first=3), server_every=2.0)
    assert summary.notes['reason'] == 'finished' and set(summary.notes['failed']) == {'robot1'}
    summary = simulate(wrong_numbers(tmp_path, 2, factor='nan', bad=2), server_every=2.0)
    assert summary.notes['reason'] == 'diverged' and summary.duration_s < 2


@pytest.mark.parametrize('robots', [1, 2, 4])
@pytest.mark.parametrize('zero', [False, True])
@pytest.mark.parametrize(('sync', 'factor'), mostly_long(
    [(sync, factor) for sync in ('rsp:4', 'bsp', 'diloco:4', 'gsgm', 'rsp:20+pipeline+sparse')
     for factor in (1e10, 1e20, 1e30)], ('rsp:4', 1e10), ('diloco:4', 1e30)))
def test_absurd_gradients_never_reach_the_model_even_as_the_first_push_of_all(
        tmp_path, sync, factor, robots, zero):
    simulation = Simulation(wrong_numbers(tmp_path, robots, sync, 0.1, factor=factor, zero=zero))
    start = np.abs(simulation.server.master).max()
    try:
        summary = run_silently(simulation)
    except GradientError:  # local steps with this gradient end in NaN; no robot was left
        assert robots == 1
    else:
        refused = simulation.server.refused
        assert set(refused) | set(summary.notes.get('failed', {})) == {'robot1'}
    assert np.abs(simulation.server.master).max() <= start + 1


# -- links that die for minutes

def test_a_robot_out_of_reach_is_missed_by_nobody_and_comes_back(tmp_path):
    links = (GOOD_LINK, GOOD_LINK, '0 30\n30 0\n150 30\n600 30\n')
    simulate(fleet_of(tmp_path, 'rsp:4', 3.0, links, (1.5, 2.0, 2.5)), tmp_path / 'out')
    faults = [(e.robot, e.what) for e in read_run(tmp_path / 'out') if isinstance(e, Fault)]
    assert faults == [('robot3', 'peer_lost'), ('robot3', 'rejoined')]
    events = iterations(tmp_path / 'out')
    assert len([e for e in events['robot1'] if 40 < e.t < 150]) > 33
    assert len([e for e in events['robot3'] if 40 < e.t < 150]) <= 1
    first = next(e for e in events['robot3'] if e.t > 150)
    # The robot continues at the iteration of the other robots, not at its own last iteration.
    others = max(e.iteration for e in events['robot1'] if e.t <= first.t)
    assert others - 5 <= first.iteration <= others + 1


@pytest.mark.parametrize('sync', mostly_long(['bsp', 'rsp:4'], 'rsp:4'))
def test_the_return_of_a_robot_after_a_minute_slows_the_others_by_less_than_a_tenth(tmp_path, sync):
    links = ('0 80\n', '0 80\n', '0 80\n30 0\n90 80\n600 80\n')
    simulate(fleet_of(tmp_path, sync, 2.1, links, (0.5,) * 3), tmp_path / 'out')
    events = iterations(tmp_path / 'out')
    assert any(90 < e.t < 95 for e in events['robot3'])  # robot3 trains again

    def pace(begin, end):
        during = [e for robot in ('robot1', 'robot2') for e in events[robot] if begin < e.t <= end]
        return len(during) / (end - begin)

    usual = pace(5, 30)
    assert pace(30, 90) > 0.9 * usual  # until the robot counts as away, the others wait for it
    assert pace(90, 100) > 0.9 * usual and pace(100, 125) > 0.9 * usual


def test_a_robot_that_asks_again_before_the_answer_goes_on_by_the_last_answer(tmp_path):
    links = (GOOD_LINK, '0 30\n10 0\n30 30\n600 30\n')
    fleet = fleet_of(tmp_path, 'rsp:4', 1.0, links, (1.0, 1.0), traffic='')
    late = changed(fleet.robots[1], link=changed(fleet.robots[1].link, latency=0.7))
    simulate(changed(fleet, robots=(fleet.robots[0], late)), tmp_path / 'out')
    assert any(35 < e.t < 45 for e in iterations(tmp_path / 'out')['robot2'])


MINUTES, ALIVE_FROM = 6.0, 300.0


@st.composite
def dying_links(draw):
    """Return the trace of a link that dies once or several times, sometimes for minutes.

    From `ALIVE_FROM` on, the link does not die.
    """
    t, lines = 0.0, []
    while t < 100:
        up, down = draw(st.floats(0.3, 40)), draw(st.sampled_from([0.4, 2.9, 3.1, 8, 70, 150]))
        lines += [f'{t} {draw(st.sampled_from([4.0, 20.0, 80.0]))}', f'{t + up} 0']
        t += up + down
    assert t < ALIVE_FROM
    return '\n'.join([*lines, f'{t} 20', f'{60 * MINUTES} 20'])


def add_decoded(total, partition, codec, ids, data):
    decoded = np.zeros(total.size, np.float32)
    codec.add(partition, decoded, ids, data)
    total += decoded


class Books:
    """Adds up all gradients that robots produce and, separately, those that the server applies."""

    def __init__(self, simulation):
        self.simulation = simulation
        self.elements = simulation.server.partition.elements
        self.produced = np.zeros(self.elements)
        self.applied = np.zeros(self.elements)
        method = simulation.server.method
        method.take = self._summing(method.model.partition, method.take)
        for robot in simulation.robots.values():
            robot.store.accumulate = self._counting(robot.store, robot.store.accumulate)

    def _summing(self, partition, take):
        def summing(robot, ids, codec, data, robots):
            take(robot, ids, codec, data, robots)
            add_decoded(self.applied, partition, codec, ids, data)
        return summing

    def _counting(self, store, accumulate):
        def counting(*arguments, **options):
            before = store.pending.astype(np.float64)
            accumulate(*arguments, **options)
            self.produced += store.pending - before
        return counting

    def held(self, name, robot):
        """End the robot's unfinished push, if there is one.

        Return the sum of the robot's gradients that the server has not applied.
        """
        held = robot.store.pending.astype(np.float64)
        push = robot.machine.push
        if push is not None:
            known = self.simulation.server.members[name].push.known()
            if push.state != 'done':
                push.abort(known if known and known.transfer == push.transfer else None)
            for ids, values in push.untaken():
                add_decoded(held, robot.store.partition, push.codec, ids, values)
        return held

    def check(self):
        """Check that mirrors equal the robots' models, and no gradient is lost or applied twice.

        Return the number of mirrors that were compared.
        """
        server, compared = self.simulation.server, 0
        for name, robot in self.simulation.robots.items():
            member = server.members[name]
            if member.state in ('training', 'waiting') and member.sender is None:
                assert (member.mirror.rows == robot.store.weights).all(), name
                compared += 1
        held = sum(self.held(name, robot) for name, robot in self.simulation.robots.items())
        assert np.abs(self.produced).max() > 0
        np.testing.assert_allclose(self.applied + held, self.produced, rtol=1e-4,
                                   atol=2e-5)
        return compared


@pytest.mark.long
@pytest.mark.parametrize('sync', METHODS)
@examples(2)
@given(second=dying_links(), third=dying_links(), traffic=st.sampled_from(['', 'convmlp-m']))
def test_no_method_stands_still_when_links_die_for_minutes(tmp_path_factory, sync, second, third,
                                                           traffic):
    folder = tmp_path_factory.mktemp('dying')
    fleet = fleet_of(folder, sync, MINUTES, (GOOD_LINK, second, third), (3.0, 3.7, 5.1),
                     traffic=traffic, evaluate_every=0)
    simulation = Simulation(fleet, folder / 'out')
    books = Books(simulation)
    run_silently(simulation)
    books.check()
    assert {m.robot for m in simulation.server.active()} == set(simulation.robots)
    events = iterations(folder / 'out')
    for name in simulation.robots:  # all robots train again
        assert [e for e in events[name] if e.t > ALIVE_FROM], name
    # The fleet never stands still for long. A robot without a link is away after 3 s, so the others
    # wait longer only for a robot with a slow link.
    times = sorted(e.t for own in events.values() for e in own)
    assert max(np.diff([0.0, *times, 60 * MINUTES])) < 60


def test_at_the_end_of_a_run_all_mirrors_and_sums_are_right(tmp_path):
    compared = 0
    for minutes in (0.25, 0.4, 0.55):  # at one of these moments, a pull to each robot may be open
        simulation = Simulation(fleet_of(tmp_path, 'rsp:4+pipeline+sparse', minutes))
        books = Books(simulation)
        run_silently(simulation)
        compared += books.check()
    assert compared > 0


# -- what a simulation refuses, and how it is stopped

def test_a_fleet_without_a_pace_is_refused_with_what_to_do(tmp_path):
    fleet = fleet_of(tmp_path, paces=(0.5, 0.0, 0.5))
    with pytest.raises(ConfigError, match='robot2 .* training.pace, the seconds'):
        simulate(fleet, tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_an_unknown_published_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'resnet' *; the published models are convmlp-m"):
        simulate(fleet_of(tmp_path, traffic='resnet'), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_a_live_topic_is_refused(tmp_path):
    options = {'images': 'topic:camera', 'labels': 'self', 'classes': ['a', 'b']}
    fleet = fleet_of(tmp_path, task='rog_tasks.recognition:Recognition', task_options=options)
    with pytest.raises(ConfigError, match='live topic camera, .* name a recording or a folder'):
        simulate(fleet, tmp_path / 'out')


class Exiting(Exploding):
    """A task that calls ``sys.exit``, as some scripts do."""

    def loss(self, model, batch):
        raise SystemExit(3)


def test_a_task_that_exits_does_not_end_the_run_as_its_own_end(tmp_path):
    with pytest.raises(TaskError, match=r'called sys.exit\(3\)'):
        simulate(fleet_of(tmp_path, task=f'{__name__}:Exiting'), tmp_path / 'out')


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='choose one of bsp, ssp:S'):
        simulate(fleet_of(tmp_path, 'rps:4'), tmp_path / 'out')
    assert not (tmp_path / 'out').exists()


def test_a_directory_with_a_run_in_it_is_left_alone(tmp_path):
    out = tmp_path / 'out'
    simulate(fleet_of(tmp_path, minutes=0.2), out)
    before = files(out)
    with pytest.raises(ConfigError, match='already holds a run; choose another'):
        simulate(fleet_of(tmp_path), out)
    assert files(out) == before


def test_progress_rises_to_the_end(tmp_path):
    told = []
    simulate(fleet_of(tmp_path, minutes=0.5), progress=told.append)
    assert told == sorted(told) and 0 <= told[0] < 0.1 and told[-1] == 1.0 and len(told) > 10


def test_control_c_leaves_records_that_can_be_read(tmp_path):
    def stop_in_the_middle(done):
        if done > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(fleet_of(tmp_path, minutes=1.0), tmp_path / 'out', stop_in_the_middle)
    events = read_run(tmp_path / 'out')
    assert 29 < max(e.t for e in events) < 31
    assert {e.robot for e in events if isinstance(e, Evaluation)} >= {'robot1', 'robot2', 'robot3'}
