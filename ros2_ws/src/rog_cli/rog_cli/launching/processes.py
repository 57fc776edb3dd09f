"""The processes of a fleet on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from fleet_env.command import last_error
from fleet_env.durable import write_text
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import child_fleets
from fleet_ros.ending import LAST, SIGNALS, launched
from fleet_ros.environment import dds_environment
from fleet_ros.parameters import parameter_file
from rog_ps.duplicate_server_check import CHECKED
from rog_ros.parameters import SERVER, server_parameters, worker_parameters

from .fork_server import Child, ForkServer, kill, possible

LOOKING = 60.0  # maximum seconds for which `start_all` waits for a look for another server
_STEP = 0.05   # seconds between two checks whether a process has ended


def _all(fleet: FleetConfig) -> list[str]:
    """Return the names of all processes of a fleet."""
    return ['server', *(robot.name for robot in fleet.robots)]


class FleetProcesses:
    """Starts the server and the robots, and ends them in an orderly way.

    The logs are in ``out``/logs. A robot may stand for a child fleet. For a robot named ``robot``,
    the processes of the child fleet are called ``robot/server``, ``robot/robot1``, ..., and their
    files are in ``out``/robot.

    :param names: the processes that run on this machine: `server` and names of robots.
    """

    apart = False  # whether each process runs in its own network namespace

    def __init__(self, fleet: FleetConfig, out: Path, names: Iterable[str], resume: bool = False
                 ) -> None:
        wanted = list(names)
        self.fleet, self.out, self.resume = fleet, out, resume
        self.below = {name: FleetProcesses(below, out / name, _all(below), resume)
                      for name, below in child_fleets(fleet).items() if name in wanted}
        self.names: list[str] = [own for name in wanted for own in (
            (f'{name}/{part}' for part in self.below[name].names) if name in self.below
            else (name,))]
        self.processes: dict[str, subprocess.Popen | Child] = {}
        self.killed: set[str] = set()
        self._asked: set[str] = set()
        self._fork_server: ForkServer | None = None
        self._looking: dict[str, subprocess.Popen] = {}  # server -> looks for another one

    # -- starting ---

    def start(self, name: str, fork_server: ForkServer | None = None, checked: bool = False
              ) -> None:
        """Start the process of ``server`` or of a robot, for the first time or again.

        ``fork_server``: forks the process. ``checked``: whether the caller has checked the method,
        and looked for another server.
        """
        command, env = self.command(name), self.environment(name)
        if checked:
            env[CHECKED] = '1'
        with self._log(name) as log, self.place(name):
            self._keep(name, fork_server.start(command, log, env) if fork_server
                       else self._popen(command, log, env))

    def _log(self, name: str) -> IO[bytes]:
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        return self.log(name).open('ab')

    def _keep(self, name: str, process: subprocess.Popen | Child) -> None:
        fleet, own = self._whose(name)
        self.processes[name] = fleet.processes[own] = process

    @staticmethod
    def _popen(command: list[str], log: IO[bytes], env: dict[str, str]) -> subprocess.Popen:
        # The process gets its own session, so that Ctrl+C reaches only the launcher. The
        # launcher then ends the fleet in an orderly way.
        return subprocess.Popen([sys.executable, '-m', *command], stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                env=env)

    def prepare(self) -> None:
        """Begin what takes seconds: load the processes' code, look for other servers.

        `start_all` waits until it is done.
        """
        if self._fork_server or len(self.names) < 2 or self.apart or not possible():
            return
        self._fork_server = ForkServer(self.environment(self.names[0]))
        for name in self.names:
            if self._whose(name)[1] == 'server':
                with self._log(name) as log:
                    self._looking[name] = self._popen(
                        ['rog_ps.duplicate_server_check', *self.command(name)[1:]], log,
                        self.environment(name))

    def start_all(self) -> None:
        """Start all processes that run here.

        If there is another server of a fleet, the fleet's server is the process that has found it.
        """
        with self:
            self.prepare()
            if self._fork_server is None:
                from rog_core.warm_up import warm_up

                warm_up()  # compile now, so that the processes do not all compile at once
            for name in self.names:
                code = self._looked(name)
                if code is not None and code > 0:
                    self._keep(name, self._looking[name])
                    if name == 'server':
                        break
                else:
                    self.start(name, self._fork_server, checked=code == 0)

    def _looked(self, name: str) -> int | None:
        """Return the exit code of the process that looks for another server, 0: there is none.

        None, or the negative number of a signal: the server has to look itself.
        """
        try:
            return self._looking[name].wait(LOOKING) if name in self._looking else None
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End what `prepare` has begun; the processes that `start_all` has started continue."""
        if self._fork_server is not None:
            self._fork_server.close()
        for name, process in self._looking.items():
            if self.processes.get(name) is not process:
                kill(process)
        self._fork_server, self._looking = None, {}

    def __enter__(self) -> FleetProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whose(self, name: str) -> tuple[FleetProcesses, str]:
        """Return the object that manages a process, and the name of the process in this object.

        The object is ``self``, or belongs to a child fleet.
        """
        below, _, own = name.rpartition('/')
        return (self.below[below] if below else self), own

    def place(self, name: str) -> AbstractContextManager[object]:
        """Return the context in which a process is started; in this class, an empty context."""
        return nullcontext()

    def command(self, name: str) -> list[str]:
        """Write the parameter file of a process, and return the arguments for `python -m`."""
        fleet, own = self._whose(name)
        if fleet is not self:
            return fleet.command(own)
        space = self.fleet.network.namespace
        if name == 'server':
            module, namespace = 'rog_ps.main', f'{space}/{SERVER}'
            parameters = server_parameters(self.fleet, str(self.out))
            parameters['resume'] = self.resume or name in self.processes
        else:
            module, namespace = 'rog_worker.main', f'{space}/{name}'
            parameters = worker_parameters(self.fleet, self.fleet.robot(name))
        return [module, '--ros-args', '-r', f'__ns:={namespace}',
                '--params-file', str(self._parameters_file(name, parameters))]

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment variables of a process."""
        # Each process uses one thread, because all processes share this machine and the models are
        # small.
        return {**os.environ, **self.reach(name), 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1',
                **launched()}

    def reach(self, name: str) -> dict[str, str]:
        """Return the environment variables that a process needs for DDS."""
        fleet, own = self._whose(name)
        return dds_environment(fleet.fleet.network, robot=own != 'server')

    def _parameters_file(self, name: str, parameters: dict[str, Any]) -> Path:
        folder = self.out / 'parameters'
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f'{name}.yaml'
        write_text(path, parameter_file(parameters))
        return path

    # -- watching ---

    def follow(self, status: Any) -> None:
        """Handle the last `FleetStatus`, None before the first one; in this class, do nothing."""

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        fleet, own = self._whose(name)
        return fleet.out / 'logs' / f'{own}.log'

    def alive(self) -> list[str]:
        """Return the names of the running processes."""
        return [name for name, process in self.processes.items() if process.poll() is None]

    def running(self) -> bool:
        """Return whether the server and at least one robot still run.

        If this machine has only robots, return whether a robot still runs. If it has only the
        server, return whether the server still runs.
        """
        alive = self.alive()
        return bool(alive) and ('server' not in self.processes or 'server' in alive) \
            and (alive != ['server'] or len(self.processes) == 1)

    def failures(self) -> dict[str, int]:
        """Return the exit codes of the processes that failed, by name.

        A process has failed if its exit code is not 0, unless it was asked to end and a signal
        in `SIGNALS` ended it. If the server has failed, the result contains only the server.
        """
        # If a process has not yet set its signal handlers, the signal that asks it to end kills it.
        found = {name: code for name, process in self.processes.items()
                 if (code := process.poll()) not in (0, None)
                 and not (name in self._asked and -code in SIGNALS)}
        return {'server': found['server']} if 'server' in found else found

    def said(self, name: str) -> str:
        """Return the last error in a process's log, or the last line if the log has no error."""
        return last_error(self.log(name))

    # -- ending ---

    def ask(self) -> None:
        """Ask the servers to end the run; if no server runs here, ask the robots to end.

        A server that ends the run makes its robots end too.
        """
        alive = self.alive()
        servers = [name for name in alive if self._whose(name)[1] == 'server']
        self._signal(servers or alive)

    def end(self, *patience: float, hurry: Callable[[], object] = lambda: False) -> None:
        """End all processes: wait for them, ask the running ones to end, and finally kill them.

        :param patience: waiting times in seconds. After the first wait, the processes are asked to
            end; after each further wait, they are asked again. `LAST` seconds later they are
            killed.
        :param hurry: function that returns true if the first wait must stop at once.
        """
        for index, seconds in enumerate((*patience, LAST)):
            if index:
                self._signal(self.alive())
            until = time.monotonic() + seconds
            while self.alive() and time.monotonic() < until and not (index == 0 and hurry()):
                time.sleep(_STEP)
        for name in self.alive():
            self.killed.add(name)
            kill(self.processes[name])

    def _signal(self, names: Iterable[str]) -> None:
        for name in names:
            self._asked.add(name)
            self.processes[name].send_signal(signal.SIGINT)
