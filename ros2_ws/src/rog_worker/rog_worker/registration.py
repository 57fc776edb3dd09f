"""Registers the robot with a parameter server.

In a fleet with a key, the robot and the server prove their identity to each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fleet_link.key import Key
from fleet_link.seal import Session
from fleet_ros.sealing import ServiceClient
from rog_core.errors import RemoteProtocolError, shown
from rog_core.protocol.messages import RegisterRequest, RegisterResponse
from rog_ros.convert import request_to_ros, response_from_ros

GIVE_UP = 3  # a refused robot gives up after `GIVE_UP` times the heartbeat limit


class Registration:
    """Calls the service `register`, and judges the answers.

    ``session``: None if the fleet has no key, or the server has not accepted this robot yet.
    ``count``: serial number of the server's last status in this session.

    :param client: client of the service.
    :param key: key of the robot; None: the fleet has no key.
    :param incarnation: identity of this process.
    :param limit: the heartbeat limit in seconds.
    :param awaits: returns whether an answer to this request still counts.
    :param follows: returns whether the robot listens to a server with this incarnation.
    :param joined: called with each new session.
    :param answered: called with each answer that counts.
    :param given_up: called with the reason, when the server has refused the robot for too long.
    :param dropped: called with the reason why an answer does not count.
    :param log: logger of the node.
    """

    def __init__(self, client: ServiceClient, key: Key | None, incarnation: int, limit: float, *,
                 awaits: Callable[[RegisterRequest], bool], follows: Callable[[int], bool],
                 joined: Callable[[Session], None],
                 answered: Callable[[RegisterResponse], None], given_up: Callable[[str], None],
                 dropped: Callable[[str], None], log: Any) -> None:
        self._client, self._key, self._incarnation, self._limit = client, key, incarnation, limit
        self._awaits, self._follows, self._joined = awaits, follows, joined
        self._answered, self._given_up, self._dropped = answered, given_up, dropped
        self._log = log
        self.session: Session | None = None
        self.count = 0
        self._request: Any = None  # future of the latest call
        self._refused_since = math.inf

    def call(self, request: RegisterRequest) -> bool:
        """Call the service; return False if there is no server."""
        if not self._client.service_is_ready():
            return False
        if self._request is not None:
            self._client.remove_pending_request(self._request)
        self._request = self._client.call_async(request_to_ros(request))
        self._request.add_done_callback(partial(self._on_done, request))
        return True

    def _on_done(self, request: RegisterRequest, future: Any) -> None:
        if not self._awaits(request):
            return  # the answer to an earlier request, or an answer that the emulated link has lost
        if future.exception() is not None:
            self._log.warning(f'registration failed: {future.exception()}; trying again')
            return
        try:
            self._on_answer(response_from_ros(future.result()), time.monotonic())
        except RemoteProtocolError as error:  # the state machine will register again
            self._dropped(f'dropped an answer to the registration: {error}')

    def _on_answer(self, response: RegisterResponse, now: float) -> None:
        if response.accepted and not self._follows(response.incarnation):
            # stay with the server that accepted the robot; the state machine will register again
            return
        if response.accepted:
            self._refused_since = math.inf
        else:
            self._log.warning(f'the server refuses: {shown(response.reason)}',
                              throttle_duration_sec=5.0)
            self._refused_since = min(self._refused_since, now)
            # After the heartbeat limit the server drops a former process of this robot. If the
            # server still refuses, another robot has the same name.
            if now - self._refused_since > GIVE_UP * self._limit:
                self._given_up(shown(response.reason, 600))
                return
        if response.accepted and self._key is not None:
            session = Session(self._key.secret, self._incarnation, response.incarnation)
            if self.session is None or self.session.number != session.number:
                self.session = session
                self.count = 0  # another server process starts its count at 0
                self._joined(session)
        self._answered(response)
