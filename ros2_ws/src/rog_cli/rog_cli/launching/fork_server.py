"""Starts a fleet's processes as forks of a process that has loaded PyTorch and the kernels.

A fork takes milliseconds. Without forks, each process loads PyTorch, which takes one core four
seconds. Forked processes also share the loaded code in memory.

`python -m rog_cli.launching.fork_server FD TITLE MODULE...` is the fork server, which loads the
modules. FD is the number of a socket, which connects it to the launcher; TITLE is blank. It starts
no thread itself and uses neither ROS nor a device, because a forked process could not use the
threads, ROS objects and devices of its parent. Each forked process becomes a child of the launcher
and runs like a process that was started directly. The fork server ends when the launcher ends.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from fleet_env.command import collect_seldom, never_collect_what_is_loaded
from fleet_ros.ending import KILLED

LIMIT = 600.0  # seconds within which the fork server must load everything, even on a busy machine

_LOADED = ('rog_ps.main', 'rog_ps.node', 'rog_worker.main', 'rog_worker.training',
           'rog_core.warm_up:warm_up')
# maximum bytes of a datagram; the command and the environment of a process fit into one
_MESSAGE = 1 << 18
# bytes reserved in the fork server's command line, where a forked process writes its own command
_TITLE = 250
_PR_SET_CHILD_SUBREAPER = 36


class Child:
    """A process that the fork server has started, with some methods of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None if the process still runs.

        The code is -n if signal n ended the process.
        """
        return self._wait(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait until the process has ended; return the exit code.

        Raises `subprocess.TimeoutExpired` after ``timeout`` seconds.
        """
        if timeout is None:
            return self._wait(0)
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode

    def _wait(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process."""
        self.send_signal(signal.SIGKILL)


def kill(process: subprocess.Popen | Child) -> bool:
    """Kill a process; return whether it has ended.

    A process that waits for a device does not end until the device answers.
    """
    process.kill()
    try:
        process.wait(KILLED)
    except subprocess.TimeoutExpired:
        return False
    return True


class ForkServer:
    """Starts processes of servers and robots; the first start waits until everything is loaded.

    :param env: environment variables of the fork server; libraries read them while they are loaded.
    :param loaded: what it loads: modules, and functions of modules, ``module:function``, which it
        calls.
    """

    def __init__(self, env: Mapping[str, str], loaded: Sequence[str] = _LOADED) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.settimeout(LIMIT)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, '-m', __name__, str(theirs.fileno()), ' ' * _TITLE, *loaded],
                env=env, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
                start_new_session=True)

    def start(self, command: Sequence[str], log: IO[bytes], env: Mapping[str, str]) -> Child:
        """Start ``python -m command`` in a new POSIX session; return the process.

        ``command``: a module whose function `main` is the program, or ``module:function``, and its
        arguments. ``log``: file for its output.
        """
        asked = json.dumps([list(command), dict(env)]).encode()
        _adopt(True)
        try:
            socket.send_fds(self._link, [asked], [log.fileno()])
            return Child(int(self._link.recv(_MESSAGE)))
        except (ConnectionError, ValueError) as error:  # an empty answer gives a ValueError
            raise ChildProcessError('the process that loads PyTorch for the fleet has ended') \
                from error
        finally:
            _adopt(False)

    def close(self) -> None:
        """End the fork server; the processes that it has started continue."""
        self._link.close()
        kill(self._process)

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _adopt(wanted: bool) -> None:
    """Choose whether this process becomes the new parent of its orphaned descendants."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def possible() -> bool:
    """Return whether this system lets a process adopt its descendants, as Linux does."""
    return sys.platform == 'linux'


# -- in the fork server ---

def _load(names: Sequence[str]) -> None:
    """Import modules, and call functions of modules.

    A missing module is no error here: the started processes report it.
    """
    collect_seldom()
    with suppress(ImportError):
        for name in names:
            module, _, function = name.partition(':')
            found = importlib.import_module(module)
            if function:
                getattr(found, function)()
    # otherwise a garbage collection would copy the memory pages that all processes share
    never_collect_what_is_loaded()


def _serve(link: socket.socket) -> Callable[[], Any] | None:
    """Fork a process for each request of the launcher.

    In a forked process, return the function that runs its program. In the fork server, return None
    after the launcher has ended.
    """
    launcher = os.getppid()
    while True:
        asked, files, *_ = socket.recv_fds(link, _MESSAGE, 1)
        if not asked:
            return None
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            os.close(files[0])
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # wait until the parent of this process is the launcher
            time.sleep(0.001)
        if os.getppid() != launcher:  # a signal has interrupted `ForkServer.start`
            os._exit(1)
        command, env = json.loads(asked)
        link.send(str(os.getpid()).encode())
        link.close()
        return _become(command, env, files[0])


def _become(command: list[str], env: dict[str, str], log: int) -> Callable[[], Any]:
    """Turn this process into the requested process; return its program."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = [path for path in env.get('PYTHONPATH', '').split(os.pathsep)
                    if path and path not in sys.path]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _show(['python', '-m', *command])
    name, _, function = command[0].partition(':')
    module = importlib.import_module(name)
    sys.argv = [str(module.__file__), *command[1:]]
    program: Callable[[], Any] = getattr(module, function or 'main')
    return program


def _show(command: Sequence[str]) -> None:
    """Overwrite this process's command line in memory, so that `ps` shows ``command``.

    ROS names its log file by the first word.
    """
    begin, end = map(int, Path('/proc/self/stat').read_text().rpartition(')')[2].split()[45:47])
    shown = '\0'.join(command).encode()[:end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, len(shown))


def main(arguments: Sequence[str]) -> Any:
    """Fork processes for the launcher until it ends; in a forked process, run the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # From version 3.12 on, Python warns if other threads run at a fork. OpenBLAS and LTTng start
    # such threads when they are loaded.
    warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)
    program = None
    # A connection error means that the launcher has ended. Then the fork server ends too.
    with suppress(ConnectionError), socket.socket(fileno=int(arguments[0])) as link:
        _load(arguments[2:])
        program = _serve(link)
    return program() if program else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
