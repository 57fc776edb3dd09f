"""The process of one program on the server: a `ProgramSession` on the program's own topics.

The fork server forks this process. The main thread executes messages; the node's thread receives
them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import rclpy
import torch
from fleet_compute.inlets import Inlets
from fleet_link.seal import Seal
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.device import limit_memory, warm_up
from fleet_ros.ending import die_with, limit_leaving
from fleet_ros.frames import packet_of, topics
from fleet_ros.spinning import Spinning
from rclpy.context import Context as RosContext
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ..execution.context import Context, default_generator
from ..execution.perform import Performer
from ..execution.sharing import Sharing
from ..protocol.errors import RemoteError
from .parameters import PROVED, ServerSettings
from .session import ProgramSession
from .shared_status import SharedStatus

# time in seconds within which DDS must find the program's topics, and the runner must answer
PATIENCE = 10.0
RUNNER = 'runner'     # socket of the runner in the server's folder, see `fleet_compute.runner`
# A process is always allowed at least this many bytes besides its tensors, for messages
# and for workspaces of operators.
ROOM = 64 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """The program that this process serves; `folder` contains status files.

    `keys`: secrets of the seals of what comes and of what is sent; empty: there is no key.
    """

    server: str
    program: str
    incarnation: int
    keys: tuple[bytes, ...]
    device: str
    folder: Path
    settings: ServerSettings


def serve(task: Task, parent: int) -> NoReturn:
    """Serve a program in this process, then exit; `parent` is the fork server's process id."""
    code = 1
    status: SharedStatus | None = None
    try:
        die_with(parent)
        status = SharedStatus(task.folder / task.program)
        worker = _Worker(task, status)
        worker.run()
        code = 2 if worker.session.fault else 0
    except BaseException as error:
        traceback.print_exc()
        if status is not None and not status.reason:
            status.leave(f'its process on the server has failed: {type(error).__name__}: {error}',
                         False)
    finally:
        sys.stderr.flush()
        os._exit(code)    # skip cleanup that belongs to the fork server


class _Worker:
    """The I/O of a `ProgramSession`: ROS 2 topics, the emulated link, execution of messages."""

    def __init__(self, task: Task, status: SharedStatus) -> None:
        self.task, self.status = task, status
        settings = task.settings
        if settings.threads:
            torch.set_num_threads(settings.threads)
        self.device = torch.device(task.device)
        # Use PyTorch's default generator, because the process serves only this program.
        generator = default_generator(self.device)
        generator.manual_seed(torch.Generator().initial_seed())
        context = Context(self.device, settings.memory << 20, status.note, generator)
        weights = settings.kept_weights(task.folder / PROVED)
        self.performer = Performer(context, weights, Sharing(
            context, weights, task.folder / RUNNER, min(PATIENCE, settings.operator / 2))
            if settings.shares(task.device) else None)
        self._changed = threading.Condition()    # protects session and channel
        self._ros = RosContext()
        rclpy.init(args=[], context=self._ros, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node(f'rrto_server_{task.program}', context=self._ros, enable_rosout=False,
                         start_parameter_services=False)
        self.told = True    # whether this process could tell the program why the session ended
        base = f'/rrto/{task.server}/{task.program}/'
        self.channel = Channel(self.node, topics(True, task.incarnation), base, self._on_message,
                               lambda error: None, settings.shaped_link(), bool(task.keys))
        if task.keys:
            takes, sends = map(Seal, task.keys)
            self.channel.keep(sends, takes, task.incarnation)
        self.session = ProgramSession(settings, time.monotonic())
        context.inlets = Inlets(lambda: self.session.stream.sender.link.rate)
        self._alarm = Alarm(self._on_time)
        threading.Thread(target=self._await_end, name='end', daemon=True).start()
        self._spinning = Spinning(self.node)
        warm_up(self.device)
        memory = settings.memory << 20
        limit_memory(self.device, memory + room(memory))
        self._wait_for_program()
        self.channel.listen(apart=True)
        with self._changed:
            self._poll()

    def _wait_for_program(self) -> None:
        """Wait for the program's subscriptions, because messages sent earlier would be lost.

        The program in turn waits for the subscriptions of this process, which are created after
        this wait.
        """
        end = time.monotonic() + PATIENCE
        while not (self.channel.is_heard or self.session.ended):
            if time.monotonic() > end:
                self.told = False    # the supervisor then sends the reason to the program
                with self._changed:
                    self.session.end(f"the program's topics were not found within {PATIENCE:g} s",
                                     time.monotonic())
                return
            time.sleep(0.002)

    def run(self) -> None:
        """Execute messages until the session ends."""
        self._work()
        # Wait for this lock, because another thread may still send the reason of the end.
        with self._changed:
            self.status.leave(self.session.ended, False)
            self.told = self.told and self._answered()
            self.status.leave(self.session.ended, self.told)
        self._close()

    def _await_end(self) -> None:
        """End the session when the server ends.

        The server then sends SIGTERM, which all threads of this process block; systemd may send
        another one.
        """
        signal.sigwait({signal.SIGTERM})
        with self._changed:
            self.session.leave(time.monotonic())
            self._poll()
            self._changed.notify_all()

    def _answered(self) -> bool:
        """Repeat the reason of the end until the program answers; return whether it has."""
        while not self.session.over:
            self._changed.wait(max(0.0, self.session.deadline - time.monotonic()))
            self._poll()
        return self.session.answered

    def _work(self) -> None:
        while not self.session.ended:
            with self._changed:
                while not self.session.ended and (message := self.session.work()) is None:
                    # Look at the deadline here too, so that a silent session ends even if the
                    # node's thread does not end it.
                    self._changed.wait(max(0.0, self.session.deadline - time.monotonic()))
                    self._poll()
                if self.session.ended:
                    break
            assert message is not None
            self._execute(message)
            del message

    def _close(self) -> None:
        """Leave the ROS graph."""
        limit_leaving()
        self._spinning.close()
        self.channel.close()
        self._alarm.close()
        self.node.destroy_node()
        self._ros.try_shutdown()

    def _execute(self, message: bytes) -> None:
        began = time.monotonic()
        self.status.begin()
        error = ''
        try:
            for reply in self.performer.perform(message):
                with self._changed:
                    self.session.reply(reply)
                    self._poll()
        except RemoteError as wrong:
            error = str(wrong)
        except Exception as wrong:
            error = f'{type(wrong).__name__}: {wrong}'
        self.status.end(self.performer.used, time.monotonic() - began)
        with self._changed:
            if error:
                self.session.fail(error, time.monotonic())
            self.session.done(time.monotonic())
            self._poll()

    # -- events ----------------------------------------------------------------------------------

    def _on_message(self, message: Any) -> None:
        if message.incarnation != self.task.incarnation:
            return
        packet = packet_of(message)
        with self._changed:
            self.session.receive(packet, time.monotonic())
            self._changed.notify_all()   # before the rest, so that the main thread wakes meanwhile
            self._poll()

    def _on_time(self) -> None:
        with self._changed:
            self.channel.release(time.monotonic())
            self._poll()
            self._changed.notify_all()

    def _poll(self) -> None:
        now = time.monotonic()
        self.channel.transmit(self.session.poll(now), now)
        self._alarm.set(min(self.session.deadline, self.channel.deadline))


def room(memory: int) -> int:
    """Return how many bytes a process may use besides its tensors; see `ROOM`.

    `memory`: number of bytes that the tensors may use.
    """
    return max(ROOM, memory // 4)
