"""Comparisons of methods have the right numbers and files, and refuse wrong input."""

import json
import math
from dataclasses import replace

import made_up_runs
import numpy as np
import pytest
from fleet_env.errors import RecordError
from fleet_env.records.events import Evaluation, Iteration, RunWriter, Start, Status
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, write_summary
from rog_core.errors import ConfigError
from rog_sim.compare import compare
from rog_sim.comparison import (
    Comparison,
    MethodResult,
    Spread,
    compare_runs,
    read_comparison,
    write_comparison,
)
from rog_sim.measure import read_run_measures
from rog_sim.table import markdown_tables, text_tables


def run(fleet, out, methods=('bsp', 'rsp:4'), seeds=2, **options):
    options = {'workers': 2, 'simulate': made_up_runs.simulate, **options}
    return compare(fleet, methods, seeds, out, **options)


def written(directory, sync, seed, evaluations, before=.1, energies=(), server=()):
    """Write a run of two robots; return what `read_run_measures` reads from it.

    ``evaluations``: for each robot, a list of tuples (time in seconds, iteration, metric).
    ``server``: such tuples for the server's model.
    """
    with RunWriter(directory) as writer:
        writer.write(Start(0.0, '', 'a:B', sync, seed, 'toy', ['a', 'b']))
        writer.write(Iteration(1.0, 'a', 1, 1.0, 1.0, 2.0, 1.0, rows_pushed=5, rows_total=10))
        for t, energy in energies:
            writer.write(Status(t, 'a', 'computing', energy=energy))
        for t, iteration, metric in server:
            writer.write(Evaluation(t, '', iteration, metric))
    robots = {name: RobotSummary(10, 20.0, 40.0, 40.0, 600.0, 700, 300, 5.0,
                                 Accuracy(.9, before, .8), list(points))
              for name, points in zip('ab', evaluations, strict=True)}
    write_summary(directory, Summary(sync, 'a:B', seed, 100.0, robots, 'toy'))
    return read_run_measures(directory)


def test_accuracy_is_the_mean_over_robots_of_each_ones_last_evaluation(tmp_path):
    points = [[(10.0, 1, .2), (50.0, 5, .6)], [(20.0, 2, .4)]]
    one = written(tmp_path, 'bsp', 1, points)
    assert one.accuracy([0, 9, 10, 20, 49, 50, 100]) == \
        pytest.approx([.1, .1, .15, .3, .3, .5, .5])
    assert one.accuracy_after([0, 1, 2, 5]) == pytest.approx([.1, .15, .3, .5])
    assert one.reached([.1, .3, .31, .5, .51])[:4] == pytest.approx([0, 20, 50, 50])
    assert math.isnan(one.reached([.51])[0])


def test_the_server_s_model_counts_only_where_the_robots_evaluate_nothing(tmp_path):
    server = [(10.0, 3, .7), (20.0, 5, .9)]
    both = written(tmp_path / 'a', 'bsp', 1, [[(10.0, 1, .2)], [(20.0, 2, .4)]], server=server)
    assert both.accuracy([10, 20]) == pytest.approx([.15, .3])
    alone = written(tmp_path / 'b', 'bsp', 1, [[], []], server=server)
    assert alone.accuracy([10, 20]) == pytest.approx([.7, .9])


def test_smoothed_accuracies_of_the_server_s_model_are_means_of_the_last_few(tmp_path):
    one = written(tmp_path, 'bsp', 1, [[(10.0, 1, .2)], [(20.0, 2, .4)]])
    assert one.smoothed(2) is one  # no change: the server's model was not evaluated
    lucky = replace(one, server=np.array([[0, 15, 30, 45], [0, 3, 5, 9], [.5, .7, .5, .6]]))
    mean = lucky.smoothed(2)
    assert mean.accuracy([15, 30, 44, 45]) == pytest.approx([.6, .6, .6, .55])
    assert math.isnan(mean.accuracy(14))
    assert float(lucky.reached(.65)) == 15 and math.isnan(mean.reached(.65))


def test_accuracy_is_unknown_until_every_robot_has_one(tmp_path):
    one = written(tmp_path, 'bsp', 1, [[(10.0, 1, .2)], [(20.0, 2, .4)]], before=math.nan)
    assert [math.isnan(a) for a in one.accuracy([0, 15, 20])] == [True, True, False]


def test_energy_follows_the_status_reports_and_is_even_without_any(tmp_path):
    even = written(tmp_path / 'a', 'bsp', 1, [[], []])
    assert even.energy_at([0, 50, 100]) == pytest.approx([0, 300, 600])
    reported = written(tmp_path / 'b', 'bsp', 1, [[], []], energies=[(50.0, 500.0)])
    assert reported.energy_at([25, 50, 100]) == pytest.approx([200, 400, 600])


def test_a_method_has_mean_and_sample_deviation_over_its_seeds(tmp_path):
    runs = [written(tmp_path / str(seed), 'bsp', seed, [[(t, 5, .5)], [(t, 5, .5)]])
            for seed, t in ((1, 20.0), (2, 40.0))]
    never = written(tmp_path / 'asp', 'asp', 1, [[(20.0, 5, .3)], [(20.0, 5, .3)]])
    comparison = compare_runs({'bsp': runs, 'asp': [never]}, tmp_path, target=.5)
    bsp, asp = comparison.methods
    assert (bsp.target_s.mean, bsp.reached) == (30.0, 2)
    assert bsp.target_s.std == pytest.approx(200 ** .5)
    assert bsp.target_j.mean == pytest.approx(180)
    assert (bsp.iteration_s.mean, bsp.compute_s.mean, bsp.stall_s.mean) == (10.0, 2.0, 4.0)
    assert (bsp.stall_share.mean, bsp.rows_share.mean) == (.4, .5)
    assert (bsp.iterations.mean, bsp.iteration_bytes.mean) == (10, 100)
    assert (asp.reached, math.isnan(asp.target_s.mean)) == (0, True)
    assert math.isnan(asp.accuracy_end.std)  # there is only one seed


def test_the_default_target_is_what_every_run_reaches(tmp_path):
    runs = {name: [written(tmp_path / name, name, 1, [[(20.0, 5, end)], [(20.0, 5, end)]])]
            for name, end in (('bsp', .6), ('asp', .3))}
    comparison = compare_runs(runs, tmp_path)
    assert comparison.target == pytest.approx(.3)
    assert [m.reached for m in comparison.methods] == [1, 1]


def test_what_never_happened_is_null_in_the_file_and_never_in_the_table(tmp_path):
    runs = {'bsp': [written(tmp_path / 'bsp', 'bsp', 1, [[], []], before=math.nan)]}
    comparison = compare_runs(runs, tmp_path, target=.9)
    write_comparison(tmp_path, comparison)
    data = json.loads((tmp_path / 'comparison.json').read_text())
    assert data['schema'] == 'rog-comparison/1'
    assert data['methods'][0]['target_s'] == {'mean': None, 'std': None}
    assert 'never' in text_tables(comparison) and 'nan' not in text_tables(comparison)
    # compared as text, because NaN does not equal NaN
    assert repr(read_comparison(tmp_path)) == repr(comparison)


@pytest.mark.parametrize(('sent', 'shown'), [(200, ['kB/iteration', '0.200']),
                                             (50_000, ['MB/iteration', '0.050'])])
def test_a_small_payload_is_shown_in_kilobytes(sent, shown):
    comparison = Comparison('toy', 'a:B', 2, 100.0, [1], math.nan, [], 0, [
        MethodResult('bsp', [], iteration_bytes=Spread(sent))])
    _, header, _, row = text_tables(comparison).split('\n\n')[0].split('\n')
    assert [header.split()[-1], row.split()[-1]] == shown


@pytest.mark.parametrize(('text', 'says'), [
    ('{', 'cannot be read'), ('{}', "schema None"), ('[]', 'schema None'),
    ('{"schema": "rog-comparison/1"}', 'not a comparison'),
    ('{"schema": "rog-comparison/1", "methods": [{"speed": 1}]}', 'speed')])
def test_a_comparison_that_is_none_is_refused_by_name(tmp_path, text, says):
    (tmp_path / 'comparison.json').write_text(text)
    with pytest.raises(RecordError, match=says):
        read_comparison(tmp_path)


def test_every_method_and_seed_is_run_and_told_of(fleet, tmp_path):
    told = []
    comparison = run(fleet, tmp_path / 'out', progress=lambda *args: told.append(args))
    assert [m.sync for m in comparison.methods] == ['bsp', 'rsp:4']
    assert comparison.methods[1].runs == ['rsp-4/seed1', 'rsp-4/seed2']
    assert (comparison.robots, comparison.duration_s, comparison.seeds) == (2, 600.0, [1, 2])
    assert sorted(told) == [(sync, seed) for sync in ('bsp', 'rsp:4') for seed in (1, 2)]
    assert read_comparison(tmp_path / 'out').methods == comparison.methods


@pytest.mark.parametrize(('methods', 'says'), [
    (['bsp', 'rps:4'], "'rps:4' is unknown"), (['bsp', 'bsp'], 'twice'), ([], 'at least 1')])
def test_bad_lists_of_methods_are_refused_before_anything_runs(fleet, tmp_path, methods, says):
    with pytest.raises(ConfigError, match=says):
        run(fleet, tmp_path / 'out', methods)
    assert not (tmp_path / 'out').exists()


def test_tables_hold_every_method_in_aligned_lines(fleet, tmp_path):
    comparison = run(fleet, tmp_path / 'out')
    text = text_tables(comparison)
    assert text.isascii() or set(text) - set(map(chr, range(128))) == {'±'}
    *tables, legend = text.split('\n\n')
    assert [line.split(':')[0] for line in legend.split('\n')] == [
        'target', 'stability', 'fluctuation']
    for block in tables:
        title, header, rule, *rows = block.split('\n')
        assert {len(line) for line in (header, rule, *rows)} == {len(header)}
        assert [row.split()[0] for row in rows] == ['bsp', 'rsp:4']
    for line in markdown_tables(comparison).split('\n- ')[0].split('\n'):
        assert not line or line.startswith('|') == line.endswith('|')
