"""The state that all parts of a worker share: rows, states and the server's last command."""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from ..codecs import Codec, get_codec
from ..model.partition import RowPartition
from ..protocol.config import SgdConfig, TransferConfig
from ..protocol.messages import Command, Compute, End
from ..protocol.states import (
    BUSY,
    COMPUTING,
    GRADIENT,
    IDLE,
    PAUSED,
    PULLING,
    PUSHING,
    REGISTERING,
    STOPPED,
    WORKER,
)
from ..transfer.link import RowLink
from ..transfer.receiver import Receiver
from ..transfer.sender import Sender
from .accumulator import Accumulator
from .report import COMMUNICATES, COMPUTES, STALLS, TIME_OF, WorkerReport, WorkerStatistics


class Shared:
    """The state of one worker. ``incarnation``: random 64-bit identity of this process."""

    def __init__(self, robot: str, incarnation: int, accumulator: Accumulator,
                 config: TransferConfig) -> None:
        self.robot, self.incarnation, self.accumulator = robot, incarnation, accumulator
        self.config = config
        self.codec: Codec = get_codec(config.codec)
        self.link = RowLink(config.chunk_bytes, config.chunk_time, config.traffic)
        self.statistics = WorkerStatistics()
        self.state = REGISTERING
        self.gradient = IDLE             # state of the last ordered gradient
        self.iteration = 0               # iteration being computed or pushed
        self.sync = ''                   # name of the fleet's method, for display
        self.command = Command()
        self.server = 0                  # incarnation of the server that accepted this worker
        self.push: Sender | None = None
        self.pull: Receiver | None = None
        self.early: End | None = None    # of the next pull; see `Pulls.on_pushed`
        self.pushed_at = np.zeros(self.partition.rows, np.int64)
        self.last_pushed_rows = 0
        self.last_pulled_rows = 0
        self.attempt = 0                 # number of the last push
        self.order: Compute | None = None   # the last order to compute a gradient
        self.computed: tuple[Array, SgdConfig] | None = None  # the gradient in the state READY
        # which parameters were frozen or unfrozen when the last gradient was computed, see
        # `RowPartition.trained`; the program sets it before it reports the gradient
        self.switched: tuple[int, ...] = ()
        self.since = 0.0                 # time of the last change of state, in seconds

    @property
    def partition(self) -> RowPartition:
        """The rows of the model; they become more when a robot unfreezes a parameter."""
        return self.accumulator.partition

    def grow(self) -> None:
        """Take up the rows of the frozen parameters, because a robot has unfrozen one of them."""
        self.accumulator.grow()
        more = self.partition.rows - self.pushed_at.size
        self.pushed_at = np.append(self.pushed_at, np.full(more, self.iteration - 1, np.int64))

    @property
    def session(self) -> int:
        """Identity of the pair of worker process and server process; each transfer carries it."""
        return self.incarnation ^ self.server

    # -- states ----------------------------------------------------------------------------------

    def move(self, event: str, now: float) -> None:
        """Change the state by ``event``, as the table `rog_core.protocol.states.WORKER` says."""
        after = WORKER.after(self.state, event)
        if after != self.state:
            self.settle(now)
            self.state = after

    def gradient_is(self, event: str, now: float) -> None:
        """Change the gradient's state by ``event``.

        The table `rog_core.protocol.states.GRADIENT` gives the new state.
        """
        after = GRADIENT.after(self.gradient, event)
        self.settle(now)
        self.gradient = after

    # -- statistics ------------------------------------------------------------------------------

    @property
    def activity(self) -> str:
        """The present activity of the robot: computing, communicating or stalled."""
        if self.gradient == BUSY:
            return COMPUTES
        return COMMUNICATES if self.state in (PUSHING, PULLING) else STALLS

    def settle(self, now: float) -> None:
        """Add the time since the last call to the statistics, as time of the present activity."""
        began = self.command.next_iteration > 0  # time before the first grant is not counted
        if began and self.state not in (STOPPED, PAUSED):
            name = TIME_OF[self.activity]
            setattr(self.statistics, name,
                    getattr(self.statistics, name) + max(now - self.since, 0.0))
        self.since = now

    @property
    def finished(self) -> int:
        """Number of iterations whose gradient has been computed."""
        return max(self.iteration - (self.state == COMPUTING), 0)

    def report(self, now: float) -> WorkerReport:
        """Return the worker's state and its statistics up to ``now``."""
        self.settle(now)
        counted = self.statistics
        return WorkerReport(
            self.state, self.sync, self.finished,
            self.command.staleness, self.partition.rows, self.last_pushed_rows,
            self.last_pulled_rows, self.link.rate * 8e-6, counted.compute_time,
            counted.communicate_time, counted.stall_time, counted.bytes_sent,
            counted.bytes_received)
