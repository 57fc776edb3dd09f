"""What machines exchange, and what they ask their shell to do. Plain values, no behaviour.

Field meanings and units are those of the rog_msgs messages of the same name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from .errors import RemoteProtocolError
from .steps import Gradient, Step

PROTOCOL = 4  # version of the wire protocol; both sides must have the same
HEADER_BYTES = 40  # of a serialised chunk beside ids and values; for emulated and virtual links


class Kind(IntEnum):
    """What a transfer carries, and so its direction."""

    PUSH = 0      # gradients to the server, added to the master rows
    PULL = 1      # model updates to the worker, added to its rows
    SNAPSHOT = 2  # model values to a worker that joins, stored in its rows
    FINAL = 3     # the same at the end of a run: after it the worker holds the final model
    ANCHOR = 4    # a full gradient (SVRG): of a shard to the server, of all shards to the worker

    @property
    def is_raw(self) -> bool:
        """Whether it carries values as they are, in the segments of `RowPartition.raw_cut`."""
        return self > Kind.PULL


@dataclass(frozen=True, order=True)
class TransferId:
    """Identity of one transfer of one robot.

    ``incarnation`` is that of the session, the worker's XOR the server's, so a message of a former
    life of either is recognised. ``attempt`` counts the sender's transfers in it.
    """

    incarnation: int
    kind: Kind
    iteration: int
    attempt: int


@dataclass(frozen=True)
class Chunk:
    """Some segments of a transfer; ``ids`` and ``values`` are uint8 arrays."""

    transfer: TransferId
    sequence: int
    codec: int
    segments: int
    ids: np.ndarray = field(repr=False)
    values: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Ack:
    """Chunks that have arrived: all below next_expected, and next_expected + 1 + k for bit k."""

    transfer: TransferId
    next_expected: int
    received_mask: int


@dataclass(frozen=True)
class Sending:
    """Which rows a transfer carries; as it stands here, all that there are.

    ``minimum``: share of the rows that must arrive whatever time it takes, 0 to 1. ``threshold``:
    a row that was not sent for so many iterations must arrive too; 0: none must for its age.
    ``by_importance``: rows go out in order of importance, else in that of the model. ``mta``: share
    of the rows whose time counts as MTA time where fewer must arrive; 0: that of those that must.
    """

    minimum: float = 1.0
    threshold: int = 0
    by_importance: bool = False
    mta: float = 0.0


@dataclass(frozen=True)
class Command:
    """The server's word at the end of a pull: how the worker goes on.

    ``next_iteration`` and ``step``: what it computes. ``sending``: which rows of it the push
    carries; beyond those that must arrive, as many as go in ``mta_time`` s. ``patience``: seconds
    that the fleet can wait for those that must, infinite: any. ``ahead``: while it pushes, it may
    begin with the next. ``staleness`` and ``sync``, the name of the method, are for people.
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
        """Raise `RemoteProtocolError` if no worker can go on like this."""
        sending = self.sending
        if self.next_iteration < 1:
            raise RemoteProtocolError(f'end of a pull grants iteration {self.next_iteration}')
        for name, value in (('MTA time', self.mta_time), ('patience', self.patience),
                            ('threshold', sending.threshold)):
            if not value >= 0:
                raise RemoteProtocolError(f'end of a pull has {name} {value}')
        for name, value in (('minimum', sending.minimum), ('MTA', sending.mta)):
            if not 0 <= value <= 1:
                raise RemoteProtocolError(f'end of a pull has the share {value} as {name}')
        self.step.check()


@dataclass(frozen=True)
class End:
    """The sender closes a transfer of ``chunks`` chunks. Durations in seconds."""

    transfer: TransferId
    chunks: int
    duration: float = 0.0
    mta_duration: float = 0.0
    command: Command = Command()


@dataclass(frozen=True)
class Receipt:
    """What the receiver took of a closed transfer: one bit per chunk, lowest bit first."""

    transfer: TransferId
    chunks: int
    taken: bytes = b''


@dataclass(frozen=True)
class RegisterRequest:
    """A worker asks to join; its pushes up to ``attempt`` belong to the past.

    ``number`` counts the requests of this life. The shell hands on the answer to the latest only,
    as ROS services do; until it is there the worker takes no rows, so what it says here of its last
    pull still holds when the answer comes. ``pull``: what it has of that, None: of none.
    """

    robot: str
    incarnation: int
    iteration: int
    attempt: int
    granularity: str
    codec: str
    digest: str
    parameters: tuple[tuple[str, tuple[int, ...]], ...] = field(repr=False)
    protocol: int = PROTOCOL
    number: int = 1
    pull: Receipt | None = None


@dataclass(frozen=True)
class RegisterResponse:
    """The server's answer; ``push`` says what it has of the worker's last push.

    ``attempt`` is the number of the transfer that follows, a snapshot or, where the server still
    knows what the worker holds, a pull; transfers below it belong to the past.
    """

    accepted: bool
    reason: str = ''
    retry: bool = False
    incarnation: int = 0
    iteration: int = 0
    attempt: int = 0
    sync: str = ''
    push: Receipt | None = None


TransferMessage = Chunk | Ack | End | Receipt


@dataclass(frozen=True)
class Send:
    """Action: hand the message to the transport. ``robot``: the peer's or the own robot's name."""

    robot: str
    message: TransferMessage | RegisterRequest


@dataclass(frozen=True)
class Compute:
    """Action: compute the step of this iteration, then report its gradient."""

    iteration: int
    step: Step = Gradient()


@dataclass(frozen=True)
class Stop:
    """Action: the run is over for this machine. ``error`` is empty for a clean end."""

    error: str = ''


Action = Send | Compute | Stop
