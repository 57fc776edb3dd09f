"""The server's shell: `ServerMachine` on the topics of a ROS 2 node, and the executing thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from fleet_env.shaped import ShapedLink
from fleet_ros.alarm import Alarm
from rclpy.duration import Duration
from rclpy.node import Node
from rrto_msgs import msg, srv

from . import qos
from .allow import operators_digest
from .context import Context
from .convert import frame_of, to_ros
from .errors import RemoteError
from .perform import Performer, Weights
from .server import Action, Join, Leave, Limits, OpenRequest, SendAck, SendFrame, ServerMachine

FAREWELL = 1.0    # seconds in which programs take the news that the server ends


class _Topics:
    """Topics of one program."""

    def __init__(self, server: Server, program: str) -> None:
        node, base = server.node, f'/rrto/{server.name}/{program}/'
        self.link = server.link()
        self.down = node.create_publisher(msg.Frame, base + 'down', qos.STREAM)
        self.acks = node.create_publisher(msg.Ack, base + 'up_ack', qos.STREAM)
        self.subscriptions = [
            node.create_subscription(msg.Frame, base + 'up', partial(server.on_frame, program),
                                     qos.STREAM),
            node.create_subscription(msg.Ack, base + 'down_ack', partial(server.on_ack, program),
                                     qos.STREAM)]

    def remove(self, node: Node) -> None:
        """Remove the topics."""
        for publisher in (self.down, self.acks):
            node.destroy_publisher(publisher)
        for subscription in self.subscriptions:
            node.destroy_subscription(subscription)


class Server:
    """Serves programs; somebody spins `node`. `link()`: the emulated link to a program."""

    def __init__(self, node: Node, name: str, device: torch.device, limits: Limits,
                 link: Any = ShapedLink) -> None:
        self.node, self.name, self.device, self.link = node, name, device, link
        self.weights = Weights(limits.weights << 20)
        self.machine = ServerMachine(self._performer, torch.__version__, operators_digest(), limits)
        self._changed = threading.Condition()   # guards machine and topics
        self._topics: dict[str, _Topics] = {}
        self._closing = False
        self._busy = 0.0                        # seconds of computing since the last report
        self._reported = time.monotonic()
        self._status = node.create_publisher(msg.ServerStatus, f'/rrto/{name}/status', qos.STATUS)
        node.create_service(srv.Open, f'/rrto/{name}/open', self._on_open)
        node.create_timer(1.0, self._report)
        self._alarm = Alarm(node, self._on_time)
        self._thread = threading.Thread(target=self._execute, name='execute', daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the programs and stop the threads; call it before the node is destroyed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            actions = self.machine.close()
            self._act([a for a in actions if isinstance(a, SendAck)])
            end = time.monotonic() + FAREWELL
            for topics in self._topics.values():
                topics.acks.wait_for_all_acked(Duration(seconds=max(0.0, end - time.monotonic())))
            self._act([a for a in actions if isinstance(a, Leave)])
        self._thread.join()
        self._alarm.close()

    def _performer(self) -> Performer:
        return Performer(Context(self.device, self.machine.limits.memory << 20), self.weights)

    # -- events ----------------------------------------------------------------------------------

    def _on_open(self, request: Any, response: Any) -> Any:
        asked = OpenRequest(request.protocol, request.program, request.incarnation, request.torch,
                            request.operators)
        with self._changed:
            response.reason, actions = self.machine.on_open(asked, time.monotonic())
            self._act(actions)
        response.accepted = not response.reason
        response.device = str(self.device)
        response.memory = self.machine.limits.memory << 20
        response.lease = self.machine.limits.lease
        return response

    def on_frame(self, program: str, message: Any) -> None:
        """Take a frame from a program's topic."""
        with self._changed:
            self._act(self.machine.on_frame(program, message.incarnation, frame_of(message),
                                            time.monotonic()))
            self._changed.notify_all()

    def on_ack(self, program: str, message: Any) -> None:
        """Take an acknowledgement from a program's topic."""
        with self._changed:
            self._act(self.machine.on_ack(program, message.incarnation, message.number,
                                          message.error, time.monotonic()))

    def _on_time(self) -> None:
        now = time.monotonic()
        with self._changed:
            for topics in self._topics.values():
                topics.link.release(now)
            self._act(self.machine.on_time(now))

    # -- actions ---------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        for action in actions:
            if isinstance(action, Join):
                self._topics[action.program] = _Topics(self, action.program)
                self.node.get_logger().info(f'{action.program} joins')
            elif isinstance(action, Leave):
                self._topics.pop(action.program).remove(self.node)
                self.node.get_logger().info(f'{action.program} leaves: {action.reason}')
            elif action.program in self._topics:
                self._publish(action, self._topics[action.program], now)
        self._alarm.set(min([self.machine.deadline,
                             *(t.link.deadline for t in self._topics.values())]))

    def _publish(self, action: SendFrame | SendAck, topics: _Topics, now: float) -> None:
        message = to_ros(action)
        size = len(action.frame.data) if isinstance(action, SendFrame) else 0
        publisher = topics.down if isinstance(action, SendFrame) else topics.acks
        if isinstance(action, SendAck) and action.error:
            publisher.publish(message)  # its topics go away with this call
        else:
            topics.link.send(size, partial(publisher.publish, message), now)

    # -- execution -------------------------------------------------------------------------------

    def _execute(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (work := self.machine.work()) is None:
                    self._changed.wait()
                if self._closing:
                    return
                assert work is not None
            began = time.monotonic()
            replies: list[bytes] = []
            error = ''
            try:
                replies = work.session.performer.perform(work.message)
            except RemoteError as wrong:
                error = str(wrong)
            except Exception as wrong:  # one program's message must not end the others' server
                error = f'{type(wrong).__name__}: {wrong}'
                self.node.get_logger().error(f'{work.session.program}: {error}')
            with self._changed:
                self._busy += time.monotonic() - began
                self._act(self.machine.on_done(work, replies, error))

    def _report(self) -> None:
        message = msg.ServerStatus(server=self.name, device=str(self.device))
        message.header.stamp = self.node.get_clock().now().to_msg()
        with self._changed:
            sessions, now = self.machine.sessions, time.monotonic()
            message.messages = self.machine.messages
            message.busy = min(1.0, self._busy / max(now - self._reported, 1e-3))
            self._busy, self._reported = 0.0, now
        message.programs = [s.program for s in sessions]
        message.memory = [s.performer.used for s in sessions]  # type: ignore[attr-defined]
        message.weights = self.weights.used
        self._status.publish(message)
