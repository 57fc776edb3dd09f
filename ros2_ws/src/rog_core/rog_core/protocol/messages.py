"""Messages between worker and server, and the actions that a state machine returns.

The shell, which is the program around the state machine, executes the actions. Messages and actions
are plain values. The fields of messages have the same meanings and units as in the package
rog_msgs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from fleet_link import arrivals

from ..errors import RemoteProtocolError
from .steps import Gradient, Step

PROTOCOL = 9  # version of the wire protocol; both sides must have the same version
HEADER_BYTES = 40  # bytes of a serialised chunk without ids and values; used by emulated links


class Kind(IntEnum):
    """Kind of a transfer: what the transfer carries, and in which direction."""

    PUSH = 0      # gradients to the server, applied to the master rows
    PULL = 1      # model updates to the worker, added to its rows
    SNAPSHOT = 2  # model values to a worker that joins, stored in its rows
    FINAL = 3     # model values to a worker at the end of a run
    ANCHOR = 4    # full gradient (SVRG): of one shard to the server, of all shards to a worker

    is_raw: bool
    """Whether the transfer carries raw float32, in segments of `RowPartition.raw_partition`."""

    def __init__(self, number: int) -> None:
        self.is_raw = number > 1


@dataclass(frozen=True, order=True)
class TransferId:
    """Identity of one transfer of one robot.

    ``incarnation`` identifies the session: it is the worker's incarnation XOR the server's
    incarnation. So the receiver recognises messages from before a restart of the worker or the
    server. ``attempt`` is the number of the transfer; each sender counts its transfers.
    """

    incarnation: int
    kind: Kind
    iteration: int
    attempt: int

    def __eq__(self, other: object) -> bool:
        # Usually ``self`` and ``other`` are the same object. Then this method is faster than the
        # method that dataclass would generate.
        return self is other or isinstance(other, TransferId) and (
            self.attempt, self.iteration, self.kind, self.incarnation) == (
            other.attempt, other.iteration, other.kind, other.incarnation)


@dataclass(frozen=True)
class Chunk:
    """Some segments of a transfer; ``ids`` and ``values`` are encoded, uint8.

    ``sequence``: number of the chunk in its transfer, from 0. ``codec``: number of the codec.
    ``segments``: number of segments in the chunk. ``packet``: number of this transmission, also of
    a repetition, see `fleet_link.link`.
    """

    transfer: TransferId
    sequence: int
    codec: int
    segments: int
    ids: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)
    packet: int = 0


@dataclass(frozen=True, slots=True)
class Ack(arrivals.Ack):
    """Acknowledges a packet of a session, which is named by ``incarnation`` as in `TransferId`."""

    incarnation: int


@dataclass(frozen=True)
class Sending:
    """Rules by which rows are chosen for a transfer; by default all rows are sent.

    ``minimum``: share of the rows that must arrive however long it takes, 0 to 1.
    ``threshold``: a row that was not sent for this many iterations must also arrive; with
    0, the age of rows does not matter. ``by_importance``: whether rows are sent in order of
    importance; if false, they are sent in model order. ``mta``: a share of the rows; the
    sender reports the transmission time of this share as the MTA time. If ``mta`` is 0 or
    below ``minimum``, the sender reports the time of the rows that must arrive.
    """

    minimum: float = 1.0
    threshold: int = 0
    by_importance: bool = False
    mta: float = 0.0


@dataclass(frozen=True)
class Command:
    """The server's instructions at the end of a pull.

    ``next_iteration`` and ``step``: what the worker computes next. ``sending``: rules for the rows
    of the worker's push. ``mta_time``: seconds for which the push may send rows that need not
    arrive. ``patience``: seconds that the fleet can wait for the rows that must arrive. ``ahead``:
    whether the worker may compute the next gradient while it pushes (pipelining). ``stop``: whether
    the run is over. ``staleness`` and ``sync`` (the name of the method) are for display only.
    """

    next_iteration: int = 0
    mta_time: float = math.inf
    staleness: int = 0
    sync: str = ''
    stop: bool = False
    patience: float = math.inf
    sending: Sending = Sending()
    ahead: bool = False
    step: Step = Gradient()

    def check(self) -> None:
        """Raise `RemoteProtocolError` if a value is out of its range."""
        sending = self.sending
        if self.next_iteration < 1:
            raise RemoteProtocolError('iteration that the end of a pull grants must be at least '
                                      f'1, got {self.next_iteration}')
        for name, value in (('MTA time', self.mta_time), ('patience', self.patience),
                            ('threshold', sending.threshold)):
            if not value >= 0:
                raise RemoteProtocolError(f'{name} in the end of a pull must be at least 0, got '
                                          f'{value}')
        for name, value in (('minimum', sending.minimum), ('MTA', sending.mta)):
            if not 0 <= value <= 1:
                raise RemoteProtocolError(f'{name} in the end of a pull must be a share, 0 to 1, '
                                          f'got {value}')
        self.step.check()


@dataclass(frozen=True)
class End:
    """Tells the receiver that the transfer ends.

    ``chunks``: number of chunks of the whole transfer.

    ``duration``: seconds that the transfer has taken. ``mta_duration``: seconds that the
    MTA of the transfer has taken. ``whole``: whether the transfer stays open until all of
    its chunks have arrived. ``switched``: in a push, numbers of the parameters that the robot has
    frozen or unfrozen, see `rog_core.model.partition.RowPartition.trained`.
    """

    transfer: TransferId
    chunks: int
    duration: float = 0.0
    mta_duration: float = 0.0
    command: Command = Command()
    whole: bool = False
    switched: tuple[int, ...] = ()


@dataclass(frozen=True)
class Receipt:
    """Says which chunks of a closed transfer have arrived.

    ``taken``: one bit per chunk, lowest bit first; 1 if the chunk has arrived. ``refused``: number
    of these chunks that the receiver dropped because their values are implausible.
    """

    transfer: TransferId
    chunks: int
    taken: bytes = b''
    refused: int = 0


@dataclass(frozen=True)
class RegisterRequest:
    """A worker's request to join; the worker's pushes up to number ``attempt`` are over.

    ``number`` counts the requests of this worker process. The shell gives the worker only
    the answer to its latest request. ``pull``: receipt of the worker's last pull; None if
    there was no pull. The receipt stays valid, because the worker accepts no rows until the
    answer arrives. ``parameters``: name, shape and role of every tensor of the model, see
    `rog_core.model.partition`.
    """

    robot: str
    incarnation: int
    iteration: int
    attempt: int
    granularity: str
    codec: str
    digest: str
    parameters: tuple[tuple[str, tuple[int, ...], int], ...] = field(repr=False)
    protocol: int = PROTOCOL
    number: int = 1
    pull: Receipt | None = None


@dataclass(frozen=True)
class RegisterResponse:
    """The server's answer to a `RegisterRequest`.

    ``push``: receipt of the worker's last push. ``attempt``: number of the server's next transfer;
    transfers with lower numbers are over. The next transfer is a pull if the server still has a
    copy of the worker's rows, otherwise a snapshot. ``retry``: whether the refusal is temporary,
    so that the worker may ask again. ``over``: whether the server refuses because the run ends.
    """

    accepted: bool
    reason: str = ''
    retry: bool = False
    incarnation: int = 0
    iteration: int = 0
    attempt: int = 0
    sync: str = ''
    push: Receipt | None = None
    over: bool = False


TransferMessage = Chunk | Ack | End | Receipt


@dataclass(frozen=True)
class Send:
    """Action: send the message.

    ``robot``: at the server, the robot that receives the message; at a worker, the worker's
    own name.
    """

    robot: str
    message: TransferMessage | RegisterRequest


@dataclass(frozen=True)
class Compute:
    """Action: compute ``step`` for this iteration, then give the gradient to the state machine.

    ``fresh``: whether the local steps of a `Phase` start with zero momentum; otherwise they
    continue with the momentum of the previous phase.
    """

    iteration: int
    step: Step = Gradient()
    fresh: bool = False


@dataclass(frozen=True)
class Stop:
    """Action: the run is over for this state machine. ``error`` is empty for a clean end."""

    error: str = ''


@dataclass(frozen=True)
class Notice:
    """Action: record and log what has happened to a robot; ``what``: the event, in one word."""

    robot: str
    what: str
    detail: str


Action = Send | Compute | Stop | Notice
