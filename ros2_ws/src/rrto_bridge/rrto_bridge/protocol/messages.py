"""The request for a session between program and server."""

from __future__ import annotations

from dataclasses import dataclass

PROTOCOL = 5
ENDED = 'the server has ended'     # the reason that a server gives when it ends


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A program's request for a session: the request fields of rrto_msgs/Open."""

    protocol: int
    program: str
    incarnation: int
