"""The program's port to a process that computes on this machine's own GPU (`local_server`)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator

from fleet_env.command import how_it_ended
from fleet_ros.own_gpu import end_process, own_environment, start_process

from ..execution.context import Context
from ..protocol.errors import LinkError
from ..protocol.wire import decode
from .inprocess import InProcess
from .local_server import LENGTH
from .machine import ClientMachine
from .migration import restored
from .port import Port

STARTING = 60.0   # maximum time in seconds that the program waits for the start of the process
PART = 1 << 20    # maximum number of bytes that one call receives


class OwnProcess:
    """A process that executes messages on a device of this machine. Raises LinkError if it ends.

    The constructor does not wait until the process is ready. The process ends with the program, if
    not by `close`.
    """

    def __init__(self, device: str) -> None:
        self.name = ''     # name of the device, when the process is ready
        self._owner = os.getpid()
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._link, theirs = socket.socketpair()
        self._link.setblocking(False)
        with theirs:
            self._process = start_process('rrto_bridge.client.local_server', theirs.fileno(),
                                          device, own_environment())

    def wait_ready(self) -> None:
        """Wait until the process is ready, at most `STARTING` seconds."""
        if not self.name:
            self.name, wrong = decode(self.receive(limit=STARTING))
            if wrong:
                raise LinkError(f"this machine's GPU cannot be used: {wrong}")

    def send(self, frame: bytes) -> None:
        """Send a frame; meanwhile, keep what the process sends, so that neither waits for ever."""
        for part in (memoryview(LENGTH.pack(len(frame))), memoryview(frame)):
            left = part
            while left:
                ready = self._wait(select.POLLIN | select.POLLOUT)
                if ready & ~select.POLLOUT:
                    self._take()
                if ready & select.POLLOUT:
                    left = left[self._send(left):]

    def receive(self, waiting: Callable[[bool], None] = lambda on: None,
                limit: float | None = None) -> bytes:
        """Return the next frame; call ``waiting`` with True before a wait, with False after it."""
        while not self._frames:
            waiting(True)
            try:
                readable = self._wait(select.POLLIN, limit)
            finally:
                waiting(False)
            if not readable:
                raise LinkError(f"the process for this machine's GPU was not ready within "
                                f'{STARTING:g} s')
            self._take()
        return self._frames.popleft()

    def _wait(self, events: int, limit: float | None = None) -> int:
        """Wait until one of these events of the link; return the events, 0 after the limit."""
        poll = select.poll()   # `select.select` takes no descriptor above 1023
        poll.register(self._link, events)
        found = poll.poll(None if limit is None else limit * 1e3)
        return found[0][1] if found else 0

    def _send(self, part: memoryview) -> int:
        try:
            return self._link.send(part)
        except BlockingIOError:
            return 0
        except OSError:
            raise LinkError(self._why()) from None

    def _take(self) -> None:
        try:
            data = self._link.recv(PART)
        except BlockingIOError:
            return
        except OSError:
            data = b''
        if not data:
            raise LinkError(self._why())
        self._received += data
        while len(self._received) >= LENGTH.size:
            size, = LENGTH.unpack_from(self._received)
            end = LENGTH.size + size
            if len(self._received) < end:
                break
            self._frames.append(bytes(memoryview(self._received)[LENGTH.size:end]))
            del self._received[:end]

    def _why(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):   # its socket closes before it ends
            return ("the process for this machine's GPU "
                    + how_it_ended(self._process.wait(5)))
        return "the process for this machine's GPU has closed its link"

    def close(self) -> None:
        """End the process."""
        if os.getpid() != self._owner:
            return   # a forked child; the process is the parent's
        self._link.close()
        end_process(self._process)


class Here:
    """The places on this machine where a program goes on without its server, the best one first.

    ``device``: that of a process of its own, such as 'cuda'; '' for none. The last place is always
    the CPU, in the program's process.
    """

    def __init__(self, device: str = '') -> None:
        self._device = device
        self._process: OwnProcess | None = None

    def prepare(self) -> None:
        """Start the process, so that it is ready when the server is lost; do not wait for it."""
        if not self._device or self._process is not None:
            return
        try:
            self._process = OwnProcess(self._device)
        except OSError as error:   # such as too many processes or files
            self._device = ''
            print(f"rrto: no process for this machine's GPU: {error}", file=sys.stderr)

    def places(self, machine: ClientMachine) -> Iterator[OwnGpu | InProcess]:
        """Yield a port to each place; their handles follow those of ``machine``.

        A process that cannot be used is not tried again.
        """
        process, self._process = self._process, None
        if process is not None:
            try:
                yield OwnGpu(ClientMachine('async').follow(machine), process)
            except LinkError as error:
                process.close()
                self._device = ''
                print(f'rrto: {error}', file=sys.stderr)
        yield InProcess(ClientMachine('async').follow(machine))


class OwnGpu(Port):
    """A Port to a process of this machine that is ready. Raises LinkError if it cannot be used."""

    def __init__(self, machine: ClientMachine, process: OwnProcess) -> None:
        super().__init__(machine)
        self._process = process
        process.wait_ready()
        self.name = process.name
        self._lost = ''

    def transmit(self) -> None:
        """Send the pending messages; if the process has ended, `receive` says so."""
        for message in self.machine.outgoing():
            if not self._lost:
                try:
                    self._process.send(message)
                except LinkError as error:
                    self._lost = str(error)

    def receive(self) -> bytes:
        """Return the next reply."""
        if self._lost:
            raise LinkError(self._lost)
        return self._process.receive(self._set_idle)

    def _set_idle(self, idle: bool) -> None:
        self.idle = idle

    def context(self) -> Context:
        """Return a context on the CPU with copies of all tensors, for `migration.migrate`."""
        self._process.send(b'')
        return restored(self._carried())

    def _carried(self) -> Iterator[bytes]:
        while frame := self._process.receive():
            yield frame

    def watch(self, back: Callable[[], bool]) -> None:
        """Do nothing: a process that has ended does not return."""

    def close(self) -> None:
        """End the process."""
        self._process.close()
