"""Tests of rog compare, and of rog plot for several runs: choices, refusals, files.

The runs are invented.
"""

import pytest
from fleet_env.records.events import Iteration, RunWriter, Start
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary
from fleet_env.settings.fleet_file import read_fleet
from rog_cli.main import main

ENDS = {'bsp': .6, 'rsp:4': .7}


def simulate(fleet, out, progress, server_every=0.0):
    """Replacement for `rog_sim.simulation.simulate` that writes an invented run."""
    names, sync = [robot.name for robot in fleet.robots], fleet.training.sync
    end = ENDS.get(sync, .5)
    with RunWriter(out) as writer:
        writer.write(Start(0.0, '', 'a:B', sync, fleet.seed, fleet.name, names))
        writer.write(Iteration(1.0, names[0], 1, 1.0, 1.0, 2.0, 1.0, 5, 5, 10))
    robots = {name: RobotSummary(10, 20.0, 40.0, 40.0, 600.0, 700, 300, 5.0,
                                 Accuracy(.9, .5, end), [(30.0, 5, .55), (60.0, 10, end)])
              for name in names}
    write_summary(out, Summary(sync, 'a:B', fleet.seed, 100.0, robots, fleet.name))


@pytest.fixture
def made_up(monkeypatch):
    """Replace simulated runs by invented runs; return a list that receives each requested run."""
    asked = []

    def run(fleet, out, progress):
        asked.append((fleet.training.sync, fleet.seed, fleet.minutes))
        simulate(fleet, out, progress)

    monkeypatch.setattr('rog_sim.simulation.simulate', run)
    return asked


def run(capsys, *arguments):
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def compare(capsys, out, *arguments):
    return run(capsys, 'compare', 'indoor', '--sync', 'bsp,rsp:4', '--seeds', '2', '--minutes', '2',
               '--jobs', '1', '--out', str(out), *arguments)


def test_compare_runs_every_method_and_seed_and_says_where_everything_is(
        capsys, tmp_path, made_up):
    code, text, _ = compare(capsys, tmp_path / 'out', '--seed', '7')
    assert code == 0
    assert made_up == [(sync, seed, 2.0) for sync in ENDS for seed in (7, 8)]
    assert 'rsp:4, seed 8: done (4 of 4 runs)' in text
    assert 'target 60.0 %' in text and '70.0 ± 0.0' in text
    for name in ('comparison.json', 'comparison.md', 'comparison.png', 'accuracy.svg'):
        path = tmp_path / 'out' / name
        assert str(path) in text and path.exists()


@pytest.mark.long
def test_compare_resumes(capsys, tmp_path, made_up):
    compare(capsys, tmp_path / 'out')
    code, _, error = compare(capsys, tmp_path / 'out')
    assert code == 2 and 'already holds a run' in error and 'resume' in error
    made_up.clear()
    code, text, _ = compare(capsys, tmp_path / 'out', '--resume')
    assert code == 0 and made_up == [] and '4 of 4 runs' in text


def test_without_a_pace_all_runs_have_the_one_that_was_measured_also_when_they_are_resumed(
        capsys, tmp_path, made_up, monkeypatch):
    monkeypatch.setattr('rog_sim.figures.draw_comparison', lambda directories: [])
    pace = ('--set', 'training.pace=0')
    code, text, _ = compare(capsys, tmp_path, *pace)
    assert code == 0 and text.count('--set training.pace=') == 1
    paces = {read_fleet(path).training.pace for path in tmp_path.glob('*/seed*/fleet.yaml')}
    assert len(paces) == 1 and min(paces) > 0
    code, text, _ = compare(capsys, tmp_path, *pace, '--resume')
    assert code == 0 and f'--set training.pace={min(paces):g}' in text and len(made_up) == 4


def test_compare_that_is_interrupted_says_how_to_go_on(capsys, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr('rog_sim.simulation.simulate', interrupted)
    code, _, error = compare(capsys, tmp_path / 'out')
    assert code == 130 and '--resume' in error


@pytest.mark.parametrize(('arguments', 'says'), [
    (['--sync', 'bsp,rps:4'], "'rps:4' is unknown"),
    (['--sync', 'bsp,bsp'], 'twice'),
    (['--sync', ','], 'at least 1'),
    (['--minutes', '0'], 'minutes'),
    (['--cluster', 'nowhere://'], 'no Dask scheduler answers at nowhere://'),
])
def test_a_bad_choice_is_refused_before_anything_runs(capsys, tmp_path, made_up, arguments, says):
    code, _, error = run(capsys, 'compare', 'indoor', '--out', str(tmp_path / 'out'), *arguments)
    assert code == 2 and says in error
    assert made_up == [] and not (tmp_path / 'out').exists()


@pytest.mark.parametrize(('arguments', 'says'), [
    (['--target', '64'], 'from 0 to 1'), (['--seeds', '0'], 'at least 1'),
    (['--jobs', 'x'], 'whole number'),
    (['--jobs', '1', '--cluster', 'tcp://desk:8786'], 'not allowed with')])
def test_a_bad_number_is_refused_by_name(capsys, arguments, says):
    with pytest.raises(SystemExit):
        main(['compare', 'indoor', *arguments])
    assert says in capsys.readouterr().err


def test_a_failed_run_is_one_line(capsys, tmp_path, monkeypatch):
    def failing(*_):
        raise ValueError('no route')

    monkeypatch.setattr('rog_sim.simulation.simulate', failing)
    assert compare(capsys, tmp_path / 'out')[::2] == (2, 'rog: bsp, seed 1: no route\n')


@pytest.mark.long
def test_plot_draws_comparisons_and_sets_of_runs(capsys, tmp_path, made_up):
    compare(capsys, tmp_path / 'a')
    compare(capsys, tmp_path / 'b')
    figures = tmp_path / 'figures'
    for directories, name in (([tmp_path / 'a'], 'comparison.png'),
                              ([tmp_path / 'a', tmp_path / 'b'], 'sensitivity.svg'),
                              (sorted(tmp_path.glob('a/*/seed*')), 'accuracy.png')):
        code, text, _ = run(capsys, 'plot', *map(str, directories), '--out', str(figures))
        assert code == 0 and str(figures / name) in text.split()


@pytest.mark.long
def test_plot_does_not_mix_runs_and_comparisons(capsys, tmp_path, made_up):
    compare(capsys, tmp_path / 'a')
    code, _, error = run(capsys, 'plot', str(tmp_path / 'a'), str(tmp_path / 'a/bsp/seed1'))
    assert code == 2 and 'draw them apart' in error
