"""Draws the panels of figures: for each method, the mean over seeds and a band around this mean.

Every panel takes a dict that maps each method to its runs, with one run per seed. The band shows
the standard deviation.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from rog_sim.measure import Run

from .style import STATES, label, look

Methods = dict[str, list[Run]]
POINTS = 241  # number of points of a curve; enough for the width of a page


def draw_composition(axes: Axes, methods: Methods) -> None:
    """Draw the average time composition of an iteration as stacked bars (ROG, figure 1a)."""
    parts = np.array([[[sum(getattr(r, f'{state}_s') for r in run.summary.robots.values())
                        / max(sum(r.iterations for r in run.summary.robots.values()), 1)
                        for state in STATES] for run in runs] for runs in methods.values()])
    left = np.zeros(len(methods))
    for index, (state, color) in enumerate(STATES.items()):
        width = parts[:, :, index].mean(1)
        axes.barh(range(len(methods)), width, left=left, color=color, label=state, height=.72)
        left += width
    totals = parts.sum(2)
    spread = totals.std(1, ddof=1) if totals.shape[1] > 1 else np.zeros(len(methods))
    axes.errorbar(left, range(len(methods)), xerr=spread, fmt='none', ecolor='#333333',
                  elinewidth=.7, capsize=1.5, capthick=.7)
    for y, end in enumerate(left + spread):
        stall = parts[y, :, 2].mean() / max(totals[y].mean(), 1e-9)
        axes.annotate(f'{100 * stall:.0f} %', (end, y), (3, 0), textcoords='offset points',
                      va='center', fontsize=7, color=STATES['stall'])
    axes.set_yticks(range(len(methods)), [label(sync) for sync in methods])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.13 * max((left + spread).max(), 1e-9))
    axes.grid(axis='y', visible=False)
    axes.set_xlabel('s per iteration (number: share of stall)')


def draw_accuracy(axes: Axes, methods: Methods) -> list[tuple[float, str]]:
    """Draw the accuracy over time (ROG, figure 1c).

    :returns: for each curve a tuple: the last accuracy in %, and the method.
    """
    duration = min(run.duration for runs in methods.values() for run in runs)
    times = np.linspace(0, duration, POINTS)
    unit, scale = ('min', 60) if duration >= 300 else ('s', 1)
    ends = []
    for sync, runs in methods.items():
        mean = _band(axes, sync, times / scale,
                     100 * np.array([run.accuracy(times) for run in runs]))
        ends.append((float(mean[-1]), sync))
    axes.set(xlabel=f'time, {unit}', ylabel='accuracy, %', xlim=(0, duration / scale))
    return ends


def draw_efficiency(axes: Axes, methods: Methods) -> None:
    """Draw the accuracy over the iterations of a robot (ROG, figure 1b)."""
    for sync, runs in methods.items():
        last = min(max((e[1] for e in robot.evaluations), default=0)
                   for run in runs for robot in run.summary.robots.values())
        at = np.linspace(0, last, POINTS)
        _band(axes, sync, at, 100 * np.array([run.accuracy_after(at) for run in runs]))
    axes.set(xlabel='iterations', ylabel='accuracy, %', xlim=(0, None))


def draw_energy(axes: Axes, methods: Methods) -> None:
    """Draw the energy of a robot until an accuracy is first reached (ROG, figure 1d)."""
    low, high = 1.0, 0.0
    for runs in methods.values():
        for run in runs:
            curve = run.accuracy(np.linspace(0, run.duration, POINTS))
            low, high = np.nanmin([low, *curve]), np.nanmax([high, *curve])
    levels = np.linspace(low, high, POINTS) if high > low else np.array([low])
    most = [run.energy_at(run.duration) for runs in methods.values() for run in runs]
    unit, scale = ('kJ', 1000) if max(most) >= 2000 else ('J', 1)
    for sync, runs in methods.items():
        _band(axes, sync, 100 * levels,
              np.array([run.energy_at(run.reached(levels)) for run in runs]) / scale)
    axes.set(xlabel='accuracy, %', ylabel=f'energy of a robot, {unit}', ylim=(0, None))


def _band(axes: Axes, sync: str, x: NDArray[np.float64], values: NDArray[np.float64]) \
        -> NDArray[np.float64]:
    """Draw mean and band of ``values`` [seeds, n]; return the mean.

    The curve has a gap where the value of a seed is NaN.
    """
    style = look(sync)
    mean = values.mean(0)
    if len(values) > 1:
        spread = values.std(0, ddof=1)
        axes.fill_between(x, mean - spread, mean + spread, color=style.color, alpha=.15, lw=0)
    axes.plot(x, mean, color=style.color, ls=style.dashes)
    return mean
