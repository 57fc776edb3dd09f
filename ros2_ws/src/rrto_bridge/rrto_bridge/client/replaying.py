"""The engine of mode `replay`: replays a call if possible, otherwise sends it as `PerCall` does."""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ..protocol.actions import (
    Abandon,
    Action,
    Define,
    Forget,
    Free,
    More,
    Notice,
    Start,
    Switch,
)
from ..protocol.errors import raise_named
from ..protocol.record import DTOH, HTOD, SEEDING, Call, Meta, Ref
from ..protocol.sequence import Persistent, Sequence
from ..protocol.tensors import dense, size_of
from ..search.search import Search
from .infer import infer
from .journal import Journal
from .percall import PerCall, Result
from .port import Port
from .replay import Decision, ReplayClient

REHEARSED = 4 << 20     # most bytes of zeros that one rehearsal takes
NUMBER = Meta((), (), 'int64')   # meta of the tensor that holds a seed


class Replaying(PerCall):
    """Makes calls one by one, records them, and replays sequences that repeat.

    `repeats`: number of equal passes after which a sequence is replayed (R in the thesis).
    """

    # free each dropped tensor at once: `Finish` must list exactly the tensors that are still used
    batch = 1

    def __init__(self, port: Port, journal: Journal | None = None, repeats: int = 3) -> None:
        super().__init__(port, journal)
        self._metas: dict[int, Meta] = {}
        self.replay = ReplayClient(self.machine.allocate, self._metas.get,
                                   Search(repeats), infer)
        self.follower = self.replay
        self.defined: Sequence | None = None   # the sequence that was last sent to the server
        # Handles that the program has dropped since `_note_closed` last recorded a run.
        self._dropped: set[int] = set()
        self._inherited: list[Sequence] = []
        self._round_trips = 0   # `machine.round_trips` after the last replayed inference

    @property
    def sequences(self) -> int:  # type: ignore[override]
        """Number of known sequences."""
        return self.replay.sequences

    def execute(self, call: Call, input_metas: tuple[Meta, ...], view: bool) -> Result:
        """Run an operator."""
        for handle, meta in zip(call.inputs(), input_metas, strict=True):
            self._metas.setdefault(handle, meta)
        decision = self._decide(call)
        if decision.step is not None:
            value, metas = self._value(decision)
            return Result(decision.handles, metas or decision.step.metas, value)
        result = super().execute(call, input_metas, view)
        self._recorded(call, result.handles, result.metas)
        return result

    def upload(self, meta: Meta, data: Any, weight: bool) -> int:
        """Copy bytes to the device; see `PerCall.upload`."""
        call = Call(HTOD, metas=(meta,))
        decision = self._decide(call, data)
        if decision.step is not None:
            handle = decision.handles[0]
            assert handle is not None
            return handle
        handle = super().upload(meta, data, weight)
        self._recorded(call, (handle,), (meta,))
        return handle

    def download(self, handle: int, meta: Meta | None = None) -> tuple[Meta, Any]:
        """Copy a tensor to the host; `meta`: the meta of the tensor, if known."""
        (found, data), = self.downloads([(handle, meta)])
        return found, data

    def downloads(self, tensors: list[tuple[int, Meta | None]]) -> list[tuple[Meta, Any]]:
        """Copy several tensors to the host.

        If possible, request all tensors before the first wait.
        """
        asked: list[Any] = []
        for handle, meta in tensors:
            if meta is not None:
                # `_metas` lacks the tensors of a replayed pass, so record the meta here.
                self._metas.setdefault(handle, meta)
            call = Call(DTOH, (Ref(handle),), wanted=True)
            decision = self._decide(call)
            if decision.step is not None:
                asked.append(self._value(decision)[0])
            else:
                asked.append(self.machine.download(handle))
                self._recorded(call, (), ())
        return self._settle_all(asked)

    def free(self, handles: list[int]) -> None:
        """Free tensors that the program no longer references."""
        for handle in handles:
            self._metas.pop(handle, None)
            self.replay.freed(handle)
        if self.journal is not None:
            self._dropped.update(handles)

    @property
    def dropping(self) -> bool:
        """Whether tensors that the program has dropped are still to be freed, see `release`."""
        return self.replay.dropping

    def release(self) -> None:
        """Free what the program has dropped, if no pass is under way."""
        actions = self.replay.release()
        self._note_closed()
        self._act(actions)

    def synchronize(self) -> None:
        """Wait until the server has executed every call.

        This includes the calls of an open run.
        """
        self._act(self.replay.hasten())
        super().synchronize()

    def seed(self, seed: int) -> None:
        """Seed the random operators with an upload and a call; a sequence can contain both."""
        if self.journal is not None:
            self.journal.seed = seed
        number = self.upload(NUMBER, memoryview(struct.pack('Q', seed)), False)
        self.execute(Call(SEEDING, (Ref(number),)), (NUMBER,), False)
        self.free([number])

    def random(self, state: bytes) -> bytes:
        """Return or set the state of the random generator.

        First end the open run, because the server may already have drawn numbers for later calls of
        the run.
        """
        self._leave()
        return super().random(state)

    def memory(self, handle: int) -> tuple[int, int, int]:
        """Return facts about a tensor's memory; see `PerCall.memory`.

        First end the open run, so that the tensors of this run exist.
        """
        self._leave()
        return super().memory(handle)

    def _leave(self) -> None:
        actions = self.replay.leave()
        self._note_closed()
        self._act(actions)

    def lost(self) -> None:
        """Complete the journal: add the open run's calls, then drop the tensors that are freed."""
        assert self.journal is not None
        for call, data in self.replay.lost():
            self.journal.made(call, data)
        for handle in self._dropped:
            self.journal.freed(handle)
        self._dropped.clear()

    def inherit(self, lost: Replaying, there: Collection[int], rehearses: bool) -> None:
        """Find out which sequences of a lost server have only operators that this server has.

        ``rehearses``: whether to run them once, so that the program's first inference here takes no
        longer than the later ones. ``there``: handles of the program's tensors on this server.
        """
        former = [(sequence, {step.op for step in sequence.steps} - {HTOD, DTOH, SEEDING})
                  for sequence in lost.replay.former]
        has = self.has(set().union(*(ops for _, ops in former)))
        self._inherited = [sequence for sequence, ops in former if ops <= has]
        for sequence in self._inherited if rehearses else ():
            self._rehearse(sequence, lost, there)

    def _rehearse(self, sequence: Sequence, lost: Replaying, there: Collection[int]) -> None:
        """Run a sequence with zeros for what is not there, and undo the run.

        Do nothing if this would take much memory, or tensors that the sequence does not describe.
        """
        older = {role.handle for step in sequence.steps for role in step.roles()
                 if isinstance(role, Persistent)}.difference(there)
        metas = {handle: lost._metas[handle] for handle in older & lost._metas.keys()}
        inputs = [meta for step in sequence.steps if step.op == HTOD for meta in step.metas if meta]
        if sequence.bound or len(metas) < len(older) or not all(map(_is_plain, metas.values())) \
                or sum(map(size_of, [*metas.values(), *inputs])) > REHEARSED:
            return
        machine = self.machine
        for handle, meta in metas.items():
            machine.upload(meta, bytes(size_of(meta)), handle)
        sequence.number = 0     # until `adopt`; other runs have higher numbers than 0, too
        base = machine.allocate(sequence.slots)
        zeros = tuple([self.port.encoded(m, memoryview(bytes(size_of(m)))) for m in inputs])
        for action in Define(sequence), Start(0, 0, base, zeros, ()):
            machine.ask(action)
        machine.flush()
        for index in range(sum(step.wanted for step in sequence.steps)):
            value = self.settle(machine.await_value(0, index))
            if value.error or value.metas:      # the server waits for `Abandon`
                break
        for end in Abandon(0, 0, (), True), Forget(0):
            machine.ask(end)
        machine.free(tuple(older))
        self.settle(machine.synchronize())

    def adopt(self, metas: dict[int, Meta]) -> None:
        """Go on with the sequences of a lost server, see `inherit`.

        `metas`: those of the program's tensors, which have the same handles here.
        """
        self._metas.update(metas)
        self._act(self.replay.adopt(self._inherited))

    def _decide(self, call: Call, data: Any = None) -> Decision:
        decision = self.replay.call(call, data)
        self._note_closed()
        self._act(decision.actions)
        return decision

    def _note_closed(self) -> None:
        """Record in the journal the calls of a run that has just been closed.

        Also record which results of these calls the program has already dropped.
        """
        if self.journal is None or self.replay.closed is None:
            return
        calls = self.replay.closed()
        for call, data in calls:
            self.journal.made(call, data)
        for handle in self._dropped.intersection([h for call, _ in calls for h in call.fresh()]):
            self.journal.freed(handle)
        self._dropped.clear()

    def _recorded(self, call: Call, handles: tuple[int | None, ...],
                  metas: tuple[Meta | None, ...]) -> None:
        for handle, meta in zip(handles, metas, strict=True):
            if handle is not None and meta is not None:
                self._metas[handle] = meta
        self._act(self.replay.recorded(replace(call, results=handles, metas=metas)))

    def _value(self, decision: Decision) -> tuple[Any, tuple[Meta | None, ...]]:
        """Return the value and the metas of a virtual call if the program needs them now.

        Otherwise return (None, ()) without waiting.
        """
        if decision.wait is None:
            self.port.post()
            return None, ()
        value = self.settle(self.machine.await_value(*decision.wait))
        if self.replay.finished != self.inferences:
            self.inferences = self.replay.finished
            self.last = self.machine.round_trips - self._round_trips
            self._round_trips = self.machine.round_trips
        if value.error:
            actions = self.replay.failed()
            self._note_closed()
            self._act(actions)
            name, _, text = value.error.partition(': ')
            raise_named(name, text)
        actions = self.replay.received(value)
        self._note_closed()
        self._act(actions)
        return value.value, value.metas

    def _act(self, actions: list[Action]) -> None:
        at_once = False    # whether to send at once, so that the server can start to compute
        for action in actions:
            if isinstance(action, Notice):
                print(f'rrto: {action.text}', file=sys.stderr)
            elif isinstance(action, Free):
                self._dropped.difference_update(action.handles)
                super().free(list(action.handles))
            else:
                self.machine.ask(action)
                at_once = at_once or isinstance(action, (Start, More, Switch))
                if isinstance(action, Define):
                    self.defined = action.sequence
        if at_once:
            self.machine.flush()
        if actions:
            self.port.post()


def _is_plain(meta: Meta) -> bool:
    return not meta.offset and dense(meta.shape, meta.stride)
