"""Figures of the studies, drawn like the figures in the papers on GSGM and DGH-GC."""

from __future__ import annotations

import re
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env import plot_style
from fleet_env.errors import RecordError
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rog_sim.comparison import COMPARISON_FILE, Comparison, Spread, read_comparison
from rog_sim.figures import panels, style
from rog_sim.figures.methods import methods_legend, methods_of


def draw_study(directory: str | PathLike[str], out: str | PathLike[str] | None = None
               ) -> list[Path]:
    """Draw the cases of a study and return the paths of the figures.

    curves-MODEL       accuracy over time, a column for each number of learners (GSGM, figures 6, 7)
    stability-MODEL    stability of every method, see `MethodResult`
    fluctuation-MODEL  fluctuation of every method, see `MethodResult`
    times              mean iteration time of each scheme (DGH-GC, figure 6)
    periods            mean iteration time for each period of regrouping (period in rounds)
    groups             mean iteration time for each number of groups (figure 7, tables 3 and 4)
    sparsity           accuracy for each sparsity (figure 8)
    convergence        accuracy over rounds, with and without compression (figure 9)

    :param out: directory for the figures; default: ``directory``.
    :raises RecordError: the directory has no case, or a case cannot be read.
    """
    base = Path(directory)
    cases = {path.parent.name: read_comparison(path.parent)
             for path in sorted(base.glob(f'*/{COMPARISON_FILE}'))}
    if not cases:
        raise RecordError('holds no case of a study', str(base))
    target = Path(out or base)
    paths = []
    with plot_style.styled():
        learners = _some(cases, r'(\w*net5?|noisy)-\d+')
        for model in dict.fromkeys(name.rpartition('-')[0] for name in learners):
            paths += _draw_learners(base, model, _some(cases, f'{model}-\\d+'), target)
        for name, pattern in (('times', 'time-.*'), ('periods', 'period-.*'),
                              ('groups', 'groups-.*')):
            if found := _some(cases, pattern):
                paths += _draw_bars(found, target, name)
        if found := _some(cases, 'sparsity-.*'):
            paths += _draw_sparsity(found, target)
            paths += _draw_convergence(base, found, target)
    return paths


def _some(cases: dict[str, Comparison], pattern: str) -> dict[str, Comparison]:
    found = {name: c for name, c in cases.items() if re.fullmatch(pattern, name)}
    return dict(sorted(found.items(), key=lambda item: [
        int(part) if part.isdigit() else part for part in re.split(r'(\d+)', item[0])]))


def _columns(count: int, height: float) -> tuple[Figure, NDArray[Any]]:
    figure = plot_style.new_figure(plot_style.COLUMN if count == 1 else plot_style.PAGE, height)
    return figure, figure.subplots(1, count, sharey=True, squeeze=False)[0]


def _draw_learners(base: Path, model: str, cases: dict[str, Comparison], out: Path) -> list[Path]:
    figure, columns = _columns(len(cases), 2.1)
    every: panels.Methods = {}
    for axes, (name, comparison) in zip(columns, cases.items(), strict=True):
        methods = methods_of(base / name, comparison)
        panels.draw_accuracy(axes, methods)
        axes.set_title(f'{comparison.robots} learners')
        every.update(methods)
        if axes is not columns[0]:
            axes.set_ylabel('')
    methods_legend(figure, every)
    paths = style.save(figure, out, f'curves-{model}')
    for measure, text in (('stability', 'ln of the deviation of accuracy'),
                          ('fluctuation', 'ln of the deviation of its differences')):
        figure, columns = _columns(len(cases), 1.7)
        for axes, comparison in zip(columns, cases.values(), strict=True):
            _dots(axes, comparison, measure)
            axes.set(title=f'{comparison.robots} learners', xlabel=text)
        columns[0].invert_yaxis()
        paths += style.save(figure, out, f'{measure}-{model}')
    return paths


def _dots(axes: Axes, comparison: Comparison, measure: str) -> None:
    for y, method in enumerate(comparison.methods):
        value: Spread = getattr(method, measure)
        axes.errorbar(value.mean, y, xerr=_std(value), fmt='o', ms=3,
                      color=style.look(method.sync).color, elinewidth=.8, capsize=1.5)
    axes.set_yticks(range(len(comparison.methods)),
                    [style.label(method.sync) for method in comparison.methods])


def _std(value: Spread) -> float:
    return value.std if np.isfinite(value.std) else 0.0


def _draw_bars(cases: dict[str, Comparison], out: Path, name: str) -> list[Path]:
    figure, columns = _columns(len(cases), 1.9)
    for axes, (case, comparison) in zip(columns, cases.items(), strict=True):
        for x, method in enumerate(comparison.methods):
            axes.bar(x, method.round_s.mean, yerr=_std(method.round_s), width=.7, capsize=1.5,
                     color=style.look(method.sync).color, error_kw={'elinewidth': .7})
        axes.set_xticks(range(len(comparison.methods)),
                        [style.label(m.sync) for m in comparison.methods], rotation=60)
        axes.grid(axis='x', visible=False)
        axes.set_title(_title(case))
    columns[0].set_ylabel('s per iteration')
    return style.save(figure, out, name)


def _title(case: str) -> str:
    _, group, *model = case.split('-')
    return ', '.join([f'group {group.upper()}', *model])


def _draw_sparsity(cases: dict[str, Comparison], out: Path) -> list[Path]:
    figure, columns = _columns(len(cases), 1.9)
    for axes, (case, comparison) in zip(columns, cases.items(), strict=True):
        whole, *others = comparison.methods
        axes.axhline(100 * whole.accuracy_after.mean, color='gray', lw=.8, ls=':', label='raw')
        for ending, text, color in (('', 'with feedback', 'C0'),
                                    (' no feedback', 'without', 'C3')):
            chosen = [m for m in others if re.fullmatch(r'[\d.]+' + ending, m.sync)]
            axes.errorbar([float(m.sync.split()[0]) for m in chosen],
                          [100 * m.accuracy_after.mean for m in chosen],
                          [100 * _std(m.accuracy_after) for m in chosen],
                          marker='o', ms=2.5, color=color, label=text, elinewidth=.7)
        axes.set(xscale='log', xlabel='sparsity p', title=_title(case))
    columns[0].set_ylabel(f'accuracy after {comparison.rounds} rounds, %')
    columns[0].legend()
    return style.save(figure, out, 'sparsity')


def _draw_convergence(base: Path, cases: dict[str, Comparison], out: Path) -> list[Path]:
    figure, columns = _columns(len(cases), 1.9)
    for axes, (case, comparison) in zip(columns, cases.items(), strict=True):
        methods = methods_of(base / case, comparison)
        at = np.linspace(0, comparison.rounds, panels.POINTS)
        for label, color in (('raw', 'black'), ('0.05', 'C0'), ('0.05 no feedback', 'C3')):
            if label in methods:
                curves = 100 * np.array([run.accuracy_after(at) for run in methods[label]])
                axes.plot(at, curves.mean(0), color=color, label=label)
        axes.set(xlabel='rounds', title=_title(case))
    columns[0].set_ylabel('accuracy, %')
    columns[0].legend()
    return style.save(figure, out, 'convergence')
