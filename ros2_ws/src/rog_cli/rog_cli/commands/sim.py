"""`rog sim`: run a fleet in virtual time, on this machine alone."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from fleet_env.records.events import RUN_FILE
from fleet_env.settings.fleet_file import child_fleets, link_trace
from rog_core.errors import ConfigError, GradientError
from rog_tasks.errors import TaskFailed

from ..display.progress import longest, progress_bar
from ..display.tracking import chosen_trackers, tracked
from ..display.view import outcome, say_model
from .fleet_options import add_fleet_options, chosen_fleet
from .option_types import add_trackers, place
from .task_failure import say_failure


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('sim', help='run a fleet in virtual time: an hour in some minutes')
    add_fleet_options(parser)
    parser.add_argument('--sync', metavar='S', help='synchronisation method, for example rsp:4; '
                        'docs/howto/method.md describes them all')
    parser.add_argument('--out', type=place, metavar='DIR',
                        help='directory for the results (default: runs/sim-...)')
    add_trackers(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    fleet = chosen_fleet(options)
    chosen_trackers(options.tensorboard, options.mlflow)  # raises an error if a package is missing
    for one in (fleet, *child_fleets(fleet).values()):
        for robot in one.robots:
            link_trace(robot.link)
    sync = fleet.training.sync.replace(':', '')
    stamp = time.strftime('%Y%m%d-%H%M%S')
    out = options.out or Path('runs') / f'sim-{fleet.name}-{sync}-{stamp}'
    if (out / RUN_FILE).exists():
        raise ConfigError(f'{out} already holds a run; choose another directory')
    text = f'{fleet.name}, {fleet.training.sync}'
    print(f'{text}: loading the task {fleet.training.task}', flush=True)

    # these imports take seconds
    from rog_bringup.task_check import checked, loaded, with_pace
    from rog_core.method_check import check_method
    from rog_sim.figures import draw_run
    from rog_sim.simulation import simulate

    for one in (fleet, *child_fleets(fleet).values()):
        check_method(one, one.capacities)
    began = time.monotonic()
    try:
        task = loaded(fleet)
        found = checked(fleet, task)
        fleet, pace = with_pace(fleet, lambda: found.seconds)
        said = [*found.lines, *filter(None, [pace, longest(fleet, found.seconds)])]
        print('\n'.join(said), flush=True)
        with tracked(out, options.tensorboard, options.mlflow), \
                progress_bar(text, 60 * fleet.minutes) as progress:
            summary = simulate(fleet, out, progress, keep_model=True, task=task)
    except KeyboardInterrupt:
        kept = f'; {out} holds the records up to here' if (out / RUN_FILE).exists() else ''
        print(f'rog: stopped{kept}', file=sys.stderr)
        return 130
    except TaskFailed as error:
        return say_failure(error, out)
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
    say_model(out)
    return 1 if summary.notes.get('failed') else 0
