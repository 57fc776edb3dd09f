"""`rog calibrate`: the published outdoor runs in virtual time, beside the published figures."""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from fleet_env.fleet_file import dump_fleet
from fleet_env.trace import read_trace

from rog_cli.choice import at_least_one


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('calibrate', help='play the published outdoor runs again, and '
                              'compare with what was published')
    parser.add_argument('record', type=Path, help='rog_outdoors_record.txt: "seconds Mbit/s"')
    parser.add_argument('--seeds', type=at_least_one, default=10, metavar='K',
                        help='replays of the record; the first is that of the published runs '
                             '(default: 10)')
    parser.add_argument('--jobs', type=at_least_one, metavar='N',
                        help='runs at a time (default: one per core)')
    parser.add_argument('--fleet', type=Path, metavar='DIR', help='only write the fleet file of '
                        'these runs and its links there, for rog sim and rog compare')
    parser.add_argument('--robots', type=int, default=4, choices=range(1, 9), metavar='K',
                        help='robots of that fleet, 1 to 8 (default: 4, as published)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table
    from rog_studies.calibration import TABLE, Measured, measure, published_fleet

    record = read_trace(options.record)
    if options.fleet is not None:
        path = options.fleet / 'published.yaml'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dump_fleet(published_fleet(record, 0, options.fleet, 60.0,
                                                   options.robots)))
        print(path)
        return 0
    found: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory() as directory, \
            ProcessPoolExecutor(options.jobs, get_context('spawn')) as pool:
        jobs = [pool.submit(measure, row, record, options.seeds, Path(directory) / row.sync)
                for row in reversed(TABLE)]
        for job in as_completed(jobs):
            measured = job.result()
            found[measured.published.sync] = measured
            print(f'{measured.published.sync}: done ({len(found)} of {len(TABLE)})',
                  file=sys.stderr, flush=True)
    table = Table(title=f'First 3600 s, 4 robots, mean of {options.seeds} replays '
                        '(s per iteration)', title_justify='left')
    for column in ('method', 'published', 'simulated', 'deviation', 'published links', 'fixed',
                   'transfer', 'published', 'stall', 'published'):
        table.add_column(column, justify='left' if column == 'method' else 'right')
    for row in TABLE:
        m = found[row.sync]
        table.add_row(row.sync, str(row.iterations), f'{m.mean:.0f} ± {m.spread:.0f}',
                      f'{100 * m.deviation:+.1f} %', f'{m.iterations[0]:.0f}', f'{row.fixed:.2f}',
                      f'{m.transfer:.1f}', f'{row.transfer:.1f}', f'{m.stall:.1f}',
                      f'{row.stall:.1f}')
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    off = [row.sync for row in TABLE if abs(found[row.sync].deviation) > row.tolerance]
    print('all within the tolerance' if not off else f'beyond the tolerance: {", ".join(off)}')
    return 1 if off else 0
