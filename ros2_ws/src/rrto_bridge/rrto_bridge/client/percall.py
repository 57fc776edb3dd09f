"""The engine that sends the program's calls one by one, through a ClientMachine and its Port."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

from ..protocol.errors import UnknownOperator
from ..protocol.operators import form, overload
from ..protocol.record import GIVEN, HTOD, SEEDING, Call, Meta, Special
from ..protocol.requests import FORMS, RANDOM
from ..protocol.sequence import Step
from .journal import Journal
from .machine import Awaited, Ticket
from .port import Port, Upload
from .replay import ReplayClient

# a weight with fewer bytes is sent without asking whether the server has kept it
WEIGHT_BYTES = 4096


class Result(NamedTuple):
    """The result of a call: either tensors or a plain `value`.

    `handles` and `metas` are flat tuples with one element for each tensor; None means that the
    operator returned no tensor there.
    """

    handles: tuple[int | None, ...]
    metas: tuple[Meta | None, ...]
    value: Any = None


class NoReplay:
    """Replaces `replay.ReplayClient` in the modes without replay; `expected` stays None."""

    expected: Step | None = None
    base = 0

    def advance(self) -> None:
        """Do nothing; this method is never called, because `expected` stays None."""


class PerCall:
    """An engine that sends each call of the program to the server, in the mode `machine.mode`."""

    follower: NoReplay | ReplayClient = NoReplay()
    batch = 64                          # number of dropped tensors that one message frees
    # Counters for the status: replayed inferences, known sequences, and the round trips of the last
    # replayed inference.
    inferences = sequences = last = 0

    def __init__(self, port: Port, journal: Journal | None = None) -> None:
        self.port = port
        self.machine = port.machine
        self.journal = journal
        self._introduced: set[str] = set()      # operators whose form the server knows
        # Maps an operator that the server does not have as the program has it to the reason.
        self.unknown: dict[str, str] = {}

    def execute(self, call: Call, input_metas: tuple[Meta, ...], view: bool) -> Result:
        """Run an operator; `call` has no results yet. `view`: the operator only creates views."""
        self._introduce(call.op)
        first, described = self.machine.issue(call, input_metas, view)
        try:
            described = self.settle(described)
        except UnknownOperator as error:
            self.unknown[str(error).partition(' ')[0]] = str(error)
            raise
        handles: list[int | None] = []
        metas: list[Meta | None] = []
        inputs = call.inputs()
        if type(described) not in (Meta, tuple) and described is not None:
            return Result((), (), described)
        _flatten(described, first, inputs, handles, metas)
        result = Result(tuple(handles), tuple(metas))
        if self.journal is not None:
            self.journal.made(replace(call, results=result.handles, metas=result.metas))
        return result

    def _introduce(self, op: str) -> None:
        if op not in self._introduced and op != SEEDING:
            self.machine.introduce(op, form(overload(op.removeprefix('aten.'))))
            self._introduced.add(op)

    def has(self, ops: set[str]) -> set[str]:
        """Return the operators that the server has as the program has them."""
        names = sorted(ops)
        has = self.settle(self.machine.request((FORMS, tuple(
            (op, form(overload(op.removeprefix('aten.')))) for op in names))))
        found = {op for op, one in zip(names, has, strict=True) if one}
        self._introduced |= found
        return found

    def upload(self, meta: Meta, data: Any, weight: bool) -> int:
        """Copy bytes to the device.

        If `weight` is True, send the bytes only if the server has not kept them from an earlier
        upload. Fewer than `WEIGHT_BYTES` bytes are always sent.
        """
        return self._uploads([Upload(meta, data)], weight)[0]

    def weights(self, uploads: Iterable[Upload]) -> list[int]:
        """Copy weights to the device as `upload` does, with one round trip for all that are kept.

        They do not count as calls of the program.
        """
        return self._uploads(uploads, True)

    def _uploads(self, uploads: Iterable[Upload], weight: bool) -> list[int]:
        asked = [(upload.meta, upload.data, *self._asked(upload, weight)) for upload in uploads]
        for meta, data, digest, handle, ticket in asked:
            if not self.settle(ticket) and digest:
                self.settle(self.machine.keep(
                    handle, meta, self.port.encoded(meta, memoryview(data)), digest))
            if self.journal is not None:
                self.journal.made(Call(HTOD, results=(handle,), metas=(meta,)), data, digest)
        return [handle for *_, handle, _ in asked]

    def _asked(self, upload: Upload, weight: bool) -> tuple[str, int, Ticket | None]:
        """Upload bytes, or ask whether the server has kept them; return also their digest then."""
        meta, data, digest, handle = upload
        if not weight or len(data) < WEIGHT_BYTES:
            return ('', *self.machine.upload(meta, data, handle))
        digest = digest or hashlib.sha256(data).hexdigest()
        return (digest, *self.machine.find(digest, meta, handle))

    def download(self, handle: int, meta: Meta | None = None) -> tuple[Meta, Any]:
        """Copy a tensor to the host; `meta`: the meta of the tensor, if known."""
        meta, data = self.settle(self.machine.download(handle))
        return meta, data

    def downloads(self, tensors: list[tuple[int, Meta | None]]) -> list[tuple[Meta, Any]]:
        """Copy several tensors to the host.

        If possible, request all tensors before the first wait.
        """
        if self.machine.mode != 'async':
            return [self.download(*tensor) for tensor in tensors]
        return self._settle_all([self.machine.download(handle) for handle, _ in tensors])

    def _settle_all(self, tickets: list[Any]) -> list[Any]:
        try:
            return [self.settle(ticket) for ticket in tickets]
        except BaseException:
            for ticket in tickets:
                if type(ticket) is Ticket:
                    self.machine.forgo(ticket)
            raise

    def free(self, handles: list[int]) -> None:
        """Free tensors that the program no longer references."""
        for handle in handles if self.journal is not None else ():
            self.journal.freed(handle)  # type: ignore[union-attr]
        self.settle(self.machine.free(handles))

    @property
    def dropping(self) -> bool:
        """Whether tensors that the program has dropped are still to be freed, see `release`."""
        return False

    def release(self) -> None:
        """Free what the program has dropped."""

    def repeat(self, call: Call) -> None:
        """Make a call that creates one tensor; `call.results` holds the handle for it."""
        self._introduce(call.op)
        self.machine.repeat(call)
        self.port.post()
        if self.journal is not None:
            self.journal.made(call)

    def seed(self, seed: int) -> None:
        """Seed the random operators."""
        if self.journal is not None:
            self.journal.seed = seed
        self.settle(self.machine.seed(seed))

    def random(self, state: bytes) -> bytes:
        """Return the state of the random generator; set it first if `state` is not empty."""
        return bytes(self.settle(self.machine.request((RANDOM, state))))

    def query(self, name: str) -> Any:
        """Return the server's answer to the query `name`; `execution.perform` lists the queries."""
        return self.settle(self.machine.query(name))

    def memory(self, handle: int) -> tuple[int, int, int]:
        """Return (key, size in bytes, number of tensors) for the memory of a tensor.

        Tensors that share memory have equal keys. The number says how many tensors share this
        memory.
        """
        key, size, sharers = self.settle(self.machine.memory(handle))
        return key, size, sharers

    def synchronize(self) -> None:
        """Wait until the server has executed every call."""
        if not self.machine.quiet:
            self.settle(self.machine.synchronize())

    def lost(self) -> None:
        """Complete the journal after the server is lost.

        The journal of this class is always complete, so this method does nothing.
        """

    def settle(self, result: Any) -> Any:
        """Return `result`; if it is a ticket, wait for it."""
        if type(result) is Ticket or type(result) is Awaited:
            self.machine.waits()
            return self.port.wait(result)
        self.port.post()
        return result


def _flatten(described: Any, first: int, inputs: tuple[int, ...], handles: list[int | None],
             metas: list[Meta | None]) -> None:
    if type(described) is Meta:
        made = sum(h is not None and h >= first for h in handles)
        handles.append(first + made)
        metas.append(described)
    elif described is None:
        handles.append(None)
        metas.append(None)
    elif described and type(described[0]) is Special and described[0].kind == GIVEN:
        handles.append(inputs[int(described[0].name)])
        metas.append(described[1])
    else:
        for item in described:
            _flatten(item, first, inputs, handles, metas)
