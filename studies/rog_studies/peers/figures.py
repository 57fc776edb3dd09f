"""Figure of a study of peers: accuracy over time, a panel for each scenario."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env import plot_style
from matplotlib.axes import Axes
from rog_sim.figures import style

from .environments import METHODS, PEERS
from .results import RESULT_FILE
from .study import PEERS_FILE

POINTS = 200  # number of points of a curve
# The colours of Okabe and Ito, which colour-blind people can tell apart. Programs with the same
# adapter share a colour; our suite is black.
_COLORS = ('#d55e00', '#0072b2', '#009e73', '#cc79a7', '#e69f00')
_LINES = ('-', '--', ':')


def draw_peers(out: Path) -> list[Path]:
    """Draw the figure ``accuracy``; return the paths of its files.

    A line is the mean over the seeds. The area around the line reaches from the lowest to the
    highest value of the seeds.
    """
    data = json.loads((out / PEERS_FILE).read_text())
    names = [name for name, one in data['programs'].items() if not one['missing']]
    styles = looks()
    cases = list(data['cases'])
    if not cases:
        return []
    with plot_style.styled():
        wide = min(len(cases), 3)
        rows = -(-len(cases) // wide)
        width = plot_style.COLUMN if wide == 1 else plot_style.PAGE
        figure = plot_style.new_figure(width, 2.2 * rows)
        panels = figure.subplots(rows, wide, sharey=True, squeeze=False)
        for axes in panels.flat[len(cases):]:
            axes.set_visible(False)
        for axes, scenario in zip(panels.flat, cases, strict=False):
            for name in names:
                _draw(axes, name, _results(out / scenario / name), styles[name])
            _mark(axes, out / scenario)
            axes.set(title=scenario, xlabel='time, min')
        for row in panels:
            row[0].set_ylabel('accuracy, %')
        handles, labels = panels.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc='outside lower center', ncols=4)
        return style.save(figure, out, 'accuracy')


def _results(place: Path) -> list[dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in sorted(place.glob(f'seed*/{RESULT_FILE}'))]
    return [one for one in found if one['started']]


def looks() -> dict[str, dict[str, Any]]:
    """Return a dict: name of a program -> colour, style and width of its line."""
    families = [list(METHODS)] + [[name for name, peer in PEERS.items() if peer.adapter == adapter]
                                  for adapter in dict.fromkeys(p.adapter for p in PEERS.values())]
    return {name: {'color': color, 'ls': line, 'lw': 1.5 if name in METHODS else 1.0}
            for family, color in zip(families, ('black', *_COLORS), strict=True)
            for name, line in zip(family, _LINES, strict=False)}


def _draw(axes: Axes, name: str, results: list[dict[str, Any]], look: Mapping[str, Any]) -> None:
    if not results:
        axes.plot([], [], label=name, **look)
        return
    at = np.linspace(0, results[0]['duration_s'], POINTS)
    curves = 100 * np.array([_held(one['curve'], at) for one in results])
    axes.plot(at / 60, curves.mean(0), label=name, **look)
    if len(curves) > 1:
        axes.fill_between(at / 60, curves.min(0), curves.max(0), color=look['color'], alpha=.15,
                          lw=0)


def _held(curve: list[list[float]], at: np.ndarray) -> np.ndarray:
    """Return for each time in ``at`` the last accuracy that was measured until then."""
    times, values = np.array(curve).T
    held: np.ndarray = values[np.searchsorted(times, at, side='right') - 1]
    return held


def _mark(axes: Axes, place: Path) -> None:
    """Draw a vertical line at the time of each event of the scenario."""
    path = next(iter(sorted(place.glob(f'*/seed*/{RESULT_FILE}'))), None)
    for t, what, _ in json.loads(path.read_text())['events'] if path else []:
        axes.axvline(t / 60, color='#9a9a9a', lw=.7, ls=':' if what in ('start', 'link up') else
                     '--')
