"""The study of peers: all programs get the same task, results are true, errors say what to do."""

import ast
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import ChannelConfig, FleetConfig, LinkConfig, RobotConfig
from fleet_env.settings.power_model import PowerModel
from fleet_testing import eventually
from rog_cli.main import main
from rog_core.errors import ConfigError
from rog_core.method_check import check_method
from rog_studies.peers import adapters, environments, results, study
from rog_studies.peers.adapters.task import Journal, Task
from rog_studies.peers.environments import METHODS, OURS, PEERS, EnvironmentFault
from rog_studies.peers.export import DIGITS, export
from rog_studies.peers.figures import draw_peers, looks
from rog_studies.peers.results import curve_of, outcome_of, robot_measures, time_to
from rog_studies.peers.scenarios import SCENARIOS, Event, Scenario
from rog_studies.peers.study import Plan, fleet_of, plan_of, run_study
from rog_studies.peers.world import World, interface_bytes
from rog_studies.rivals import records_of
from rog_tasks.batches import Batches
from rog_tasks.classify import accuracy
from rog_tasks.data import LOADERS
from rog_tasks.models import MODELS
from rog_tasks.shards import partition
from rog_tasks.shift import Shift

ADAPTERS = sorted(Path(adapters.__file__).parent.glob('[a-z]*.py'))


# -- scenarios and plan ---


def test_what_happens_comes_in_order_of_its_times():
    events = SCENARIOS['outage'].schedule(6.0)
    assert [(t, event.what, event.whom) for t, event in events] == [
        (120.0, 'link down', 'robot2'), (180.0, 'link up', 'robot2')]
    late_first = Scenario('x', '', events=(Event('start', 'a', .5), Event('kill', 'a', .25)))
    assert [t for t, _ in late_first.schedule(1.0)] == [15.0, 30.0]
    assert SCENARIOS['outdoor'].schedule(0.1) == []


def test_a_run_that_ends_before_what_should_happen_is_refused():
    with pytest.raises(ConfigError, match='link up of robot2 comes 80 s after .* got 1 minutes'):
        plan_of(quick=True, scenarios=['outage'], minutes=1.0)


@pytest.mark.parametrize('choice, message', [
    ({'only': ['flwr']}, '--only must name some of rog, .*ddp, flower.*got .flwr'),
    ({'scenarios': ['fog']}, '--scenarios must name some of outdoor.*got .fog'),
    ({'minutes': math.nan}, '--minutes must be'), ({'minutes': 0.0}, '--minutes must be'),
    ({'scale': 0.0}, '--scale must be'), ({'robots': 1}, '--robots must be 2 to 8'),
    ({'quick': False}, '--data must name the directory')])
def test_what_cannot_be_run_is_refused_with_what_to_do(choice, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(**{'quick': True, **choice})


def test_all_programs_have_the_same_links_drawn_by_the_seed(tmp_path):
    plan = plan_of(quick=True, robots=3)
    one, same, other = (fleet_of(plan, SCENARIOS['outdoor'], seed, tmp_path) for seed in (1, 1, 2))
    assert one == same and one.robots != other.robots
    assert len({robot.link.trace for robot in one.robots}) == 3 and one.channel.shared
    slow = fleet_of(plan, SCENARIOS['slow'], 1, tmp_path)
    assert [robot.link.rate for robot in slow.robots] == [20.0, 1.0, 20.0]


def test_the_scale_is_a_factor_on_recorded_rates(tmp_path):
    plan = plan_of(quick=True, scale=0.25)
    for name in ('outdoor', 'indoor'):
        assert {robot.link.scale for robot in fleet_of(
            plan, SCENARIOS[name], 1, tmp_path).robots} == {0.25}


# -- adapters and environments ---


def test_adapters_import_nothing_of_the_suite():
    ours = re.compile(r'(rog|fleet|lopinfer|rrto)_')
    for path in ADAPTERS:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
                [node.module or ''] if isinstance(node, ast.ImportFrom) else []
            assert not any(map(ours.match, names)), path


def test_every_peer_has_an_adapter_and_exact_versions():
    there = {path.stem for path in ADAPTERS}
    for name, peer in PEERS.items():
        assert peer.name == name and peer.adapter in there
        assert all(re.fullmatch(r'[\w.\[\]-]+==[\w.]+', one) for one in peer.requirements)


def test_our_methods_are_ones_that_a_fleet_file_takes():
    for name, method in METHODS.items():
        fleet = fleet_of(plan_of(quick=True, only=[name]), SCENARIOS['slow'], 1, Path())
        check_method(changed(fleet, training=changed(fleet.training, **vars(method))),
                     fleet.capacities)
    assert OURS in METHODS and not set(METHODS) & set(PEERS)


def test_every_program_has_a_line_of_its_own():
    found = looks()
    assert set(found) == {*METHODS, *PEERS}
    assert len({(look['color'], look['ls']) for look in found.values()}) == len(found)


@pytest.fixture
def no_pip(monkeypatch, tmp_path):
    """Make pip fail and print the lines of a list; return this list."""
    said = []

    def fail(command, **_):
        code = 1 if 'install' in command else 0
        return subprocess.CompletedProcess(command, code, '', '\n'.join(said))

    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    monkeypatch.setattr(environments.subprocess, 'run', fail)
    return said


def test_an_environment_that_cannot_be_made_says_what_pip_said(no_pip, tmp_path):
    no_pip += ['ERROR: Could not find a version that satisfies the requirement flwr==1.42.0']
    told = []
    for _ in range(2):  # an incomplete environment from the first call does not count as finished
        with pytest.raises(EnvironmentFault, match='flower: .*pip install.*failed.*pip.log') as e:
            environments.environment(PEERS['flower'], tmp_path / 'pip.log', told.append)
        assert 'Could not find a version' in str(e.value) and e.value.unreachable
    assert len(told) == 2 and 'flwr==1.42.0' in (tmp_path / 'pip.log').read_text()
    no_pip[:] = ['ERROR: ResolutionImpossible']
    with pytest.raises(EnvironmentFault) as e:
        environments.environment(PEERS['flower'], tmp_path / 'pip.log')
    assert not e.value.unreachable


# -- the task ---


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Return the folder of a run, with scikit-learn's digits for two robots."""
    place = tmp_path_factory.mktemp('run')
    export(DIGITS, 2, 7, 1.0, place / 'data')
    return place


def test_a_peer_gets_the_batches_that_the_suite_would_give(folder):
    data = LOADERS['digits'](seed=0)
    labels = data.train_labels.numpy()
    seeds = json.loads((folder / 'data/task.json').read_text())['seeds']
    for robot, shard in enumerate(partition(labels, 2, 'iid', 7)):
        suite = Batches(data.train_images, data.train_labels, torch.from_numpy(shard), 24,
                        Shift(0.5, 0.12), torch.Generator().manual_seed(seeds[robot]))
        for (images, truth), (wanted, wanted_truth), _ in zip(
                Task(folder, robot).batches(), suite, range(40), strict=False):
            assert torch.equal(images, wanted) and torch.equal(truth, wanted_truth)


@pytest.mark.parametrize('name, size, channels', [('digitnet', 8, 1), ('convmlp', 32, 3)])
def test_a_peer_trains_the_suites_network(name, size, channels):
    from rog_studies.peers.adapters.task import MODELS as PLAIN

    ours, plain = MODELS[name](channels, 10), PLAIN[name](channels, 10)
    plain.load_state_dict(ours.state_dict())
    images = torch.rand(5, channels, size, size, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(plain(images), ours(images), atol=1e-6)


def test_accuracy_is_that_of_the_suite_and_below_that_of_clean_images(folder):
    task = Task(folder)
    with np.load(folder / 'data/test.npz') as test:
        images, labels = torch.from_numpy(test['images']), torch.from_numpy(test['labels'])
    assert task.accuracy(task.model()) == accuracy(task.model(), images, labels)
    clean = LOADERS['digits'](seed=0)
    assert accuracy(task.model(), clean.test_images, clean.test_labels) > \
        task.accuracy(task.model()) + 0.1


def test_a_journal_goes_on_after_a_line_that_was_cut_off(tmp_path, folder):
    settings = Task(folder).settings
    Journal(tmp_path, 'robot1', settings).batch(24, 0.2)
    path = tmp_path / 'journals/robot1.jsonl'
    path.write_bytes(path.read_bytes() + b'{"t": 1.0, "ki')
    later = Journal(tmp_path, 'robot1', settings)
    later.batch(24, 0.2)
    later.version(3)
    kinds = [line['kind'] for line in results.journal(tmp_path, 'robot1')]
    assert kinds == ['start', 'batch', 'batch', 'version']
    assert results.has_trained(tmp_path, 'robot1') and not results.has_trained(tmp_path, 'robot2')


def test_snapshots_are_not_more_than_the_study_wants(tmp_path, folder):
    task = Task(folder)
    journal, model = Journal(tmp_path, 'server', task.settings), task.model()
    for _ in range(3):
        journal.snapshot(model)
    (path,) = (tmp_path / 'snapshots/server').iterdir()
    with np.load(path) as found:
        assert set(found) == {name for name, _ in model.named_parameters()}


# -- results ---


def test_time_to_an_accuracy_is_when_the_curve_first_reaches_it():
    curve = [(0.0, .5), (10.0, .7), (20.0, .6), (30.0, .8)]
    assert [time_to(curve, target) for target in (.5, .65, .8, .9)] == [0.0, 10.0, 30.0, None]


def test_the_servers_model_counts_and_else_the_mean_of_the_robots():
    robots = {'robot1': [(-1.0, .4), (10.0, .8)], 'robot2': [(5.0, .6), (99.0, 1.0)]}
    assert curve_of(robots, .3, 60.0) == [(0.0, .3), (5.0, .5), (10.0, pytest.approx(.7))]
    assert curve_of({**robots, 'server': [(20.0, .9)]}, .3, 60.0) == [(0.0, .3), (20.0, .9)]


def test_energy_and_waiting_are_of_the_run_alone():
    lines = [{'t': t, 'kind': 'batch', 'samples': 8, 'compute_s': 2.0} for t in (99, 104, 106, 111)]
    lines.append({'t': 105, 'kind': 'version', 'version': 1})
    found = robot_measures(lines, 100.0, 110.0, (300, 50), 5.0, PowerModel(
        computing=10.0, communicating=4.0, stalled=1.0))
    assert found['samples'] == 16 and found['compute_s'] == 4.0 and found['waiting'] == .6
    assert found['energy_j'] == 4 * 10 + 5 * 4 + 1 * 1 and found['last_batch_s'] == 6
    assert (found['down_bytes'], found['up_bytes']) == (300, 50)


def test_the_outcome_says_whether_and_why_a_program_stopped():
    assert outcome_of(100.0, [1.0, 98.0], {}) == 'went on to the end'
    # the last pause, 60 s, is less than twice as long as the earlier pause of 31 s
    assert outcome_of(100.0, [1.0, 9.0, 40.0], {}) == 'went on to the end'
    assert outcome_of(100.0, [1.0, 20.0, 40.0], {}) == 'stopped at 40 s: its processes wait'
    ended = {'robot1': [41.0, 'robot1 ended with exit code 1: no peer']}
    assert outcome_of(100.0, [20.0, 40.0], ended) == \
        'stopped at 40 s: at 41 s robot1 ended with exit code 1: no peer'
    assert outcome_of(100.0, [98.0], ended).startswith('went on to the end, but at 41 s robot1')
    assert outcome_of(100.0, [], {}) == 'trained nothing'


def test_bytes_are_those_of_the_named_interface():
    text = 'Inter-|   Receive\n    lo: 9 0 0 0 0 0 0 0 9 0\nradio0: 10 1 0 0 0 0 0 0 20 2 0\n'
    assert interface_bytes(text) == (10, 20)
    with pytest.raises(ValueError, match='must have a line of wlan0'):
        interface_bytes(text, 'wlan0')


# -- the study ---


@pytest.fixture
def made_up(monkeypatch):
    """Replace runs and environments by invented ones; return the list of runs."""
    ran = []

    def run(one, peer, python, versions, tell):
        ran.append((one.scenario.name, one.program, one.fleet.seed))
        last = 60 * one.fleet.minutes
        robot = {'samples': 80, 'up_bytes': 5e6, 'down_bytes': 6e6, 'waiting': .4, 'energy_j': 700}
        result = {'program': one.program, 'versions': dict(versions), 'seed': one.fleet.seed,
                  'scenario': one.scenario.name, 'settings': one.depends_on(), 'events': [],
                  'started': one.program != 'ddp', 'outcome': 'went on to the end'}
        if result['started']:
            result |= {'duration_s': last, 'robots': {r.name: robot for r in one.fleet.robots},
                       'curve': [[0.0, .5], [last / 2, .85]], 'accuracy_end': .85,
                       'targets': [[.8, last / 2], [.9, None], [.95, None]]}
        one.folder.mkdir(parents=True)
        (one.folder / 'result.json').write_text(json.dumps(result))
        return result

    def environment(peer, log, tell):
        if peer.name == 'flower-fedadam':
            raise EnvironmentFault('flower-fedadam: pip failed\nlast line')
        return Path('/nowhere/bin/python')

    monkeypatch.setattr(study, 'run', run)
    monkeypatch.setattr(study, 'environment', environment)
    monkeypatch.setattr(study, 'versions', lambda python: {'torch': '2.13.0'})
    return ran


def _plan(**changes):
    return Plan(**{'task': DIGITS, 'programs': [OURS, 'ddp', 'flower', 'flower-fedadam'],
                   'scenarios': [SCENARIOS['outdoor'], SCENARIOS['slow']], 'robots': 2,
                   'minutes': 2.0, 'seeds': 2, 'records': records_of(None), **changes})


def test_the_study_goes_on_where_it_was_stopped(tmp_path, made_up):
    data = run_study(_plan(), tmp_path)
    assert len(made_up) == 2 * 2 * 3  # the program that pip could not install is missing
    assert json.loads((tmp_path / 'peers.json').read_text()) == json.loads(json.dumps(
        study.finite(data)))
    with pytest.raises(ConfigError, match='already holds a run; choose another --out, or go on'):
        run_study(_plan(), tmp_path)
    lost = tmp_path / 'slow/flower/seed2'
    (lost / 'result.json').unlink()
    lost.rmdir()
    made_up.clear()
    again = run_study(_plan(), tmp_path, resume=True)
    assert made_up == [('slow', 'flower', 2)]
    assert study.text_tables(again) == study.text_tables(data)
    part = run_study(_plan(programs=['flower'], seeds=1), tmp_path, resume=True)
    assert made_up == [('slow', 'flower', 2)]
    for title, rows in study.tables(part):
        # All runs of this size in the directory are in the table. The table of programs that pip
        # could not install concerns only this call.
        assert title == 'Not run' or (title, rows) in study.tables(again)
    with pytest.raises(ConfigError, match='holds a run with other settings'):
        run_study(_plan(minutes=3.0), tmp_path, resume=True)


def test_a_run_of_ours_with_another_method_is_not_kept(tmp_path, made_up, monkeypatch):
    run_study(_plan(programs=[OURS], seeds=1), tmp_path)
    monkeypatch.setitem(METHODS, OURS, environments.Method('bsp'))
    with pytest.raises(ConfigError, match='holds a run with other settings'):
        run_study(_plan(programs=[OURS], seeds=1), tmp_path, resume=True)


def test_the_table_holds_what_did_not_start_and_what_could_not_be_installed(tmp_path, made_up):
    data = run_study(_plan(), tmp_path)
    text = study.text_tables(data)
    assert 'outdoor: 2 robots, 2 min' in text and 'flower-fedadam: pip failed' in text
    ours = data['cases']['slow'][OURS]
    assert ours['measures']['target_0_s']['values'] == [60.0, 60.0] and ours['seeds'] == [1, 2]
    assert all(math.isnan(v) for v in data['cases']['slow']['ddp']['measures']['samples']['values'])
    for path in draw_peers(tmp_path):
        assert path.stat().st_size > 1000


def test_runs_on_other_records_are_not_mixed(tmp_path, made_up):
    run_study(_plan(), tmp_path)
    records = records_of(None)
    with pytest.raises(ConfigError, match='runs on other published links'):
        run_study(_plan(records={**records, 'published': records['reversed']}), tmp_path,
                  resume=True)


def test_options_of_other_studies_are_refused(capsys, tmp_path):
    assert main(['study', 'peers', '--quick', '--jobs', '2', '--out', str(tmp_path)]) == 2
    assert '--methods, --jobs and --cluster are not of the study peers' in capsys.readouterr().err
    assert main(['study', 'rivals', '--quick', '--robots', '2', '--out', str(tmp_path)]) == 2
    assert 'are of the study peers' in capsys.readouterr().err


# -- processes in emulated networks ---


def _may():
    probe = 'unshare -n ip tuntap add mode tap name probe0'
    return os.geteuid() == 0 and os.path.exists('/dev/net/tun') \
        and subprocess.run(probe.split(), capture_output=True).returncode == 0


as_root = pytest.mark.skipif(not _may(), reason='needs root, namespaces and TAP devices')
# A program that starts a child process, as Flower does. The child writes to the program's log.
CHILD = 'import time; print("up", flush=True); time.sleep(600)'
PARENT = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {CHILD!r}])'


@as_root
def test_what_is_killed_is_gone_with_its_children_and_starts_again(tmp_path):
    robots = tuple(RobotConfig(name=f'robot{n}', link=LinkConfig(trace='', rate=50.0))
                   for n in (1, 2))
    fleet = FleetConfig(name='test', robots=robots, channel=ChannelConfig(shared=True))
    with World(fleet, tmp_path) as world:
        for name in world.names:
            world.start(name, [sys.executable, '-c', PARENT], os.environ, tmp_path / name)
        for name in world.names:
            eventually(lambda name=name: 'up' in world.log(name).read_text())
        world.kill('robot2')
        assert world.ended('robot2') is not None and world.ended('robot1') is None
        world.start('robot2', [sys.executable, '-c', 'raise SystemExit("no peer")'], os.environ,
                    tmp_path / 'robot2')
        eventually(lambda: world.ended('robot2') is not None)
        assert world.how('robot2') == 'robot2 ended with exit code 1: no peer'
        world.set_link('robot1', False)
        received = world.bytes()
        assert set(received) == {'server', 'robot1', 'robot2'}
        world.end()
        assert all(world.ended(name) is not None for name in world.names)
    assert (tmp_path / 'air.json').exists()


@as_root
@pytest.mark.long
def test_flower_and_ours_run_for_40_s_on_the_outdoor_record(tmp_path, capsys):
    out = tmp_path / 'out'
    code = main(['study', 'peers', '--quick', '--out', str(out)])
    text = capsys.readouterr().out
    assert code == 0
    data = json.loads((out / 'peers.json').read_text())
    missing = data['programs']['flower']['missing']
    if 'Could not find a version' in missing or 'No matching distribution' in missing:
        pytest.skip(f'pip reaches no registry that has Flower: {missing}')
    assert missing == '', missing
    found = {}
    for name in ('rog', 'flower'):
        found[name] = result = json.loads(
            (out / f'outdoor/{name}/seed1/result.json').read_text())
        assert result['started'], result['outcome']
        assert all(robot['samples'] > 0 and robot['up_bytes'] > 10_000
                   for robot in result['robots'].values()), result
    assert found['rog']['last_version_s'] is not None and len(found['rog']['curve']) > 2
    assert 'ROUND 1' in (out / 'outdoor/flower/seed1/logs/server.log').read_text()
    assert (out / 'accuracy.png').exists() and 'outdoor: 2 robots' in text
