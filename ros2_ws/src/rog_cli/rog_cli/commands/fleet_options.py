"""Command-line options to choose a fleet, change its settings, and compute runs in parallel."""

from __future__ import annotations

import argparse
import os
from typing import Any

from fleet_env.command import at_least_one
from fleet_env.errors import FleetFileError
from fleet_env.links.generate import PROFILES
from fleet_env.settings.fleet import FleetConfig, LinkConfig
from fleet_env.settings.fleet_file import find_tasks, load_fleet, with_overrides, with_robots
from rog_bringup import FLEETS

from .option_types import place

FLEET = 'a built-in fleet (indoor, outdoor, non_iid, heterogeneous, two_speeds, two_level, ' \
        'crimp) or the path of a fleet file'


def add_fleet_options(parser: argparse.ArgumentParser, virtual: bool = True) -> None:
    """Add the argument FLEET and the options that change the fleet.

    ``virtual``: whether to add also the options of virtual time.
    """
    parser.add_argument('fleet', metavar='FLEET', help=FLEET)
    parser.add_argument('--minutes', metavar='M', help='duration of the training')
    parser.add_argument('--seed', metavar='N', help='seed of all random numbers')
    parser.add_argument('--set', action='append', default=[], metavar='KEY=VALUE',
                        help='change a setting of the fleet file, e.g. training.pace=0.5')
    if virtual:
        parser.add_argument('--robots', metavar='K', help='number of robots: the first K of the '
                            'file, or additional ones with defaults')
        parser.add_argument('--trace', metavar='FILE', help='link trace of every robot without '
                            'its own: a file of "seconds Mbit/s", or '
                            f'{", ".join(PROFILES)}. A file holds true rates: it sets link.scale '
                            'to 1 unless --set gives link.scale')
        parser.add_argument('--traffic', metavar='MODEL', help='published model whose bytes count '
                            'on the air: convmlp-m')


def add_runs(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add the options for many runs: their directory, where to compute, whether to resume."""
    parser.add_argument('--out', type=place, metavar='DIR',
                        help=f'directory for the results (default: runs/{verb}-...)')
    add_workers(parser)
    parser.add_argument('--resume', action='store_true',
                        help='reuse the finished runs in --out that have the same settings')


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add options that choose where runs are computed: on this machine or on a Dask cluster."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument('--jobs', type=at_least_one, metavar='N',
                       help='parallel runs on this machine (default: one per core)')
    group.add_argument('--cluster', metavar='ADDRESS', help='run on the workers of the Dask '
                       'scheduler at this address, e.g. tcp://desk:8786; the same results')


def resumed(options: argparse.Namespace) -> bool:
    """Return whether finished runs are reused (the option ``--resume``).

    :raises FleetFileError: ``--resume`` is given, but ``--out`` is missing or is not a directory.
    """
    if options.resume and options.out is None:
        raise FleetFileError('--resume: give --out DIR, the directory of the runs to continue')
    if options.resume and not options.out.is_dir():
        raise FleetFileError(f'--resume: there is no directory {options.out.absolute()} with runs '
                             'to continue')
    return bool(options.resume)


def chosen_fleet(options: argparse.Namespace) -> FleetConfig:
    """Return the fleet with the options applied.

    :raises FleetFileError, ConfigError: the fleet file or an option is invalid.
    """
    given = vars(options)
    changes: dict[str, Any] = {
        'training.sync': given.get('sync'), 'training.traffic': given.get('traffic'),
        'minutes': options.minutes, 'seed': options.seed}
    trace = given.get('trace')
    if trace is not None:
        changes['link.trace'] = trace if trace in PROFILES else os.path.abspath(trace)
    overrides = {key: value for key, value in changes.items() if value is not None}
    for text in options.set:
        key, equals, value = text.partition('=')
        if not equals:
            raise FleetFileError(f'--set {text}: write KEY=VALUE')
        overrides[key] = value
    read = load_fleet(options.fleet, [FLEETS])
    fleet = with_overrides(read, overrides)
    if trace is not None and trace not in PROFILES and 'link.scale' not in overrides:
        fleet = with_overrides(read, {**_true_rates(fleet), **overrides})
    if given.get('robots') is not None:
        fleet = with_robots(fleet, _count(given['robots']))
    find_tasks(fleet)
    return fleet


def _true_rates(fleet: FleetConfig) -> dict[str, float]:
    """Return the overrides of ``link.scale`` for the trace of the option ``--trace``.

    The ``link.scale`` of a fleet file belongs to the trace that the fleet file names. The rates of
    another trace must not be scaled. So the overrides set ``link.scale`` to 1 for the fleet, and
    for each robot whose link follows the fleet's trace. The other robots keep their scale.
    """
    def scale(link: LinkConfig) -> float:
        return 1.0 if link.trace == fleet.link.trace and not link.rate else link.scale

    return {'link.scale': scale(fleet.link),
            **{f'robots.{robot.name}.link.scale': scale(robot.link) for robot in fleet.robots}}



def _count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise FleetFileError(f'--robots {text}: give a number of robots, 1 to 1000')
    return int(text)
