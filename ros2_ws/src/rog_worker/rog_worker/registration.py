"""Registers the robot with a parameter server.

In a fleet with a key, the robot and the server prove their identity to each other.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from fleet_link.key import Key
from fleet_link.seal import Caller, Session
from fleet_ros.middleware import other_middleware
from fleet_ros.reminder import Reminder
from fleet_ros.sealing import ServiceClient
from rog_core.errors import RemoteProtocolError, shown
from rog_core.protocol.messages import RegisterRequest, RegisterResponse
from rog_msgs.srv import Register
from rog_ros.convert import payload_bytes, request_to_ros, response_from_ros

if TYPE_CHECKING:
    from .node import WorkerNode

GIVE_UP = 3  # a refused robot gives up after `GIVE_UP` times the heartbeat limit


class Registration:
    """Calls the service `register`, and passes the answers to the node's state machine.

    :param key: key of the robot; None: the fleet has no key.
    """

    def __init__(self, node: WorkerNode, key: Key | None) -> None:
        self._node, self._key = node, key
        # None: the fleet has no key, or the server has not accepted this robot yet.
        self.session: Session | None = None
        self.count = 0             # serial number of the server's last status in this session
        self._client = ServiceClient(
            node, Register, node.settings.server_namespace + '/register',
            key and Caller(key.secret, node.robot, node.incarnation), self._on_unproved)
        self._request: Any = None  # future of the latest call
        self._refused_since = math.inf
        self._reminder = Reminder()  # says when to log again that there is no server

    def send(self, request: RegisterRequest, now: float) -> None:
        """Call the service over the emulated link; do nothing during an emulated drop-out."""
        if not self._node.has_dropped_out:
            self._node.link.send(payload_bytes(request), lambda: self._call(request), now,
                                 lossy=True)

    def _call(self, request: RegisterRequest) -> None:
        node = self._node
        if not self._client.service_is_ready():
            if strange := other_middleware(node, f'{node.settings.server_namespace}/register'):
                node.get_logger().error(strange, throttle_duration_sec=5.0)
            if self._reminder.due(time.monotonic()):
                node.get_logger().info(f'{node.robot} waits for the parameter server at '
                                       f'{node.place}; rog doctor looks for the reason')
            return
        self._reminder.reset()
        if self._request is not None:
            self._client.remove_pending_request(self._request)
        self._request = self._client.call_async(request_to_ros(request))
        self._request.add_done_callback(partial(self._on_done, request))

    def _on_done(self, request: RegisterRequest, future: Any) -> None:
        now, node = time.monotonic(), self._node
        if node.machine is None or not node.machine.awaits(request) or node.is_cut_off(now):
            return  # the answer to an earlier request, or an answer that the emulated link has lost
        if future.exception() is not None:
            node.get_logger().warning(f'registration failed: {future.exception()}; trying again')
            return
        try:
            self._on_answer(response_from_ros(future.result()), now)
        except RemoteProtocolError as error:  # the state machine will register again
            node.dropped += 1
            node.get_logger().warning(f'dropped an answer to the registration: {error}',
                                      throttle_duration_sec=5.0)

    def _on_answer(self, response: RegisterResponse, now: float) -> None:
        node = self._node
        assert node.machine is not None
        if response.accepted and not node.is_of_ours(
                response.incarnation == node.machine.server, now):
            # stay with the server that accepted the robot; the state machine will register again
            return
        if response.accepted:
            self._refused_since = math.inf
        else:
            node.get_logger().warning(f'the server refuses: {shown(response.reason)}',
                                      throttle_duration_sec=5.0)
            self._refused_since = min(self._refused_since, now)
            # After the heartbeat limit the server drops a former process of this robot. If the
            # server still refuses, another robot has the same name.
            if now - self._refused_since > GIVE_UP * node.settings.heartbeat.limit:
                node.leave(shown(response.reason, 600))
                return
        if response.accepted and self._key is not None:
            session = Session(self._key.secret, node.incarnation, response.incarnation)
            if self.session is None or self.session.number != session.number:
                self.session = session
                self.count = 0  # another server process starts its count at 0
                node.channel.keep(self.session.to_server, self.session.to_robot,
                                  self.session.number)
        node.act(node.machine.on_register_response(response, now))

    def _on_unproved(self, reason: str) -> None:
        self._node.dropped += 1
        self._node.get_logger().warning(
            f'{reason}. Server and robot must have keys that belong together; here it is '
            f'{self._node.settings.security.key}', throttle_duration_sec=5.0)
