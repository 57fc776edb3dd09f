"""Draws the runs of bench_rivals.py: ages of actions over time, and lost ticks.

    python draw_rivals.py runs.jsonl docs/images/policy-rivals.png

If a contestant has several runs over the same link, only the last run counts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from bench_rivals import ALONE, BIN, LEROBOT, OPENPI, OURS, OUTAGES
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Colours by Okabe and Ito, which colour-blind people can distinguish.
COLORS = {OURS: '#d55e00', LEROBOT: '#0072b2', OPENPI: '#009e73', ALONE: '#999999'}
STYLE: Any = {
    'font.size': 7.5, 'axes.titlesize': 8, 'axes.labelsize': 7.5, 'legend.fontsize': 7,
    'xtick.labelsize': 7, 'ytick.labelsize': 7, 'axes.spines.top': False,
    'axes.spines.right': False, 'axes.grid': True, 'grid.linewidth': .4, 'grid.color': '#e4e4e4',
    'axes.axisbelow': True, 'legend.frameon': False}

Runs = dict[tuple[str, str], dict[str, Any]]


def read(path: Path) -> Runs:
    """Return the runs by link and contestant; the name of the link is '' for the robot alone."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {(run['link'], run['who']): run for run in lines}


def draw_ages(axes: Axes, runs: Runs, link: str) -> None:
    for at, last in OUTAGES:
        axes.axvspan(at, at + last, color='#eeeeee', linewidth=0)
    for who, color in COLORS.items():
        run = runs.get((link, who)) or runs.get(('', who))
        if run:
            ages = np.array([np.nan if age is None else age for age in run['ages']])
            axes.plot(BIN * (np.arange(len(ages)) + 0.5), ages, color=color, label=who,
                      linewidth=1.4 if who == OURS else 1.0, zorder=3 if who == OURS else 2)
    axes.set_title(link, loc='left')
    axes.set_xlabel('s of the run; grey: no link')


def draw_lost(axes: Axes, runs: Runs, link: str) -> None:
    names = [who for who in COLORS if (link, who) in runs or ('', who) in runs]
    for row, who in enumerate(names):
        run = runs.get((link, who)) or runs['', who]
        share = 100 * run['lost_ticks'] / run['ticks']
        axes.barh(row, share, color=COLORS[who], height=.7)
        axes.text(share + 1, row, f'{run["lost_ticks"]}', va='center', fontsize=7)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - .5, -.5)
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis='y')
    axes.set_xlabel('% of ticks without an action')


def main() -> None:
    source, target = map(Path, sys.argv[1:])
    runs = read(source)
    links = list(dict.fromkeys(link for link, _ in runs if link))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.4), layout='constrained')
        FigureCanvasAgg(figure)
        panels = figure.subplots(2, len(links), sharex='row', sharey='row', squeeze=False,
                                 height_ratios=(2, 1))
        for k, link in enumerate(links):
            draw_ages(panels[0, k], runs, link)
            draw_lost(panels[1, k], runs, link)
        panels[0, 0].set_ylabel('age of the executed action (s)')
        panels[0, 0].set_ylim(0)
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc='outside lower center', ncols=len(handles))
        figure.savefig(target, dpi=200, metadata={'Software': None})


if __name__ == '__main__':
    main()
