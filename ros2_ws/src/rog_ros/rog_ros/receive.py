"""Passes messages of transfers to the state machine, and makes log lines about transfers."""

from __future__ import annotations

import time
import zlib
from typing import Any

from rog_core.arrays import Array, to_host
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.protocol.messages import Action, TransferId
from rog_core.server.server import Server
from rog_core.shell import handler
from rog_core.worker.worker import Worker

from .convert import from_ros


def receive(machine: Worker | Server, message: Any, logger: Any, peer: str
            ) -> list[Action] | None:
    """Pass a message of a transfer to the state machine; return the machine's actions.

    Return None if the message was refused; this is logged. A message from before a restart is
    expected, so it is dropped without a log line, and the result is an empty list.

    :param peer: sender of the message: a robot's name, or ``the server``.
    """
    try:
        value = from_ros(message)
        who = (peer,) if isinstance(machine, Server) else ()
        return handler(machine, value)(*who, value, time.monotonic())
    except StaleMessageError:
        return []
    except RemoteProtocolError as error:
        logger.warning(f'dropped a message of {peer}: {error}', throttle_duration_sec=5.0)
        return None


def checksum_of(transfer: TransferId, rows: Array) -> str:
    """Return the line that robot and server log at the end of a pull (`training.checksums`).

    The line holds a checksum of the rows of the robot, which must be equal on both sides.

    :param rows: at the robot, its own rows; at the server, the mirror of the robot.
    """
    name = f'{transfer.incarnation:x}/{transfer.kind}/{transfer.iteration}/{transfer.attempt}'
    return f'checksum of {name}: {zlib.crc32(to_host(rows).tobytes()):08x}'
