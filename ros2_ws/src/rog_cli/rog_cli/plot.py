"""`rog plot`: the figures of a run or of a comparison, from the records alone."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'plot', help='draw the figures of a run, of a comparison, or of several of either',
        description='One run: run.png, micro.png. A comparison, or several runs: the figures that '
                    'put methods side by side. Several comparisons: their sensitivity. All as SVG '
                    'too.')
    parser.add_argument('directories', type=Path, nargs='+', metavar='DIR',
                        help='directory of run.jsonl and summary.json, or of comparison.json')
    parser.add_argument('--out', type=Path, metavar='DIR',
                        help='where the figures go (default: where the records are)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rog_sim.comparison import COMPARISON_FILE
    from rog_sim.figures import draw_comparison, draw_run

    first, *others = options.directories
    if others or (first / COMPARISON_FILE).exists():
        paths = draw_comparison(options.directories, options.out)
    else:
        paths = draw_run(first, options.out)
    for path in paths:
        print(path)
    return 0
