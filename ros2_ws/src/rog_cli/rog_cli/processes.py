"""The processes of a fleet on one machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from fleet_env.fleet import FleetConfig
from rog_core.warm_up import warm_up
from rog_ros.parameters import server_parameters, worker_parameters


class FleetProcesses:
    """Starts the server and the robots; ends them in order. Logs go to ``out``/logs."""

    def __init__(self, fleet: FleetConfig, out: Path, names: list[str], resume: bool = False
                 ) -> None:
        self.fleet, self.out, self.names, self.resume = fleet, out, names, resume
        self.processes: dict[str, subprocess.Popen] = {}

    def log(self, name: str) -> Path:
        """Path of a process's log."""
        return self.out / 'logs' / f'{name}.log'

    def start(self, name: str) -> None:
        """Start the process of ``server`` or of a robot, again if need be."""
        if name == 'server':
            resume = self.resume or name in self.processes
            module, namespace = 'rog_ps.main', '/rog'
            parameters = server_parameters(self.fleet, 0.0, str(self.out))
            parameters['resume'] = resume
        else:
            module, namespace = 'rog_worker.main', f'/{name}'
            parameters = worker_parameters(self.fleet, self.fleet.robot(name), 0.0)
        file = self._parameters_file(name, parameters)
        log = self.log(name).open('ab')
        self.processes[name] = subprocess.Popen(
            [sys.executable, '-m', module, '--ros-args', '-r', f'__ns:={namespace}',
             '--params-file', str(file)], stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True, env=self._environment())
        log.close()

    def _parameters_file(self, name: str, parameters: dict[str, Any]) -> Path:
        folder = self.out / 'parameters'
        folder.mkdir(exist_ok=True)
        self.log(name).parent.mkdir(exist_ok=True)
        path = folder / f'{name}.yaml'
        path.write_text(yaml.safe_dump({'/**': {'ros__parameters': parameters}}))
        return path

    def _environment(self) -> dict[str, str]:
        # One thread each: the fleet shares this machine, and its robots are small.
        return {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONUNBUFFERED': '1'}

    def __enter__(self) -> FleetProcesses:
        warm_up()  # compile once, not in every process at the same time
        for name in self.names:
            self.start(name)
        return self

    def stop(self) -> None:
        """Ask the server to end the run, and the robots on its word; without it, the robots."""
        asked = ['server'] if 'server' in self.processes else self.names
        for name in asked:
            if self.processes[name].poll() is None:
                self.processes[name].send_signal(signal.SIGINT)

    def running(self) -> bool:
        """Whether the run goes on here: the server lives, and at least one robot to train with."""
        alive = {name: process.poll() is None for name, process in self.processes.items()}
        server = alive.pop('server', True)
        return server and (any(alive.values()) or not alive)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()
        for number, patience in ((None, 10.0), (signal.SIGINT, 5.0), (signal.SIGKILL, 5.0)):
            until = time.monotonic() + patience
            for process in self.processes.values():
                if number is not None and process.poll() is None:
                    process.send_signal(number)
                try:
                    process.wait(max(until - time.monotonic(), 0.01))
                except subprocess.TimeoutExpired:
                    continue

    def failures(self) -> dict[str, int]:
        """Processes that did not end with exit code 0."""
        return {name: code for name, process in self.processes.items()
                if (code := process.poll()) not in (0, None)}
