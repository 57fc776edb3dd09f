"""`python -m rrto_bridge.client.local_server FD DEVICE PARENT`: compute on this machine's own GPU.

A program whose server is lost continues in this process, because the device 'cuda' of its own
process is taken. The process executes the messages that a server's process would execute, from the
socket FD, and ends with the process PARENT. Its first frame is a pair: the name of the device, and
why there is none ('' if there is one).

A frame is its length (8 bytes, little endian), then its bytes. An empty frame from the program asks
for all tensors: one frame for each memory, see `migration.carried`, then an empty one.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from typing import Any

import torch
from fleet_compute.weights import Weights
from fleet_env.command import never_collect_what_is_loaded
from fleet_ros.device import torch_device, warm_up

from ..execution.context import Context, default_generator
from ..execution.perform import Performer
from ..protocol.wire import encode
from .migration import carried

UNLIMITED = 1 << 40   # bytes for tensors: the program has this machine's GPU for itself
LENGTH = struct.Struct('<Q')


class _Link:
    """The socket to the program; raises EOFError if the program has ended."""

    def __init__(self, descriptor: int, parent: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        # Other processes of the program may have a copy of the socket's other end, so its end does
        # not tell that of the program.
        self._parent = os.pidfd_open(parent)
        self._both: list[Any] = [self._socket, self._parent]
        if os.getppid() != parent:
            raise EOFError

    def receive(self) -> bytes:
        size, = LENGTH.unpack(self._exactly(LENGTH.size))
        return bytes(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        found = bytearray(size)
        view = memoryview(found)
        while view:
            if self._parent in select.select(self._both, [], [])[0]:
                raise EOFError
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return found

    def send(self, frame: bytes) -> None:
        try:
            self._socket.sendall(LENGTH.pack(len(frame)))
            self._socket.sendall(frame)
        except OSError:
            raise EOFError from None


def _performer(name: str) -> Performer:
    device = torch_device(name)
    warm_up(device)
    # PyTorch's default generator, because the process serves only this program.
    generator = default_generator(device)
    generator.manual_seed(torch.Generator().initial_seed())
    return Performer(Context(device, UNLIMITED, generator=generator), Weights())


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'


def _serve(link: _Link, performer: Performer) -> None:
    while True:
        message = link.receive()
        replies: Any = performer.perform(message) if message else carried(performer.context)
        for reply in replies:
            link.send(reply)
        if not message:
            link.send(b'')


def main(arguments: list[str]) -> int:
    """Execute messages until the program has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl+C is the program's
    try:
        link = _Link(int(arguments[0]), int(arguments[2]))
        try:
            performer = _performer(arguments[1])
        except Exception as error:   # such as an error of the driver
            link.send(encode(('', f'{type(error).__name__}: {str(error)[:200]}')))
            return 1
        never_collect_what_is_loaded()
        link.send(encode((_name(performer.context.device), '')))
        _serve(link, performer)
    except (EOFError, ProcessLookupError):
        pass
    return 0


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
