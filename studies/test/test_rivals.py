"""The study of rivals: equal tuning for all, correct intervals, files that name the runs."""

import json
import math

import numpy as np
import pytest
from fleet_env.links.trace import LinkTrace
from fleet_env.settings.base import changed
from rog_cli.main import main
from rog_core.errors import ConfigError
from rog_studies.rivals import (
    CRIMP,
    DIGITS,
    SEED,
    TRIES,
    Plan,
    Trained,
    cifar10,
    interval,
    linked,
    plan_of,
    records_of,
    rivals_of,
    run_rivals,
    study_of,
    text_tables,
    tuning_of,
)

TOY = Trained({'task': 'virtual_fleet:Linear', 'batch_size': 8}, (.365, .38, .99),
              (.03, .1, .3, 1.0), server_every=2.0)


@pytest.mark.parametrize('task', [cifar10, DIGITS, CRIMP], ids=['cifar10', 'digits', 'crimp'])
def test_all_methods_have_the_same_budget_and_can_be_run(task, tmp_path):
    task = task(tmp_path) if callable(task) else task
    assert {len(rival.tries) for rival in rivals_of(task)} == {TRIES}
    plan, records = Plan({'task': task}, {'published': 2, 'indoors': 1}, 10.0), records_of(None)
    tuning = tuning_of('task', plan, records, tmp_path).jobs(tmp_path / 'tuning')
    chosen = {rival.name: rival.tries[0] for rival in rivals_of(task)}
    study = study_of('task', plan, chosen, records, tmp_path).jobs(tmp_path / 'runs')
    runs = [job for case in [*tuning.values(), *study.values()] for job in case]
    assert len(runs) == len({job.directory for job in runs}) == plan.runs
    assert {job.fleet.seed for case in tuning.values() for job in case} == {SEED}
    assert SEED not in {job.fleet.seed for case in study.values() for job in case}


def test_links_are_drawn_by_the_seed_and_the_same_for_all_methods(tmp_path):
    records = records_of(None)
    plan = Plan({'toy': TOY}, dict.fromkeys(records, 2), 5.0)
    chosen = {sync: {'sync': sync} for sync in ('bsp', 'asp')}
    for links, jobs in study_of('toy', plan, chosen, records, tmp_path).jobs(tmp_path).items():
        drawn = {(job.label, job.fleet.seed): tuple(r.link for r in job.fleet.robots)
                 for job in jobs}
        assert drawn['bsp', 1] == drawn['asp', 1] != drawn['bsp', 2], links
        assert len(set(drawn['bsp', 1])) == 4


def test_a_record_is_reversed_sample_by_sample(tmp_path):
    records = records_of(None)
    assert records['reversed'].rates.tolist() == records['published'].rates.tolist()[::-1]


def test_indoors_robots_begin_at_different_places_of_the_record(tmp_path):
    record = LinkTrace(np.arange(100.0), np.arange(1.0, 101.0))
    plan = Plan({'toy': TOY}, {'indoors': 1}, 5.0)
    records = {**records_of(None), 'indoors': record}
    (job,) = study_of('toy', plan, {'bsp': {'sync': 'bsp'}}, records, tmp_path).jobs(
        tmp_path)['indoors']
    starts = [robot.link.offset for robot in job.fleet.robots]
    assert np.diff(sorted(starts)) == pytest.approx([25.0] * 3)
    other = linked(changed(job.fleet, seed=2), 'indoors', record, tmp_path)
    assert [robot.link.offset for robot in other.robots] != starts


def test_the_interval_is_that_of_students_t():
    found = interval([1.0, 2.0, math.nan, 3.0])
    assert found['mean'] == 2.0
    assert found['high'] - 2.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert found['low'] == pytest.approx(4.0 - found['high'])
    assert math.isnan(interval([5.0])['low']) and interval([5.0])['mean'] == 5.0
    assert math.isnan(interval([math.nan])['mean'])


def test_methods_are_tuned_then_compared_and_it_goes_on_where_it_was_stopped(tmp_path):
    plan = Plan({'toy': TOY}, {'published': 2}, 1.5, methods=('bsp', 'asp', 'local'), tuning=.4)
    records, told = records_of(None), []
    data = run_rivals(plan, records, tmp_path, workers=1,
                      progress=lambda *run: told.append(run))
    assert len(told) == plan.runs == 3 * (TRIES + 2)
    for tuned in data['tuned']['toy'].values():
        best = max(tuned['tried'], key=lambda tried: tried['score'])
        assert {**tuned['chosen'], 'score': best['score']} == best
    case = data['cases']['toy']['published']
    assert case['seeds'] == [1, 2] and case['times'] == [15.0, 45.0, 90.0]
    bsp, asp = (case['methods'][method] for method in ('bsp', 'asp'))
    assert asp['iterations']['mean'] > bsp['iterations']['mean']
    assert bsp['of_bsp']['values'][0] == 1.0
    times = np.array([method['target_1_s']['values'] for method in case['methods'].values()])
    shares = np.array([method['of_best']['values'] for method in case['methods'].values()])
    # with the second seed, the model reaches the target at time 0, so the times have no ratio
    known = np.isfinite(shares)
    least = np.nanmin(times, 0)
    assert known[:2, 0].all() and shares[known] == pytest.approx((times / least)[known])
    written = json.loads((tmp_path / 'rivals.json').read_text())
    assert written['schema'] == 'rog-rivals/1' and written['budget']['tries'] == TRIES
    assert written['cases']['toy']['published']['methods']['bsp']['target_2_s']['values'] == \
        [None, None]  # the method never reached the target
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob('run.jsonl')}
    last = max(kept)
    (last.parent / 'summary.json').unlink()
    again = run_rivals(plan, records, tmp_path, workers=1, resume=True)
    assert text_tables(again) == text_tables(data)
    assert {path for path in kept if path.stat().st_mtime_ns != kept[path]} == {last}


def test_the_small_version_needs_no_data_and_says_where_everything_is(capsys, tmp_path, made_up):
    out = tmp_path / 'out'
    code = main(['study', 'rivals', '--quick', '--minutes', '20', '--seeds', '1', '--jobs', '1',
                 '--only', 'digits-published', '--methods', 'bsp,asp', '--out', str(out)])
    text = capsys.readouterr().out
    assert code == 0 and len(made_up) == 2 * (TRIES + 1)
    assert 'digits, published links: 4 robots, 20 min, 1 seed' in text
    for name in ('rivals.json', 'rivals.md', 'digits/published/comparison.png'):
        assert str(out / name) in text and (out / name).exists()
    assert json.loads((out / 'rivals.json').read_text())['quick'] is True


def test_the_cases_that_are_named_run_and_no_others(tmp_path):
    """The study runs only the named cases.

    A regression: every named task ran on every named kind of links, so two cases became four.
    """
    plan = Plan({'toy': TOY, 'digits': DIGITS}, {'published': 2, 'reversed': 3, 'indoors': 1}, 5.0,
                methods=('bsp', 'asp')).only(['toy-published', 'digits-rev'])
    records = records_of(None)
    cases = [(name, links, len(jobs)) for name in plan.tasks
             for links, jobs in study_of(name, plan, {'bsp': {}}, records, tmp_path)
             .jobs(tmp_path).items()]
    assert cases == [('toy', 'published', 2), ('digits', 'reversed', 3)]
    assert plan.runs == 2 * (TRIES + 2) + 2 * (TRIES + 3)
    with pytest.raises(ConfigError, match="begins with 'toy-indoors'.* are toy-published, digits"):
        plan.only(['toy', 'toy-indoors'])


@pytest.mark.parametrize('minutes', [0.0, -1.0, math.nan, math.inf, 1e9])
def test_minutes_that_cannot_be_are_refused(minutes):
    """The study refuses a duration that is not positive and finite, or that is too long.

    A regression: some of these durations ended with a traceback, and very long ones used all
    memory.
    """
    with pytest.raises(ConfigError, match='--minutes is'):
        plan_of(None, True, minutes)


def test_runs_on_other_links_are_not_mixed(tmp_path, made_up, monkeypatch):
    """The study refuses to resume a directory whose runs used other links.

    A regression: --resume mixed runs on generated links with runs on recorded links.
    """
    plan = Plan({'digits': DIGITS}, {'published': 1}, 1.0, methods=('bsp', 'asp'))
    records = records_of(None)
    run_rivals(plan, records, tmp_path, workers=1)
    run_rivals(plan, records, tmp_path, workers=1, resume=True)
    done = len(made_up)
    other = {**records, 'published': records['reversed']}
    with pytest.raises(ConfigError, match='runs on other published links'):
        run_rivals(plan, other, tmp_path, workers=1, resume=True)
    assert len(made_up) == done == 2 * (TRIES + 1)


def test_what_cannot_be_studied_is_refused_before_anything_runs(tmp_path, made_up, capsys):
    with pytest.raises(ConfigError, match='no folder cifar10; --data names'):
        plan_of(None, False)
    with pytest.raises(ConfigError, match="'fedavg' is no method of study rivals; it has bsp"):
        plan_of(None, True, methods=['bsp', 'fedavg'])
    with pytest.raises(ConfigError, match='compared with bsp'):
        plan_of(None, True, methods=['asp'])
    with pytest.raises(ConfigError, match="begins with 'mnist'.*digits-published"):
        plan_of(None, True).only(['mnist'])
    assert main(['study', 'coding', '--quick', '--out', str(tmp_path)]) == 2
    assert 'are of the study rivals' in capsys.readouterr().err
    assert made_up == []
