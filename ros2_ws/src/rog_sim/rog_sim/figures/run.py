"""Figures of one run: an overview, the moment when a robot is furthest behind, and the map."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env import plot_style
from fleet_env.records.events import Evaluation, Event, Fault, Iteration, read_run
from fleet_env.records.summary import Summary, read_summary
from matplotlib.axes import Axes

from rog_sim.model_outputs import SERVER, ModelOutputs, read_model_outputs

from . import style

WINDOW = 30  # number of iterations that the figure `micro` shows before and after the largest lag


def draw_run(directory: str | PathLike[str], out: str | PathLike[str] | None = None) -> list[Path]:
    """Draw the figures of the run in ``directory`` and return their paths.

    run      accuracy, link rate and share of rows over time, for each robot; time per iteration
    micro    the robot with the largest lag behind the fastest robot, around the moment of this lag:
             its link rate, its share of rows sent, and its lag in iterations
    map      for a task that makes a map: the map from above, its heights, and the true and
             estimated paths of the robots

    :param out: directory for the figures; default: ``directory``.
    :raises RecordError: the records cannot be read.
    """
    events, summary = read_run(directory), read_summary(directory)
    target = Path(out or directory)
    with plot_style.styled():
        paths = _draw_overview(events, summary, target)
        if any(isinstance(e, Iteration) and e.rows_total for e in events):
            paths += _draw_micro(events, summary, target)
        outputs = read_model_outputs(Path(directory))
        if 'top' in outputs.get(SERVER, {}):
            paths += _draw_map(outputs, summary, target)
    return paths


def _draw_map(outputs: ModelOutputs, summary: Summary, out: Path) -> list[Path]:
    """Draw colours and heights of the map from above, and the paths of the robots on it."""
    seen = outputs[SERVER]
    figure = plot_style.new_figure(plot_style.PAGE, 3.2)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    left.imshow(seen['top'], origin='lower', extent=seen['extent'])
    left.set_title(_title(summary, 'map'), loc='left')
    heights = np.where(np.isfinite(seen['height']), seen['height'], np.nan)
    shades = right.imshow(heights, origin='lower', extent=seen['extent'], cmap='viridis')
    figure.colorbar(shades, ax=right, label='height, m', shrink=.8)
    for index, robot in enumerate(sorted(outputs.keys() - {SERVER})):
        for name, dashes in (('truth', ':'), ('estimate', '-')):
            for axis in (left, right):
                axis.plot(*outputs[robot][name][:, :2].T, color=f'C{index % 10}', ls=dashes,
                          label=f'{robot}, {name}')
    for axis in (left, right):
        axis.grid(visible=False)
        axis.set_xlabel('x, m')
    left.set_ylabel('y, m')
    figure.legend(*left.get_legend_handles_labels(), loc='outside lower center', ncols=3)
    return style.save(figure, out, 'map')


def _draw_overview(events: list[Event], summary: Summary, out: Path) -> list[Path]:
    robots = sorted(summary.robots)
    figure = plot_style.new_figure(7, 8.6)
    axes = figure.subplots(4, 1, height_ratios=[1.3, 1, 1, .3 + .1 * len(robots)])
    axes[0].set_title(_title(summary, 'fleet'), loc='left')
    for axis in axes[1:3]:
        axis.sharex(axes[0])
    for index, robot in enumerate(robots):
        color = f'C{index % 10}'
        measured = _of(events, Evaluation, robot)
        axes[0].plot([0, *(e.t for e in measured)],
                     [100 * m for m in (summary.robots[robot].accuracy.before,
                                        *(e.metric for e in measured))],
                     marker='.', ms=4, lw=1, color=color, label=robot)
        steps = _of(events, Iteration, robot)
        times = [e.t for e in steps]
        axes[1].plot(times, [e.rate for e in steps], color=color, lw=.8)
        axes[2].plot(times, [_share(e) for e in steps], color=color, lw=.8)
    if robots:
        accuracy = summary.robots[robots[0]].accuracy
        shift = np.isfinite(accuracy.clean)
        for value, text in ((accuracy.clean, 'before the shift'),
                            (accuracy.before, 'after it' if shift else 'at the start')):
            if not np.isfinite(value):
                continue
            axes[0].axhline(100 * value, color='gray', ls=':', lw=1)
            axes[0].annotate(text, (1, 100 * value), xycoords=('axes fraction', 'data'),
                             xytext=(-2, 2), textcoords='offset points', color='gray', ha='right')
        figure.legend(*axes[0].get_legend_handles_labels(), loc='outside upper center', ncols=8)
    for index, fault in enumerate(e for e in events if isinstance(e, Fault)):
        axes[0].axvline(fault.t, color='red', lw=.8, ls='--')
        # Write the labels left and right of their lines in turn: events may follow closely.
        axes[0].annotate(f'{fault.robot} {fault.what}', (fault.t, 0), rotation=90, va='bottom',
                         xycoords=('data', 'axes fraction'), color='red',
                         ha=('right', 'left')[index % 2])
    axes[0].set_ylabel('accuracy, %')
    axes[0].set_ylim(top=105)
    axes[1].set_ylabel('link, Mbit/s')
    axes[1].set_ylim(bottom=0)
    axes[2].set(ylabel='rows in a push, %', ylim=(0, 105), xlabel='time, s')
    _draw_shares(axes[3], summary, robots)
    return style.save(figure, out, 'run')


def _draw_shares(axis: Axes, summary: Summary, robots: list[str]) -> None:
    """Draw the seconds per iteration for computing, communicating and waiting (ROG, figure 1)."""
    left = np.zeros(len(robots))
    for state, color in style.STATES.items():
        values = [getattr(summary.robots[r], f'{state}_s') / max(summary.robots[r].iterations, 1)
                  for r in robots]
        axis.barh(robots, values, left=left, label=state, color=color)
        left += values
    axis.invert_yaxis()
    axis.grid(axis='y', visible=False)
    axis.set_xlabel('s per iteration')
    axis.legend(ncols=3, loc='lower right', bbox_to_anchor=(1, 1))


def _draw_micro(events: list[Event], summary: Summary, out: Path) -> list[Path]:
    """Draw the robot that fell furthest behind, as figure 8 of the ROG paper does.

    The figure shows `WINDOW` iterations of this robot before and after the moment at which it was
    furthest behind.
    """
    steps = sorted((e for e in events if isinstance(e, Iteration)), key=lambda e: e.t)
    iterations = np.array([e.iteration for e in steps])
    behind = np.maximum.accumulate(iterations) - iterations
    worst = int(behind.argmax())
    robot = steps[worst].robot
    own = np.array([i for i, e in enumerate(steps) if e.robot == robot])
    middle = int(np.searchsorted(own, worst))
    own = own[max(0, middle - WINDOW):middle + WINDOW + 1]
    shown = [steps[i] for i in own]

    figure = plot_style.new_figure(plot_style.COLUMN, 2.7)
    axes = figure.subplots(3, 1, sharex=True)
    axes[0].set_title(f'{robot}, {style.label(summary.sync)}', loc='left')
    axes[0].set_xlim(shown[0].t, shown[-1].t + 1e-3)
    times = [e.t for e in shown]
    for axis, name, values, color in zip(
            axes, ('link,\nMbit/s', 'rows\nsent, %', 'iterations\nbehind'),
            ([e.rate for e in shown], [_share(e) for e in shown], behind[own]),
            (style.STATES['communicate'], style.STATES['compute'], style.STATES['stall']),
            strict=True):
        # An iteration's report covers the time since the previous iteration.
        axis.plot(times, values, color=color, drawstyle='steps-pre')
        axis.fill_between(times, values, step='pre', color=color, alpha=.2, lw=0)
        axis.set_ylim(0, 1.1 * max([1.0, *(v for v in values if v == v)]))
        axis.set_ylabel(name)
    axes[1].set(ylim=(0, 110), yticks=(0, 50, 100))
    axes[2].yaxis.get_major_locator().set_params(integer=True)
    axes[2].set_xlabel('time, s')
    figure.align_ylabels()
    return style.save(figure, out, 'micro')


def _title(summary: Summary, otherwise: str) -> str:
    seed = f', seed {summary.seed}' if summary.task else ''  # recorded statuses contain no seed
    return f'{summary.fleet or otherwise}: {style.label(summary.sync)}{seed}'


def _of(events: list[Event], kind: type, robot: str) -> list[Any]:
    return [e for e in events if isinstance(e, kind) and e.robot == robot]


def _share(event: Any) -> float:
    return 100 * event.rows_pushed / max(event.rows_total, 1)
