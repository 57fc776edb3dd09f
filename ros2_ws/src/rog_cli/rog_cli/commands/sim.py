"""`rog sim`: run a fleet in virtual time, on this machine alone."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from fleet_env.settings.fleet_file import child_fleets
from rog_core.errors import GradientError
from rog_tasks.errors import TaskFailed

from ..display.progress import progress_bar
from ..display.view import outcome
from .fleet_options import add_fleet_options, chosen_fleet
from .option_types import place

TRACEBACK = 'traceback.txt'  # file that receives the traceback if the run's task fails


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('sim', help='run a fleet in virtual time: an hour in a minute')
    add_fleet_options(parser)
    parser.add_argument('--sync', metavar='S', help='synchronisation method, for example rsp:4; '
                        'docs/methods.md describes them all')
    parser.add_argument('--out', type=place, metavar='DIR',
                        help='directory for the results (default: runs/sim-...)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from rog_core.method_check import check_method

    fleet = chosen_fleet(options)
    for one in (fleet, *child_fleets(fleet).values()):
        check_method(one, one.capacities)

    from rog_sim.figures import draw_run
    from rog_sim.simulation import simulate

    sync = fleet.training.sync.replace(':', '')
    stamp = time.strftime('%Y%m%d-%H%M%S')
    out = options.out or Path('runs') / f'sim-{fleet.name}-{sync}-{stamp}'
    began = time.monotonic()
    try:
        with progress_bar(f'{fleet.name}, {fleet.training.sync}') as progress:
            summary = simulate(fleet, out, progress)
    except KeyboardInterrupt:
        print(f'rog: stopped; {out} holds the records up to here', file=sys.stderr)
        return 130
    except TaskFailed as error:
        out.mkdir(parents=True, exist_ok=True)
        (out / TRACEBACK).write_text(traceback.format_exc())
        print(f'rog: {error}; {out / TRACEBACK} has the traceback', file=sys.stderr)
        return 1
    except GradientError as error:
        print(f'rog: {error}; {out} holds the records up to here', file=sys.stderr)
        return 1
    except BrokenProcessPool:
        print('rog: a process that computes gradients was killed or has ended; is there enough '
              'memory?', file=sys.stderr)
        return 1
    passed = time.monotonic() - began
    outcome(summary, fleet)
    print(f'\n{fleet.minutes:g} minutes of {len(fleet.robots)} robots in {passed:.1f} s. '
          f'Results in {out}:')
    for path in (out / 'run.jsonl', out / 'summary.json', *draw_run(out)):
        print(path)
    return 1 if summary.notes.get('failed') else 0
