"""One inference on one side: which steps may run, and which transfers each step sends.

This module follows Algorithms 6 and 7 of the thesis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from fleet_compute.inlets import (
    CodecError,
    Frames,
    Inlets,
    Layout,
    OtherPixels,
    decode,
    elements_of,
)
from fleet_compute.pictures import File

from ..errors import RemoteError
from ..planning.plan import DEVICE, Transfer
from .outbox import Route
from .wire import Buffer, Inbox, Piece


class Form(NamedTuple):
    """What a transfer consists of.

    ``item``: bytes of an element. ``layout``: how the elements lie in memory. ``floats``: whether
    they are float32. ``file``: of the picture that they are; None if they are of none.
    """

    item: int
    layout: Layout
    floats: bool = False
    file: File | None = None


class AnyStep(Protocol):
    """An operator of a program; see `program.Step`."""

    @property
    def waits(self) -> Sequence[int]:
        """Return the transfers that must be delivered before the step."""

    @property
    def sends(self) -> Sequence[int]:
        """Return the transfers that are ready after the step."""


class AnyRun(Protocol):
    """One inference with its tensors, see `program.Run`; the shell computes the steps."""

    def piece(self, transfer: int) -> Buffer:
        """Return the bytes of a transfer whose step has been computed."""

    def form(self, transfer: int) -> Form:
        """Return what an outgoing transfer consists of."""

    def deliver(self, transfer: int, data: Buffer) -> None:
        """Store all bytes of a transfer."""

    def compute(self, steps: range) -> None:
        """Compute steps."""

    @property
    def outputs(self) -> Callable[[], Any]:
        """Return a function that gives the model's outputs; call it after the last step."""

    @property
    def finish_alone(self) -> Callable[[], Any]:
        """Return the function that computes all missing tensors and returns the outputs."""


class AnyProgram(Protocol):
    """A compiled plan for one side, see `program.Program`."""

    @property
    def steps(self) -> Sequence[AnyStep]:
        """Return the steps in the order in which they are computed."""

    @property
    def forms(self) -> Sequence[Form]:
        """Return what each transfer of the plan consists of."""

    def start(self, inputs: Any) -> AnyRun:
        """Begin an inference; ``inputs`` is None on the server."""

    def compute_together(self, runs: Sequence[Any], steps: range) -> bool:
        """Compute ``steps`` of several runs at once, or of one by a captured graph.

        Return False, with nothing changed, if that is not possible.
        """


class Execution:
    """Progress of one request on ``side``.

    Steps run in order; a step may run when the transfers that it waits for have been delivered.
    ``inlets``: encodes the transfers of this side; None: they are sent as they are. ``frames``:
    what the requests before have brought, of which changes come; None: none come.
    """

    def __init__(self, side: int, route: Route, steps: Sequence[AnyStep],
                 transfers: Sequence[Transfer], run: AnyRun, inlets: Inlets | None = None,
                 frames: Frames | None = None) -> None:
        self.route, self.run, self._side = route, run, side
        self._inlets, self._frames = inlets, frames
        self._steps = steps
        self.other_pixels = False         # whether a file was decoded to other pixels than there
        self._position = 0                # number of steps computed so far
        self._delivered: set[int] = set()
        self._sizes = {t.index: t.bytes for t in transfers if t.source != side}
        self._own = {t.index: t.bytes for t in transfers if t.source == side}
        self._inbox = Inbox(self._sizes)
        self._arrived: deque[tuple[int, Buffer]] = deque()      # complete, but not yet delivered
        self._flaw: Exception | None = None     # why a transfer could not be delivered

    def take(self, piece: Piece) -> bool:
        """Store a received piece; return whether it completes a transfer.

        On the robot, deliver a complete transfer. Raise RemoteError if the piece does not fit the
        plan.
        """
        if piece.plan != self.route.plan or piece.bin != self.route.bin:
            raise RemoteError(f'piece of request {piece.request} does not belong to the plan of '
                              'its request')
        data = self._inbox.take(piece)
        if data is None:
            return False
        self._arrived.append((piece.transfer, data))
        if self._side == DEVICE:
            self.deliver()
        self._delivered.add(piece.transfer)
        return True

    def deliver(self) -> None:
        """Decode what has arrived for the run; raise RemoteError if it is damaged.

        A request of which a transfer could not be delivered never goes on, as its result could be
        wrong: each later call raises the same. Few bytes can take long to decode. So the server,
        whose lock serves all robots, does this where it computes.
        """
        if self._flaw is not None:
            raise self._flaw
        try:
            while self._arrived:
                self._deliver(*self._arrived.popleft())
        except Exception as error:  # such as no memory: what has arrived is lost
            self._flaw = error
            raise

    def _deliver(self, transfer: int, data: Buffer) -> None:
        size = self._sizes[transfer]
        key, frames = (self.route.plan, transfer), self._frames
        try:
            if len(data) != size:
                data = decode(data, size, partial(frames.base, key)).data if frames else \
                    decode(data, size).data
            if frames is not None and self.run.form(transfer).item == 1:
                frames.keep(self.route.request, key, data)
            self.run.deliver(transfer, data)
        except CodecError as error:
            self.other_pixels |= isinstance(error, OtherPixels)
            raise RemoteError(f'transfer {transfer}: {error}') from None

    def runnable(self) -> range:
        """Return the next steps that may run, up to and including the first that sends a transfer.

        The range may be empty.
        """
        end = self._position
        while end < len(self._steps) and self._delivered.issuperset(self._steps[end].waits):
            end += 1
            if self._steps[end - 1].sends:
                break
        return range(self._position, end)

    def compute(self, steps: range, computed: bool = False) -> list[tuple[int, Buffer]]:
        """Do what `queue` does; return what `pieces` returns."""
        self.queue(steps, computed)
        return self.pieces(steps)

    def queue(self, steps: range, computed: bool = False) -> None:
        """Compute the steps that `runnable` returned; on a GPU, only queue their kernels.

        ``computed``: whether this has been done already. Computing takes long. So only one thread
        calls `runnable` and `queue`, and it does not hold the lock of the state machine meanwhile.
        """
        self.deliver()
        if not computed:
            self.run.compute(steps)
        self._position = steps.stop

    def pieces(self, steps: range) -> list[tuple[int, Buffer]]:
        """Return the number and the bytes of each transfer that ``steps`` send.

        On a GPU, wait for the bytes. Another thread may queue later steps meanwhile.
        """
        return [(t, self._encoded(t)) for s in steps for t in self._steps[s].sends]

    def _encoded(self, transfer: int) -> Buffer:
        if self._inlets is None:
            return self.run.piece(transfer)
        form, key = self.run.form(transfer), (self.route.plan, transfer)
        if form.file is not None and (data := self._inlets.file(
                key, form.file, self._own[transfer], form.layout.mixed)) is not None:
            return data
        data = self.run.piece(transfer)
        form = self.run.form(transfer)      # now it knows what decoding took
        return self._inlets.encoded(key, elements_of(data, form.item), form.layout, form.file,
                                    form.floats)

    @property
    def done(self) -> bool:
        """Return whether this side has computed all its steps."""
        return self._position == len(self._steps)
