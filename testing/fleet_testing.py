"""Helpers for the tests of several packages: DDS domains, environments, processes, waiting."""

from __future__ import annotations

import atexit
import fcntl
import importlib
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

LIMIT = 300.0  # a wait fails after this many seconds, which suffice even on a busy machine

# Not above 101: there, Linux may already have given the ports of a domain to some connection.
_DOMAINS = range(1, 102)
_SHARE = 8
# maps a domain to its lock file, which this process holds until its end
_claimed: dict[int, Any] = {}


def free_domain() -> int:
    """Return a DDS domain that no process on this machine uses and no other test process claims.

    A process claims `_SHARE` domains and then uses them again and again, so that some domains are
    left for other processes.
    """
    if len(_claimed) >= _SHARE:
        for domain in list(_claimed)[1:]:  # conftest.py uses the first domain for all tests
            if _is_quiet(domain):
                # move this domain to the end, so that it is reused after all others
                _claimed[domain] = _claimed.pop(domain)
                return domain
    folder = Path(tempfile.gettempdir()) / f'fleet_testing_{os.getuid()}'
    folder.mkdir(exist_ok=True)
    for domain in random.Random(os.getpid()).sample(_DOMAINS, len(_DOMAINS)):
        lock = (folder / str(domain)).open('w')
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        if _is_quiet(domain):
            _claimed[domain] = lock
            return domain
    raise RuntimeError('no DDS domain is free on this machine')


def _is_quiet(domain: int) -> bool:
    """Return whether no process uses the port of a domain's first participant."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(('127.0.0.1', 7400 + 250 * domain + 10))
        except OSError:
            return False
        return True


def environment(domain: int, *folders: Path | str, **more: str) -> dict[str, str]:
    """Return environment variables for a process in this domain that imports from ``folders``."""
    path = os.pathsep.join([*map(str, folders), os.environ.get('PYTHONPATH', '')])
    return {**os.environ, 'PYTHONPATH': path, 'ROS_DOMAIN_ID': str(domain), **more}


# What the processes of LOPInfer and of policies load. PyTorch itself loads `torch._dynamo` when a
# model is traced, which takes longer than all the rest.
INFERENCE = ('torch._dynamo', 'lopinfer_node.ros.server_node', 'lopinfer_node.ros.client_node',
             'lopinfer_node.runtime.trial', 'fleet_policy.node', 'fleet_policy.own_gpu')
# What the processes of whole fleets and of the documents' programs load.
PROGRAMS = (*INFERENCE, 'rog_cli.main', 'rog_sim.simulation', 'rog_sim.figures',
            'rog_bringup.task_check', 'rog_core.warm_up:warm_up', 'fleet_models', 'rog_ps.main',
            'rog_ps.node', 'rog_worker.main', 'rog_worker.training', 'rog_worker.connect',
            'sklearn.datasets', 'fleet_env.vision:import_torchvision')

# With it begins a program that a fork runs, but that must import the packages of this suite anew.
# `forget(*missing)` does so again; the packages ``missing`` are as if they were not installed.
FORGET = '''
import sys
def forget(*missing):
    for name in [*sys.modules]:
        package = name.partition('.')[0]
        if package in missing or package.startswith(('fleet_', 'rog_', 'lopinfer', 'rrto')):
            del sys.modules[name]
    sys.modules.update(dict.fromkeys(missing))
forget()
'''


@cache
def forks(*loaded: str) -> Any:
    """Return a `ForkServer` that has loaded these modules, the same in all tests of this process.

    A process that it starts needs a tenth of the processor time of one that loads PyTorch itself.
    """
    from rog_cli.launching.fork_server import ForkServer  # imported here: few tests need it
    domain = int(os.environ['ROS_DOMAIN_ID'])
    server = ForkServer(environment(domain, *sys.path), (__name__, *loaded))
    atexit.register(server.close)
    return server


class Forked:
    """`python -m command` as a fork by `forks`, with what tests use of a `subprocess.Popen`.

    ``command``: a module, ``module:function`` or the path of a program, and its arguments.
    ``errors``: whether ``stdout`` gets the errors too; otherwise they go where those of the tests
    go.
    """

    stderr = None

    def __init__(self, loaded: Iterable[str], command: Iterable[str],
                 env: Mapping[str, str] = os.environ, errors: bool = True,
                 cwd: Path | str = '') -> None:
        read, write = os.pipe()
        self.stdout = os.fdopen(read)
        with os.fdopen(write, 'wb') as output:
            self._child = forks(*loaded).start(
                [f'{__name__}:_as_main', 'there' if errors else 'here', str(cwd or os.getcwd()),
                 *command], output, env)
        self.pid, self.poll, self.wait = self._child.pid, self._child.poll, self._child.wait
        self.kill, self.send_signal = self._child.kill, self._child.send_signal

    @property
    def returncode(self) -> int | None:
        """Return the exit code, None before `wait` or `poll` has found the end."""
        return self._child.returncode

    def communicate(self) -> tuple[str, None]:
        """Wait for the end of the output and of the process; return the output."""
        output = self.stdout.read()
        self.wait()
        return output, None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.wait()


def forked_subprocess(*loaded: str) -> Any:
    """Return what takes the place of `subprocess` in a module that starts `python -m ...`."""
    def start(command: list[str], **_: Any) -> Forked:
        return Forked(loaded, command[2:], errors=False)
    return SimpleNamespace(**{**vars(subprocess), 'Popen': start})


def forked_on_link(*loaded: str) -> Callable[..., Any]:
    """Return a function in place of `fleet_ros.own_gpu.start_process`; it forks the process."""
    def start(module: str, descriptor: int, device: str, environment: dict[str, str]) -> Any:
        with socket.socket(fileno=os.dup(descriptor)) as link:
            return forks(*loaded).start([f'{__name__}:_on_link', module, device, str(os.getpid())],
                                        link, environment)
    return start


def _on_link() -> None:
    """Run `python -m module LINK ...` in a fork; the link has arrived as the file for output."""
    link, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    sys.argv[1:2] = ['here', os.getcwd(), sys.argv[1], str(link)]
    _as_main()


def _as_main() -> None:
    """Run `python -m module ...` in a fork; before it stand where errors go, and the folder."""
    if sys.argv[1] == 'here':
        os.dup2(os.open(f'/proc/{os.getppid()}/fd/2', os.O_WRONLY | os.O_APPEND), 2)
    for name, descriptor in (('stdout', 1), ('stderr', 2)):   # the present ones are of other files
        setattr(sys, name, os.fdopen(descriptor, 'w', buffering=1, errors='backslashreplace',
                                     closefd=False))
    os.chdir(sys.argv[2])
    del sys.argv[:3]
    name, _, function = sys.argv[0].partition(':')
    if function:
        sys.exit(getattr(importlib.import_module(name), function)())
    if name.endswith('.py'):
        path = Path(name).absolute()      # as `__file__` of `python name`
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name='__main__')
    else:
        sys.path.insert(0, '')
        sys.modules.pop(name, None)   # `python -m` loads it as the main one
        runpy.run_module(name, run_name='__main__', alter_sys=True)


def fewer(number: int) -> int:
    """Return ``number``; under `make test` return a tenth of it, but at least 1."""
    from hypothesis import settings  # imported here, because not all tests need it
    return max(1, number * settings().max_examples // 100)


def examples(number: int) -> Any:
    """Return a decorator: hypothesis tries ``number`` examples; in `make test` a tenth of them."""
    from hypothesis import settings
    return settings(max_examples=fewer(number))


def mostly_long(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return ``values`` as parameters of a test; `make test` uses only the values in ``quick``."""
    import pytest  # imported here, because benches do not need it
    assert set(quick) <= set(values := [*values]), 'a quick one is not among the values'
    return [value if value in quick else pytest.param(
        *value if isinstance(value, tuple) else [value], marks=pytest.mark.long)
        for value in values]


def eventually(condition: Callable[[], Any], what: Callable[[], str] = lambda: 'the condition',
               step: Callable[[], Any] = lambda: time.sleep(0.02)) -> None:
    """Call ``step`` until the condition holds; after `LIMIT` s, fail and name the condition."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f'did not happen: {what()}'
        step()


class Lines:
    """A process and its lines of output; a test can wait for a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True)
                         for stream in (process.stdout, process.stderr) if stream]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    def lines(self) -> list[str]:
        """Return the lines of stdout and stderr that have arrived so far."""
        with self._changed:
            return list(self._lines)

    def wait(self, pattern: str) -> str:
        """Return the first line that matches ``pattern``; fail if none comes within `LIMIT` s."""
        def found() -> str:
            return next((line for line in self._lines if re.search(pattern, line)), '')
        with self._changed:
            assert self._changed.wait_for(found, LIMIT), f'{pattern!r} not in {self._lines[-20:]}'
            return found()

    def ended(self) -> tuple[int, str]:
        """Wait until the process ends; return its exit code and its whole output."""
        code = self.process.wait(LIMIT)
        for reader in self._readers:
            reader.join(LIMIT)
        return code, ''.join(self.lines())

    def interrupt(self) -> tuple[int, str]:
        """End the process and its group, as Ctrl+C does; return what `ended` returns."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ended()
