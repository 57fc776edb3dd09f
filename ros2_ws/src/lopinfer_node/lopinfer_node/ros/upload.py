"""The stream by which a model comes to a server that lacks it, as one of its ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from fleet_compute.inlets import Buffer
from fleet_link.seal import Seal
from fleet_ros.alarm import Alarm
from fleet_ros.session import ENDS, Session
from rclpy.node import Node

from ..runtime.upload import MOST_MESSAGE

AHEAD = 1 << 20     # bytes of messages that may wait for the link


class Talk(Protocol):
    """What is said, see `runtime.upload`; ``ended``: None until this side may end the session."""

    ended: str | None

    def take(self, message: bytes) -> None:
        """Handle a message of the peer."""

    def part(self) -> Buffer | None:
        """Return the next message to send; None: there is none now."""


class ModelStream:
    """One end of the session ``number``; the node's executor calls its methods but `close`.

    ``seals``: for what is sent and what comes; None: there is no key. ``over(reason)``: called once
    at the end, with the reason why the model was not stored, or with ''. ``since``: when it began.
    """

    def __init__(self, node: Node, base: str, number: int, is_server: bool,
                 seals: tuple[Seal, Seal] | None, talk: Talk, over: Callable[[str], None]) -> None:
        self.number, self.talk, self._over, self._closed = number, talk, over, False
        self.since = time.monotonic()
        self._session = Session(node, base, number, is_server, talk.take, self._on_woken,
                                MOST_MESSAGE, keyed=seals is not None)
        if seals is not None:
            self._session.keep(*seals)
        self._alarm: Any = Alarm(self._on_time, node)
        self._alarm.set(0.0)

    @property
    def ended(self) -> bool:
        """Return whether the session is over."""
        return self._closed or bool(self._session.ended)

    def close(self) -> None:
        """End the session, if it is not over, and remove its topics."""
        if not self._closed:
            self._closed = True
            self._alarm.close()
            self._session.end(ENDS)
            self._session.close()

    def _on_time(self) -> None:
        if self._closed:
            return
        self._session.on_time()
        self._on_woken()
        if self._reason is not None:
            reason = self._reason
            self.close()
            self._over(reason)

    def _on_woken(self) -> None:
        """Send what the link carries; a session that is over is closed by `_on_time`."""
        while not self.ended and self._session.waiting < AHEAD \
                and (part := self.talk.part()) is not None:
            self._session.send(part)
        if not self._closed:
            self._alarm.set(0.0 if self._reason is not None else self._session.deadline)

    @property
    def _reason(self) -> str | None:
        return self.talk.ended if self.talk.ended is not None else self._session.ended or None
