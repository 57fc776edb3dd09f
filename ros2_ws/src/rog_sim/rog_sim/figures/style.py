"""Defines one colour for each method in all figures; writes labels and the files of figures."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

STATES = {'compute': '#4c9f70', 'communicate': '#5b8db8', 'stall': '#d1603d'}

# Maps each family of methods to its lightest and its darkest colour. Colour-blind people can
# distinguish the hues (after Okabe and Ito). Inside a family, the lightness shows the threshold, so
# thresholds can be distinguished even without colours.
_FAMILIES = {'bsp': ('#000000', '#000000'), 'ssp': ('#7ab8e6', '#053061'),
             'rsp': ('#f2a36e', '#8c1504'), 'dssp': ('#d59cc4', '#6b2a63'),
             'flown': ('#009e73', '#009e73'), 'asp': ('#c7a500', '#c7a500'),
             'gsgm': ('#5fc6c9', '#0b6e72'), 'dgh-gc': ('#c49a7a', '#5d3a1a'),
             'gc': ('#9a9a9a', '#9a9a9a'), 'hgc': ('#7ab8e6', '#7ab8e6'),
             'gcc': ('#d59cc4', '#d59cc4'), 'dcgc': ('#6b2a63', '#6b2a63'),
             'local': ('#5fc6c9', '#0b6e72'), 'diloco': ('#b5a6e3', '#4b2e9e')}
_AUTO = '#d6006e'  # colour of a method whose threshold changes during the run
# lightest and darkest colour of all families that `_FAMILIES` does not name
_OTHER = ('#9a9a9a', '#555555')
_DASHES: dict[str, Any] = {
    '': '-', '+pipeline': (0, (4, 1.2)), '+sparse': (0, (1.2, 1)),
    '+pipeline+sparse': (0, (5, 1, 1, 1)), '+early': (0, (2.5, 1)), '-order': (0, (7, 1.5)),
    '-timeout': (0, (2.5, 2)), '-minimum': (0, (1, 2)), ' lm': (0, (2, 1)),
    '-early': (0, (7, 1.5, 1, 1.5))}
_MIXED = (0, (5, 1, 1, 1, 1, 1))  # dashes for all sets of options that `_DASHES` does not name


@dataclass(frozen=True)
class Look:
    """Colour and dashes with which a method is drawn."""

    color: str
    dashes: Any


def look(sync: str) -> Look:
    """Return the look of the method ``sync``, which depends only on the name.

    The family determines the hue. The threshold determines the lightness; all thresholds from 40 on
    have the darkest colour. The options determine the dashes.
    """
    family, arguments, options = parts(sync)
    light, dark = (np.array(to_rgb(c)) for c in _FAMILIES.get(family, _OTHER))
    numbers = [float(a) for a in arguments if a.isdigit()]
    share = min(math.log(max(numbers[-1], 1)) / math.log(40), 1.0) if numbers else 0.6
    color = _AUTO if 'auto' in arguments else to_hex(light + share * (dark - light))
    return Look(color, _DASHES.get(options, _MIXED))


def parts(sync: str) -> tuple[str, list[str], str]:
    """Return family, arguments and options of a method.

    For ``rsp:4+sparse`` these are ``rsp``, ``['4']`` and ``+sparse``. A word that a study appends
    after a space, for example ``lm``, counts as an option.
    """
    match = re.match(r'([^:+ -]*(?:-gc)?)((?::[^:+ -]*)*)(.*)', sync)
    assert match is not None  # the pattern matches any text
    return match[1], match[2].split(':')[1:], match[3]


def label(sync: str) -> str:
    """Return the name of a method as papers write it, for example ``SSP-4`` for ``ssp:4``."""
    family, arguments, options = parts(sync)
    if family not in _FAMILIES:
        return sync  # the text is not a method but the label of a study
    return '-'.join([family.upper(), *arguments]) + options.replace('-', '−')


def save(figure: Figure, directory: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg, and return their paths; equal figures give equal files."""
    directory.mkdir(parents=True, exist_ok=True)
    png, svg = directory / f'{name}.png', directory / f'{name}.svg'
    figure.savefig(png, dpi=300, metadata={'Software': None})
    figure.set_layout_engine('none')  # keep the layout; computing it again takes long
    figure.savefig(svg, metadata={'Date': None})
    return [png, svg]


def end_labels(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write labels for curves at the right margin of the axes; labels do not overlap.

    :param ends: for each label a tuple: the y coordinate of the curve's end, the text and the
        colour.
    """
    ends = sorted(e for e in ends if math.isfinite(e[0]))
    figure = axes.get_figure(root=True)
    if not ends or figure is None:
        return
    figure.draw_without_rendering()                   # computes the layout and the axes' height
    low, high = axes.get_ylim()
    height = axes.get_window_extent().height / figure.dpi * 72  # axes' height in points
    gap = 8.2 / height                                # height of a label, as a share of the axes
    wanted = np.array([(y - low) / (high - low) for y, _, _ in ends])
    # Move the labels only as far as necessary to separate them. The method is isotonic regression
    # of y - i * gap, where y is the wanted height of label number i.
    steps = gap * np.arange(len(ends))
    placed = _isotonic(wanted - steps) + steps
    placed += min(0.0, 1.0 - placed[-1])
    for at, to, (_, text, color) in zip(wanted, placed, ends, strict=True):
        axes.annotate(text, (1, at), (7, height * (to - at)), xycoords='axes fraction',
                      textcoords='offset points', va='center', ha='left', color=color,
                      fontsize=7, annotation_clip=False,
                      arrowprops={'arrowstyle': '-', 'color': color, 'lw': .5, 'shrinkA': 0,
                                  'shrinkB': 0, 'relpos': (0, .5)})


def _isotonic(values: np.ndarray) -> np.ndarray:
    """Return the non-decreasing sequence nearest to ``values`` [n] (pool adjacent violators)."""
    blocks: list[list[float]] = []
    for value in values:
        blocks.append([value, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, n = blocks.pop()
            before, m = blocks.pop()
            blocks.append([(mean * n + before * m) / (n + m), n + m])
    return np.concatenate([np.full(int(n), mean) for mean, n in blocks])
