"""Values that both ends exchange about a session; `convert` turns them into ROS messages."""

from __future__ import annotations

from dataclasses import dataclass

from .stream import Frame

PROTOCOL = 1
ENDED = 'the server has ended'    # the reason that programs receive


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """Fields of rrto_msgs/Open."""

    protocol: int
    program: str
    incarnation: int
    torch: str
    operators: str


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame to a program."""

    program: str
    incarnation: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class SendAck:
    """Acknowledge a program's frames before `number`; an `error` ends the program's session."""

    program: str
    incarnation: int
    number: int
    error: str = ''
