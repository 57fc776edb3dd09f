"""Figures draw the right data, are reproducible, and are legible."""

import struct

import made_up_runs
import matplotlib
import numpy as np
import pytest
from fleet_env import plot_style
from fleet_env.errors import RecordError
from fleet_env.records.events import Iteration, RunWriter, Start
from fleet_env.records.summary import RobotSummary, Summary, write_summary
from matplotlib.colors import to_rgb
from matplotlib.text import Text
from rog_sim.comparison import compare_runs, write_comparison
from rog_sim.figures import draw_comparison, draw_run, style
from rog_sim.measure import read_run_measures

METHODS = ['bsp', 'ssp:4', 'asp', 'rsp:4', 'rsp:20', 'rsp:40', 'rsp:4+pipeline']


def compared(directory, methods, seeds=(1, 2)):
    runs = {}
    for sync in methods:
        for seed in seeds:
            here = directory / style.label(sync) / f'seed{seed}'
            made_up_runs.record(here, sync, seed, duration=600.0, robots=2)
            runs.setdefault(sync, []).append(read_run_measures(here))
    write_comparison(directory, compare_runs(runs, directory))
    return directory


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
    return compared(tmp_path_factory.mktemp('comparison'), METHODS)


@pytest.fixture(scope='module')
def drawn(comparison, tmp_path_factory):
    return draw_comparison([comparison], tmp_path_factory.mktemp('drawn'))


def names(paths):
    return [path.name for path in paths]


def both(*stems):
    return [f'{stem}.{kind}' for stem in stems for kind in ('png', 'svg')]


def test_a_run_has_its_overview_and_its_micro_events(tmp_path):
    made_up_runs.record(tmp_path, duration=600.0)
    paths = draw_run(tmp_path)
    assert names(paths) == both('run', 'micro')
    assert all(path.parent == tmp_path and path.stat().st_size > 1000 for path in paths)


@pytest.mark.long
def test_a_run_in_which_nothing_happened_is_drawn_too(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write(Start(0.0, '', 'a:B', 'bsp', 1, 'toy', ['a']))
    write_summary(tmp_path, Summary('bsp', 'a:B', 1, 10.0, {'a': RobotSummary()}))
    assert names(draw_run(tmp_path)) == both('run')
    assert both('composition')[0] in names(draw_comparison([tmp_path]))


def test_micro_events_are_of_the_robot_that_fell_behind_furthest(tmp_path, monkeypatch):
    with RunWriter(tmp_path) as writer:
        for k in range(1, 9):
            writer.write(Iteration(float(k), 'fast', k, 1., 1., 0., 0., 10, 10, 10, staleness=7))
            if k % 2 == 0:
                writer.write(Iteration(k + .5, 'slow', k // 2, 1., 1., 1., 0., 3, 3, 10))
    write_summary(tmp_path, Summary('rsp:4', 'a:B', 1, 10.0,
                                    {'fast': RobotSummary(), 'slow': RobotSummary()}))
    drawn = {}
    monkeypatch.setattr(style, 'save', lambda figure, _, name: drawn.update({name: figure}) or [])
    draw_run(tmp_path)
    rate, rows, behind = drawn['micro'].axes
    assert rate.get_title(loc='left') == 'slow, RSP-4'
    assert list(rows.lines[0].get_ydata()) == [30] * 4
    assert list(behind.lines[0].get_ydata()) == [1, 2, 3, 4]


@pytest.mark.long
def test_a_comparison_has_the_figures_of_both_papers(drawn):
    assert names(drawn) == both('comparison', 'composition', 'efficiency', 'energy', 'accuracy',
                                'thresholds-rsp', 'paradigms')
    assert all(path.exists() for path in drawn)


@pytest.mark.long
def test_several_runs_are_drawn_like_a_comparison(comparison, tmp_path):
    runs = sorted(comparison.glob('RSP-*/seed1'))
    assert 'accuracy.png' in names(draw_comparison(runs, tmp_path))


def test_several_comparisons_are_small_multiples(comparison, tmp_path):
    other = compared(tmp_path / 'x2', ['bsp', 'rsp:4'], seeds=(1,))
    assert names(draw_comparison([comparison, other], tmp_path)) == both('sensitivity')


def test_runs_and_comparisons_are_not_mixed(comparison):
    with pytest.raises(RecordError, match='draw them apart'):
        draw_comparison([comparison, comparison / 'BSP' / 'seed1'])


@pytest.mark.long
def test_equal_records_are_equal_files_and_matplotlib_is_left_alone(comparison, drawn, tmp_path):
    settings = dict(matplotlib.rcParams)
    for one, other in zip(drawn, draw_comparison([comparison], tmp_path), strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert b'<dc:date>' not in one.read_bytes()
    assert dict(matplotlib.rcParams) == settings


def test_single_figures_are_as_wide_as_a_column(drawn):
    for path in drawn:
        if path.suffix == '.png':
            width = struct.unpack('>I', path.read_bytes()[16:20])[0] / 300
            assert width == (plot_style.PAGE if path.stem == 'comparison' else plot_style.COLUMN)


@pytest.mark.long
def test_text_is_of_seven_points_at_least_and_inside_its_figure(comparison, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(style, 'save', lambda figure, *_: figures.append(figure) or [])
    draw_comparison([comparison], tmp_path)
    draw_run(comparison / 'RSP-4' / 'seed1')
    with plot_style.styled():
        for figure in figures:
            figure.draw_without_rendering()
            ticks = {label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
                     for tick in axis.get_major_ticks() for label in (tick.label1, tick.label2)}
            for text in (t for t in figure.findobj(Text) if t.get_text() and t.get_visible()):
                assert text.get_fontsize() >= 7
                box = text.get_window_extent()
                inside = box.x0 >= -1 and box.x1 <= figure.bbox.width + 1
                assert inside or text in ticks  # labels outside of the limits are not drawn
    assert len(figures) == 9


def test_a_look_depends_on_the_name_alone_and_tells_methods_apart():
    methods = ['bsp', 'ssp:4', 'ssp:20', 'dssp:3:15', 'flown', 'asp', 'rsp:4', 'rsp:20', 'rsp:auto',
               'rsp:4+pipeline', 'rsp:4+sparse', 'rsp:4+pipeline+sparse', 'rsp:4-order']
    looks = [style.look(sync) for sync in methods]
    assert looks == [style.look(sync) for sync in methods]
    assert len({(look.color, str(look.dashes)) for look in looks}) == len(methods)
    light, dark = (np.mean(to_rgb(style.look(sync).color)) for sync in ('rsp:4', 'rsp:40'))
    assert light > dark


@pytest.mark.parametrize(('sync', 'text'), [
    ('bsp', 'BSP'), ('ssp:4', 'SSP-4'), ('dssp:3:15', 'DSSP-3-15'),
    ('rsp:4+pipeline', 'RSP-4+pipeline'), ('rsp:4-order', 'RSP-4\N{MINUS SIGN}order'),
    ('dgh-gc', 'DGH-GC')])
def test_methods_are_labelled_as_in_the_papers(sync, text):
    assert style.label(sync) == text


def test_labels_at_the_margin_stay_apart_and_in_order():
    with plot_style.styled():
        figure = plot_style.new_figure(3.4, 2.1)
        axes = figure.subplots()
        axes.set_ylim(0, 1)
        style.end_labels(axes, [(.9, 'c', 'k'), (.5, 'a', 'k'), (.501, 'b', 'k'), (.99, 'd', 'k')])
        figure.draw_without_rendering()
        boxes = {t.get_text(): t.get_window_extent() for t in axes.texts}
        middles = [(boxes[name].y0 + boxes[name].y1) / 2 for name in 'abcd']
        assert all(np.diff(middles) > .95 * 7 * figure.dpi / 72)
