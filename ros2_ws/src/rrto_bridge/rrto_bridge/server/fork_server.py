"""`python -m rrto_bridge.server.fork_server FD`: fork a process for each program.

The fork server loads PyTorch before it forks. It starts no thread and uses neither ROS
nor a GPU, because a fork would break threads, ROS and the use of a GPU. The fork server
receives commands from the supervisor on a socket, one JSON object per datagram. When
the supervisor ends, the fork server ends all programs' processes and then itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from fleet_env.command import how_it_ended, never_collect_what_is_loaded
from fleet_env.errors import FleetEnvError
from fleet_link.session import LAST_WORDS
from fleet_ros.device import torch_device

from .parameters import ServerSettings
from .session import DRAIN
from .shared import compute
from .worker import RUNNER, Task, serve

MESSAGE = 1 << 16   # maximum size of a datagram, in bytes
SHARED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# seconds in which processes can end before they are killed: they complete what a program has begun,
# tell it that they end, and leave
ORDERLY = DRAIN + LAST_WORDS + 0.8
RUNNERS = 4     # how often the runner is started: what ends it so often would end it again


class ForkServer:
    """Forks and watches the processes of programs."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        hello = json.loads(link.recv(MESSAGE))
        self.server, self.folder = hello['server'], Path(hello['folder'])
        self.settings = ServerSettings.model_validate_json(hello['settings'])
        self.device = ''
        self.processes: dict[str, int] = {}      # maps a program's name to the pidfd of its process
        self.ids: dict[str, int] = {}
        self.runner = self.runners = 0  # process id of the runner; how often it was started
        self.selector = selectors.DefaultSelector()
        self.selector.register(link, selectors.EVENT_READ, '')

    def _child(self, ask: Any) -> str:
        """Call `ask` in a child process; return its result.

        `ask` may use a GPU, which this process must not use. Also tell the supervisor whether the
        server is ready; if it is not, tell it why, and return ''.
        """
        try:
            read, write = os.pipe()
            child = os.fork()
        except OSError as error:
            self.say(ready=False, error=f'the server cannot start a process: {error}')
            return ''
        if not child:
            try:
                text = json.dumps([ask(), ''])
            except (FleetEnvError, RuntimeError) as error:
                text = json.dumps(['', str(error)])
            except BaseException as error:
                text = json.dumps(['', f'{type(error).__name__}: {error}'])
            os.write(write, text.encode())
            os._exit(0)
        os.close(write)
        with open(read, encoding='utf-8') as file:
            answer = file.read()
        _, status = os.waitpid(child, 0)
        found, wrong = json.loads(answer) if answer else (
            '', f'device {self.settings.device!r} cannot be used: the process that tried it '
                f'{how_it_ended(os.waitstatus_to_exitcode(status))}')
        self.say(ready=not wrong, error=wrong, device=found)
        return str(found)

    def say(self, **fields: Any) -> None:
        """Send an event to the supervisor."""
        self.link.send(json.dumps(fields).encode())

    def run(self) -> None:
        """Fork processes and reap ended processes until the supervisor has ended."""
        self.device = self._child(lambda: str(torch_device(self.settings.device)))
        while True:
            for key, _ in self.selector.select():
                if key.data:
                    self._reap(key.data)
                    continue
                data = self.link.recv(MESSAGE)
                if not data:
                    return
                asked = json.loads(data)
                if 'begin' in asked:
                    self._begin(asked['begin'], asked['incarnation'], asked['keys'])
                elif 'leave' in asked:
                    self._signal(signal.SIGTERM)
                elif asked['kill'] in self.processes:
                    signal.pidfd_send_signal(self.processes[asked['kill']], signal.SIGKILL)

    def _begin(self, program: str, incarnation: int, keys: list[str]) -> None:
        if self.processes and self.settings.shares(self.device):
            self._begin_runner()
        me, child, descriptor = os.getpid(), 0, -1
        try:
            child = os.fork()
            if child:
                descriptor = os.pidfd_open(child)
                self.selector.register(descriptor, selectors.EVENT_READ, program)
        except OSError as error:
            if child:   # the process was forked, but watching it has failed
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            if descriptor >= 0:
                os.close(descriptor)
            self.say(ended=program, status=1,
                     reason=f'the server cannot start a process for the program: {error}')
            return
        if not child:
            # `worker` waits for this signal
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._leave_to_child()
            serve(Task(self.server, program, incarnation, tuple(map(bytes.fromhex, keys)),
                       self.device, self.folder, self.settings), me)
        self.ids[program] = child
        self.processes[program] = descriptor

    def _begin_runner(self) -> None:
        """Fork the process that computes what programs have in common, unless it runs."""
        if self.runner and os.waitpid(self.runner, os.WNOHANG)[0]:
            self.runner = 0
        if self.runner or self.runners >= RUNNERS:
            return
        me = os.getpid()
        with contextlib.suppress(OSError):      # without it, each program computes alone
            self.runner = os.fork()
            self.runners += 1
            if not self.runner:
                self._leave_to_child()
                compute(self.folder / RUNNER, self.device, self.folder, self.settings, me)

    def _leave_to_child(self) -> None:
        """Close, in a forked process, what belongs to the fork server."""
        self.selector.close()
        self.link.close()
        for descriptor in self.processes.values():
            os.close(descriptor)

    def _reap(self, program: str) -> None:
        descriptor = self.processes.pop(program)
        self.selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(self.ids.pop(program), 0)
        self.say(ended=program, status=os.waitstatus_to_exitcode(status))

    def close(self) -> None:
        """End all programs' processes and delete their shared files.

        Kill the processes only if they do not end by themselves within `ORDERLY` seconds. A killed
        process stays on the ROS graph until its DDS lease expires. Until then, a program that ends
        would wait for acknowledgements from the killed process.
        """
        self._signal(signal.SIGTERM)
        self.selector.unregister(self.link)
        end = time.monotonic() + ORDERLY
        while self.processes and (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                with contextlib.suppress(OSError):   # OSError: the supervisor has ended
                    self._reap(key.data)
        self._signal(signal.SIGKILL)
        if self.runner:
            os.kill(self.runner, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _signal(self, number: int) -> None:
        for descriptor in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)


def main(arguments: list[str]) -> None:
    """Run a fork server for the supervisor; `arguments`: the file descriptor of the socket."""
    # Ctrl+C sends a signal to all processes of the server, and so does systemd when it stops the
    # server. If this process ended first, the supervisor would start another one, and tell the
    # programs a wrong reason.
    for number in SHARED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # At a fork, Python 3.12 and later warn of the threads that OpenBLAS and LTTng start when they
    # are loaded.
    warnings.filterwarnings('ignore', '.*multi-threaded', DeprecationWarning)
    # A ConnectionError means that the supervisor has ended: end this process without a message.
    # Do not suppress any other error.
    with socket.socket(fileno=int(arguments[0])) as link, contextlib.suppress(ConnectionError):
        fork_server = ForkServer(link)
        # so that the forked processes share memory pages with this process
        never_collect_what_is_loaded()
        try:
            fork_server.run()
        finally:
            fork_server.close()


if __name__ == '__main__':
    main(sys.argv[1:])
