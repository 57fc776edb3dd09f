"""Receives the server's transfers, applies their rows to the model, begins granted iterations."""

from __future__ import annotations

from ..arrays import Array, copy_of, zeros_like
from ..codecs import RAW
from ..errors import RemoteProtocolError
from ..protocol.messages import Action, Chunk, Command, End, Kind, Send, Stop
from ..protocol.states import (
    BUSY,
    JOINING,
    PAUSED,
    PULLING,
    PUSHING,
    REGISTERING,
    STOPPED,
    WORKER,
)
from ..transfer.receiver import Rows
from .pushes import Pushes
from .shared import Shared


class Pulls:
    """Receives the server's transfers; calls ``pushes`` to begin each granted iteration."""

    def __init__(self, shared: Shared, pushes: Pushes) -> None:
        self.shared, self.pushes = shared, pushes
        self._arriving: Array | None = None  # the fleet's full gradient, while it arrives

    def on_chunk(self, chunk: Chunk, now: float) -> list[Action]:
        """Handle rows from the server."""
        shared, pull = self.shared, self.shared.pull
        if pull is None or shared.state in (REGISTERING, PAUSED):
            return []
        if pull.is_closed(chunk.transfer):  # the receipt was lost, so send it again
            assert pull.receipt is not None
            return [Send(shared.robot, pull.acknowledge(chunk, now)),
                    Send(shared.robot, pull.receipt)]
        if shared.state == STOPPED:
            return []
        former = pull.transfer
        ack, rows = pull.on_chunk(chunk, now)
        if chunk.transfer.kind == Kind.SNAPSHOT and pull.transfer != former:
            shared.accumulator.restore_frozen()
        if rows is not None:
            shared.statistics.bytes_received += chunk.ids.size + chunk.values.size
            self._apply(rows)
        actions: list[Action] = [Send(shared.robot, ack)]
        if not pull.is_open(chunk.transfer):
            return actions
        if shared.state != PULLING:  # only the first of many chunks changes the state
            shared.move('rows', now)
        if (end := pull.due) is not None:
            actions += self.on_end(end, now)
        return actions

    def _apply(self, rows: Rows) -> None:
        store, kind = self.shared.accumulator, rows.transfer.kind
        known = store.partition.raw_partition if kind.is_raw else store.partition
        if rows.ids[-1] >= known.segments:  # another robot has unfrozen a parameter
            self.shared.grow()
        if self.shared.gradient == BUSY:  # a gradient is being computed on `model`
            store.detach()
        if not kind.is_raw:
            rows.codec.add(store.partition, store.weights, rows.ids, rows.data)
        elif kind == Kind.ANCHOR:
            if self._arriving is None:
                self._arriving = zeros_like(store.weights)
            RAW.store(store.partition.raw_partition, self._arriving, rows.ids, rows.data)
        else:
            RAW.store(store.partition.raw_partition, store.weights, rows.ids, rows.data)

    def on_end(self, end: End, now: float) -> list[Action]:
        """Handle the end of a pull or snapshot, with the command for the next iteration."""
        shared, pull = self.shared, self.shared.pull
        if pull is None or shared.state in (REGISTERING, PAUSED):
            return []
        kind, command = end.transfer.kind, end.command
        grants = kind in (Kind.PULL, Kind.ANCHOR) and not command.stop
        event = 'final' if command.stop else 'granted' if grants else 'stored'
        pull.check(end.transfer)
        if grants:
            command.check()
        if shared.state == PUSHING and not pull.is_closed(end.transfer):
            pull.examine_end(end)
            if pull.is_open(end.transfer):
                shared.early = end  # handled when the receipt of this worker's push is here
            return []
        if shared.state != STOPPED and pull.is_open(end.transfer):
            WORKER.after(shared.state, event)  # raises if this state does not allow the event
        closed = pull.on_end(end)
        if closed is None:
            return []
        receipt, taken = closed
        actions: list[Action] = [Send(shared.robot, receipt)]
        if taken is None or shared.state == STOPPED:
            return actions
        partition = shared.partition.raw_partition if kind.is_raw else shared.partition
        shared.last_pulled_rows = int(partition.rows_complete(taken).sum())
        shared.statistics.rows_pulled += shared.last_pulled_rows
        if not grants:
            shared.move(event, now)
        if command.stop:
            shared.accumulator.publish_final()
            return [*actions, Stop()]
        if kind == Kind.ANCHOR and self._arriving is not None:
            shared.accumulator.anchor = copy_of(shared.accumulator.weights), self._arriving
            self._arriving = None
        return [*actions, *self._go_on(command, now)] if grants else actions

    def on_pushed(self, now: float) -> list[Action]:
        """Handle the end of a pull that has arrived before the receipt of this worker's push."""
        end, self.shared.early = self.shared.early, None
        if end is None:
            return []
        try:
            return self.on_end(end, now)
        except RemoteProtocolError:
            return []  # the end is invalid and counts as lost; the receipt remains valid

    def _go_on(self, command: Command, now: float) -> list[Action]:
        """Begin the iteration that the server has granted."""
        shared = self.shared
        if shared.state == JOINING:
            shared.pushed_at[:] = command.next_iteration - 1
        elif command.step.additive and command.next_iteration > shared.iteration + 1:
            # This worker skips iterations: it was retired, or the method lets it continue with a
            # later round. The skipped iterations do not make its rows older.
            shared.pushed_at += command.next_iteration - 1 - shared.iteration
        shared.move('granted', now)
        if shared.command.step.additive != command.step.additive:
            # the pending rows and the new gradient must not be summed, see `Step.additive`
            shared.accumulator.clear()
        shared.sync, shared.command = command.sync, command
        shared.iteration = command.next_iteration
        return self.pushes.go_on(now)
