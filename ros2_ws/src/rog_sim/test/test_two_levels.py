"""Child fleets and their parent fleet in virtual time."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from fleet_env.errors import FleetFileError
from fleet_env.records.events import Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import LinkConfig, RobotConfig, UpstreamConfig
from fleet_env.settings.fleet_file import dump_fleet, read_fleet
from fleet_testing import mostly_long
from rog_core.errors import ConfigError
from rog_sim.simulation import Simulation, simulate
from virtual_fleet import fleet_of

WAN = LinkConfig(trace='', rate=20.0, latency=0.04)


def two_levels(folder, above='local:4', below='rsp:4', names=('blue', 'red'), wan=WAN, minutes=0.5,
               **training):
    """Write the files of two child fleets and their parent fleet; return the parent fleet.

    Each child fleet has three robots.
    """
    fleet = fleet_of(folder, below, minutes, **training)
    for rank, name in enumerate(names):
        upstream = UpstreamConfig(robot=name, rank=3 * rank, world=6)
        text = dump_fleet(changed(fleet, name=name, upstream=upstream))
        (folder / f'{name}.yaml').write_text(text)
    robots = tuple(RobotConfig(name=name, fleet=f'{name}.yaml', link=wan) for name in names)
    path = folder / 'above.yaml'
    path.write_text(dump_fleet(changed(
        fleet, name='above', robots=robots, training={'sync': above}, link=wan)))
    return read_fleet(path)


@pytest.fixture(scope='module')
def run_of(tmp_path_factory):
    """Return a function: method above -> (the fleet, folder of its run, summary), run once."""
    @cache
    def run(above='local:4'):
        folder = tmp_path_factory.mktemp('usual')
        fleet = two_levels(folder, above)
        return fleet, folder / 'out', simulate(fleet, folder / 'out')
    return run


@pytest.mark.parametrize('above', mostly_long(['local:4', 'diloco:4:2', 'rsp:3+local=4'],
                                              'local:4'))
def test_fleets_learn_below_a_server_and_all_are_recorded(run_of, above):
    _, out, summary = run_of(above)
    assert list(summary.robots) == ['blue', 'red']
    for name, robot in summary.robots.items():
        below = read_summary(out / name)
        rounds = max(one.iterations for one in below.robots.values())
        assert rounds > 20 and len(below.robots) == 3
        assert 2 < robot.iterations <= rounds // (4 if ':2' not in above else 2)
        assert min(robot.bytes_sent, robot.bytes_received) > 0 and robot.energy_j == 0
        assert robot.accuracy.after > summary.robots[name].accuracy.before
    events = Counter(e.robot for e in read_run(out) if isinstance(e, Iteration))
    assert events == {name: robot.iterations for name, robot in summary.robots.items()}


def test_a_robot_of_a_child_fleet_whose_numbers_are_wrong_leaves_that_fleet_alone(tmp_path):
    options = {'factor': 'nan', 'first': 4}
    fleet = two_levels(tmp_path, task='virtual_fleet:WrongNumbers', task_options=options)
    summary = simulate(fleet, tmp_path / 'out')
    assert 'failed' not in summary.notes and set(summary.robots) == {'blue', 'red'}
    notes = {name: read_summary(tmp_path / 'out' / name).notes for name in summary.robots}
    assert set(notes['blue']['failed']) == {'robot1'} and 'failed' not in notes['red']


def test_the_same_seed_gives_the_same_summary(run_of):
    fleet, _, summary = run_of()
    assert summary == simulate(fleet)
    assert all(robot.iterations for robot in summary.robots.values())


def test_what_a_fleet_learns_reaches_the_robots_of_the_other(tmp_path):
    """Each child fleet learns from the other through the parent fleet.

    So the models of the two child fleets differ only by the training since the last exchange.
    """
    simulation = Simulation(two_levels(tmp_path, 'local:2', 'bsp'))
    first = simulation.server.master.copy()
    simulation.run(lambda done: None)
    blue, red = (below.server.master for below in simulation.below.values())
    moved = np.linalg.norm(simulation.server.master - first)
    assert moved > 0
    assert np.linalg.norm(blue - red) < 0.5 * moved


def test_a_fleet_goes_on_while_the_wan_is_dead(run_of, tmp_path):
    (tmp_path / 'dead.txt').write_text('0 20\n15 0\n')
    fleet = two_levels(tmp_path, wan=LinkConfig(trace=str(tmp_path / 'dead.txt'), latency=0.04))
    summary = simulate(fleet, tmp_path / 'out')
    _, whole, usual = run_of()
    for name in 'blue', 'red':
        there, here = (read_summary(out / name).robots for out in (whole, tmp_path / 'out'))
        assert summary.robots[name].iterations < usual.robots[name].iterations
        for robot, one in here.items():
            assert one.iterations >= there[robot].iterations - 2


def test_a_method_that_is_not_of_local_steps_is_refused_above(tmp_path):
    with pytest.raises(ConfigError, match='must have local steps, got'):
        simulate(two_levels(tmp_path, 'rsp:4'))


def test_a_fleet_of_another_model_is_refused_by_the_first_parameter_that_differs(tmp_path):
    """The error names the first parameter that differs from the parent fleet's model.

    An earlier version ended with a traceback from PyTorch instead.
    """
    fleet = two_levels(tmp_path)
    text = (tmp_path / 'red.yaml').read_text()
    (tmp_path / 'red.yaml').write_text(text.replace(
        'virtual_fleet:Linear', 'rog_tasks.classify:Classification'))
    with pytest.raises(ConfigError, match='red trains another model.*parameter 0 is .* here but'):
        simulate(fleet)


def test_fleets_that_would_have_the_same_data_are_refused(tmp_path):
    fleet = two_levels(tmp_path)
    text = (tmp_path / 'red.yaml').read_text()
    for rank in 0, 2:
        (tmp_path / 'red.yaml').write_text(text.replace('  rank: 3\n', f'  rank: {rank}\n'))
        with pytest.raises(FleetFileError, match=f'upstream.rank is {rank}: robot 2 of 6 belongs '
                                                 "to the fleet 'blue'" if rank else 'robot 0 of 6'):
            simulate(fleet)


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    fleet = two_levels(tmp_path)
    (tmp_path / 'red.yaml').write_text((tmp_path / 'blue.yaml').read_text())
    with pytest.raises(FleetFileError, match="upstream.robot is 'blue'; it must be 'red'"):
        simulate(fleet)
    (tmp_path / 'red.yaml').unlink()
    with pytest.raises(FleetFileError, match='there is no file'):
        read_fleet(tmp_path / 'above.yaml')
