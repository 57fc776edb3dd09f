"""Robots, as real processes over DDS, build one map; each robot estimates its own poses."""

import json

import pytest
from fleet_env.records.summary import read_summary
from fleet_under_test import SEED, Fleet
from rog_core.model.flat import unflatten
from rog_core.model.partition import partition_of
from rog_ps import checkpoint
from rog_ps.directory import kept
from rog_tasks.crimp import Crimp

ROBOTS = 'robot1', 'robot2'
OPTIONS = {'size': [3.2, 3.2], 'furniture': 1, 'width': 16, 'cell': 0.2, 'rays': 64, 'every': 2,
           'parts': 6}


@pytest.mark.long
def test_robots_map_one_place_and_find_their_ways_in_it(tmp_path):
    given = {'task_options': json.dumps(OPTIONS), 'codec': 'ternary:0.05', 'learning_rate': 0.1,
             'evaluate_every': 10}
    with Fleet(tmp_path, robots=2, task='rog_tasks.crimp:Crimp', sync='rsp:4') as fleet:
        fleet.start('server', *ROBOTS, **given)
        fleet.until(lambda: all(name in fleet.robots and fleet.robots[name].accuracy > .2
                                for name in ROBOTS), 'both have found a fifth of their ways')
        fleet.interrupt('server')
        assert {name: fleet.ended(name) for name in fleet.processes} == dict.fromkeys(
            ('server', *ROBOTS), 0)
    summary = read_summary(fleet.out)
    for robot in summary.robots.values():
        assert robot.accuracy.before == 0 and robot.accuracy.after > .2

    task = Crimp(seed=SEED, **OPTIONS)
    model = task.model()
    partition = partition_of([(n, p.shape) for n, p in model.named_parameters()], 'row',
                             'ternary:0.05')
    master, _, _ = checkpoint.read(kept(fleet.out).newest(), partition)
    empty = task.depth_error(model)
    unflatten(model, master)
    assert task.depth_error(model) < .9 * empty
