"""The service by which robots register: who may take part, and the proof of who they are."""

from __future__ import annotations

import time
from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from fleet_link.key import Key
from fleet_link.seal import Answerer, Call
from fleet_ros.sealing import serve
from rog_core.errors import ConfigError, RemoteProtocolError, shown
from rog_core.protocol.messages import RegisterResponse
from rog_msgs.srv import Register
from rog_ros.convert import request_from_ros, response_to_ros
from rog_ros.parameters import robot_name

if TYPE_CHECKING:
    from .node import ParameterServerNode


# Maximum number of robots in a fleet that has neither a key nor a list of robots. The topics of
# each robot slow rclpy down, so strangers must not be able to add many robots.
OPEN = 32


class Registration:
    """Answers the calls of `register`, and tells the node which robots have joined.

    :param listed: names of the robots that may take part; empty: all robots may take part.
    :param key: key of the fleet; with a key, a robot must prove that it has its own key.
    """

    def __init__(self, node: ParameterServerNode, listed: Collection[str], key: Key | None
                 ) -> None:
        self._node, self._listed, self._key = node, listed, key
        self._answerer = key and Answerer(key.secret_of, node.machine.incarnation)
        serve(node, Register, 'register', self._on_register, self._answerer,
              partial(self._note_refusal, ''))

    def _on_register(self, request: Any, response: Any, call: Call | None) -> Any:
        now, node = time.monotonic(), self._node
        try:
            wanted = request_from_ros(request)
            robot_name(wanted.robot)
            if call is not None and (call.robot, call.life) != (wanted.robot, wanted.incarnation):
                raise RemoteProtocolError(f'this is the key of {call.robot}, not of '
                                          f'{wanted.robot}')
        except (RemoteProtocolError, ConfigError) as error:
            response.accepted, response.reason = False, shown(error)
            return response
        refused = self._unlisted(wanted.robot)
        answer, actions = (refused, []) if refused else node.machine.on_register(wanted, now)
        if answer.accepted:
            peer = node.peers.of(wanted.robot)
            if call is not None and self._answerer is not None:
                peer.join(self._answerer.session(call, answer.incarnation))
            node.on_joined(wanted.robot, answer.iteration, actions, now)
        else:
            self._note_refusal(wanted.robot, f'refused {wanted.robot}: {answer.reason}')
        return response_to_ros(answer, response)

    def _note_refusal(self, robot: str, reason: str) -> None:
        # Use one counter for all robots that were never accepted, so that invented names take no
        # memory.
        self._node.dropped[robot if robot in self._node.peers else 'unknown robots'] += 1
        self._node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _unlisted(self, robot: str) -> RegisterResponse | None:
        """Return the refusal if a robot of this name must not take part, else None."""
        if self._listed and robot not in self._listed:
            return RegisterResponse(False, f"'{robot}' is not in the fleet file; it lists "
                                    f"{', '.join(self._listed)}")
        if not self._listed and self._key is None and robot not in self._node.peers \
                and len(self._node.peers) >= OPEN:
            return RegisterResponse(False, f'a server that anybody may join must have at most '
                                    f'{OPEN} robots: list them in the fleet file, or give the '
                                    'fleet a key')
        return None
