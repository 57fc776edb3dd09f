"""The style of all figures of the suite: sizes and fonts, as in a two-column paper.

This module works without a display. Its import raises PackageError without matplotlib, which only
pictures need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fleet_env.errors import PackageError

try:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
except ImportError as error:
    raise PackageError('pictures need the package matplotlib: pip install matplotlib') from error

COLUMN = 3.4  # width of a column of a two-column paper in inches
PAGE = 7.0    # width of both columns in inches
_STYLE: Any = {
    'font.size': 7.5, 'axes.titlesize': 8, 'axes.labelsize': 7.5, 'legend.fontsize': 7,
    'xtick.labelsize': 7, 'ytick.labelsize': 7, 'lines.linewidth': 1.1, 'axes.linewidth': .6,
    'xtick.major.width': .6, 'ytick.major.width': .6, 'xtick.major.size': 2.5,
    'ytick.major.size': 2.5, 'axes.spines.top': False, 'axes.spines.right': False,
    'axes.grid': True, 'grid.linewidth': .4, 'grid.color': '#e4e4e4', 'axes.axisbelow': True,
    'legend.frameon': False, 'legend.handlelength': 1.5, 'legend.columnspacing': 1.0,
    'legend.handletextpad': .4, 'legend.borderaxespad': .2,
    'svg.hashsalt': 'rog', 'axes.formatter.useoffset': False}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style of this module in the context; restore matplotlib's style afterwards."""
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, independent of pyplot's global state."""
    figure = Figure(figsize=(width, height), layout='constrained')
    FigureCanvasAgg(figure)
    return figure
