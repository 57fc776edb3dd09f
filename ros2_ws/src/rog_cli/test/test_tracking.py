"""The curves in TensorBoard and MLflow are those of the run's record."""

import json
import math
import subprocess
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from itertools import chain

import pytest
from fleet_env.records.events import (
    Evaluation,
    Iteration,
    RunWriter,
    Start,
    Status,
    Stop,
    read_run,
)
from fleet_testing import LIMIT, environment, eventually, free_domain
from rog_cli.display import tracking
from rog_cli.display.tracking import Curves, Point, tracked
from rog_cli.main import main

# Do not use importorskip: with launch_testing's plugin it skips every file of the folder.
needs_tensorboard = pytest.mark.skipif(
    not find_spec('tensorboard'), reason='TensorBoard is not installed: pip install tensorboard')
needs_mlflow = pytest.mark.skipif(
    not find_spec('mlflow'), reason='MLflow is not installed: pip install mlflow-skinny')
NAN, BEGAN = math.nan, '2026-11-29T08:04:01+0000'
SECONDS = datetime(2026, 11, 29, 8, 4, 1, tzinfo=timezone.utc).timestamp()


def iteration(t, robot, k, loss=.5, energy=3.0):
    return Iteration(t, robot, k, loss, 3.0, 0.75, 0.25, 10, 5, 20, 100 * k, 50, 2, 7.0, NAN,
                     energy)


FIRST = [
    Start(0.0, '', 'a:B', 'rsp:4', 1, 'toy', ['robot1', 'robot2'], BEGAN, codec='onebit'),
    Evaluation(0.0, '', 0, NAN, 'clean'), Evaluation(0.0, '', 0, .25, 'before'),
    Status(0.5, 'robot1', 'joining', 4.0, 0.0, 'life 1'),
    iteration(1.0, 'robot1', 1), iteration(1.5, 'robot2', 1, loss=NAN),
    Evaluation(2.0, 'robot1', 1, .5), iteration(3.0, 'robot1', 2, energy=1.5)]
SECOND = [
    Stop(3.5, 'robot1', 'interrupted', 2),
    Start(3.5, '', 'a:B', 'rsp:4', 1, 'toy', ['robot1', 'robot2'], '2026-11-29T09:04:01+0000'),
    Status(3.5, 'robot1', 'joining', 4.0, 0.0, 'life 2'), iteration(4.5, 'robot1', 3),
    Evaluation(4.5, '', 3, .75), Status(5.0, 'robot1', 'stopped', 4.0, 3.5, 'life 2'),
    Stop(5.0, 'robot1', 'finished', 3)]
AGAIN = SECONDS + 3600 - 3.5  # the time of the run that goes on after an hour


def write(folder, events):
    with RunWriter(folder) as writer:
        for event in events:
            writer.write(event)


def points_of(events):
    curves = Curves()
    return list(chain.from_iterable(map(curves.take, events)))


def by_name(points):
    found = {}
    for point in points:
        found.setdefault(point.name, []).append((point.step, point.value, point.time))
    return found


def in_tensorboard(folder):
    """Return what `by_name` returns, from the event files in ``folder``."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={'scalars': 0}).Reload()
    return {name: [(e.step, e.value, e.wall_time) for e in found.Scalars(name)]
            for name in found.Tags()['scalars']}


def assert_same(read, points):
    """Compare curves that were read back, whose values are float32."""
    expected = by_name(points)
    assert read.keys() == expected.keys()
    for name, curve in read.items():
        assert [step for step, _, _ in curve] == [step for step, _, _ in expected[name]]
        for column in (1, 2):
            assert [point[column] for point in curve] == pytest.approx(
                [point[column] for point in expected[name]])


def run(capsys, *arguments):
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_an_iteration_is_a_point_of_each_curve_against_iteration_and_time():
    curves = by_name(points_of(FIRST))
    at = SECONDS + 1.0
    assert {name: curve[0] for name, curve in curves.items() if name.endswith('/robot1')} == {
        'accuracy/robot1': (1, .5, SECONDS + 2.0), 'loss/robot1': (1, .5, at),
        'computing_share/robot1': (1, .75, at), 'communicating_share/robot1': (1, .1875, at),
        'waiting_share/robot1': (1, .0625, at), 'staleness/robot1': (1, 2.0, at),
        'bytes_sent/robot1': (1, 100.0, at), 'bytes_received/robot1': (1, 50.0, at),
        'link_Mbit_s/robot1': (1, 7.0, at), 'energy_J/robot1': (0, 0.0, SECONDS + .5)}
    assert curves['bytes_sent/robot1'][1] == (2, 300.0, SECONDS + 3.0)
    assert curves['accuracy/server'] == [(0, .25, SECONDS)]
    assert 'loss/robot2' not in curves and 'accuracy_before_shift/server' not in curves


def test_energy_and_time_go_on_over_a_restart():
    points = points_of(FIRST + SECOND)
    assert [(p.step, p.value) for p in points if p.name == 'energy_J/robot1'] == [
        (0, 0.0), (1, 3.0), (2, 4.5), (2, 4.5), (3, 7.5), (3, 8.0)]
    assert points[-1] == Point('energy_J/robot1', 8.0, 3, AGAIN + 5.0)


def test_virtual_time_counts_from_zero():
    assert points_of([Start(0.0, '', 'a:B', 'bsp', 1), Evaluation(7.0, '', 3, .5)]) == [
        Point('accuracy/server', .5, 3, 7.0)]


@needs_tensorboard
def test_tensorboard_has_the_curves_of_an_ended_run(capsys, tmp_path):
    write(tmp_path / 'toy-1', FIRST + SECOND)
    assert run(capsys, 'plot', tmp_path / 'toy-1', '--tensorboard', tmp_path / 'tb') == (
        0, f'{tmp_path / "tb/toy-1"}\n', '')
    assert_same(in_tensorboard(tmp_path / 'tb/toy-1'), points_of(FIRST + SECOND))


@needs_tensorboard
def test_tensorboard_has_the_hyper_parameters(capsys, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path / 'toy', FIRST)
    run(capsys, 'plot', tmp_path / 'toy', '--tensorboard', tmp_path)
    (told,) = EventAccumulator(str(tmp_path / 'toy')).Reload().Tensors('run/text_summary')
    text = told.tensor_proto.string_val[0].decode()
    for line in ('| method | rsp:4 |', '| task | a:B |', '| robots | robot1, robot2 |'):
        assert line in text


@needs_tensorboard
def test_what_tensorboard_has_is_not_written_twice(capsys, tmp_path):
    for events in (FIRST, SECOND, []):
        write(tmp_path / 'toy', events)
        assert run(capsys, 'plot', tmp_path / 'toy', '--tensorboard', tmp_path)[0] == 0
    assert_same(in_tensorboard(tmp_path / 'toy'), points_of(FIRST + SECOND))


@needs_tensorboard
def test_two_runs_of_one_name_do_not_mix(capsys, tmp_path):
    write(tmp_path / 'a/toy', FIRST)
    write(tmp_path / 'b/toy', FIRST[:-1] + SECOND)
    run(capsys, 'plot', tmp_path / 'a/toy', '--tensorboard', tmp_path / 'tb')
    code, _, error = run(capsys, 'plot', tmp_path / 'b/toy', '--tensorboard', tmp_path / 'tb')
    assert code == 2 and 'tb/toy: holds the curves of another run' in error
    assert_same(in_tensorboard(tmp_path / 'tb/toy'), points_of(FIRST))


@needs_tensorboard
def test_each_record_of_a_comparison_is_a_run(capsys, tmp_path):
    for name in ('bsp/seed0', 'asp/seed0'):
        write(tmp_path / 'compare' / name, FIRST)
    code, text, _ = run(capsys, 'plot', tmp_path / 'compare', '--tensorboard', tmp_path / 'tb')
    assert (code, text.split()) == (0, [str(tmp_path / f'tb/compare/{name}/seed0')
                                        for name in ('asp', 'bsp')])
    assert_same(in_tensorboard(tmp_path / 'tb/compare/bsp/seed0'), points_of(FIRST))


@pytest.fixture
def mlflow(monkeypatch, tmp_path):
    """Let MLflow store its runs in a folder; return its client."""
    for name, value in {'TRACKING_URI': f'file:{tmp_path}/store', 'EXPERIMENT_NAME': 'robots',
                        'ALLOW_FILE_STORE': 'true'}.items():
        monkeypatch.setenv(f'MLFLOW_{name}', value)
    import mlflow

    return mlflow.MlflowClient()


def runs_of(client):
    experiment = client.get_experiment_by_name('robots')
    return client.search_runs([experiment.experiment_id])


@needs_mlflow
def test_mlflow_has_the_curves_of_a_run_that_was_resumed(capsys, tmp_path, mlflow):
    write(tmp_path / 'toy', FIRST)
    assert run(capsys, 'plot', tmp_path / 'toy', '--mlflow')[0] == 0
    assert [one.info.status for one in runs_of(mlflow)] == ['FAILED']  # it did not end
    write(tmp_path / 'toy', SECOND)
    for _ in range(2):
        assert run(capsys, 'plot', tmp_path / 'toy', '--mlflow')[0] == 0
    (one,) = runs_of(mlflow)
    assert (one.info.run_name, one.info.status) == ('toy', 'FINISHED')
    assert one.data.params == {'method': 'rsp:4', 'task': 'a:B', 'codec': 'onebit', 'seed': '1',
                               'fleet': 'toy', 'robots': 'robot1, robot2'}
    assert_same({name: [(m.step, m.value, m.timestamp / 1000)
                        for m in mlflow.get_metric_history(one.info.run_id, name)]
                 for name in one.data.metrics}, points_of(FIRST + SECOND))


@needs_mlflow
def test_another_run_of_a_name_is_another_run_of_mlflow(capsys, tmp_path, mlflow):
    write(tmp_path / "a/robot's", FIRST)
    write(tmp_path / "b/robot's", FIRST[:-1] + SECOND)
    for folder in ('a', 'b', 'a'):
        assert run(capsys, 'plot', tmp_path / folder / "robot's", '--mlflow')[0] == 0
    assert sorted(one.info.status for one in runs_of(mlflow)) == ['FAILED', 'FINISHED']


@needs_mlflow
def test_a_tracker_that_refuses_is_no_traceback(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv('MLFLOW_TRACKING_URI', 'ftp://nowhere')
    write(tmp_path / 'toy', FIRST)
    code, _, error = run(capsys, 'plot', tmp_path / 'toy', '--mlflow')
    assert code == 2 and error.startswith('rog: mlflow: ') and 'ftp://nowhere' in error


@pytest.mark.parametrize('verb', [['fleet', 'up', 'indoor'], ['sim', 'indoor']])
@pytest.mark.parametrize('option, package', [
    (['--tensorboard', 'tb'], 'tensorboard'), (['--mlflow'], 'mlflow')])
def test_what_is_not_installed_is_said_before_anything_starts(
        capsys, monkeypatch, tmp_path, verb, option, package):
    monkeypatch.setattr(tracking, 'find_spec', lambda name: None)
    code, text, error = run(capsys, *verb, *option, '--out', tmp_path / 'out')
    assert (code, text, error) == (2, '', f'rog: --{package} needs the package {package}, which is '
                                          f'not installed: pip install {package}\n')
    assert not (tmp_path / 'out').exists()


@needs_tensorboard
@pytest.mark.parametrize('only, folder, says', [
    ('robot1', 'tb', 'the record of the run is where the server runs'),
    ('server', 'file', 'is a file; give a folder')])
def test_trackers_that_cannot_be_used_are_refused(capsys, tmp_path, only, folder, says):
    (tmp_path / 'file').touch()
    code, _, error = run(capsys, 'fleet', 'up', 'indoor', '--only', only, '--out',
                         tmp_path / 'out', '--tensorboard', tmp_path / folder)
    assert code == 2 and says in error and not (tmp_path / 'out').exists()


@needs_tensorboard
def test_curves_need_no_place_for_figures(capsys, tmp_path):
    code, _, error = run(capsys, 'plot', tmp_path, '--out', tmp_path, '--tensorboard', tmp_path)
    assert code == 2 and '--out: it is for figures' in error


def test_a_run_without_trackers_starts_no_process(monkeypatch, tmp_path):
    monkeypatch.setattr(subprocess, 'Popen', None)
    with tracked(tmp_path, None, False):
        pass
    assert not list(tmp_path.iterdir())


@needs_tensorboard
def test_curves_are_there_while_the_run_goes_on_and_all_at_its_end(tmp_path):
    out, board = tmp_path / 'toy', tmp_path / 'tb/toy'
    with tracked(out, tmp_path / 'tb', False):
        write(out, FIRST)
        eventually((board / tracking.MARK).exists)
        assert_same(in_tensorboard(board), points_of(FIRST))
        write(out, SECOND)
    assert_same(in_tensorboard(board), points_of(FIRST + SECOND))
    assert json.loads((board / tracking.MARK).read_bytes())['bytes'] == \
        (out / 'run.jsonl').stat().st_size


@needs_tensorboard
def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(capsys, tmp_path):
    out = tmp_path / 'toy'
    (tmp_path / 'tb').mkdir()
    (tmp_path / 'tb/toy').touch()
    with tracked(out, tmp_path / 'tb', False):
        write(out, FIRST)
        said = []
        eventually(lambda: said.append(capsys.readouterr().err) or 'rog: ' in ''.join(said))
        write(out, SECOND)
    error = ''.join(said) + capsys.readouterr().err
    assert error.count('rog: tensorboard: ') == 1 and 'Traceback' not in error
    assert f'`rog plot {out} --tensorboard DIR` sends the curves' in error


@needs_tensorboard
def test_a_tracker_may_be_hurried(capsys, tmp_path):
    with tracked(tmp_path / 'toy', tmp_path / 'tb', False, hurry=lambda: True):
        write(tmp_path / 'toy', FIRST)
    assert 'has not taken everything in time' in capsys.readouterr().err


@pytest.mark.long
@needs_tensorboard
@pytest.mark.parametrize('verb', [['sim'], ['fleet', 'up', '--plain']])
def test_a_run_brings_its_curves_to_tensorboard(tmp_path, verb):
    out = tmp_path / 'out'
    done = subprocess.run(
        [sys.executable, '-m', 'rog_cli.main', *verb, 'outdoor', '--minutes', '0.1', '--out', out,
         '--set', 'training.task=rog_tasks.classify:Classification', '--tensorboard',
         tmp_path / 'tb'], env=environment(free_domain()),
        capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert f'tensorboard --logdir {tmp_path / "tb"}' in done.stdout
    curves = in_tensorboard(tmp_path / 'tb/out')
    assert_same(curves, points_of(read_run(out)))
    assert len(curves['loss/robot1']) > 1 and len(curves['energy_J/robot3']) > 1
