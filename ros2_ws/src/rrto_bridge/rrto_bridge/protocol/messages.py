"""Messages of a session between program and server; `convert` turns them into ROS messages."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_link.stream import Ack, Frame

PROTOCOL = 5
# Reasons that the server gives to a program when it ends the session. ENDED: the server
# itself ends. SILENT: the program was silent.
ENDED, SILENT = 'the server has ended', 'it was silent for too long'


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A program's request for a session: the request fields of rrto_msgs/Open."""

    protocol: int
    program: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send a frame to the peer; `program`: name of the program, '' if the program is the sender."""

    program: str
    incarnation: int
    frame: Frame


@dataclass(frozen=True, slots=True)
class SendAck:
    """Acknowledge a packet of the peer; if `error` is not empty, end the session.

    `program`: name of the program, '' if the program is the sender. `ack`: None: only the error.
    """

    program: str
    incarnation: int
    ack: Ack | None
    error: str = ''


def sending(packet: Frame | Ack, program: str, incarnation: int) -> SendFrame | SendAck:
    """Return the action that sends what `Stream.poll` has returned."""
    if isinstance(packet, Ack):
        return SendAck(program, incarnation, packet)
    return SendFrame(program, incarnation, packet)
