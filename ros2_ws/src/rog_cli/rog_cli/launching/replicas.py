"""Servers as actors of Ray, which chooses their machines and starts those again that fail.

Each actor starts `fleet serve` as a process of its own on its machine, with the GPU that Ray has
given it. So signals, DDS and the main thread are the server's, and not those of Ray's worker.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from fleet_env.command import how_it_ended
from fleet_env.errors import SettingError
from fleet_ros.ending import Interruption, launched

# What the servers need of the environment of the command. The profiles of DDS belong to a machine;
# each server makes its own from the options.
PASSED_ON = ('ROS_DOMAIN_ID', 'ROS_HOME', 'RMW_IMPLEMENTATION', 'FLEET_KEY')
SOON = 10.0     # seconds after which the command says that Ray has not placed a server yet
STOPPING = 10.0  # maximum seconds that servers have for their end


class Replica:
    """One server, in a process that ends with the process of this actor."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-m', 'rog_cli.fleet_main', 'serve', *arguments],
            env={**os.environ, **environment, **launched()}, stdin=subprocess.DEVNULL)

    def place(self) -> str:
        """Return where the server runs."""
        return f'process {os.getpid()} of {socket.gethostname()}'

    def run(self) -> None:
        """Wait for a clean end of the server; after another one Ray starts this actor again."""
        if code := self._process.wait():
            print(f'the server {how_it_ended(code)}', file=sys.stderr, flush=True)
            os._exit(1)

    def stop(self) -> None:
        """End the server as SIGTERM does, and wait until it has ended."""
        self._process.terminate()
        self._process.wait(STOPPING)


def serve(address: str, names: Sequence[str], arguments: Sequence[str], gpus: int) -> int:
    """Run a server with each of these names in a cluster until Ctrl+C; return the exit code.

    :param address: address of the cluster; 'local': this machine alone.
    :param arguments: options of `fleet serve` for all of them.
    :param gpus: number of GPUs for each.
    :raises SettingError: Ray is not installed, or the cluster does not answer.
    """
    os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')   # else Ray reports to its makers
    os.environ.setdefault('RAY_DEDUP_LOGS', '0')            # else lines of servers are left out
    try:
        ray: Any = import_module('ray')   # not by name, as its types differ between versions
    except ImportError:
        raise SettingError('--ray needs Ray, which is not installed here: '
                           'pip install ray') from None
    try:
        ray.init(address=address, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise SettingError(f'--ray must be the address of a cluster that answers, or local, got '
                           f"'{address}': {error}") from error
    print(f'robots find the servers by server:=/{",/".join(names)} (LOPInfer, policies), '
          'and by --server or of themselves (RRTO)', file=sys.stderr)
    interruption = Interruption()   # after `init`, which has signal handlers of its own
    environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    kind = ray.remote(num_gpus=gpus, max_restarts=-1, max_task_retries=-1,
                      max_concurrency=2)(Replica)   # `stop` while `run` waits
    actors = {name: kind.remote([*arguments, '--name', name], environment) for name in names}
    try:
        return _watch(ray, actors, interruption)
    finally:
        ended = [actor.stop.remote() for actor in actors.values()]
        ray.wait(ended, num_returns=len(ended), timeout=STOPPING)
        ray.shutdown()


def _watch(ray: Any, actors: Mapping[str, Any], interruption: Interruption) -> int:
    """Say where the servers run, until a signal comes or all have ended; return the exit code."""
    placing = {actor.place.remote(): name for name, actor in actors.items()}
    running = {actor.run.remote(): name for name, actor in actors.items()}
    code, late = 0, time.monotonic() + SOON
    while running and not interruption:
        for found in ray.wait([*placing, *running], timeout=0.2)[0]:
            name = placing.pop(found, '') or running.pop(found)
            try:
                where = ray.get(found)
            except ray.exceptions.RayError as error:   # Ray does not start it again
                where, code = f'failed: {error}', 1
            print(f'{name}: {where or "ended"}', file=sys.stderr, flush=True)
        if placing and time.monotonic() > late:
            late = float('inf')
            print(f'{", ".join(placing.values())}: Ray has no machine with a free GPU and core yet',
                  file=sys.stderr, flush=True)
    return code
