"""Helpers for the tests of several packages: DDS domains, environments, processes, waiting."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
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


@cache
def forks(*loaded: str) -> Any:
    """Return a `ForkServer` that has loaded these modules, the same in all tests of this process.

    A process that it starts needs a tenth of the processor time of one that loads PyTorch itself.
    """
    from rog_cli.launching.fork_server import ForkServer  # imported here: few tests need it
    return ForkServer(os.environ, loaded)


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
