"""`rog calibrate`: simulate the published outdoor runs; compare them with published numbers."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fleet_env.command import at_least_one
from fleet_env.durable import write_text
from fleet_env.links.trace import read_trace
from fleet_env.settings.fleet_file import dump_fleet
from rog_cli.commands.fleet_options import add_workers
from rog_cli.display.progress import runs_progress


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('calibrate', help='play the published outdoor runs again, and '
                              'compare with what was published')
    parser.add_argument('record', type=Path, help='rog_outdoors_record.txt: "seconds Mbit/s"')
    parser.add_argument('--seeds', type=at_least_one, default=10, metavar='K',
                        help='replays of the record; the first is that of the published runs '
                             '(default: 10)')
    add_workers(parser)
    parser.add_argument('--fleet', type=Path, metavar='DIR', help='only write the fleet file of '
                        'these runs and its links there, for rog sim and rog compare')
    parser.add_argument('--robots', type=int, default=4, choices=range(1, 9), metavar='K',
                        help='robots of that fleet, 1 to 8 (default: 4, as published)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from rog_studies.calibration import TABLE, measure, published_fleet

    record = read_trace(options.record)
    if options.fleet is not None:
        path = options.fleet / 'published.yaml'
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, dump_fleet(published_fleet(record, 0, options.fleet, 60.0,
                                                    options.robots)))
        print(path)
        return 0
    with tempfile.TemporaryDirectory() as directory, \
            runs_progress(len(TABLE) * options.seeds) as progress:
        found = measure(record, options.seeds, Path(directory), workers=options.jobs,
                        progress=progress, cluster=options.cluster)
    table = Table(title=f'First 3600 s, 4 robots, mean of {options.seeds} replays '
                        '(s per iteration)', title_justify='left')
    for column in ('method', 'published', 'simulated', 'deviation', 'published links', 'fixed',
                   'transfer', 'published', 'stall', 'published'):
        table.add_column(column, justify='left' if column == 'method' else 'right')
    for m in found:
        row = m.published
        table.add_row(row.sync, str(row.iterations), f'{m.mean:.0f} ± {m.spread:.0f}',
                      f'{100 * m.deviation:+.1f} %', f'{m.iterations[0]:.0f}', f'{row.fixed:.2f}',
                      f'{m.transfer:.1f}', f'{row.transfer:.1f}', f'{m.stall:.1f}',
                      f'{row.stall:.1f}')
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    off = [m.published.sync for m in found if abs(m.deviation) > m.published.tolerance]
    print('all within the tolerance' if not off else f'beyond the tolerance: {", ".join(off)}')
    return 1 if off else 0
