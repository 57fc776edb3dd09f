"""Robots build a map together in virtual time; the figures of the run show the map."""

import numpy as np
import pytest
from fleet_env.errors import RecordError
from rog_sim.figures import draw_run
from rog_sim.model_outputs import MODEL_OUTPUTS_FILE, read_model_outputs
from rog_sim.simulation import simulate
from virtual_fleet import fleet_of

TINY = {'size': [3.2, 3.2], 'furniture': 1, 'width': 16, 'cell': 0.2, 'rays': 64, 'every': 2,
        'parts': 6}


def mapped(folder, out, sync='rsp:4', minutes=.4, **training):
    fleet = fleet_of(folder, sync, minutes, paces=(.4, .4, .5), task='rog_tasks.crimp:Crimp',
                     task_options=TINY, codec='ternary:0.05', traffic='', learning_rate=.1,
                     momentum=.9, **training)
    return simulate(fleet, out)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp('crimp')
    return mapped(folder, folder / 'run'), folder / 'run'


def test_robots_map_and_find_their_ways(run):
    summary, _ = run
    assert all(robot.iterations > 40 for robot in summary.robots.values())
    assert all(robot.accuracy.before == 0 for robot in summary.robots.values())
    assert all(robot.accuracy.after > .01 for robot in summary.robots.values())


def test_the_map_and_the_ways_are_kept_and_drawn(run, tmp_path):
    _, directory = run
    outputs = read_model_outputs(directory)
    assert outputs.keys() == {'', 'robot1', 'robot2', 'robot3'}
    for name in ('robot1', 'robot2', 'robot3'):
        truth, estimate = outputs[name]['truth'], outputs[name]['estimate']
        assert 1 < len(estimate) <= len(truth)
        assert np.abs(estimate - truth[:len(estimate)]).max() < .5
    names = [path.name for path in draw_run(directory, tmp_path)]
    assert 'map.png' in names and 'map.svg' in names


@pytest.mark.long
def test_equal_seeds_give_equal_files(run, tmp_path):
    _, directory = run
    mapped(directory.parent, tmp_path / 'again')
    for name in ('run.jsonl', MODEL_OUTPUTS_FILE):
        assert (tmp_path / 'again' / name).read_bytes() == (directory / name).read_bytes()


def test_a_damaged_portrait_is_named(tmp_path):
    assert read_model_outputs(tmp_path) == {}
    (tmp_path / MODEL_OUTPUTS_FILE).write_bytes(b'damaged')
    with pytest.raises(RecordError, match=MODEL_OUTPUTS_FILE):
        read_model_outputs(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize('sync', ['bsp', 'rsp:20+pipeline+sparse', 'asp'])
def test_every_kind_of_method_maps(sync, tmp_path):
    summary = mapped(tmp_path, tmp_path / 'run', sync, 1.0)
    assert all(robot.accuracy.after > .1 for robot in summary.robots.values())
