"""One run: start a program behind emulated links, carry out a scenario, and write the result."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fleet_emulation.network import SUMMARY
from fleet_env.durable import write_text
from fleet_env.records.summary import finite
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.power_model import PowerModel

from . import adapters, results
from .adapters.task import SERVER, Settings
from .environments import METHODS, Peer
from .ours import Ours, with_training
from .scenarios import Event, Scenario
from .world import World

# seconds within which every robot must have trained a batch; enough for a busy machine
START_LIMIT = 240.0
CODE = 'code'        # name of the subfolder of a run's folder that holds the adapters used
_STEP = 0.1          # seconds between two checks of the processes


class Program(Protocol):
    """Says how to start the processes of a program in a `World`."""

    def command(self, name: str, again: bool) -> list[str]:
        """Return the command of a process; ``again``: whether the process was killed before."""

    def environment(self, name: str) -> Mapping[str, str]:
        """Return the environment variables of a process."""

    def collect(self) -> None:
        """Complete journals and snapshots after the run."""


class Adapter:
    """A peer, run by its adapter in its own environment.

    :param python: the peer's Python.
    """

    def __init__(self, peer: Peer, python: Path, world: World, minutes: float, seed: int) -> None:
        self._peer, self._python, self._world = peer, python, world
        self._minutes, self._seed = minutes, seed
        shutil.copytree(Path(adapters.__file__).parent, world.out / CODE / 'adapters',
                        ignore=shutil.ignore_patterns('__pycache__'), dirs_exist_ok=True)

    def command(self, name: str, again: bool) -> list[str]:
        """Return the command of a process; ``again``: whether the process was killed before."""
        robots = self._world.network.robots
        role = ['--role', 'server'] if name == SERVER else \
            ['--role', 'robot', '--robot', str(robots.index(name))]
        return [str(self._python), '-m', f'adapters.{self._peer.adapter}', *role,
                '--robots', str(len(robots)), '--server', self._world.address,
                '--folder', str(self._world.out), '--minutes', f'{self._minutes:g}',
                '--seed', str(self._seed), *self._peer.options, *['--again'] * again]

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables of a process."""
        own = self._world.out / 'work' / name
        (own / 'tmp').mkdir(parents=True, exist_ok=True)
        # Each process has its own home directory, as on a robot, because peers keep state and
        # settings there. Each process has one thread, because the whole fleet shares this machine,
        # and because a robot's computer is small.
        return {'PATH': f'{self._python.parent}:{os.environ.get("PATH", "/usr/bin:/bin")}',
                'PYTHONPATH': str(self._world.out / CODE), 'PYTHONUNBUFFERED': '1',
                'HOME': str(own), 'TMPDIR': str(own / 'tmp'), 'LANG': 'C.UTF-8',
                'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'radio0'}

    def collect(self) -> None:
        """Do nothing: adapters write journals and snapshots themselves."""


@dataclass(frozen=True)
class Run:
    """A run of the study.

    ``fleet``: robots, links, minutes and seed. ``settings``: settings of the task. ``targets``:
    accuracies, 0 to 1; the study measures the time until the model reaches each. ``scale``: factor
    for the recorded rates. ``data``: folder with the files of the task. ``folder``: folder of the
    run.
    """

    program: str
    scenario: Scenario
    fleet: FleetConfig
    settings: Settings
    targets: tuple[float, ...]
    scale: float
    data: Path
    folder: Path

    def depends_on(self) -> dict[str, Any]:
        """Return the settings on which the result of the run depends, as JSON values."""
        links = [robot.link.model_dump(mode='json', exclude={'trace'})
                 for robot in self.fleet.robots]
        method = METHODS.get(self.program)
        return {'minutes': self.fleet.minutes, 'robots': len(links), 'scale': self.scale,
                'links': links, 'task': dict(vars(self.settings)),
                'method': vars(method) if method else {}}


def run(one: Run, peer: Peer | None, python: Path | None, versions: Mapping[str, str],
        tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Carry out a run and write its ``result.json``; return the content.

    :param peer, python: the peer and its Python; None for our own suite.
    :raises NetworkError: the emulated network cannot be made.
    """
    shutil.rmtree(one.folder, ignore_errors=True)
    one.folder.mkdir(parents=True)
    (one.folder / 'data').symlink_to(one.data.absolute(), target_is_directory=True)
    fleet = one.fleet if peer else with_training(
        one.fleet, METHODS[one.program], one.settings, one.folder, START_LIMIT)
    with World(fleet, one.folder) as world:
        program: Program = Ours(world) if peer is None or python is None else \
            Adapter(peer, python, world, one.fleet.minutes, one.fleet.seed)
        watched = _Watched(one, world, program, tell)
        started = watched.start()
        if started:
            watched.train()
        world.end()
    program.collect()
    result = {
        'schema': results.SCHEMA, 'program': one.program, 'versions': dict(versions),
        'scenario': one.scenario.name, 'seed': one.fleet.seed, 'settings': one.depends_on(),
        'events': watched.happened, 'started': started, 'start_s': watched.start_s}
    if started:
        air = json.loads((one.folder / SUMMARY).read_text())
        busy = {name: time - watched.busy.get(name, 0.0)
                for name, time in _busy(air['robots']).items()}
        result |= results.measured(
            one.folder, world.network.robots, watched.began, watched.over, watched.bytes(), busy,
            watched.ended, one.targets, PowerModel())
        result['late_s'] = air['late']
    else:
        result['outcome'] = watched.why
    shutil.rmtree(one.folder / 'snapshots', ignore_errors=True)
    write_text(one.folder / results.RESULT_FILE,
               json.dumps(finite(result), indent=1, sort_keys=True) + '\n')
    return result


def _busy(robots: Mapping[str, Any]) -> dict[str, float]:
    return {name: entry['uplink']['busy'] + entry['downlink']['busy']
            for name, entry in robots.items()}


class _Watched:
    """The processes of a run, from their start to the end of the run."""

    def __init__(self, one: Run, world: World, program: Program, tell: Callable[[str], None]
                 ) -> None:
        self._one, self._world, self._program, self._tell = one, world, program, tell
        self.began = self.over = self.start_s = 0.0
        self.busy: dict[str, float] = {}
        self.ended: dict[str, list[Any]] = {}
        self.happened: list[list[Any]] = []
        self.why = ''
        self._first: dict[str, tuple[int, int]] = {}
        self._last: dict[str, tuple[int, int]] = {}

    def start(self) -> bool:
        """Start all processes; return whether every robot trained a batch within `START_LIMIT`."""
        first = time.monotonic()
        for name in self._world.names:
            self._launch(name, again=False)
        waited = set(self._world.network.robots)
        while waited:
            waited = {name for name in waited
                      if not results.has_trained(self._one.folder, name)}
            self.start_s = time.monotonic() - first
            gone = [name for name in self._world.names if self._world.ended(name) is not None]
            if gone or self.start_s > START_LIMIT:
                self.why = 'did not start: ' + ('; '.join(map(self._world.how, gone)) if gone else
                                                f'within {START_LIMIT:g} s, {", ".join(waited)} '
                                                'trained nothing')
                return False
            time.sleep(_STEP)
        return True

    def train(self) -> None:
        """Start to replay the links' records; carry out the events until the run is over.

        Return earlier if all processes have ended by themselves.
        """
        due = self._one.scenario.schedule(self._one.fleet.minutes)
        self._world.begin()
        self.began = time.monotonic()
        self._first = self._last = self._world.bytes()
        counters = self._world.network.counters()
        self.busy = _busy(counters[-1]['robots'] if counters else {})
        duration = 60 * self._one.fleet.minutes
        while (now := time.monotonic() - self.began) < duration:
            while due and due[0][0] <= now:
                self._happen(due.pop(0)[1], now)
            self._look(now)
            if len(self.ended) == len(self._world.names):
                break  # all processes have ended by themselves
            time.sleep(_STEP)
        self._last = self._world.bytes()
        self.over = self.began + duration

    def bytes(self) -> dict[str, tuple[int, int]]:
        """Return a dict: name -> bytes received and sent in the run."""
        return {name: (self._last[name][0] - first[0], self._last[name][1] - first[1])
                for name, first in self._first.items()}

    def _happen(self, event: Event, now: float) -> None:
        self._tell(f'{now:.0f} s: {event.what}: {event.whom}')
        self.happened.append([round(now, 1), event.what, event.whom])
        if event.what == 'kill':
            self._world.kill(event.whom)
        elif event.what == 'start':
            self._launch(event.whom, again=True)
        else:
            self._world.set_link(event.whom, event.what == 'link up')

    def _look(self, now: float) -> None:
        for name in self._world.names:
            if name not in self.ended and name not in self._world.down \
                    and self._world.ended(name) is not None:
                self.ended[name] = [round(now, 1), self._world.how(name)]
                self._tell(f'{now:.0f} s: {self.ended[name][1]}')

    def _launch(self, name: str, again: bool) -> None:
        self.ended.pop(name, None)
        self._world.start(name, self._program.command(name, again),
                          self._program.environment(name), self._one.folder / 'work' / name)
