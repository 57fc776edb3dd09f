"""One robot of four sends wrong gradients on purpose.

A norm bound and a trimmed mean limit the harm.
"""

from unittest import mock

import pytest
from fleet_env.settings.base import changed
from fleet_testing import mostly_long
from rog_core.server import server
from rog_core.server.push_filter import PushFilter
from rog_sim.simulation import simulate
from virtual_fleet import GOOD_LINK, Linear, fleet_of


def trained(folder, sync, task, clip=0.0):
    """Return by how much the training raises the accuracy of robot4, an honest robot.

    The server refuses no push as implausible.
    """
    fleet = fleet_of(folder, sync, 0.4, (GOOD_LINK,) * 4, (0.5, 0.6, 0.7, 0.8), task=task,
                     learning_rate=0.2, evaluate_every=1000)
    start, fleet = Linear(fleet.seed), changed(fleet, server={'clip': clip})
    with mock.patch.object(server, 'PushFilter', lambda _, *rest: PushFilter(0.0, *rest)):
        return simulate(fleet).robots['robot4'].accuracy.after - start.evaluate(start.model())


@pytest.fixture(scope='module')
def honest(tmp_path_factory):
    return trained(tmp_path_factory.mktemp('honest'), 'bsp', 'virtual_fleet:Linear')


def test_without_a_bound_one_robot_ruins_the_model(tmp_path, honest):
    assert trained(tmp_path, 'bsp', 'malicious:Reversed') < -0.3 < 0.1 < honest


@pytest.mark.parametrize('sync, clip', mostly_long(
    [('bsp', 1.5), ('trimmed:1', 0.0), ('rsp:4', 1.5), ('asp', 1.5), ('gsgm', 1.5), ('ssp:2', 1.5)],
    ('bsp', 1.5), ('trimmed:1', 0.0)))
def test_with_one_the_fleet_trains_although_it_pushes_100_times_the_opposite(
        tmp_path, honest, sync, clip):
    assert trained(tmp_path, sync, 'malicious:Reversed', clip) > 0.5 * honest


@pytest.mark.long
def test_a_trimmed_mean_leaves_out_what_points_the_other_way(tmp_path, honest):
    """A trimmed mean limits the harm of gradients that point in the opposite direction.

    These gradients have the usual norm, so a norm bound does not detect them.
    """
    bsp = trained(tmp_path, 'bsp', 'malicious:Negated', 1.5)
    assert honest > trained(tmp_path, 'trimmed:1', 'malicious:Negated') > bsp


@pytest.mark.long
@pytest.mark.parametrize('sync', ['bsp', 'rsp:4'])
def test_a_bound_costs_robots_that_mean_well_little(tmp_path, honest, sync):
    assert trained(tmp_path, sync, 'virtual_fleet:Linear', clip=3.0) > 0.9 * honest
