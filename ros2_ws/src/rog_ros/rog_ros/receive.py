"""Passes messages of a topic to the state machine, and writes log lines about transfers."""

from __future__ import annotations

import time
import zlib
from typing import Any

from rog_core.arrays import Array, to_host
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.loopback import handler
from rog_core.protocol.messages import Action, TransferId
from rog_core.server.machine import ServerMachine
from rog_core.transfer.sender import Sender
from rog_core.worker.machine import WorkerMachine

from .convert import from_ros
from .seal import Side


def receive(machine: WorkerMachine | ServerMachine, message: Any, logger: Any, peer: str,
            keys: tuple[int, Side] | None = None) -> list[Action] | None:
    """Pass a transfer's message to the machine; return its actions, or None if it was refused.

    ``peer``: the sender, a robot's name or `the server`. ``keys``: number of the session, and the
    keys of its tags; None: the fleet has no key. A refusal is logged, except for messages from
    before a restart, which are expected.
    """
    try:
        value = from_ros(message)
        if keys is not None:
            if value.transfer.incarnation != keys[0]:
                return []
            keys[1].check(message, value)
        who = (peer,) if isinstance(machine, ServerMachine) else ()
        return handler(machine, value)(*who, value, time.monotonic())
    except StaleMessageError:
        return []
    except RemoteProtocolError as error:
        logger.warning(f'dropped a message of {peer}: {error}', throttle_duration_sec=5.0)
        return None


def checksum_of(transfer: TransferId, rows: Array) -> str:
    """Return the line that both sides log when a transfer to a robot is closed.

    It holds a checksum of the ``rows`` that the robot then has: its own, or the mirror at the
    server (`training.checksums`).
    """
    name = f'{transfer.incarnation:x}/{transfer.kind}/{transfer.iteration}/{transfer.attempt}'
    return f'checksum of {name}: {zlib.crc32(to_host(rows).tobytes()):08x}'


def push_line(push: Sender, now: float) -> str:
    """Return the line that a robot logs when the receipt of a push has come (`training.pushes`).

    Its times are of the machine's clock.
    """
    return (f'push {push.transfer.iteration} from {push.started:.5f} to {now:.5f} s, end sent at '
            f'{push.closed:.5f} s, {push.bytes_sent} bytes')
