"""`rog fleet`: start a fleet on this machine, or show its settings."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from fleet_env.command import how_it_ended
from fleet_env.records.events import RUN_FILE
from fleet_env.records.summary import SUMMARY_FILE, read_summary
from fleet_env.settings.fleet import FleetConfig, ReachConfig
from fleet_env.settings.fleet_file import (
    child_fleets,
    explained_fleet,
    load_fleet,
    write_run_fleet,
)
from fleet_ros.dds_profiles import cyclone_profile, fastdds_profile
from fleet_ros.ending import ORDERLY, RUN_OVER, Interruption, leave_at_exit
from fleet_ros.environment import dds_environment, domain_of, where_traffic_goes
from fleet_ros.exposure import FLEET_KEY
from rog_bringup import FLEETS
from rog_core.errors import ConfigError
from rog_tasks.errors import TaskFailed, some
from rog_tasks.task import check_task

from ..display.recorder import check_bag, recorded
from ..display.tracking import chosen_trackers, tracked
from ..display.view import outcome, say_model, watch
from ..launching.emulation import emulation
from ..launching.processes import FleetProcesses
from .fleet_options import FLEET, add_fleet_options, chosen_fleet
from .option_types import add_trackers, place
from .task_failure import say_failure


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('fleet', help='start a fleet on this machine, or show its settings')
    sub = parser.add_subparsers(dest='action', required=True, metavar='ACTION')
    up = sub.add_parser('up', help='run server and robots as processes of this machine')
    add_fleet_options(up, virtual=False)
    up.add_argument('--sync', help='synchronisation method, for example rsp:4')
    up.add_argument('--out', type=place, help='directory for the results (default: runs/...)')
    up.add_argument('--only', metavar='NAMES', help='start only these, separated by commas: '
                    'server, or names of robots; the others run elsewhere')
    up.add_argument('--plain', action='store_true',
                    help='print one line per report instead of a live table')
    up.add_argument('--resume', action='store_true', help='continue from the checkpoint in --out')
    up.add_argument('--emulate', action='store_true', help='run every robot in a network namespace '
                    'behind a radio link that replays its trace; needs root')
    up.add_argument('--bag', type=place, metavar='DIR', help='record the statuses and /diagnostics '
                    'as a new folder of rosbag2 (MCAP), for Foxglove, rog plot and rog view')
    add_trackers(up)
    up.set_defaults(run=_up)
    show = sub.add_parser('show', help='print a fleet file with all settings and their '
                          'descriptions')
    show.add_argument('fleet', help=FLEET)
    show.set_defaults(run=_show)
    env = sub.add_parser('env', help='print the variables of DDS, and of the key, with which '
                         'ros2 and other programs meet the fleet: eval "$(rog fleet env FLEET)"')
    env.add_argument('fleet', help=FLEET)
    env.add_argument('--profile', choices=sorted(PROFILES), help='print the profile of one DDS, '
                     'for the file named in CYCLONEDDS_URI=file://... or '
                     'FASTRTPS_DEFAULT_PROFILES_FILE (Kilted: FASTDDS_DEFAULT_PROFILES_FILE)')
    env.set_defaults(run=_env)


PROFILES = {'cyclone': cyclone_profile, 'fastdds': fastdds_profile,
            'fastdds3': lambda network: fastdds_profile(network, 3)}


def _env(options: argparse.Namespace) -> int:
    fleet = load_fleet(options.fleet, [FLEETS])
    network, variables = fleet.network, dds_environment(fleet.network)
    if fleet.security.key:
        variables[FLEET_KEY] = fleet.security.key
    if options.profile:
        print(PROFILES[options.profile](network))
        return 0
    print(f'# {where_traffic_goes(network)}')
    for name, value in variables.items():
        print(f'export {name}={shlex.quote(value)}')
    return 0


def _show(options: argparse.Namespace) -> int:
    print(explained_fleet(load_fleet(options.fleet, [FLEETS])), end='')
    return 0


def _up(options: argparse.Namespace) -> int:
    try:
        fleet = chosen_fleet(options)
        names = _names(fleet, options.only)
        if options.emulate:
            if options.only:
                raise argparse.ArgumentTypeError('--emulate and --only: nothing else can reach the '
                                                 'emulated network; choose one of them')
            emulation('check_rights')()
        else:  # the processes and the live view use these environment variables
            os.environ.update(dds_environment(fleet.network))
        check_bag(options.bag)
        if options.bag and options.emulate:
            raise argparse.ArgumentTypeError('--emulate and --bag: the emulated network is heard '
                                             'inside it only; choose one of them')
        below = child_fleets(fleet)
        if below and options.emulate:
            raise argparse.ArgumentTypeError('--emulate: child fleets cannot be emulated; start '
                                             'each fleet separately')
        if chosen_trackers(options.tensorboard, options.mlflow) and 'server' not in names:
            raise argparse.ArgumentTypeError('--tensorboard, --mlflow: the record of the run is '
                                             'where the server runs; give them there')
        _check_places(fleet, below)
        print(f'{fleet.name}, {fleet.training.sync}, {fleet.minutes:g} min: loading the task '
              f'{fleet.training.task}', flush=True)
        for one in (fleet, *below.values()):  # check the tasks here once, not in every process
            check_task(one.training.task, one.training.task_options)
        if 'server' in names:  # a machine with only robots may lack the method's package
            from rog_core.method_check import check_method  # imports numba, which is slow

            for one in (fleet, *below.values()):
                check_method(one, one.capacities)
        if options.resume and 'server' in names:
            check_resumed(options.out)
    except argparse.ArgumentTypeError as error:
        print(f'rog: {error}', file=sys.stderr)
        return 2
    stamp = time.strftime('%Y%m%d-%H%M%S')
    name = f'{fleet.name}-{fleet.training.sync.replace(":", "")}-{stamp}'
    out = options.out or Path('runs') / name
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    if 'server' in names and (out / SUMMARY_FILE).exists() and not options.resume:
        print(f'rog: {out} already holds a run; choose another --out, or --resume it',
              file=sys.stderr)
        return 2
    interruption = Interruption()
    with processes_of(fleet, out, names, options.resume, options.emulate) as processes:
        try:
            with interruption.raised():
                processes.prepare()
                _say_check(fleet, names)
        except TaskFailed as error:
            return say_failure(error, out)
        with tracked(out, options.tensorboard, options.mlflow, lambda: interruption.at_once), \
                recorded(options.bag, fleet.network.namespace):
            code = run_fleet(processes, fleet, interruption,
                             options.plain or not sys.stdout.isatty())
    leave_at_exit(code)
    return code


def _say_check(fleet: FleetConfig, names: list[str]) -> None:
    """Try the task out with the data of the first robot that runs here, and print what it takes.

    A machine with only the server may lack the data of the robots, so there nothing is checked.

    :raises TaskError: the task cannot be trained.
    """
    from rog_bringup.task_check import checked  # imports PyTorch, which is slow

    for one in (fleet, *(below for name, below in child_fleets(fleet).items() if name in names)):
        here = [robot.name for robot in one.robots
                if not robot.fleet and (one is not fleet or robot.name in names)]
        if here:
            for line in checked(one, robot=here[0]).lines:
                print(f'{one.name}: ' * (one is not fleet) + line, flush=True)


def _check_places(fleet: FleetConfig, below: Mapping[str, FleetConfig]) -> None:
    """Refuse child fleets that cannot reach their parent, or that use another fleet's network.

    The setting ``upstream`` of each child fleet must give the DDS domain and the namespace of the
    parent fleet's network. No two fleets may have the same domain and the same namespace.

    :raises ConfigError: a child fleet is refused; the message names the file and the
        setting.
    """
    def place(reach: ReachConfig) -> tuple[int, str]:
        return domain_of(reach), reach.namespace

    def shown(reach: ReachConfig) -> str:
        return f'DDS domain {domain_of(reach)}' \
            + f', namespace {reach.namespace}' * bool(reach.namespace)

    taken = {place(fleet.network): fleet.name}
    for one in below.values():
        if place(one.upstream) != place(fleet.network):
            raise ConfigError(
                f'{one.file}: upstream is {shown(one.upstream)}, but the server of {fleet.name} '
                f'is in {shown(fleet.network)}. Give them the same domain_id and namespace')
        if place(one.network) in taken:
            raise ConfigError(
                f'{one.file}: network is {shown(one.network)}, like that of '
                f'{taken[place(one.network)]}; each fleet needs its own domain_id or namespace')
        taken[place(one.network)] = one.name


def check_resumed(out: Path | None) -> None:
    """Refuse to resume a run that does not exist.

    `out`: directory of the run; None if the user has not given one.

    :raises ConfigError: there is no run in ``out``, or ``out`` is None.
    """
    if out is None:
        raise ConfigError('--resume: give --out DIR, the directory of the run to continue')
    if not ((out / RUN_FILE).exists() or any(out.glob('checkpoint*.safetensors'))):
        raise ConfigError(f'--resume: there is no run in {out.absolute()} to continue; leave '
                          '--resume out to start one')


def processes_of(fleet: FleetConfig, out: Path, names: list[str], resume: bool = False,
                 emulate: bool = False) -> AbstractContextManager[FleetProcesses]:
    """Return a context with processes of a fleet, which `run_fleet` starts.

    :param out: existing directory of the run, absolute.
    :param names: the processes to start: ``server`` or names of robots.
    :param resume: whether to continue from the checkpoint in ``out``.
    :param emulate: whether to run the processes in an emulated network.
    """
    for name in child_fleets(fleet):
        (out / name).mkdir(exist_ok=True)
    if not emulate:
        return FleetProcesses(fleet, out, names, resume)
    write_run_fleet(fleet, out)     # the emulated radio reads it
    made: AbstractContextManager[FleetProcesses] = emulation('fleet')(fleet, out, names, resume)
    return made


def run_fleet(processes: FleetProcesses, fleet: FleetConfig, interruption: Interruption,
              plain: bool = True) -> int:
    """Start processes of a fleet here, watch them, print the outcome; return the exit code.

    :param plain: whether to print lines instead of a live table.
    """
    below, out = child_fleets(fleet), processes.out
    former = _version(out)
    for one, folder in ((fleet, out), *((one, out / name) for name, one in below.items())):
        write_run_fleet(one, folder)
        if not processes.apart:
            print(f'{one.name}: ' * bool(below) + where_traffic_goes(one.network), flush=True)
    print(f'starting {some(processes.names)}: some seconds', flush=True)
    try:
        with interruption.raised():
            processes.start_all()
        watch(processes, fleet, interruption, plain)
    except KeyboardInterrupt:
        pass
    finally:
        _end(processes, interruption)
    return _result(processes, interruption, former)


def _end(processes: FleetProcesses, interruption: Interruption) -> None:
    """End the processes of a finished or interrupted run."""
    if not (interruption or processes.failures()):
        processes.end(RUN_OVER, ORDERLY, hurry=lambda: interruption)
        return
    if interruption:
        print('stopping the fleet; once more ends it at once', flush=True)
    processes.ask()
    processes.end(ORDERLY, hurry=lambda: interruption.at_once)


def _version(out: Path) -> tuple[int, int] | None:
    """Return a value that identifies the summary in ``out``, or None if there is no summary.

    Each time the summary is written, the value changes.
    """
    try:
        found = (out / SUMMARY_FILE).stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _result(processes: FleetProcesses, interruption: Interruption,
            former: tuple[int, int] | None) -> int:
    """Print the outcome of a run, and return the exit code.

    The code is 128 + n if signal n interrupted the run and the run did not end properly.

    :param former: `_version` of the summary before this run.
    """
    failed, out = processes.failures(), processes.out
    for name, code in failed.items():
        how = 'had to be killed' if name in processes.killed else how_it_ended(code)
        print(f'rog: {name} {how}: {processes.said(name)}\n'
              f'rog: its log: {processes.log(name)}', file=sys.stderr)
    undone = 128 + interruption.number if interruption else 1
    code = undone if failed or interruption.at_once else 0
    if 'server' not in processes.names:
        return code
    if _version(out) in (None, former):
        if not failed:
            print(f'rog: the run left no new {SUMMARY_FILE}; see {processes.log("server")}',
                  file=sys.stderr)
        return undone
    outcome(read_summary(out), processes.fleet)
    pictures = []
    if not interruption:
        from rog_sim.figures import draw_run
        try:
            pictures = [picture.name for picture in draw_run(out)]
        except OSError as error:  # if the disk is full, print the results without pictures
            print(f'rog: no pictures: {error.strerror}; `rog plot {out}` draws them later',
                  file=sys.stderr)
            code = code or 1
    saves = ['checkpoint-*.safetensors'] * any(out.glob('checkpoint-*.safetensors'))
    print(f'\nResults in {out}: {", ".join(["run.jsonl", SUMMARY_FILE, *pictures, *saves])}'
          + bool(interruption) * f'; `rog plot {out}` draws them')
    say_model(out)
    return code


def _names(fleet: FleetConfig, only: str | None) -> list[str]:
    """Return the names of the processes to start here.

    These are the server and all robots, or the names that the option ``--only`` gives (``only``).
    """
    known = ['server', *(robot.name for robot in fleet.robots)]
    if only is None:
        return known
    names = [name.strip() for name in only.split(',') if name.strip()]
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"--only {only}: the fleet has {', '.join(known)}")
    return names
