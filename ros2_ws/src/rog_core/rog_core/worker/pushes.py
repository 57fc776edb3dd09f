"""Orders the computation of a worker's gradients; keeps and pushes the computed gradients."""

from __future__ import annotations

import numpy as np

from ..arrays import Array, joined, zeros_like
from ..codecs import RAW, SMALLER
from ..errors import LocalProtocolError
from ..protocol.config import SgdConfig
from ..protocol.messages import Ack, Action, Kind, Receipt, Send, TransferId
from ..protocol.states import (
    BUSY,
    COMPUTING,
    DONE,
    PAUSED,
    PULLING,
    PUSHING,
    READY,
    WAITING,
)
from ..transfer import plan as plans
from ..transfer.sender import RawRows, Sender
from .computation import computation_of
from .shared import Shared


class Pushes:
    """Orders the computation of gradients; keeps and pushes the computed gradients."""

    def __init__(self, shared: Shared) -> None:
        self.shared = shared

    # -- computing -------------------------------------------------------------------------------

    def go_on(self, now: float) -> list[Action]:
        """Begin the granted iteration: push its gradient, or order its computation."""
        shared = self.shared
        # `on_gradient` will check whether this gradient fits the granted iteration
        if shared.gradient == BUSY:
            return []
        if shared.gradient == READY:
            assert shared.computed is not None
            computed, shared.computed = shared.computed, None
            if self._fits_grant():
                shared.gradient_is('use', now)
                return self._start(*computed, now)
            shared.gradient_is('drop', now)
        shared.gradient_is('order', now)
        return self._compute(shared.iteration)

    def on_gradient(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        """Push the gradient that was ordered last; see `WorkerMachine.on_gradient`."""
        shared = self.shared
        if shared.gradient != BUSY or shared.order is None:
            raise LocalProtocolError('on_gradient without a Compute action before it')
        if shared.state in (PUSHING, WAITING, PULLING):
            shared.gradient_is('keep', now)
            shared.computed = gradient, sgd
            return []
        if shared.state == COMPUTING and not self._fits_grant():
            shared.gradient_is('order again', now)
            return self._compute(shared.iteration)
        if shared.state == COMPUTING:
            shared.gradient_is('use', now)
            return self._start(gradient, sgd, now)
        # The worker is registering, joining or paused, or the run is over. If the gradient may be
        # added to a later one (`Step.additive`), keep it in the accumulator, to send it later.
        # Otherwise drop it, because it belongs to a round that is over.
        additive = shared.order.step.additive
        shared.gradient_is('use' if additive else 'drop', now)
        if additive:
            self._keep(gradient, sgd)
        return []

    def _keep(self, gradient: Array, sgd: SgdConfig) -> None:
        """Store a gradient in the accumulator, from which the push reads it."""
        shared, store = self.shared, self.shared.accumulator
        assert shared.order is not None
        if len(gradient) > len(store.weights):
            shared.grow()  # this robot has unfrozen a parameter
        store.follow()
        if len(gradient) < len(store.weights):  # another robot has, during the computation
            gradient = joined(gradient, zeros_like(store.weights[len(gradient):]))
        store.switch(shared.switched)
        made, asked = shared.order.step, shared.command.step
        step = asked if made == asked else made
        computation_of(step).keep(store, gradient, sgd)
        store.keep_buffers(gradient)

    def _fits_grant(self) -> bool:
        """Return whether the computed gradient fits the granted iteration and step."""
        made, asked = self.shared.order, self.shared.command.step
        return made is None or made.step == asked and (
            asked.exchangeable or made.iteration == self.shared.iteration)

    def _compute(self, iteration: int, ahead: int = 0) -> list[Action]:
        shared = self.shared
        computation = computation_of(shared.command.step)
        shared.order = computation.begin(shared.accumulator, iteration, ahead)
        return [shared.order]

    def _compute_ahead(self, now: float) -> list[Action]:
        """With pipelining, order the gradient of the next iteration if the server allows it.

        The model of this gradient already includes the step under way, see `Computation.begin`.
        """
        if not self.shared.command.ahead:
            return []
        self.shared.accumulator.detach()
        self.shared.gradient_is('order', now)
        return self._compute(self.shared.iteration + 1, ahead=1)

    # -- pushing ---------------------------------------------------------------------------------

    def _start(self, gradient: Array, sgd: SgdConfig, now: float) -> list[Action]:
        self._keep(gradient, sgd)
        shared, command = self.shared, self.shared.command
        shared.attempt += 1
        uncompressed = command.step.uncompressed
        kind = Kind.ANCHOR if uncompressed else Kind.PUSH
        transfer = TransferId(shared.session, kind, shared.iteration, shared.attempt)
        store, raw = shared.accumulator, shared.partition.raw_partition
        if uncompressed:
            assert store.full is not None
            plan = plans.everything(raw, np.flatnonzero(raw.trained()))
            shared.push = Sender(transfer, raw, plan, RAW, RawRows(raw, store.full), shared.link,
                                 now)
        else:
            plan = self._plan()
            # If the other robots would have to wait for a push with the fleet's codec, use the
            # smaller codec.
            codec = plans.affordable(plan, shared.partition, shared.codec, SMALLER,
                                     shared.link.rate, command.patience)
            shared.push = Sender(transfer, shared.partition, plan, codec, store, shared.link, now,
                                 switched=store.switched)
        shared.move('push', now)
        return [*self.poll(now), *self._compute_ahead(now)]

    def _plan(self) -> plans.Plan:
        shared, command, partition = self.shared, self.shared.command, self.shared.partition
        magnitude = shared.accumulator.mean_magnitude()
        may = partition.trained(shared.accumulator.switched)
        may[partition.buffer_rows] = magnitude[partition.buffer_rows] > 0
        shared.pushed_at[~may] = shared.iteration  # what has not changed is up to date
        sending, age = command.sending, shared.iteration - shared.pushed_at
        turn = command.step.turn(age) & may & plans.due_buffers(partition, sending, age)
        if sending.minimum >= 1:
            return plans.everything(partition, np.flatnonzero(turn))
        scores = plans.importance(
            magnitude, shared.pushed_at.max() - shared.pushed_at,
            shared.config.importance_magnitude, shared.config.importance_age,
            partition.buffer_rows)
        return plans.by_importance(partition, sending, scores, age, turn, command.mta_time,
                                   int(may.sum()))

    def poll(self, now: float) -> list[Action]:
        """Return the messages of the push that must be sent now."""
        shared = self.shared
        if shared.push is None:
            return []
        before = shared.push.bytes_sent
        actions: list[Action] = [Send(shared.robot, m) for m in shared.push.poll(now)]
        shared.statistics.bytes_sent += shared.push.bytes_sent - before
        return actions

    def on_ack(self, ack: Ack, now: float) -> list[Action]:
        """Handle the acknowledgement of chunks of this worker's push."""
        shared = self.shared
        if shared.state == PAUSED or ack.incarnation != shared.session:
            return []
        if shared.push is None:  # the push is over, but its chunks were still on the way
            shared.link.on_ack(ack, now)
            return []
        shared.push.on_ack(ack, now)
        return self.poll(now)

    def on_heard(self, now: float) -> list[Action]:
        """Handle a message of the server that shows that the link may be back."""
        if self.shared.push is None or self.shared.state != PUSHING:
            return []
        self.shared.push.on_heard(now)
        return self.poll(now)

    def on_receipt(self, receipt: Receipt, now: float) -> list[Action]:
        """Handle the receipt of this worker's push, which names the chunks that have arrived."""
        shared, push = self.shared, self.shared.push
        if shared.state != PUSHING or push is None or not push.on_receipt(receipt, now):
            return []
        complete = np.flatnonzero(push.partition.rows_complete(push.taken()))
        shared.pushed_at[complete] = shared.iteration
        shared.last_pushed_rows = complete.size
        shared.statistics.rows_pushed += shared.last_pushed_rows
        self.end(None)
        shared.move('taken', now)
        return []

    def end(self, receipt: Receipt | None) -> None:
        """End an open push; keep the rows that the server has not received.

        ``receipt``: names the chunks that have arrived at the server; None: no chunk has arrived.
        If the push already has a receipt, ``receipt`` is ignored. See `Computation.after_push`.
        """
        shared = self.shared
        push, shared.push = shared.push, None
        if push is None:
            return
        if push.state != DONE:
            match = receipt is not None and receipt.transfer == push.transfer
            push.abort(receipt if match else None)
        if push.rows is shared.accumulator:
            shared.accumulator.received(push.taken_chunks())
        computation_of(shared.command.step).after_push(shared.accumulator, push)
        if push.receipt is not None and push.receipt.refused:
            shared.statistics.refused += 1
            shared.accumulator.reset()  # otherwise the refused rows would be sent again forever
