"""`rog compare`: run several methods on the same fleet, links and seeds, simulated or real."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fleet_env.command import at_least_one, duration
from fleet_env.durable import write_text
from fleet_env.settings.fleet import FleetConfig, TrainingConfig
from fleet_env.settings.fleet_file import read_fleet
from rog_core.errors import ConfigError
from rog_tasks.errors import TaskFailed
from rog_tasks.task import check_task

from ..display.progress import longest, runs_progress
from ..launching.emulation import emulation
from .fleet_options import add_fleet_options, add_runs, chosen_fleet, resumed
from .task_failure import say_failure

if TYPE_CHECKING:
    from rog_sim.jobs import Job

METHODS = f'bsp,ssp:4,ssp:20,dssp:3:15,flown,asp,rsp:4,rsp:20,{TrainingConfig().sync}'


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser(
        'compare', help='compare synchronisation methods on a fleet, in virtual time or with '
                       'real nodes')
    add_fleet_options(parser)
    parser.add_argument('--sync', dest='methods', default=METHODS, metavar='A,B,...',
                        help='synchronisation methods (default: %(default)s)')
    parser.add_argument('--seeds', type=at_least_one, default=3, metavar='K',
                        help='runs of each method, with seeds from --seed on (default: 3)')
    parser.add_argument('--target', type=_accuracy, metavar='ACC',
                        help='target accuracy, 0 to 1, of the times and energies (default: the '
                             'highest that all runs reach)')
    parser.add_argument('--real', action='store_true', help='run real nodes in an emulated '
                        'network, one run after another, in real time; needs root')
    add_runs(parser, 'compare')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    methods = [text.strip() for text in options.methods.split(',') if text.strip()]
    fleet, resume = chosen_fleet(options), resumed(options)
    runs = len(methods) * options.seeds
    print(f'{fleet.name}: {runs} runs of {fleet.minutes:g} min (methods: {len(methods)}, seeds: '
          f'{options.seeds}); first the task {fleet.training.task} is tried out', flush=True)
    check_task(fleet.training.task, fleet.training.task_options)
    if options.real:
        if options.jobs or options.cluster or fleet.training.traffic:
            raise ConfigError('--real: real nodes run one after another on this machine and send '
                              'their own rows; leave out --jobs, --cluster and --traffic')
        emulation('check_rights')()
    stamp = time.strftime('%Y%m%d-%H%M%S')
    out = options.out or Path('runs') / f'compare-{fleet.name}-{stamp}'

    try:
        fleet, seconds = _checked(fleet, out, resume, bool(options.real))
    except TaskFailed as error:
        return say_failure(error, out)
    if options.real:
        print(f'this takes more than {duration(60 * runs * fleet.minutes)}: the runs take place '
              'one after another, in real time', flush=True)
    elif not options.cluster and (said := longest(fleet, seconds, runs, options.jobs)):
        print(said, flush=True)

    from rog_sim.compare import compare
    from rog_sim.figures import draw_comparison
    from rog_sim.table import markdown_tables, text_tables

    try:
        with runs_progress(runs) as progress:
            comparison = compare(fleet, methods, options.seeds, out, options.jobs, progress,
                                 target=options.target, resume=resume,
                                 cluster=options.cluster,
                                 run=_nodes() if options.real else None)
    except KeyboardInterrupt:
        print(f'rog: stopped; finished runs are kept. Continue with --out {out} --resume',
              file=sys.stderr)
        return 130
    print(text_tables(comparison))
    table = out / 'comparison.md'
    write_text(table, markdown_tables(comparison))
    print(f'\nResults in {out}:')
    for path in (out / 'comparison.json', table, *draw_comparison([out])):
        print(path)
    return 0


def _checked(fleet: FleetConfig, out: Path, resume: bool, real: bool
             ) -> tuple[FleetConfig, float]:
    """Try the task out, and print what it takes.

    Return the fleet with a pace for virtual time, and the seconds of a gradient on this machine.
    All runs have the same pace; runs that are resumed keep theirs.

    :raises TaskError: the task cannot be trained.
    """
    from rog_bringup.task_check import checked, with_pace

    found = checked(fleet)
    lines = list(found.lines)
    if not real:
        former = next(iter(sorted(out.glob('*/seed*/fleet.yaml'))), None) if resume else None
        kept = read_fleet(former).training.pace if former else 0.0
        fleet, pace = with_pace(fleet, lambda: kept or found.seconds)
        lines += filter(None, [pace])
    print('\n'.join(lines), flush=True)
    return fleet, found.seconds


def _nodes() -> Callable[[Job], None]:
    """Return a function that does one run with real nodes."""
    from fleet_ros.ending import Interruption
    from rog_sim.jobs import RunError

    from .fleet import processes_of, run_fleet  # imports rclpy, which virtual time does not need

    interruption = Interruption()

    def run(job: Job) -> None:
        names = ['server', *(robot.name for robot in job.fleet.robots)]
        with processes_of(job.fleet, job.directory.absolute(), names, emulate=True) as processes:
            code = run_fleet(processes, job.fleet, interruption)
        if interruption:
            raise KeyboardInterrupt
        if code:
            raise RunError(f'{job.label}, seed {job.fleet.seed}: see {job.directory / "logs"}')
    return run


def _accuracy(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f'{text} is not an accuracy from 0 to 1, like 0.64')
    return value
