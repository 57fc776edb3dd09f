"""BSP with a trimmed mean limits the effect of the largest and smallest values of each element."""

import numpy as np
import pytest
from fleet import Fleet
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_methods_local.trimmed import trimmed_mean
from schedules import check_end

ROBOTS = ('robot1', 'robot2', 'robot3', 'robot4')


@pytest.mark.parametrize('robots, cut', [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (7, 2)])
def test_the_largest_and_smallest_values_of_every_element_do_not_count(robots, cut):
    values = np.random.default_rng(robots).standard_normal((robots, 20_000)).astype(np.float32)
    expected = np.sort(values, axis=0)[cut:robots - cut].mean(axis=0, dtype=np.float64)
    mean = trimmed_mean(list(values), cut)
    assert np.allclose(mean, expected, rtol=1e-5, atol=1e-6)


def test_a_round_moves_the_model_by_the_trimmed_mean_once_all_have_pushed():
    fleet = Fleet(3, 4, 'trimmed:1', 'raw')
    server, pushed = fleet.server, {}
    settle, end_round = server.method.settle, server.method.end_round

    def watched(robots):
        held = {name: values.copy() for name, values in server.method.held.items()}
        before = server.master.copy()
        end_round(robots)
        assert len(held) >= 3  # the fourth robot may still be joining
        mean = np.sort(list(held.values()), axis=0)[1:len(held) - 1].mean(axis=0)
        assert np.allclose(before - server.master, mean, atol=1e-6)
        pushed[len(pushed)] = held

    def settles(*arguments):
        before, rounds = server.master.copy(), len(pushed)
        settle(*arguments)
        assert len(pushed) > rounds or (server.master == before).all()
    server.method.end_round, server.method.settle = watched, settles
    fleet.run(10)
    assert len(pushed) > 3 and set(pushed[len(pushed) - 1]) == set(fleet.robots)
    fleet.exploding, fleet.blast = {'robot1'}, 1000
    before = np.linalg.norm(server.master)
    fleet.run(10)
    assert not fleet.exploding and np.linalg.norm(server.master) < 2 * before


@pytest.mark.parametrize('seed', [3, 4])
def test_rounds_go_on_without_a_robot_that_dies_and_after_a_restart(seed):
    fleet = Fleet(seed, 4, 'trimmed:1')
    fleet.run(4)
    fleet.kill_robot('robot1')
    fleet.run(4)
    fleet.restart_server(fleet.checkpoint())
    fleet.run(4)
    fleet.start_robot('robot1')
    check_end(fleet)


def test_a_mean_needs_robots_that_are_left():
    with pytest.raises(ConfigError, match='leaves out 4 robots .*has 4; it needs at least 5'):
        create('trimmed:2', Team(dict.fromkeys(ROBOTS, 1.0)))
    assert str(create('trimmed:1', Team(dict.fromkeys(ROBOTS, 1.0)))) == 'trimmed:1'
