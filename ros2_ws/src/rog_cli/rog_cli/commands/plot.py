"""`rog plot`: draw the figures of a run or of a comparison, from the records alone."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet_env.errors import SettingError

from .option_types import add_trackers, place


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'plot', help='draw the figures of a run, of a comparison, or of several of either',
        description='One run: run.png, micro.png. A comparison, or several runs: figures that '
                    'compare methods. Several comparisons: their sensitivity. Each figure also as '
                    'SVG. A rosbag2 recording of the statuses counts as a run. With --tensorboard '
                    'or --mlflow: curves instead of figures.')
    parser.add_argument('directories', type=Path, nargs='+', metavar='DIR',
                        help='directory of run.jsonl and summary.json, or of comparison.json; or a '
                             'recording: its folder, or its .mcap or .db3 file')
    parser.add_argument('--out', type=place, metavar='DIR',
                        help='directory for the figures (default: that of the records)')
    parser.add_argument('--namespace', default='', metavar='NS',
                        help='namespace of the fleet, for a recording of several fleets')
    add_trackers(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    print(f'rog: reads {", ".join(map(str, options.directories))} and draws: some seconds',
          file=sys.stderr, flush=True)
    from ..display.tracking import chosen_trackers, export

    trackers = chosen_trackers(options.tensorboard, options.mlflow)
    if trackers and options.out:
        raise SettingError('--out: it is for figures; leave it out with --tensorboard and --mlflow')
    with ExitStack() as stack:
        for path in options.directories if trackers else ():
            folder = _records(path, options.namespace, stack)
            for target in export(folder, trackers, '' if folder == path else path.stem):
                print(target)
    return 0 if trackers else _draw(options)


def _draw(options: argparse.Namespace) -> int:
    from rog_sim.comparison import COMPARISON_FILE
    from rog_sim.figures import draw_comparison, draw_run

    with ExitStack() as stack:
        paths = [_records(path, options.namespace, stack) for path in options.directories]
        out = options.out
        if out is None and paths != options.directories:
            out = _beside(options.directories)
        if len(paths) > 1 or (paths[0] / COMPARISON_FILE).exists():
            drawn = draw_comparison(paths, out)
        else:
            drawn = draw_run(paths[0], out)
    for path in drawn:
        print(path)
    return 0


def _records(path: Path, namespace: str, stack: ExitStack) -> Path:
    """Return the directory with the records of a run.

    If ``path`` is a recording, the records are written to a temporary directory, which ``stack``
    removes at its end.
    """
    from ..display.bag import is_bag, write_run

    if not is_bag(path):
        return path
    folder = Path(stack.enter_context(TemporaryDirectory()))
    write_run(path, folder, namespace)
    return folder


def _beside(paths: list[Path]) -> Path:
    """Return the common folder of the recordings, into which their figures are drawn."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    return folders[0] if len(folders) == 1 else Path(os.path.commonpath(
        [folder.absolute() for folder in folders]))
