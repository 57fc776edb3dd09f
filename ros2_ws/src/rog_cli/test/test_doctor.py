"""`rog doctor` names each problem, and says what the user should change."""

import json
import socket
from pathlib import Path

import pytest
from fleet_env.settings.base import checked
from fleet_env.settings.fleet import ReachConfig
from fleet_env.settings.fleet_file import load_fleet, with_overrides
from rog_bringup import FLEETS
from rog_cli.commands import doctor
from rog_cli.commands.doctor import BAD, GOOD, NOTE, WARN, Heard
from rog_cli.main import main

AIR = checked(ReachConfig, {'interface': 'wlan0'})
FLEET = load_fleet('indoor', [FLEETS])
ALL = ['server', *FLEET.capacities]


def heard(roles, version='1.0', late=(9.0, 0.01, 0.02)):
    return [Heard(role, f'{role}-machine, process {n}', version, list(late))
            for n, role in enumerate(roles)]


def levels(findings):
    return {finding.what: finding.level for finding in findings}


def test_an_interface_that_is_missing_or_down_is_a_problem():
    assert doctor.interface('wlan0', 0x1003, ['lo', 'wlan0']).level == GOOD
    assert 'lo, eth0' in doctor.interface('wlan0', None, ['lo', 'eth0']).found
    assert doctor.interface('wlan0', 0x1002, ['lo', 'wlan0']).change == 'ip link set wlan0 up'


def test_an_interface_is_looked_at_without_sysfs(monkeypatch):
    real = Path.read_text
    monkeypatch.setattr(Path, 'read_text', lambda path, *more: real(
        Path('/nowhere') / path.relative_to('/') if path.is_relative_to('/sys') else path, *more))
    assert doctor.interface('lo', doctor._flags('lo'), ['lo']).level == GOOD


@pytest.mark.parametrize(('network', 'flags', 'works', 'level'), [
    (AIR, 0x1003, True, GOOD), (AIR, 0x1003, False, BAD), (AIR, 0x3, True, BAD),
    (checked(ReachConfig, {'interface': 'wlan0', 'peers': '10.0.0.2'}), 0x3, False, GOOD)])
def test_multicast_is_needed_only_without_peers(network, flags, works, level):
    assert doctor.multicast(network, flags, works).level == level


def test_small_socket_buffers_matter_off_this_machine():
    assert doctor.buffers(212992, loopback=False).level == WARN
    assert 'net.core.rmem_max=10000000' in doctor.buffers(212992, loopback=False).change
    alone = doctor.buffers(212992, loopback=True)
    assert alone.level == NOTE and 'other machines' in alone.found and 'before' in alone.change
    assert doctor.buffers(20_000_000, loopback=False).level == GOOD


def test_a_shell_in_another_domain_is_told_how_to_get_into_the_fleets():
    network = checked(ReachConfig, {'domain_id': 7})
    found = doctor.domain(network, {'ROS_DOMAIN_ID': '3'})
    assert found.level == WARN and 'rog fleet env' in found.change
    assert doctor.domain(network, {}).level == GOOD
    assert doctor.domain(checked(ReachConfig, {'domain_id': 150}), {}).level == WARN


def test_a_fleet_that_is_well_has_no_problem():
    findings = list(doctor.judged(heard(ALL), FLEET, '1.0'))
    assert set(levels(findings).values()) == {GOOD}
    assert f'1.0 on all {len(ALL)} processes' in [f.found for f in findings]


def test_two_servers_are_a_problem_and_both_are_named():
    finding, *_ = doctor.judged(heard(['server', 'server']), None, '1.0')
    assert finding.level == BAD
    assert 'process 0' in finding.found and 'process 1' in finding.found


def test_versions_clocks_and_missing_robots_are_named_with_their_machine():
    late = heard(['robot1'], '0.9', (0.0, 70.0, 71.0))
    findings = list(doctor.judged(heard(['server']) + late, FLEET, '1.0'))
    texts = {finding.what: finding.found for finding in findings if finding.level != GOOD}
    assert texts['version'] == 'robot1 on robot1-machine, process 0 has 0.9, this machine 1.0'
    assert 'is 70.0 s behind ours' in texts['clock']
    assert 'robot2' in texts['robots'] and 'robot1' not in texts['robots']


def test_the_clock_is_not_judged_by_a_status_that_may_be_old():
    assert Heard('server', 'laptop', '1.0', [30.0]).offset is None


def test_a_gpu_that_the_fleet_needs_is_missing(monkeypatch):
    import torch
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert doctor.gpu(FLEET).level == doctor.gpu(None).level == GOOD
    wanting = with_overrides(FLEET, {'training.device': 'cuda:1'})
    assert doctor.gpu(wanting).level == BAD and 'cuda:1' in doctor.gpu(wanting).change


def test_a_jetson_without_jetson_stats_is_told_so():
    assert doctor.jetson(lambda name: None).level == WARN
    assert doctor.jetson(lambda name: name == 'jtop').level == GOOD


def test_it_prints_json_and_its_exit_code_says_whether_there_is_a_problem(capsys, monkeypatch):
    monkeypatch.setattr(socket, 'if_nameindex', lambda: [(1, 'lo')])
    assert main(['doctor', '--interface', 'wlan77', '--json']) == 1
    found = {entry['what']: entry for entry in json.loads(capsys.readouterr().out)}
    assert found['interface']['level'] == BAD and 'wlan77' in found['interface']['found']
    assert main(['doctor', '--timeout', '0']) == 0
    assert 'lo is up' in capsys.readouterr().out


def test_options_change_the_network_of_a_fleet(capsys):
    assert main(['doctor', 'indoor', '--interface', 'nosuch0', '--timeout', '0']) == 1
    assert 'nosuch0 is not here' in capsys.readouterr().out
    assert main(['doctor', 'indoor', '--domain-id', '150', '--timeout', '0']) == 0
    assert 'domain 150' in capsys.readouterr().out
    assert main(['doctor', 'indoor', '--domain-id', '900', '--timeout', '0']) == 2
    assert '--domain_id is 900' in capsys.readouterr().err


@pytest.mark.parametrize('cuda, build', [(None, '/cpu'), ('12.8', '/cu128')])
def test_a_torchvision_of_another_build_than_pytorchs_is_named(monkeypatch, cuda, build):
    import torch

    def load(name):
        raise RuntimeError('operator torchvision::nms does not exist')

    monkeypatch.setattr(torch.version, 'cuda', cuda)
    monkeypatch.setattr(doctor.importlib, 'import_module', load)
    monkeypatch.setattr(doctor.metadata, 'version', lambda name: '0.28.0+cu999')
    found = doctor.torchvision()
    assert found.level == WARN and 'torchvision::nms' in found.found
    assert 'torchvision==0.28.0 ' in found.change and found.change.endswith(build)


def test_a_torchvision_that_loads_or_is_not_needed_is_well(monkeypatch):
    monkeypatch.setattr(doctor.importlib, 'import_module', lambda name: None)
    monkeypatch.setattr(doctor.metadata, 'version', lambda name: '0.28.0')
    assert (doctor.torchvision().level, doctor.torchvision().found) == (GOOD, '0.28.0')

    def missing(name):
        raise doctor.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, 'version', missing)
    assert doctor.torchvision().level == GOOD
