"""`rog fleet`: start a fleet on this machine, look at its settings."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from fleet_env.fleet import FleetConfig
from fleet_env.fleet_file import dump_fleet, explained_fleet, load_fleet
from fleet_env.summary import SUMMARY_FILE, read_summary
from fleet_ros.environment import dds_environment
from rog_bringup import FLEETS
from rog_core.methods import check_method

from .fleet_options import add_fleet_options, chosen_fleet
from .processes import FleetProcesses
from .view import outcome, watch


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('fleet', help='start a fleet on this machine, look at its settings')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    up = sub.add_parser('up', help='start server and robots as processes here, and watch')
    add_fleet_options(up, virtual=False)
    up.add_argument('--sync', help='synchronisation method, for example rsp:4')
    up.add_argument('--out', type=Path, help='directory for the results (default: runs/...)')
    up.add_argument('--only', metavar='NAMES', help='start only these, separated by commas: '
                    'server, or names of robots; the others run on other machines, or already')
    up.add_argument('--plain', action='store_true', help='one line per report, no live table')
    up.add_argument('--resume', action='store_true', help='go on from the checkpoint in --out')
    up.set_defaults(run=_up)
    show = sub.add_parser('show', help='print a fleet file with every setting written '
                          'out and explained')
    show.add_argument('fleet')
    show.set_defaults(run=_show)


def _show(options: argparse.Namespace) -> int:
    print(explained_fleet(load_fleet(options.fleet, [FLEETS])), end='')
    return 0


def _up(options: argparse.Namespace) -> int:
    try:
        fleet = chosen_fleet(options)
        environment = dds_environment(fleet.network)
        names = _names(fleet, options.only)
        if 'server' in names:  # robots need not have the method
            check_method(fleet, fleet.capacities)
    except argparse.ArgumentTypeError as error:
        print(f'rog: {error}', file=sys.stderr)
        return 2
    stamp = time.strftime('%Y%m%d-%H%M%S')
    name = f'{fleet.name}-{fleet.training.sync.replace(":", "")}-{stamp}'
    out = options.out or Path('runs') / name
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with_server = 'server' in names
    if with_server and (out / SUMMARY_FILE).exists() and not options.resume:
        print(f'rog: {out} already holds a run; choose another --out, or --resume it',
              file=sys.stderr)
        return 2
    (out / 'fleet.yaml').write_text(dump_fleet(fleet))
    os.environ.update(environment)  # for the processes and for the live view
    with FleetProcesses(fleet, out, names, options.resume) as processes:
        watch(processes, fleet, plain=options.plain or not sys.stdout.isatty())
    failed = processes.failures()
    for name, code in failed.items():
        print(f'rog: {name} ended with exit code {code}; its log: {processes.log(name)}',
              file=sys.stderr)
    if not with_server:
        return 1 if failed else 0
    if not (out / SUMMARY_FILE).exists():
        print(f'rog: the run left no {SUMMARY_FILE}; see {processes.log("server")}',
              file=sys.stderr)
        return 1
    outcome(read_summary(out), fleet)
    from rog_sim.figures import draw_run

    pictures = draw_run(out)
    print(f'\nResults in {out}: run.jsonl, {SUMMARY_FILE}, '
          f'{", ".join(p.name for p in pictures)}, checkpoint-*.safetensors')
    return 1 if failed else 0


def _names(fleet: FleetConfig, only: str | None) -> list[str]:
    """Return what is started here: the server and all robots, or those of ``--only``."""
    known = ['server', *(robot.name for robot in fleet.robots)]
    if only is None:
        return known
    names = [name.strip() for name in only.split(',') if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"--only {only}: the fleet has {', '.join(known)}")
    return names
