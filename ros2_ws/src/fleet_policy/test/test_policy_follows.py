"""A policy that acts takes up what a fleet learns; nothing wrong ever acts."""

import math
import os

import pytest
from fleet_testing import eventually
from offering import Offering
from policies import Net
from test_policy_process import process, robot  # noqa: F401


@pytest.fixture
def fleet(robot, tmp_path):  # noqa: F811 - after its domain
    made = Offering(tmp_path / 'models')
    yield made
    made.close()


def always(value):
    """Return a model that always says this action."""
    net = Net()
    net.act.weight.data.zero_()
    net.act.bias.data.fill_(math.atanh(value))
    return net


@pytest.mark.parametrize('inference', ['alone', pytest.param('lopinfer', marks=pytest.mark.long)])
def test_a_policy_changes_its_model_while_it_acts(robot, process, fleet, inference,  # noqa: F811
                                                  tmp_path):
    fleet.give(always(.1), .5)
    if inference == 'lopinfer':
        process.any('lopinfer_node.cli.main', 'serve',
                    '--directory', str(tmp_path / 'store'))
    lines = process('policy:=policies:Small', f'inference:={inference}', 'follow:=/rog',
                    f'keep:={tmp_path / "kept"}')

    def newest():
        return next((float(v[0]) for name, _, v in reversed(robot.received) if name == 'arm'), 9.0)

    def says(value, version):
        eventually(lambda: abs(newest() - value) < 1e-4 and robot.said.get('model version') ==
                   str(version), lambda: f'{newest()}, {robot.said}, {lines.lines()}',
                   step=robot.step)
    says(.1, 1)
    starved = robot.said['starved ticks']
    begun = len(robot.received)
    fleet.give(always(.3), .6)
    says(.3, 2)
    # what is worse, and what is broken, never acts
    fleet.give(always(.9), .2)
    eventually(lambda: 'below' in robot.said.get('model reason', ''), step=robot.step)
    broken = always(.9)
    broken.look.weight.data[0, 0, 0, 0] = math.inf
    fleet.give(broken, .9)
    eventually(lambda: 'NaN or infinite' in robot.said.get('model reason', ''), step=robot.step)
    assert robot.said['model newest'] == '4' and robot.said['model version'] == '2'
    fleet.announce(fleet.store.read(1), pinned=True)
    says(.1, 1)
    acted = [float(v[0]) for name, _, v in robot.received[begun:] if name == 'arm']
    assert all(.1 - 1e-4 < value < .3 + 1e-4 for value in acted), acted
    assert robot.said['starved ticks'] == starved and robot.said['state'] == 'running'
    assert os.listdir(tmp_path / 'kept')
