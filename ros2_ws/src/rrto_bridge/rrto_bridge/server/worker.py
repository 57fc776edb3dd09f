"""The process of one program on the server: a `SessionMachine` on the program's own topics.

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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import rclpy
import torch
from fleet_compute.inlets import Inlets
from fleet_link.seal import Seal
from fleet_msgs.msg import Frame
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.device import limit_memory, warm_up
from fleet_ros.ending import die_with, limit_leaving
from fleet_ros.frames import ack_of, frame_of
from fleet_ros.spinning import Spinning
from rclpy.context import Context as RosContext
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from ..execution.context import Context, default_generator
from ..execution.perform import Performer
from ..execution.sharing import Sharing
from ..protocol import qos
from ..protocol.convert import SERVER
from ..protocol.errors import RemoteError
from ..protocol.messages import SendAck
from .parameters import PROVED, ServerSettings
from .session import Action, End, SessionMachine
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
        code = 2 if worker.fault else 0
    except BaseException as error:
        traceback.print_exc()
        if status is not None and not status.reason:
            status.leave(f'its process on the server has failed: {type(error).__name__}: {error}',
                         False)
    finally:
        sys.stderr.flush()
        os._exit(code)    # skip cleanup that belongs to the fork server


class _Worker:
    """The I/O of a `SessionMachine`: ROS 2 topics, the emulated link, execution of messages."""

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
        self._changed = threading.Condition()    # protects machine and channel
        self._ros = RosContext()
        rclpy.init(args=[], context=self._ros, signal_handler_options=SignalHandlerOptions.NO)
        self.node = Node(f'rrto_server_{task.program}', context=self._ros, enable_rosout=False,
                         start_parameter_services=False)
        # Why the session ended ('' before its end), whether the program caused the end, and
        # whether this process could send this reason to the program.
        self.reason, self.fault, self.told = '', False, True
        base = f'/rrto/{task.server}/{task.program}/'
        self.channel = Channel(self.node, SERVER, base, self._on_message, lambda error: None,
                               settings.shaped_link(), bool(task.keys))
        if task.keys:
            takes, sends = map(Seal, task.keys)
            self.channel.keep(sends, takes, task.incarnation)
        self.machine = SessionMachine(task.program, task.incarnation, settings, time.monotonic())
        context.inlets = Inlets(lambda: self.machine.rate)
        self._alarm = Alarm(self._on_time)
        threading.Thread(target=self._await_end, name='end', daemon=True).start()
        self._spinning = Spinning(self.node)
        warm_up(self.device)
        memory = settings.memory << 20
        limit_memory(self.device, memory + room(memory))
        self._wait_for_program()
        self.channel.listen(apart=True)
        with self._changed:
            self._act(())

    def _wait_for_program(self) -> None:
        """Wait for the program's subscriptions, because messages sent earlier would be lost.

        The program in turn waits for the subscriptions of this process, which are created after
        this wait.
        """
        end = time.monotonic() + PATIENCE
        while not (self.channel.is_heard or self.reason):
            if time.monotonic() > end:
                self.told = False    # the supervisor then sends the reason to the program
                with self._changed:
                    self._act(self.machine.fail(
                        f"the program's topics were not found within {PATIENCE:g} s", False))
                return
            time.sleep(0.002)

    def run(self) -> None:
        """Execute messages until the session ends."""
        self._work()
        # Wait for this lock, because another thread may still send the reason of the end.
        with self._changed:
            self.status.leave(self.reason, False)
            self.told = self.told and self._answered()
            self.status.leave(self.reason, self.told)
        self._close()

    def _await_end(self) -> None:
        """End the session when the server ends.

        The server then sends SIGTERM, which all threads of this process block; systemd may send
        another one.
        """
        signal.sigwait({signal.SIGTERM})
        with self._changed:
            self._act(self.machine.leave(time.monotonic()))

    def _answered(self) -> bool:
        """Repeat the reason of the end until the program answers; return whether it has."""
        end = time.monotonic() + qos.LAST_WORDS
        while not self.machine.answered and (left := end - time.monotonic()) > 0:
            if not self._changed.wait(min(left, qos.AGAIN)):
                self._act(self.machine.last_words())
        return self.machine.answered

    def _work(self) -> None:
        while not self.reason:
            with self._changed:
                while not self.reason and (message := self.machine.work()) is None:
                    # Check the deadline here too, so that a silent session ends even if the node's
                    # thread does not end it.
                    self._changed.wait(max(0.0, self.machine.deadline - time.monotonic()))
                    self._act(self.machine.on_time(time.monotonic()))
                if self.reason:
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
                    self._act(self.machine.on_reply(reply, time.monotonic()))
        except RemoteError as wrong:
            error = str(wrong)
        except Exception as wrong:
            error = f'{type(wrong).__name__}: {wrong}'
        self.status.end(self.performer.used, time.monotonic() - began)
        with self._changed:
            self._act(self.machine.fail(error) if error else self.machine.on_done(time.monotonic()))

    # -- events ----------------------------------------------------------------------------------

    def _on_message(self, message: Any) -> None:
        (self._on_frame if isinstance(message, Frame) else self._on_ack)(message)

    def _on_frame(self, message: Any) -> None:
        with self._changed:
            now = time.monotonic()
            actions = self.machine.on_frame(message.incarnation, frame_of(message), now)
            self._changed.notify_all()   # before the rest, so that the main thread wakes meanwhile
            if now >= self.machine.deadline:
                actions += self.machine.on_time(now)
            self._act(actions)

    def _on_ack(self, message: Any) -> None:
        with self._changed:
            self._act(self.machine.on_ack(message.incarnation, ack_of(message), message.error,
                                          time.monotonic()))
            self._changed.notify_all()

    def _on_time(self) -> None:
        now = time.monotonic()
        with self._changed:
            self.channel.release(now)
            self._act(self.machine.on_time(now))

    def _act(self, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        for action in actions:
            if isinstance(action, End):
                self.reason, self.fault = action.reason, action.fault
                self._changed.notify_all()
            elif isinstance(action, SendAck) and action.error:
                self.channel.say(action)
            else:
                self.channel.send(action, now, lossy=True)
        self.channel.flush()
        self._alarm.set(min(self.machine.deadline, self.channel.deadline))


def room(memory: int) -> int:
    """Return how many bytes a process may use besides its tensors; see `ROOM`.

    `memory`: number of bytes that the tensors may use.
    """
    return max(ROOM, memory // 4)
