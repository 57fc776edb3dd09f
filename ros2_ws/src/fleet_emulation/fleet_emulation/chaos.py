"""`rog chaos`: run a real fleet on an emulated network, and inject faults as in practice."""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from fleet_env.durable import write_text
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import dump_fleet, link_trace, with_overrides
from rog_cli.commands.fleet_options import add_fleet_options, chosen_fleet
from rog_cli.commands.option_types import place
from rog_cli.launching.fork_server import kill
from rog_core.errors import ConfigError

from . import chaos_schedule as plan
from .chaos_watch import Seen, Watch, checksums, grew, growth, mirrored, offered
from .network import SERVER, EmulatedNetwork, check_rights, own_mounts
from .radio import Conditions

ROBOTS = '5'
DISK_MIB = 64        # size in MiB of the server's disk, which the fault "disk full" fills
RESULT = 'chaos.json'
JOIN = 120.0         # seconds within which all robots must join
# Seconds by which a run may last longer than planned. The planned duration includes the time that
# server restarts cost.
DRAIN = 120.0
START = 60.0         # seconds that a process may take from its start to its first status
# The machine counts as overloaded if this process wakes up more than HELD_UP seconds late.
HELD_UP = 1.0
SAMPLE = 5.0         # seconds between two samples of the memory of the processes
# A link counts as faded if its trace, or the shared air, allows less than this rate in Mbit/s.
FADED = 0.05
SNAPSHOT = 180.0     # seconds that a restarted robot may take to receive the whole model
STEP = 0.25          # seconds between two checks of the fleet


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('chaos', help='disturb a real fleet in an emulated network, and '
                              'check that it continues and loses nothing; needs root')
    add_fleet_options(parser, virtual=False)
    parser.add_argument('--sync', help='synchronisation method, for example rsp:4')
    parser.add_argument('--robots', default=ROBOTS, metavar='K',
                        help='number of robots (default: %(default)s)')
    parser.add_argument('--bound', type=float, default=60.0, metavar='S',
                        help='seconds within which a robot that can work must finish an iteration '
                             '(default: 60)')
    parser.add_argument('--calm', action='store_true', help='disturb nothing, for a reference run')
    parser.add_argument('--out', type=place, help='directory for the results (default: runs/...)')
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    fleet = with_overrides(chosen_fleet(options), {'training.checksums': True,
                                                  'server.checkpoint_every': 10})
    check_rights()
    out = (options.out or Path('runs') / time.strftime(f'chaos-{fleet.name}-%Y%m%d-%H%M%S')
           ).absolute()
    if (out / RESULT).exists():
        raise ConfigError(f'{out} already holds a run; choose another --out')
    (out / 'disk').mkdir(parents=True, exist_ok=True)
    faults = [] if options.calm else plan.schedule(
        fleet.seed, [robot.name for robot in fleet.robots], 60 * fleet.minutes)
    print(f'seed {fleet.seed}, {fleet.minutes:g} min of {len(fleet.robots)} robots, '
          f'{fleet.training.sync}, {len(faults)} faults:', *faults, sep='\n', flush=True)
    print('the fleet starts; then a line when each fault begins', flush=True)
    run = _Run(fleet, out, faults, options.bound)
    run.do()
    result = run.result()
    write_text(out / RESULT, json.dumps(result, indent=1) + '\n')
    _tell(result, out)
    return 1 if result['violations'] else 0


class _Run:
    """One run: injects the scheduled faults and passes observations of the fleet to `Watch`."""

    def __init__(self, fleet: FleetConfig, out: Path, faults: list[plan.Fault], bound: float
                 ) -> None:
        self.fleet, self.out, self.disk, self.faults = fleet, out, out / 'disk', faults
        self.names = [SERVER, *(robot.name for robot in fleet.robots)]
        # The server must not mark a robot as away while the robot can work. `Watch` reports a
        # mark as an error only if the robot has been able to work for the server's limit plus
        # three heartbeat periods. An earlier mark may be a late effect of a fault. The periods
        # are added because the limit begins at the robot's last heartbeat, which may be one
        # period old, and because the server checks for silent robots only once in a period.
        self.watch = Watch(bound, fleet.heartbeat.limit + 3 * fleet.heartbeat.period)
        self.memory: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in self.names}
        self.down: set[str] = set()         # processes that were killed and not started again
        self.checkpoints = 0
        self.held_up = 0                    # how often the machine was overloaded
        self._held_until = -math.inf
        self._started: dict[str, float] = {}  # maps each process to the time of its last restart
        self.ended = 0.0
        self._traces = {robot.name: link_trace(robot.link) for robot in fleet.robots
                        if robot.link.trace or robot.link.rate}
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._newest: tuple[int, int] = (0, 0)   # number and iteration of the last checkpoint
        self._sampled = 0.0
        self._states: dict[str, str] = {}     # maps each robot to its state at the server
        # maps each robot to its rate in Mbit/s (see `offered`)
        self._offered: dict[str, float] = {}

    def do(self) -> None:
        """Run the fleet until it ends or a signal comes; `self.watch` collects the violations."""
        from fleet_ros.ending import ORDERLY, RUN_OVER
        from rog_cli.display.view import Monitor

        from .fleet import EmulatedFleet

        with _small_disk(self.disk):
            for name in ('logs', 'parameters'):  # only results are on the small disk
                (self.out / name).mkdir()
                (self.disk / name).symlink_to(self.out / name)
            write_text(self.out / 'fleet.yaml', dump_fleet(self.fleet))
            with EmulatedNetwork(self.fleet, self.out) as self.network, \
                    Monitor(self.fleet.network.namespace) as self.monitor:
                self.processes = EmulatedFleet(self.network, self.disk, self.names)
                try:
                    self.processes.start_all()
                    self._train()
                finally:
                    self._revive()
                    self.processes.end(RUN_OVER, ORDERLY)
            shutil.copytree(self.disk, self.out / 'run', symlinks=True,
                            ignore=shutil.ignore_patterns('logs', 'parameters', 'filler'))

    def _train(self) -> None:
        began = time.monotonic()
        while not self.network.began:
            self.monitor.spin(STEP)
            self.processes.follow(self.monitor.fleet)
            if time.monotonic() - began > JOIN or not self.processes.running():
                self.watch.report(0.0, 'no beginning', SERVER, f'not all robots have joined within '
                                  f'{JOIN:g} s')
                return
        self._start = time.monotonic()
        for fault in self.faults:
            self._at(fault.start, partial(self._begin, fault))
            self._at(fault.end, partial(self._end, fault))
        # After a restart, the server repeats the work since its last checkpoint, and it needs time
        # to start.
        lost = sum(m.duration + self.fleet.server.checkpoint_every + START
                   for m in self.faults if m.kind == plan.RESTART)
        limit = 60 * self.fleet.minutes + lost + DRAIN
        while self.down & {SERVER} or self.processes.running():
            before = time.monotonic()
            self.monitor.spin(STEP)
            if time.monotonic() - before > STEP + HELD_UP:
                self.held_up += 1
                self._held_until = time.monotonic() + self.watch.limit
            now = self.ended = time.monotonic() - self._start
            while self._due and self._due[0][0] <= now:
                heapq.heappop(self._due)[2]()
            self._look(now)
            if now > limit:
                self.watch.report(now, 'no end', SERVER, f'the run should be over for '
                                  f'{now - 60 * self.fleet.minutes:.0f} s')
                return

    def _at(self, t: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._due, (t, next(self._order), do))

    # -- faults ---

    def _begin(self, fault: plan.Fault) -> None:
        target = fault.target
        if self._over():
            return
        print(f'{self.ended:7.1f} s  {fault}', flush=True)
        if fault.kind in (plan.KILL, plan.RESTART):
            self.down.add(target)
            if not kill(self.processes.processes[target]):
                self.watch.report(self.ended, 'died', target, 'it was killed, but does not end')
        elif fault.kind == plan.PAUSE:
            self.processes.processes[target].send_signal(signal.SIGSTOP)
        elif fault.kind == plan.DISK_FULL:
            _fill(self.disk / 'filler')
        elif fault.kind in (plan.LINK_IMPAIRMENT, plan.BLACKOUT):
            self._link_impairment(target)
        else:
            raise ValueError(f'{fault.kind} must have a branch here')

    def _end(self, fault: plan.Fault) -> None:
        target = fault.target
        if fault.kind in (plan.KILL, plan.RESTART):
            if target in self.down:
                self.down.discard(target)
                self._restart(target)
        elif fault.kind == plan.PAUSE:
            self.processes.processes[target].send_signal(signal.SIGCONT)
        elif fault.kind == plan.DISK_FULL:
            (self.disk / 'filler').unlink(missing_ok=True)
        elif fault.kind in (plan.LINK_IMPAIRMENT, plan.BLACKOUT):
            self._link_impairment(target)
        else:
            raise ValueError(f'{fault.kind} must have a branch here')

    def _restart(self, name: str) -> None:
        self.processes.start(name)
        self._started[name] = time.monotonic()

    def _link_impairment(self, robot: str) -> None:
        """Set the conditions of a robot's link according to the faults that are active now."""
        now = self.ended
        mine = [m for m in self.faults if m.target == robot and m.start <= now < m.end]
        found = next((m.conditions for m in mine if m.kind == plan.LINK_IMPAIRMENT), Conditions(
            delay=self.fleet.robot(robot).link.latency))
        dark = any(m.kind == plan.BLACKOUT for m in mine)
        self.network.change(robot, dataclasses.replace(found, linked=not dark))

    def _over(self) -> bool:
        """Return whether the run is ending; in this case no more faults begin."""
        fleet = self.monitor.fleet
        return fleet is not None and fleet.state in ('stopping', 'stopped')

    def _revive(self) -> None:
        (self.disk / 'filler').unlink(missing_ok=True)
        for process in self.processes.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)

    # -- observations ---

    def _look(self, now: float) -> None:
        fleet = self.monitor.fleet
        self._states = {r.robot: r.state for r in fleet.robots} if fleet is not None else {}
        away = {name for name, state in self._states.items() if state == 'away'}
        if len(counters := self.network.counters()) == 2:
            self._offered = offered(*counters)
        if not self._over():
            self.watch.observe(now, {
                robot.name: Seen(self._iteration(robot.name), robot.name in away,
                                 self._unable(robot.name, now))
                for robot in self.fleet.robots})
            self._check_lives(now)
        if now - self._sampled >= SAMPLE:
            self._sampled = now
            self._sample(now)
        self._check_checkpoint(now)

    def _iteration(self, robot: str) -> int:
        status = self.monitor.robots.get(robot)
        return -1 if status is None else int(status.iteration)

    def _unable(self, robot: str, now: float) -> str:
        """Return why a robot cannot work, such as a fault or a faded link; '' if it can work."""
        for target in (SERVER, robot):
            for fault in self.faults:
                if fault.target == target and fault.start <= now < fault.end and fault.takes_away:
                    return fault.kind
            started = self._started.get(target, -math.inf)
            if self._heard(target) < started and time.monotonic() < started + START:
                return 'start of the server' if target == SERVER else 'start'
        if time.monotonic() < self._held_until:
            return 'held up'
        trace = self._traces.get(robot)
        if (trace is not None and trace.rate(now) < FADED) or self._offered.get(robot, 1.0) < FADED:
            return 'fade'
        # Over a slow link, a restarted robot needs time to receive the whole model. Until then it
        # makes no iteration.
        begun = time.monotonic() < self._started.get(robot, -math.inf) + SNAPSHOT
        return 'snapshot' if begun and self._states.get(robot) == 'joining' else ''

    def _heard(self, name: str) -> float:
        return self.monitor.heard('rog' if name == SERVER else name)

    def _check_lives(self, now: float) -> None:
        for name, process in list(self.processes.processes.items()):
            code = process.poll()
            if code is not None and name not in self.down:
                self.watch.report(now, 'died', name, f'it ended with exit code {code} while the '
                                  f'fleet trains; its log: {self.out / "logs" / name}.log')
                if name != SERVER:
                    self._restart(name)

    def _sample(self, now: float) -> None:
        for name, process in self.processes.processes.items():
            if name in self.down or process.poll() is not None:
                continue
            lives = self.memory[name]
            try:
                pages = int(Path(f'/proc/{process.pid}/statm').read_text().split()[1])
            except (OSError, IndexError):
                continue
            if getattr(process, 'sampled', None) is None:
                process.sampled = True  # type: ignore[union-attr]
                lives.append([])
            lives[-1].append((round(now, 1), round(pages * os.sysconf('SC_PAGE_SIZE') / 2**20, 1)))

    def _check_checkpoint(self, now: float) -> None:
        """Check the newest checkpoint, unless it has been checked before.

        It must be readable and finite. Its iteration must not be lower than the iteration of the
        previous checkpoint.
        """
        from rog_ps.directory import kept

        try:
            changed = max(kept(self.disk).numbers(), default=0)
            if changed == self._newest[0]:
                return
            iteration, finite = _read_checkpoint(self.disk)
        except Exception as error:  # a damaged file can raise any exception
            self.watch.report(now, 'bad checkpoint', SERVER, f'it cannot be read: {error}')
            return
        self.checkpoints += 1
        if not finite:
            self.watch.report(now, 'bad checkpoint', SERVER, 'it holds values that are not finite')
        if iteration < self._newest[1]:
            self.watch.report(now, 'bad checkpoint', SERVER, f'iteration {iteration} comes after '
                              f'{self._newest[1]}')
        self._newest = changed, iteration

    # -- outcome ---

    def result(self) -> dict[str, Any]:
        """Return the result of the run with all violations."""
        texts = {name: (self.out / 'logs' / f'{name}.log').read_text(errors='replace')
                 if (self.out / 'logs' / f'{name}.log').exists() else '' for name in self.names}
        sums = {name: checksums(text.splitlines()) for name, text in texts.items()}
        compared, different = mirrored(sums.pop(SERVER), sums.values())
        for transfer in different:
            self.watch.report(self.ended, 'mirror', transfer, 'robot and server hold other rows')
        for name, lives in self.memory.items():
            for samples in lives:
                if grew(samples):
                    self.watch.report(self.ended, 'memory', name, f'grew by {growth(samples):.0f} '
                                      f'MiB to {samples[-1][1]:.0f} MiB')
        return {
            'seed': self.fleet.seed, 'minutes': self.fleet.minutes,
            'sync': self.fleet.training.sync, 'took_s': round(self.ended, 1),
            'schedule': [dataclasses.asdict(fault) for fault in self.faults],
            'violations': [dataclasses.asdict(v) for v in self.watch.violations],
            'iterations': {n: int(s.iteration) for n, s in sorted(self.monitor.robots.items())},
            'accuracy': self._accuracy(), 'checkpoints': self.checkpoints,
            'mirror': {'compared': compared, 'different': different},
            'returns_s': self.watch.returns,
            'longest_pause_s': {n: round(t, 1) for n, t in self.watch.pauses.items()},
            'held_up': self.held_up, 'memory_mib': self.memory}

    def _accuracy(self) -> float | None:
        """Return the accuracy of the last version of the model; None without a version."""
        from fleet_env.versions import MODELS, Versions
        from fleet_env.weights import load_weights
        from rog_tasks.task import load_task, measure

        if not Versions(self.out / 'run' / MODELS).numbers():
            return None
        training = self.fleet.training
        task = load_task(training.task, training.task_options, self.fleet.seed,
                         training.batch_size)
        model = task.model()
        load_weights(model, self.out / 'run')
        return round(measure(task, model), 5)


def _read_checkpoint(directory: Path) -> tuple[int, bool]:
    import numpy as np
    from rog_ps.directory import kept
    from safetensors.numpy import load

    found = kept(directory).newest()
    assert found is not None
    return int(found.meta['iteration']), all(np.isfinite(values).all()
                                             for values in load(found.content).values())


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    """Mount a small file system at ``path``, visible to this process and its children only."""
    own_mounts()
    subprocess.run(['mount', '-t', 'tmpfs', '-o', f'size={DISK_MIB}m', 'rog-chaos', str(path)],
                   check=True, timeout=30.0)
    try:
        yield
    finally:
        subprocess.run(['umount', '-l', str(path)], check=True, timeout=30.0)


def _fill(path: Path) -> None:
    """Write to a file until its disk is full."""
    with path.open('wb', buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def _tell(result: dict[str, Any], out: Path) -> None:
    print(f'\n{result["took_s"]:.0f} s, iterations {result["iterations"]}, accuracy '
          f'{result["accuracy"]}; {result["checkpoints"]} checkpoints, '
          f'{result["mirror"]["compared"]} transfers compared; the machine was overloaded '
          f'{result["held_up"]} times')
    for cause, found in result['returns_s'].items():
        print(f'{len(found)} returns from {cause}: half finished an iteration within '
              f'{sorted(found)[len(found) // 2]:.1f} s, all within {max(found):.1f} s')
    for violation in result['violations']:
        print(f'{violation["t"]:7.1f} s  {violation["what"]}: {violation["target"]}: '
              f'{violation["detail"]}')
    print(f'{len(result["violations"])} violations; {out / RESULT}')
