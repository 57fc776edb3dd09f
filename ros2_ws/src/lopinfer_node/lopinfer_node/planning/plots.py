"""Figures: the timeline of a plan, latency over bandwidth, and the phases of a request.

The figures correspond to Figures 4.15, 4.17 and 4.16 of the thesis. No display is necessary. The
suffix of the file selects PNG, SVG or PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.plot_style import PAGE, new_figure, styled
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.patches import Patch

from ..model.graph import Graph, Kind
from .plan import DEVICE, SERVER
from .timeline import Segment, Timeline

# Each row has the name of a class of operators, its colour, and words. An operator belongs to
# the first class with a word that is a part of the operator's name. Colour-blind people can
# distinguish the colours.
_CLASSES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ('convolution', '#0072b2', ('conv',)),
    ('normalisation', '#e69f00', ('norm',)),
    ('pooling', '#009e73', ('pool', 'interpolate', 'upsample')),
    ('matrix', '#d55e00', ('linear', 'mm', 'matmul', 'attention', 'embedding')),
    ('layout', '#999999', ('cat', 'permute', 'transpose', 'reshape', 'view', 'flatten', 'slice',
                           'squeeze', 'select', 'getitem', 'setitem', 'pad', 'chunk', 'split')),
    ('element-wise', '#56b4e9', ('',)))
_TRANSFER, _PATH = '#cc79a7', '#000000'
_ROWS = ('robot', 'uplink', 'downlink', 'server')
_METHODS: Mapping[str, tuple[str, Any]] = {
    'device-only': ('#000000', (0, (1.2, 1))), 'server-only': ('#999999', (0, (4, 1.2))),
    'neurosurgeon': ('#e69f00', (0, (5, 1, 1, 1))), 'dsccs': ('#56b4e9', '-'),
    'spso-ga': ('#009e73', (0, (2.5, 1))), 'lopinfer': ('#d55e00', '-')}
_OTHER = ('#cc79a7', '-')
_PHASES = (('robot computes', '#0072b2'), ('transfer', '#cc79a7'), ('server computes', '#e69f00'),
           ('overlap', '#009e73'), ('nobody busy (propagation)', '#dddddd'))


@dataclass(frozen=True)
class View:
    """One timeline in a figure, with the method and the `bandwidth` in bytes/s."""

    method: str
    bandwidth: float
    timeline: Timeline


def draw_timeline(graph: Graph, views: Sequence[View], path: str | Path) -> None:
    """Draw what robot, link and server do during one inference, one panel per plan.

    Operators are boxes in the colour of their class. A transfer shows its size if there is room.
    The black line follows the critical path. All panels share the time axis.

    :raises ValueError: there is no plan, or a plan never ends.
    """
    if not views or not all(np.isfinite(v.timeline.latency) for v in views):
        raise ValueError('a picture needs at least one plan, and only plans that end')
    end = max(v.timeline.latency for v in views) * 1e3
    with styled():
        figure = new_figure(PAGE, .45 + 1.2 * len(views))
        panels = np.atleast_1d(figure.subplots(len(views), sharex=True))
        panels[0].set_xlim(0, end * 1.01)   # sets the limits of all panels, which share the axis
        figure.draw_without_rendering()     # widths of texts and boxes are known from here on
        for axes, view in zip(panels, views, strict=True):
            _panel(axes, graph, view)
        panels[-1].set_xlabel('time (ms)')
        used = {operator_class(n.op)[0] for n in graph.nodes if n.kind is Kind.OPERATOR}
        handles = [Patch(color=color, label=name) for name, color, _ in _CLASSES if name in used]
        handles.append(Patch(color=_TRANSFER, label='transfer'))
        handles.append(Patch(facecolor='none', edgecolor=_PATH, label='critical path'))
        figure.legend(handles=handles, loc='outside lower center', ncols=len(handles))
        figure.savefig(path, dpi=200)


def draw_bandwidth(bandwidths: Sequence[float], latencies: Mapping[str, Sequence[float]],
                   path: str | Path, title: str = '') -> None:
    """Draw latency over bandwidth, one line per method.

    :param bandwidths: (n,) bytes/s.
    :param latencies: per method (n,) seconds; infinite values are not drawn.
    """
    with styled():
        figure = new_figure(PAGE / 2, 2.4)
        axes = figure.subplots()
        shown: list[float] = []
        for method, seconds in latencies.items():
            color, dashes = _METHODS.get(method, _OTHER)
            values = np.where(np.isfinite(seconds), seconds, np.nan) * 1e3
            axes.plot(np.asarray(bandwidths) / 1e6, values, color=color, linestyle=dashes,
                      label=method, linewidth=1.8 if method == 'lopinfer' else 1.1,
                      zorder=3 if method == 'lopinfer' else 2)
            shown += [float(np.nanmax(values))] if method != 'server-only' else []
        # Ignore server-only for this limit: at 1 MB/s it takes so long that the other lines would
        # be flat.
        axes.set_ylim(0, 1.25 * max(shown) if shown else None)
        axes.set_xlim(0, max(bandwidths) / 1e6)
        axes.set_xlabel('bandwidth (MB/s)')
        axes.set_ylabel('latency (ms)')
        axes.set_title(title, loc='left')
        figure.legend(loc='outside lower center', ncols=3)
        figure.savefig(path, dpi=200)


def draw_measured(rates: Mapping[float, Mapping[str, tuple[float, float]]], path: str | Path,
                  title: str = '') -> None:
    """Draw measured requests: one group of bars per bandwidth, a line at the expected latency.

    :param rates: maps each bandwidth, in bytes/s, to a mapping from method to (measured, expected)
        latency in seconds; NaN means that a latency is unknown.
    """
    methods = list(dict.fromkeys(m for found in rates.values() for m in found))
    width = .8 / len(methods)
    with styled():
        figure = new_figure(PAGE / 2, 2.4)
        axes = figure.subplots()
        for k, method in enumerate(methods):
            at = np.arange(len(rates)) + (k - (len(methods) - 1) / 2) * width
            values = np.array([found.get(method, (np.nan, np.nan)) for found in rates.values()])
            axes.bar(at, values[:, 0] * 1e3, width * .92, label=method,
                     color=_METHODS.get(method, _OTHER)[0])
            axes.hlines(values[:, 1] * 1e3, at - width / 2, at + width / 2, color=_OTHER[0],
                        linewidth=1.2, label='expected' if method == methods[-1] else '')
        axes.set_xticks(range(len(rates)), [f'{rate / 1e6:g}' for rate in rates])
        axes.set_xlabel('bandwidth (MB/s)')
        axes.set_ylabel('latency (ms)')
        axes.set_title(title, loc='left')
        axes.grid(axis='x', visible=False)
        figure.legend(loc='outside lower center', ncols=3)
        figure.savefig(path, dpi=200)


def draw_breakdown(timelines: Mapping[str, Timeline], path: str | Path, title: str = '') -> None:
    """Draw where the time of one request goes: one bar per method, divided into its phases."""
    with styled():
        figure = new_figure(PAGE / 2 + 1, .9 + .3 * len(timelines))
        axes = figure.subplots()
        parts = np.array([phases(t) for t in timelines.values()]) * 1e3
        left = np.zeros(len(parts))
        at = np.arange(len(parts))
        for (name, color), width in zip(_PHASES, parts.T, strict=True):
            axes.barh(at, width, .62, left, color=color, label=name)
            left += width
        for y, total in zip(at, left, strict=True):
            axes.annotate(f'{total:.0f}', (total, y), (3, 0), textcoords='offset points',
                          va='center')
        axes.set_yticks(at, list(timelines))
        axes.invert_yaxis()
        axes.grid(axis='y', visible=False)
        axes.set_xlim(0, 1.1 * left.max())
        axes.set_xlabel('time of a request (ms)')
        axes.set_title(title, loc='left')
        figure.legend(loc='outside lower center', ncols=3)
        figure.savefig(path, dpi=200)


def phases(timeline: Timeline) -> list[float]:
    """Return how long each phase lasts: five durations in seconds, which add up to the latency.

    In order: only the robot computes; only the link carries bytes; only the server computes; at
    least two of these three are busy; none of them is busy.
    """
    spans = [np.stack([timeline.start[side], timeline.end[side]], 1) for side in (DEVICE, SERVER)]
    spans = [spans[DEVICE], timeline.transfers[:, 1:3], spans[SERVER]]
    spans = [np.minimum(s[~np.isnan(s[:, 0])], timeline.latency) for s in spans]
    times = np.unique(np.concatenate([[0.0, timeline.latency], *(s.ravel() for s in spans)]))
    middle, length = (times[1:] + times[:-1]) / 2, np.diff(times)
    busy = np.array([[((s[:, 0] < t) & (t < s[:, 1])).any() for t in middle] for s in spans])
    count = busy.sum(0)
    alone = [float(length[b & (count == 1)].sum()) for b in busy]
    return [*alone, float(length[count > 1].sum()), float(length[count == 0].sum())]


def operator_class(op: str) -> tuple[str, str]:
    """Return name and colour of the class to which an ATen operator belongs."""
    return next((name, color) for name, color, words in _CLASSES
                if any(word in op.lower() for word in words))


def _panel(axes: Axes, graph: Graph, view: View) -> None:
    timeline = view.timeline
    colors = [operator_class(n.op)[1] for n in graph.nodes]
    for side, row in ((DEVICE, 0), (SERVER, 3)):
        ran = [n.index for n in graph.nodes if n.kind is Kind.OPERATOR
               and timeline.end[side, n.index] > timeline.start[side, n.index]]
        _boxes(axes, timeline.start[side, ran], timeline.end[side, ran], row,
               [colors[v] for v in ran])
    for transfer, (_, start, end, arrival) in zip(timeline.plan.transfers, timeline.transfers,
                                                  strict=True):
        row = 1 if transfer.source == DEVICE else 2
        _boxes(axes, [start], [end], row, [_TRANSFER])
        axes.plot([end * 1e3, arrival * 1e3], [row, row], color=_TRANSFER, linewidth=.7)
    _label_transfers(axes, timeline)
    _draw_path(axes, timeline.critical_path)
    axes.set_ylim(3.6, -.6)
    axes.set_yticks(range(4), _ROWS)
    axes.grid(axis='y', visible=False)
    axes.tick_params(axis='y', length=0)
    axes.set_title(f'{view.method} at {view.bandwidth / 1e6:.3g} MB/s: '
                   f'{timeline.latency * 1e3:.1f} ms, {timeline.bytes / 1e3:.0f} kB, '
                   f'{timeline.hidden:.0%} of the transfer hidden', loc='left')


def _boxes(axes: Axes, start: Any, end: Any, row: int, colors: list[str]) -> None:
    start, end = np.asarray(start) * 1e3, np.asarray(end) * 1e3
    corners = [[(a, row - .36), (b, row - .36), (b, row + .36), (a, row + .36)]
               for a, b in zip(start, end, strict=True)]
    # A white edge separates wide boxes, but it would cover narrow boxes.
    wide = end - start > axes.get_xlim()[1] / 400
    edges = ['white' if w else c for w, c in zip(wide, colors, strict=True)]
    axes.add_collection(PolyCollection(corners, facecolors=colors, edgecolors=edges,
                                       linewidths=np.where(wide, .15, .05)))


def _label_transfers(axes: Axes, timeline: Timeline) -> None:
    """Write the size into each transfer that has room for it."""
    width = axes.get_window_extent().width / axes.figure.dpi * 72   # width of the panel in points
    per_ms = width / (axes.get_xlim()[1] - axes.get_xlim()[0])
    for transfer, (_, start, end, _) in zip(timeline.plan.transfers, timeline.transfers,
                                            strict=True):
        text = f'{transfer.bytes / 1e3:.3g} kB' if transfer.bytes < 1e6 \
            else f'{transfer.bytes / 1e6:.3g} MB'
        if (end - start) * 1e3 * per_ms > 3.6 * len(text):
            axes.text((start + end) * 500, 1 if transfer.source == DEVICE else 2, text,
                      ha='center', va='center_baseline', fontsize=6.5)


def _draw_path(axes: Axes, path: Sequence[Segment]) -> None:
    """Outline each connected part of the critical path on its row; join the parts by lines."""
    stretches: list[tuple[int, float, float]] = []
    for segment in path:
        row = (0 if segment.side == DEVICE else 3) if segment.transfer < 0 \
            else (1 if segment.side == DEVICE else 2)
        if stretches and stretches[-1][0] == row:
            stretches[-1] = row, stretches[-1][1], segment.end * 1e3
        else:
            stretches.append((row, segment.start * 1e3, segment.end * 1e3))
    lines = [[(a, row - .36), (b, row - .36), (b, row + .36), (a, row + .36), (a, row - .36)]
             for row, a, b in stretches]
    for (row, _, end), (following, start, _) in zip(stretches, stretches[1:], strict=False):
        down = .36 if following > row else -.36
        lines.append([(end, row + down), (start, following - down)])
    axes.add_collection(LineCollection(lines, colors=_PATH, linewidths=.9, zorder=4))
