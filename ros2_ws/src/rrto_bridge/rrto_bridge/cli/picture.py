"""The picture of `rrto demo`: the latency of each inference, beginning with the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet_env.plot_style import PAGE, new_figure, styled

from .measure import WARM

# Maps each mode to its colour and label. The colours are from Okabe and Ito; colour-blind people
# can distinguish them.
MODES = {'rpc': ('#e69f00', 'rpc: a round trip per call'),
         'cached': ('#009e73', 'cached: queries answered from memory'),
         'async': ('#56b4e9', 'async: waits only for values'),
         'replay': ('#d55e00', 'replay: recorded, then one round trip'),
         'native': ('#000000', 'native: a program written for the server'),
         'device-only': ('#999999', 'on the robot alone')}


def draw(every: Mapping[str, Sequence[float]], trip: float, path: Path) -> None:
    """Draw one line per mode.

    :param every: maps each mode to the times of its inferences, in ms. The first `WARM` inferences
        of mode `native` are not drawn: they run the model's code, to record the sequence that the
        later inferences replay on the server.
    :param trip: round trip of the link in ms, drawn as a line.
    """
    with styled():
        figure = new_figure(PAGE, 2.8)
        axes = figure.subplots()
        for mode, (color, label) in MODES.items():
            first = WARM if mode == 'native' else 0
            axes.plot(range(first + 1, len(every[mode]) + 1), every[mode][first:], '.-',
                      color=color, label=label, markersize=4)
        axes.axhline(trip, color='#cc79a7', linestyle='--', label='round trip of the link')
        axes.set_yscale('log')
        axes.yaxis.set_major_formatter('{x:g}')
        axes.set_xlabel('inference of the program')
        axes.set_ylabel('ms')
        figure.legend(loc='outside right upper')
        figure.savefig(path, dpi=200)
