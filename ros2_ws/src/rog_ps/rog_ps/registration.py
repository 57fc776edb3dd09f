"""The service by which robots register: who may take part, and the proof of who they are."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from rog_core.errors import ConfigError, RemoteProtocolError, shown
from rog_core.protocol.messages import RegisterResponse
from rog_msgs.srv import Register
from rog_ros.convert import request_from_ros, response_to_ros
from rog_ros.message_auth import Key, SealError, Session, check, derived, process_of, sealed
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
        node.create_service(Register, 'register', self._on_register)

    def _on_register(self, request: Any, response: Any) -> Any:
        now, node = time.monotonic(), self._node
        try:
            wanted = request_from_ros(request)
            robot_name(wanted.robot)
        except (RemoteProtocolError, ConfigError) as error:
            response.accepted, response.reason = False, shown(error)
            return response
        key = self._key and self._key.of(wanted.robot)
        if key is not None:
            try:
                check(derived(key.secret, 'ask'), request)
            except SealError as error:
                return self._refused_unproved(wanted.robot, error, response)
        refused = self._unlisted(wanted.robot) or (
            self._untimely(request, wanted.robot) if key else None)
        answer, actions = (refused, []) if refused else node.machine.on_register(wanted, now)
        if answer.accepted:
            peer = node.peers.of(wanted.robot)
            if key is not None:
                peer.lives.add(wanted.incarnation)
                if peer.session is None or peer.session.session != (
                        wanted.incarnation ^ answer.incarnation):
                    peer.session, peer.count = Session(
                        key, wanted.incarnation, answer.incarnation), 0
            node.on_joined(wanted.robot, answer.iteration, actions, now)
        else:
            self._note_refusal(wanted.robot, answer.reason)
        return sealed(key and derived(key.secret, 'answer'), response_to_ros(answer, response),
                      bytes(request.tag))

    def _refused_unproved(self, robot: str, error: SealError, response: Any) -> Any:
        """Refuse a registration that is not authenticated with the key of its robot.

        The refusal is not authenticated either. If it were, a stranger could misuse it. First, the
        stranger copies the tag of an honest robot's request into a false request of its own. The
        server's authenticated refusal of this request would also cover the copied tag. Then the
        stranger sends the refusal to the honest robot, which accepts it as the genuine answer.
        """
        response.accepted = False
        response.reason = (f'the registration of {robot} is not proved: {error}. '
                           f'Give {robot} its key (rog key FILE --robot {robot})')
        self._note_refusal(robot, response.reason)
        return response

    def _note_refusal(self, robot: str, reason: str) -> None:
        # Use one counter for all robots that were never accepted, so that invented names take no
        # memory.
        self._node.dropped[robot if robot in self._node.peers else 'unknown robots'] += 1
        self._node.get_logger().warning(f'refused {robot}: {reason}', throttle_duration_sec=5.0)

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

    def _untimely(self, request: Any, robot: str) -> RegisterResponse | None:
        """Return the refusal if an authenticated registration is out of date, else None.

        A registration is out of date if it is for another server process, or if another process of
        the robot has replaced the process that made the registration.
        """
        member = self._node.machine.members.get(robot)
        if request.server != process_of(self._node.machine.incarnation):
            return RegisterResponse(False, 'the registration is not for this server process', True,
                                    process_of(self._node.machine.incarnation))
        present = member is not None and member.incarnation == request.incarnation
        if not present and request.incarnation in self._node.peers.of(robot).lives:
            return RegisterResponse(False, f'this process of {robot} was replaced by another', True)
        return None
