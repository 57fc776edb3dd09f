"""The client's protocol in the per-call modes: what the client sends, and which replies it awaits.

The code has no I/O, no clock and no thread. If the client already knows the result of a call,
`issue` returns the result. Otherwise `issue` returns a ticket, by which `result` later finds the
result. The shell sends the messages that `outgoing` returns. It passes each arriving message to
`on_message`, until `settled` returns True for the ticket.

A call runs an operator. A query asks for a fact about the device, such as its name. A free
releases tensors. Modes:

- rpc: every call, every query and every free is one request with a reply, as in the system Cricket.
- cached: the client answers repeated queries from memory. It sends frees, and views whose results
  it knows or can predict, together with the next request. The thesis calls this mode semi-RRTO.
- async: the client does not wait for a result that it knows from an earlier call with equal scalars
  and metas, or that it can predict (see predict.py). It waits for all other results. The system
  LUPINE works like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..protocol import errors
from ..protocol.actions import Action, Value
from ..protocol.errors import raise_named
from ..protocol.record import DTOH, HTOD, Call, Meta, metas, signature
from ..protocol.requests import (
    FIND,
    FORM,
    FREE,
    KEEP,
    MEMORY,
    QUERY,
    SEED,
    to_item,
    value_of,
)
from ..protocol.wire import decode, encode, encode_tuple
from .infer import infer, sketch
from .predict import Predictor

MODES = ('rpc', 'cached', 'async')
# When this number of items is queued, they are sent, even if the program waits for none
# of them.
POSTED = 16
KNOWN = 1 << 16  # maximum number of remembered results; at this number, all are forgotten
BLOCK = 1 << 20  # number of handles reserved for a call with an unknown number of results

# queries whose answers change and are therefore not remembered
_CHANGING = frozenset(('used', 'free'))


class Ticket(NamedTuple):
    """A result that the program needs: the result of the last item of message `number`.

    Each message contains one or more items: calls, queries, frees and others.
    """

    number: int
    first: int = 0    # handle of the first tensor that the item may create; 0 if it creates none
    key: Any = None   # key under which the reply is remembered; None: not remembered
    # The call and the metas of its inputs, if the predictor learns from the reply; otherwise None.
    asked: tuple[Call, tuple[Meta | None, ...]] | None = None


class Awaited(NamedTuple):
    """A value that the program needs: value number `step` (from 0) of the replayed run `run`."""

    run: int
    step: int


class ClientMachine:
    """The state of the message exchange between one program and its server.

    `mode` is one of `MODES`. A handle is the number of a tensor. The machine assigns handles in
    rising order, before it sends a call, and never reuses a handle. Therefore a handle means the
    same tensor at both ends, even if a call fails or its reply is not used.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.calls = 0
        self.round_trips = 0
        self._next_handle = 1
        # Number of the last message that was made, and of the last reply that has arrived.
        self._number = self._done = 0
        self._asked = False                    # whether a message was made since the last wait
        self._items: list[bytes] = []          # items of the unfinished message
        self._sealed: list[bytes] = []         # finished messages that are not sent yet
        self._awaited: set[int] = set()        # numbers of messages whose replies are missing
        # Maps `Ticket.number` to `Ticket.first`, for each ticket that was given to `forgo` before
        # its reply arrived.
        self._forgone: dict[int, int] = {}
        self._replies: dict[int, tuple[Any, ...]] = {}
        # Maps the signature of a call to its result, and the name of a query to its answer.
        self._known: dict[Any, Any] = {}
        self._predictor = Predictor(sketch, infer)
        # Values of replayed calls that have arrived and that the program has not read yet. The key
        # is (number of the run, number of the value in this run, from 0).
        self._values: dict[tuple[int, int], Value] = {}

    def follow(self, other: ClientMachine) -> ClientMachine:
        """Make the next handle follow the last handle of the machine `other`; return self.

        So no handle is used twice.
        """
        self._next_handle = other._next_handle
        return self

    # -- what the program does -------------------------------------------------------------------

    def allocate(self, count: int) -> int:
        """Reserve `count` consecutive handles and return the first."""
        first = self._next_handle
        self._next_handle += count
        return first

    def upload(self, meta: Meta, data: Any, handle: int = 0) -> tuple[int, Ticket | None]:
        """Copy bytes to the device; ``handle``: that of the new tensor, 0 for the next one.

        Return the new tensor's handle, and a Ticket (None in mode `async`).
        """
        self.calls += 1
        handle = handle or self.allocate(1)
        return handle, self._add((HTOD, handle, meta, data), self.mode != 'async', handle)

    def download(self, handle: int) -> Ticket:
        """Request the values of a tensor; the reply is (meta, bytes)."""
        self.calls += 1
        return self._wait((DTOH, handle))

    def issue(self, call: Call, input_metas: tuple[Meta | None, ...], view: bool
              ) -> tuple[int, Any]:
        """Issue an operator; return (handle of its first new tensor, its result or a Ticket).

        The result has the form that `execution.context.Context.execute` returns. New tensors get
        consecutive handles. `view`: whether the operator creates nothing but a view.
        """
        self.calls += 1
        if call.wanted or self.mode == 'rpc' or (self.mode == 'cached' and not view):
            return self._ask_for(call)
        key = signature(call, input_metas)
        known = self._known.get(key)
        if known is not None:
            first = self.allocate(sum(1 for _ in metas(known)))
            self._add((call.op, call.arguments, call.keywords, first), False)
            return first, known
        known = self._predictor.predict(call, input_metas)
        if known is None:
            return self._ask_for(call, key, (call, input_metas))
        first = self.allocate(sum(1 for _ in metas(known)))
        self._add((call.op, call.arguments, call.keywords, first, known), False)
        self._remember(key, known)
        return first, known

    def _ask_for(self, call: Call, key: Any = None, asked: Any = None) -> tuple[int, Ticket]:
        first = self.allocate(BLOCK)
        return first, self._wait((call.op, call.arguments, call.keywords, first), first, key, asked)

    def _remember(self, key: Any, known: Any) -> None:
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[key] = known

    def request(self, item: tuple[Any, ...]) -> Ticket:
        """Request the execution of an item that no other method makes; see `protocol.requests`."""
        return self._wait(item)

    def introduce(self, op: str, form: tuple[str, ...]) -> None:
        """Say how an operator is called, before its first call; see `protocol.operators.form`.

        The program waits for the result of the first call, which the server may refuse.
        """
        self._add((FORM, op, form), False)

    def repeat(self, call: Call) -> None:
        """Issue an operator that creates one tensor; `call.results` holds the handle for it."""
        self._add((call.op, call.arguments, call.keywords, call.results[0]), False)

    def free(self, handles: Sequence[int]) -> Ticket | None:
        """Free tensors that the program no longer references; return a Ticket in mode `rpc`."""
        return self._add((FREE, tuple(handles)), self.mode == 'rpc')

    def seed(self, seed: int) -> Ticket | None:
        """Seed the random operators; return a Ticket in mode `rpc`.

        `seed`: an unsigned integer of 64 bits.
        """
        signed = seed - (1 << 64) if seed >> 63 else seed
        return self._add((SEED, signed), self.mode == 'rpc')

    def query(self, name: str) -> Any:
        """Return the server's answer to the query `name`, or a Ticket for it."""
        if self.mode != 'rpc' and name in self._known:
            return self._known[name]
        return self._wait((QUERY, name), 0, None if name in _CHANGING else name)

    @property
    def quiet(self) -> bool:
        """Whether the replies to all messages have arrived."""
        return self._done == self._number and not self._items

    def synchronize(self) -> Ticket:
        """Request a reply that the server sends when it has executed all earlier calls."""
        return self._wait((QUERY, 'synchronize'))

    def memory(self, handle: int) -> Ticket:
        """Request the result of `execution.context.Context.memory` for a tensor."""
        return self._wait((MEMORY, handle))

    def find(self, digest: str, meta: Meta, handle: int = 0) -> tuple[int, Ticket]:
        """Request a new tensor whose bytes the server may already have.

        `digest`: SHA-256 of the bytes. ``handle``: as in `upload`. The reply says whether the
        server has them.
        """
        handle = handle or self.allocate(1)
        return handle, self._wait((FIND, handle, meta, digest), handle)

    def keep(self, handle: int, meta: Meta, data: Any, digest: str) -> Ticket:
        """Upload bytes that `find` has not found; the server keeps them for later programs."""
        return self._wait((KEEP, handle, meta, data, digest), handle)

    def ask(self, action: Action) -> None:
        """Queue a replay action for the next message; `flush` makes this message at once."""
        self._items.append(encode(to_item(action)))

    def await_value(self, run: int, index: int) -> Awaited:
        """Return the `Awaited` for value number ``index`` of the replayed run ``run``."""
        return Awaited(run, index)

    def waits(self) -> None:
        """Count a round trip if a message was made since the program last waited."""
        self.round_trips += self._asked
        self._asked = False

    # -- messages --------------------------------------------------------------------------------

    def _add(self, item: Any, wait: bool, first: int = 0) -> Ticket | None:
        if wait:
            return self._wait(item, first)
        self._items.append(encode(item))   # queues nothing if `encode` raises an error
        if len(self._items) >= POSTED:
            self._seal(False)
        return None

    def _wait(self, item: Any, first: int = 0, key: Any = None, asked: Any = None) -> Ticket:
        self._items.append(encode(item))
        self._seal(True)
        self._awaited.add(self._number)
        return Ticket(self._number, first, key, asked)

    def _seal(self, wanted: bool) -> None:
        self._number += 1
        self._asked = True
        self._sealed.append(encode_tuple((encode(self._number), encode(wanted),
                                          encode_tuple(self._items))))
        self._items.clear()

    def outgoing(self) -> list[bytes]:
        """Return the messages to send now, in order."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def flush(self) -> None:
        """Make a message of the queued items even though the program does not wait for them."""
        if self._items:
            self._seal(False)

    def on_message(self, data: bytes) -> None:
        """Process a reply; raises RemoteError for a reply that was not requested."""
        reply = decode(data)
        if type(reply) is tuple and len(reply) == 5:
            value = value_of(reply)
            self._values[value.run, value.index] = value
            return
        if type(reply) is not tuple or len(reply) != 3 or type(reply[1]) is not str:
            raise errors.RemoteError('malformed reply from the server')
        if reply[0] not in self._awaited:
            raise errors.RemoteError(f'unexpected reply to message {reply[0]}')
        self._awaited.remove(reply[0])
        self._done = reply[0]
        if reply[0] in self._forgone:
            self._drop(self._forgone.pop(reply[0]), reply[2])
        else:
            self._replies[reply[0]] = reply

    def forgo(self, ticket: Ticket | Awaited) -> None:
        """Stop waiting for a reply; when it arrives, free the tensors that its call has created."""
        if isinstance(ticket, Ticket) and ticket.number in self._awaited:
            self._forgone[ticket.number] = ticket.first
        elif isinstance(ticket, Ticket) and ticket.number in self._replies:
            self._drop(ticket.first, self._replies.pop(ticket.number)[2])

    def _drop(self, first: int, described: Any) -> None:
        """Free the results of a call whose reply the program does not use."""
        if first:
            count = sum(1 for _ in metas(described)) if type(described) in (Meta, tuple) else 1
            self._add((FREE, tuple(range(first, first + count))), False)

    def settled(self, ticket: Ticket | Awaited) -> bool:
        """Return whether the reply has arrived."""
        if isinstance(ticket, Awaited):
            return ticket in self._values
        return ticket.number in self._replies

    def result(self, ticket: Ticket | Awaited) -> Any:
        """Return the result of an item, or raise the error of this item or of an earlier item."""
        if isinstance(ticket, Awaited):
            self._values = {k: v for k, v in self._values.items() if k >= ticket}
            return self._values.pop(ticket)
        _, error, value = self._replies.pop(ticket.number)
        if error:
            # The error may be of an earlier call. Then this call may have succeeded, so free its
            # results.
            self._drop(ticket.first, None)
            raise_named(error, value)
        if ticket.key is not None:
            self._remember(ticket.key, value)
        if ticket.asked is not None:
            self._predictor.learn(*ticket.asked, value)
        return value
