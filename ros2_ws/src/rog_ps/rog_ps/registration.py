"""The service by which robots register: who may take part, and the proof of who they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

from fleet_link.key import Key
from fleet_link.seal import Answerer, Call
from rog_core.errors import ConfigError, RemoteProtocolError, shown
from rog_core.protocol.messages import Action, RegisterResponse
from rog_core.server.server import Server
from rog_ros.convert import request_from_ros, response_to_ros
from rog_ros.parameters import robot_name

from .peer import Peers

# Maximum number of robots in a fleet that has neither a key nor a list of robots. The topics of
# each robot slow rclpy down, so strangers must not be able to add many robots.
OPEN = 32


class Registration:
    """Answers the calls of `register`.

    :param peers: the robots that are listed or have registered.
    :param listed: names of the robots that may take part; empty: all robots may take part.
    :param key: key of the fleet; with a key, a robot must prove that it has its own key.
    :param joined: called for each robot that is accepted, with its name, the iteration from which
        it trains, and the actions of the state machine.
    :param refused: called with the name of a robot that is refused, and the reason.
    """

    def __init__(self, machine: Server, peers: Peers, listed: Collection[str], key: Key | None,
                 joined: Callable[[str, int, list[Action]], None],
                 refused: Callable[[str, str], None]) -> None:
        self._machine, self._peers, self._listed, self._key = machine, peers, listed, key
        self._joined, self._refused = joined, refused
        self.answerer = key and Answerer(key.secret_of, machine.incarnation)

    def answer(self, request: Any, response: Any, call: Call | None) -> Any:
        """Answer a call of a robot; ``call``: what its seal proves, None without a key."""
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
        answer, actions = (refused, []) if refused else self._machine.on_register(
            wanted, time.monotonic())
        if answer.accepted:
            peer = self._peers.of(wanted.robot)
            if call is not None and self.answerer is not None:
                peer.join(self.answerer.session(call, answer.incarnation))
            self._joined(wanted.robot, answer.iteration, actions)
        else:
            self._refused(wanted.robot, f'refused {wanted.robot}: {answer.reason}')
        return response_to_ros(answer, response)

    def _unlisted(self, robot: str) -> RegisterResponse | None:
        """Return the refusal if a robot of this name must not take part, else None."""
        if self._listed and robot not in self._listed:
            return RegisterResponse(False, f"'{robot}' is not in the fleet file; it lists "
                                    f"{', '.join(self._listed)}")
        if not self._listed and self._key is None and robot not in self._peers \
                and len(self._peers) >= OPEN:
            return RegisterResponse(False, f'a server that anybody may join must have at most '
                                    f'{OPEN} robots: list them in the fleet file, or give the '
                                    'fleet a key')
        return None
