"""Figures that compare methods, like the figures in the papers on ROG and DSSP."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path

from fleet_env import plot_style
from fleet_env.errors import RecordError
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rog_sim.comparison import COMPARISON_FILE, Comparison, read_comparison
from rog_sim.measure import read_run_measures

from . import panels, style
from .panels import Methods

PARADIGMS = ('bsp', 'ssp', 'asp', 'dssp')  # the paradigms that the DSSP paper compares


@dataclass(frozen=True)
class Group:
    """The runs that figures compare, from a comparison or from several directories of runs."""

    title: str
    methods: Methods


def draw_comparison(directories: Sequence[str | PathLike[str]],
                    out: str | PathLike[str] | None = None) -> list[Path]:
    """Draw figures of the records in ``directories``, and return the paths of the figures.

    If ``directories`` is one comparison (a directory with comparison.json), or several runs, the
    figures are:

    comparison   the next four figures in one, as wide as a page (ROG, figures 1 and 6)
    composition  time per iteration: computing, communicating, waiting
    efficiency   accuracy over iterations
    accuracy     accuracy over time
    energy       energy to reach an accuracy
    thresholds   accuracy over time, if a method has 3 or more thresholds (ROG, figure 10)
    paradigms    accuracy over time and over iterations, if there are at least two of the paradigms
                 bsp, ssp, asp and dssp; the curve of a paradigm is the average over its thresholds
                 (DSSP, figure 3)

    If ``directories`` is several comparisons, the figure is:

    sensitivity  accuracy over time and energy to reach an accuracy, for each comparison (ROG,
                 figure 9)

    :param out: directory for the figures; default: the given directory, or the common parent of
        several directories.
    :raises RecordError: records cannot be read, or runs and comparisons are mixed.
    """
    paths = [Path(directory) for directory in directories]
    if not paths:
        raise RecordError('there are no directories to draw')
    compared = [(path / COMPARISON_FILE).exists() for path in paths]
    if any(compared) and not all(compared):
        raise RecordError('is a run and another directory is a comparison; draw them apart',
                          str(paths[compared.index(False)]))
    parent = paths[0] if len(paths) == 1 else Path(os.path.commonpath(
        [path.absolute() for path in paths]))
    target = Path(out) if out is not None else parent
    with plot_style.styled():
        if all(compared) and len(paths) > 1:
            return _draw_sensitivity([_comparison(path) for path in paths], target)
        return _draw_methods(_comparison(paths[0]) if compared[0] else _runs(paths), target)


def _comparison(path: Path) -> Group:
    return Group(path.absolute().name, methods_of(path, read_comparison(path)))


def methods_of(path: Path, comparison: Comparison) -> Methods:
    """Read the runs of ``comparison`` from its directory ``path``.

    Return a dict from each method to its runs.
    """
    return {m.sync: [read_run_measures(path / run) for run in m.runs] for m in comparison.methods}


def _runs(paths: Sequence[Path]) -> Group:
    methods: Methods = {}
    for path in paths:
        run = read_run_measures(path)
        methods.setdefault(run.summary.sync, []).append(run)
    return Group('', methods)


def _draw_methods(group: Group, out: Path) -> list[Path]:
    methods = group.methods
    paths = _draw_all(methods, out)
    paths += _draw_one(out, 'composition', .9 + .17 * len(methods), _states_legend,
                       partial(panels.draw_composition, methods=methods))
    legend = partial(methods_legend, methods=methods)
    for name, draw in (('efficiency', panels.draw_efficiency), ('energy', panels.draw_energy)):
        paths += _draw_one(out, name, 2.3, legend, partial(draw, methods=methods))
    labelled = partial(_accuracy_with_labels, methods=methods)
    paths += _draw_one(out, 'accuracy', 2.1, None, labelled)
    families: dict[str, Methods] = {}
    for sync, runs in methods.items():
        name, _, options = style.parts(sync)
        if not options:
            families.setdefault(name, {})[sync] = runs
    for family, members in families.items():
        numbers = sorted((int(sync.partition(':')[2]), sync) for sync in members
                         if sync.partition(':')[2].isdigit())
        if len(numbers) >= 3:
            rising = {sync: members[sync] for _, sync in numbers}
            paths += _draw_one(out, f'thresholds-{family}', 2.1, None,
                               partial(_accuracy_with_labels, methods=rising))
    paradigms = {name: [run for runs in families[name].values() for run in runs]
                 for name in PARADIGMS if name in families}
    if len(paradigms) >= 2:
        paths += _draw_paradigms(paradigms, out)
    return paths


def _draw_all(methods: Methods, out: Path) -> list[Path]:
    figure = plot_style.new_figure(plot_style.PAGE, 4.4)
    (composition, efficiency), (accuracy, energy) = figure.subplots(2, 2)
    panels.draw_composition(composition, methods)
    panels.draw_efficiency(efficiency, methods)
    panels.draw_energy(energy, methods)
    for letter, axes in zip('abcd', (composition, efficiency, accuracy, energy), strict=True):
        axes.set_title(f'({letter})', loc='left')
    composition.legend(loc='lower left', bbox_to_anchor=(.1, .98), ncols=3, handlelength=.8,
                       columnspacing=.8)
    methods_legend(figure, methods)
    _accuracy_with_labels(accuracy, methods)  # last, because labels need the final layout
    return style.save(figure, out, 'comparison')


def _draw_paradigms(paradigms: Methods, out: Path) -> list[Path]:
    figure = plot_style.new_figure(plot_style.COLUMN, 1.9)
    over_time, over_iterations = figure.subplots(1, 2, sharey=True)
    panels.draw_accuracy(over_time, paradigms)
    panels.draw_efficiency(over_iterations, paradigms)
    over_iterations.set_ylabel('')
    methods_legend(figure, paradigms)
    return style.save(figure, out, 'paradigms')


def _draw_sensitivity(groups: list[Group], out: Path) -> list[Path]:
    """Draw a grid of small figures with a column for each comparison."""
    width = min(plot_style.PAGE, max(plot_style.COLUMN, 1.75 * len(groups)))
    figure = plot_style.new_figure(width, 3.3)
    grid = figure.subplots(2, len(groups), sharey='row', squeeze=False)
    every: Methods = {}
    for column, group in enumerate(groups):
        panels.draw_accuracy(grid[0, column], group.methods)
        panels.draw_energy(grid[1, column], group.methods)
        grid[0, column].set_title(group.title)
        every.update(group.methods)
        if column:
            grid[0, column].set_ylabel('')
            grid[1, column].set_ylabel('')
    methods_legend(figure, every)
    return style.save(figure, out, 'sensitivity')


def _draw_one(out: Path, name: str, height: float, legend: Callable[[Figure], None] | None,
              draw: Callable[[Axes], None]) -> list[Path]:
    figure = plot_style.new_figure(plot_style.COLUMN, height)
    draw(figure.subplots())
    if legend:
        legend(figure)
    return style.save(figure, out, name)


def _accuracy_with_labels(axes: Axes, methods: Methods) -> None:
    ends = panels.draw_accuracy(axes, methods)
    style.end_labels(axes, [(y, style.label(sync), style.look(sync).color) for y, sync in ends])


def methods_legend(figure: Figure, methods: Methods) -> None:
    """Draw a legend of the methods above the axes."""
    lines = [Line2D([], [], color=style.look(sync).color, ls=style.look(sync).dashes,
                    label=style.label(sync)) for sync in methods]
    letters = max(len(style.label(sync)) for sync in methods) + 6
    fit = max(1, int(17 * figure.get_figwidth() / letters))  # an inch holds 17 letters of 7 pt
    rows = -(-len(lines) // fit)
    figure.legend(handles=lines, loc='outside upper center', ncols=-(-len(lines) // rows))


def _states_legend(figure: Figure) -> None:
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc='outside upper center', ncols=3)
