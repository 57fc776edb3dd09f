"""Studies: their runs are possible, their measures are correct, and all their figures are drawn."""

import json
import math

import made_up_runs
import numpy as np
import pytest
from fleet_env.records.events import Evaluation, RunWriter, Start
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary
from fleet_env.settings.base import changed
from rog_core.errors import ConfigError, GradientError
from rog_sim.comparison import compare_runs, read_comparison, write_comparison
from rog_sim.measure import read_run_measures
from rog_sim.simulation import simulate
from rog_studies.catalogue import STUDIES
from rog_studies.coding import CAPACITIES, PACE, fleet_of, with_stragglers
from rog_studies.figures import draw_study
from rog_studies.gsgm import ETA, learners, steadier, with_method
from rog_studies.images import large_digits, noisy_digits
from rog_studies.study import Case, Study, Table, run_study, text_tables
from rog_studies.tasks import ZeroCost
from rog_tasks.errors import TaskError
from virtual_fleet import Linear
from virtual_fleet import fleet_of as toy_fleet


class Diverging(Linear):
    """A task whose gradients are NaN, beginning with a robot's tenth batch."""

    def batches(self, rank, world):
        for count, (inputs, outputs) in enumerate(super().batches(rank, world)):
            yield (inputs * float('nan') if count > 9 else inputs), outputs


def written(directory, accuracies, reason='finished', sync='gsgm', iterations=10):
    """Write a run of 100 s; return its measures.

    ``accuracies``: accuracies of the server's model, measured at equal intervals in the run.
    """
    times = np.linspace(0, 100, len(accuracies))
    with RunWriter(directory) as writer:
        writer.write(Start(0.0, '', 'a:B', sync, 1, 'toy', ['a', 'b']))
        writer.write(Evaluation(0.0, '', 0, 0.9, 'clean'))
        for number, (t, accuracy) in enumerate(zip(times, accuracies, strict=True)):
            writer.write(Evaluation(float(t), '', number, accuracy,
                                    'online' if number else 'before'))
    robots = {name: RobotSummary(made, 20.0, accuracy=Accuracy(.9, .1, math.nan))
              for name, made in (('a', iterations), ('b', iterations // 2))}
    write_summary(directory, Summary(sync, 'a:B', 1, 100.0, robots, 'toy', {'reason': reason}))
    return read_run_measures(directory)


@pytest.mark.parametrize('study', STUDIES.values(), ids=lambda study: study.name)
def test_every_run_of_every_study_is_one_that_its_fleet_can_do(study, tmp_path):
    jobs = [job for case in study.jobs(tmp_path).values() for job in case]
    # `jobs_of` has raised no error, so every method fits its fleet
    assert len({job.directory for job in jobs}) == len(jobs)
    for table in study.tables:
        assert any(name.startswith(table.cases) for name in study.cases)


def test_without_momentum_the_learning_rate_is_ten_times_as_high():
    fleet = learners(20, 'mnistnet')
    plain = with_method(fleet, 'ssp:1', momentum=0.0).training
    local = with_method(fleet, 'ssp:1').training
    assert local.learning_rate == pytest.approx(20 * ETA['mnistnet'])
    assert plain.learning_rate == pytest.approx(10 * local.learning_rate)
    assert (plain.momentum, local.momentum, local.nesterov) == (0.0, 0.9, False)


def test_learners_have_paces_of_one_to_two_and_no_two_the_same():
    paces = [robot.pace for robot in learners(30, 'lenet5').robots]
    assert len(set(paces)) == 30
    assert max(paces) == pytest.approx(2 * min(paces))


def test_who_straggles_depends_on_the_seed_alone():
    def often(seed):
        fleet = with_stragglers(fleet_of('b', 'lenet5', 1.0, seed))
        return [robot.stragglers.probability > .1 for robot in fleet.robots]

    assert sum(often(1)) == len(CAPACITIES['b']) // 3 == sum(often(2))
    assert often(1) == often(1) != often(2)


def test_stability_is_the_logarithm_of_the_deviation_in_the_second_half(tmp_path):
    one = written(tmp_path, [.1, .9, .2, .8, .5, .6, .7, .6, .5])
    expected = math.log(np.std([.5, .6, .7, .6, .5], ddof=1))
    measured = one.measures(.5, rounds=3)
    assert measured['stability'] == pytest.approx(expected)
    differences = math.log(np.std([.1, .1, -.1, -.1], ddof=1))
    assert measured['fluctuation'] == pytest.approx(differences)
    assert measured['accuracy_settled'] == pytest.approx(.58)
    assert measured['accuracy_peak'] == .9
    assert measured['accuracy_after'] == .8
    assert measured['round_s'] == 10.0  # the value of the robot with the most iterations


def test_a_run_that_diverged_is_counted_and_sets_no_number_of_rounds(tmp_path):
    runs = [written(tmp_path / '1', [.1, .5, .6, .7]),
            written(tmp_path / '2', [.1, .1, .1], 'diverged', iterations=4)]
    comparison = compare_runs({'gsgm': runs}, tmp_path)
    assert (comparison.methods[0].diverged, comparison.rounds) == (1, 10)
    write_comparison(tmp_path, comparison)
    assert read_comparison(tmp_path).methods[0].diverged == 1


def test_a_steady_rise_is_no_fluctuation(tmp_path):
    measured = written(tmp_path, [.1, .2, .3, .4, .5, .6, .7]).measures(.5, rounds=3)
    assert measured['fluctuation'] < -20 < -3 < measured['stability']


@pytest.mark.parametrize('measure', ['stability', 'fluctuation'])
def test_improvement_is_the_share_by_which_the_logarithm_falls(tmp_path, measure):
    steady = written(tmp_path / 'a', [.5, .5, .5, .51, .5, .51])
    shaky = written(tmp_path / 'b', [.5, .5, .5, .6, .4, .6])
    first, other = compare_runs({'gsgm': [steady], 'asp': [shaky]}, tmp_path).methods
    own, best = (getattr(m, measure).mean for m in (other, first))
    share = (own - best) / abs(own)
    assert share > 0
    assert steadier(measure)(other, first) == f'{100 * share:+.1f} %'


def test_the_servers_model_is_measured_at_equal_times(tmp_path):
    simulate(toy_fleet(tmp_path, minutes=.5), tmp_path / 'run', server_every=5.0)
    run = read_run_measures(tmp_path / 'run')
    assert run.server[0] == pytest.approx([0, 5, 10, 15, 20, 25])
    assert run.server[2][-1] > run.server[2][0]
    assert not any(robot.evaluations for robot in run.summary.robots.values())


def test_training_that_diverges_ends_a_measured_run_and_fails_any_other(tmp_path):
    fleet = toy_fleet(tmp_path, minutes=1.0, task='test_studies:Diverging', codec='raw',
                      traffic='')
    summary = simulate(fleet, tmp_path / 'run', server_every=5.0)
    assert summary.notes['reason'] == 'diverged' and summary.duration_s < 60
    with pytest.raises(GradientError):
        simulate(fleet)


def tiny(tmp_path):
    fleet = toy_fleet(tmp_path, 'gsgm', minutes=.2, codec='raw', traffic='')
    later = changed(fleet, seed=5)
    table = Table('Accuracy', 'toynet', lambda method, first: f'{method.accuracy_peak.mean:.3f}')
    return Study('tiny', {'toynet-3': Case({'gsgm': fleet, 'asp lm': with_method(fleet, 'asp')}, 2),
                          'other': Case({'gsgm': later}, 1)}, (table,), server_every=2.0)


def test_a_study_runs_its_cases_and_writes_and_draws_them(tmp_path):
    study, told = tiny(tmp_path), []
    out = tmp_path / 'out'
    comparisons = run_study(study, out, workers=1, progress=lambda *args: told.append(args))
    assert set(told) == {
        ('toynet-3: gsgm', 3), ('toynet-3: gsgm', 4), ('toynet-3: asp lm', 3),
        ('toynet-3: asp lm', 4), ('other: gsgm', 5)}
    data = json.loads((out / 'study.json').read_text())
    assert data['schema'] == 'rog-study/1' and set(data['cases']) == {'toynet-3', 'other'}
    assert read_comparison(out / 'toynet-3').methods[1].sync == 'asp lm'
    rows = text_tables(study, comparisons).split('\n')
    assert rows[0] == 'Accuracy' and rows[1].split() == ['gsgm', 'asp', 'lm']
    assert (out / 'study.md').read_text().count('toynet-3') == 1
    kept = (out / 'other' / 'gsgm' / 'seed5' / 'run.jsonl').stat().st_mtime_ns
    run_study(study, out, workers=1, resume=True)
    assert (out / 'other' / 'gsgm' / 'seed5' / 'run.jsonl').stat().st_mtime_ns == kept


def test_a_case_that_there_is_not_is_refused_by_name(tmp_path):
    study = tiny(tmp_path)
    assert list(study.only(['toy']).cases) == ['toynet-3']
    with pytest.raises(ConfigError, match="begins with 'vgg'.*toynet-3, other"):
        study.only(['toy', 'vgg'])


def test_the_figures_of_every_kind_of_case_are_drawn(tmp_path):
    for case, labels in (('mnistnet-10', ('gsgm', 'ssp:1 lm')), ('mnistnet-20', ('gsgm', 'asp')),
                         ('time-a-lenet5', ('dgh-gc', 'gc', 'dgh-gc ternary')),
                         ('period-b', ('b = 50', 'b = 10')), ('groups-a', ('k = 2', 'k = 3')),
                         ('sparsity-a-lenet5', ('raw', '0.05', '0.05 no feedback'))):
        runs = {}
        for number, label in enumerate(labels):
            made_up_runs.record(tmp_path / case / str(number), label, duration=300.0, robots=2)
            runs[label] = [read_run_measures(tmp_path / case / str(number))]
        write_comparison(tmp_path / case, compare_runs(runs, tmp_path / case))
    paths = draw_study(tmp_path, tmp_path / 'figures')
    assert [path.name for path in paths if path.suffix == '.png'] == [
        'curves-mnistnet.png', 'stability-mnistnet.png', 'fluctuation-mnistnet.png', 'times.png',
        'periods.png', 'groups.png', 'sparsity.png', 'convergence.png']
    assert all(path.stat().st_size > 1000 for path in paths)


def test_a_gradient_of_zero_cost_is_of_the_named_models_parameters():
    task = ZeroCost(model='lenet5')
    model = task.model()
    task.loss(model, next(task.batches(0, 1))).backward()
    assert sum(p.numel() for p in model.parameters()) == 62006
    assert all((p.grad == p).all() for p in model.parameters())
    with pytest.raises(TaskError, match='mnistnet'):
        ZeroCost(model='vgg')


def test_large_digits_are_digits_of_twice_the_size():
    data = large_digits(channels=3)
    assert data.train_images.shape[1:] == (3, 16, 16) and data.classes == 10
    assert (data.train_images[:, 0, ::2, ::2] == data.train_images[:, 2, 1::2, 1::2]).all()


def test_noisy_digits_are_several_noisy_copies_of_each_digit():
    plain, noisy = large_digits(seed=1), noisy_digits(noise=.1, copies=2, test_copies=3, seed=1)
    count = len(plain.train_images)
    assert noisy.train_labels.equal(plain.train_labels.repeat(2))
    assert len(noisy.test_images) == len(noisy.test_labels) == 3 * len(plain.test_images)
    first, second = noisy.train_images.split(count)
    assert not first.equal(second)
    assert 0 < (first - plain.train_images).abs().mean() < .1
    assert noisy.train_images.min() == 0 and noisy.train_images.max() == 1


def test_capacities_are_those_of_the_papers_groups():
    robots = fleet_of('a', 'lenet5', 1.0).robots
    assert sorted(r.capacity for r in robots) == [1] * 5 + [3] * 3 + [4] * 2 + [5] * 2
    assert {r.pace for r in robots} == {PACE}
