"""Real nodes train on the emulated network; the tests start them by ``rog`` and need root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fleet_env.records.events import Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_env.settings.fleet_file import dump_fleet, load_fleet, with_overrides, with_robots
from fleet_testing import LIMIT
from rog_bringup import FLEETS

pytestmark = [pytest.mark.long, pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists('/dev/net/tun') or subprocess.run(
        'unshare -n ip tuntap add mode tap name probe0'.split(), capture_output=True).returncode,
    reason='needs root, namespaces and TAP devices')]


@pytest.fixture
def fleet_file(tmp_path):
    """Return a fleet file of three robots on fading links; its model needs no preparation."""
    fleet = with_overrides(with_robots(load_fleet('outdoor', [FLEETS]), 3), {
        'training.task': 'rog_tasks.classify:Classification', 'link.scale': 1, 'minutes': 0.2})
    path = tmp_path / 'fleet.yaml'
    path.write_text(dump_fleet(fleet))
    return path


def rog(*arguments):
    """Run the command ``rog`` until it ends, and return its output."""
    done = subprocess.run([str(Path(sys.executable).parent / 'rog'), *map(str, arguments)],
                          capture_output=True, text=True, timeout=2 * LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_fleet_trains_behind_the_radio_and_shapes_nothing_itself(fleet_file, tmp_path):
    out = tmp_path / 'out'
    assert 'Results in' in rog('fleet', 'up', fleet_file, '--emulate', '--plain', '--out', out)
    assert all(robot.iterations > 1 for robot in read_summary(out).robots.values())
    rates = [e.link_rate for e in read_run(out) if isinstance(e, Iteration)]
    # all rates are NaN: the emulation is in the network, so for the nodes the links are real
    assert rates and all(rate != rate for rate in rates)
    air = json.loads((out / 'air.json').read_text())
    for robot in ('robot1', 'robot2', 'robot3'):
        assert air['robots'][robot]['capacity_mbit'] > 0
        for direction in ('uplink', 'downlink'):
            assert air['robots'][robot][direction]['bytes'] > 10_000
        assert air['ip'][robot]['FragCreates'] == 0


def test_methods_are_compared_over_the_radio(fleet_file, tmp_path):
    out = tmp_path / 'out'
    text = rog('compare', fleet_file, '--real', '--sync', 'rsp:4,asp', '--seeds', 1, '--out', out)
    assert 'rsp:4' in text and 'asp' in text
    assert (out / 'comparison.json').exists() and (out / 'asp' / 'seed1' / 'air.json').exists()


def test_an_undisturbed_run_of_chaos_finds_nothing_wrong(fleet_file, tmp_path):
    out = tmp_path / 'out'
    rog('chaos', fleet_file, '--robots', 3, '--calm', '--out', out)
    result = json.loads((out / 'chaos.json').read_text())
    assert result['violations'] == [] and result['mirror']['different'] == []
    assert result['mirror']['compared'] > 5 and result['checkpoints'] >= 1
    assert result['accuracy'] is not None and result['memory_mib']['robot1']
