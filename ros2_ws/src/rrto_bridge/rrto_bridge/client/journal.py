"""A record of how to compute every tensor of the program again on another machine.

The journal is a graph of calls. Each tensor of the program points to the call that gave it its
present values. Each call points to the calls that gave its arguments their values. A call is
dropped when nothing points to it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ..protocol.errors import LinkError, OutOfMemory
from ..protocol.operators import operator, overload
from ..protocol.record import HTOD, Call, Meta
from ..protocol.requests import FREE, SEED
from .port import Port, Upload

# Maximum length of a chain of calls on which a tensor's values depend. When a chain has this
# length, the client fetches the values of the tensors whose chains are longer than half of it,
# except tensors that share memory. In the journal, these values replace the chains.
DEPTH = 4096


class _Node:
    """A call of the graph.

    `data`: the bytes, if the call is an upload. `inputs`: the calls that gave the arguments of this
    call their values. `depth`: length of the longest chain of calls that ends at this call.
    `order`: number of the call in the order of recording. `digest`: SHA-256 of `data`, if known.
    """

    __slots__ = ('call', 'data', 'depth', 'digest', 'inputs', 'order')

    def __init__(self, order: int, call: Call, data: bytearray, inputs: tuple[_Node, ...],
                 digest: str = '') -> None:
        self.order, self.call, self.data, self.inputs = order, call, data, inputs
        self.digest = digest
        self.depth: int = 1 + max((n.depth for n in inputs), default=0)

    def upload(self) -> Upload:
        """Return the upload that this call is."""
        (handle,), (meta,) = self.call.results, self.call.metas
        assert handle is not None and meta is not None
        return Upload(meta, memoryview(self.data), self.digest, handle)

    def keep(self) -> None:
        """Copy the data, because a tensor that uses their memory is about to change."""
        self.data = bytearray(self.data)


class Journal:
    """Records every call, and every tensor that the program drops."""

    def __init__(self) -> None:
        self.seed: int | None = None
        self._nodes: dict[int, _Node] = {}  # maps a handle to the call that gave its present values
        # Maps a handle to the handles that may share memory with it.
        self._memory: dict[int, set[int]] = {}
        self._order = 0
        # What `deep` compares: an upper bound of `depth`, and the next number of a call at which it
        # looks at all tensors.
        self._deepest = self._next = 0

    def made(self, call: Call, data: Any = None, digest: str = '') -> None:
        """Record a call; `data`: the bytes of an upload; `digest`: their SHA-256, if known."""
        written = _written(call)
        fresh = call.fresh()
        if not written and not fresh:
            return
        touched = set().union(*(self._memory[h] for h in written if h in self._memory))
        needed = dict.fromkeys([*call.inputs(), *touched])
        self._order += 1
        node = _Node(self._order, call, bytearray(data) if data is not None else bytearray(),
                     tuple(dict.fromkeys(self._nodes[h] for h in needed if h in self._nodes)),
                     digest)
        self._deepest = max(self._deepest, node.depth)
        for handle in (*touched, *fresh):
            self._nodes[handle] = node
        shared: set[int] = set()
        if call.op != HTOD and _may_view(call.op):
            shared = set().union(*(self._memory[h] for h in call.inputs() if h in self._memory))
        for handle in fresh:
            group = shared or {handle}
            group.add(handle)
            for member in group:
                self._memory[member] = group

    def freed(self, handle: int) -> None:
        """Forget a tensor that the program has dropped."""
        self._nodes.pop(handle, None)
        self._memory.pop(handle, set()).discard(handle)

    @property
    def depth(self) -> int:
        """Length of the longest chain of calls on which a tensor's values depend."""
        return max((n.depth for n in self._nodes.values()), default=0)

    def deep(self) -> list[int]:
        """Return the handles of tensors with long chains of calls; the caller fetches their values.

        See `fetched`. This method is called before each operator, so it seldom looks at all
        tensors: only if a chain can be as long as `DEPTH`, and then not again before half as many
        calls, since tensors that share memory may keep such a chain.
        """
        if self._deepest < DEPTH or self._order < self._next:
            return []
        self._next = self._order + DEPTH // 2
        self._deepest = self.depth
        if self._deepest < DEPTH:
            return []
        return [h for h, n in self._nodes.items()
                if n.depth > DEPTH // 2 and len(self._memory[h]) == 1]

    def fetched(self, handle: int, meta: Meta, data: Any) -> None:
        """Replace the calls on which a tensor's values depend by the values that were fetched."""
        self._order += 1
        self._nodes[handle] = _Node(self._order, Call(HTOD, results=(handle,), metas=(meta,)),
                                    bytearray(data), ())

    def rebuild(self, port: Port) -> str:
        """Compute all tensors of the program again, on the server of `port`, which has none yet.

        Return why there was not enough memory, or ''. Raises LinkError if the server is lost.
        """
        short = ''
        for make in self._made_again(port):
            short = _tried(make) or short
        return short

    def _made_again(self, port: Port) -> Iterator[Callable[[], None]]:
        """Yield the functions that make all tensors, and that free those in between."""
        if self.seed is not None:
            signed = self.seed - (1 << 64) if self.seed >> 63 else self.seed
            yield partial(port.make, (SEED, signed))
        freed: list[int] = []
        for node in self._needed():
            call, fresh = node.call, node.call.fresh()
            if node.digest:
                yield partial(port.place, node.upload(), node.keep)
            elif call.op == HTOD:
                upload = node.upload()
                yield partial(port.make, (HTOD, upload.handle, upload.meta, upload.data))
            else:
                first = min(fresh, default=0) or port.machine.allocate(1)
                yield partial(port.make, (call.op, call.arguments, call.keywords, first))
            freed += [handle for handle in fresh if handle not in self._nodes]
        yield partial(port.make, (FREE, tuple(freed)))

    def uploads(self) -> list[Upload]:
        """Return the uploads from which all tensors can be computed.

        The handle is that of the tensor if it still has these values, else 0.
        """
        found = [(node, node.upload()) for node in self._needed() if node.call.op == HTOD]
        return [upload if self._nodes.get(upload.handle) is node else upload._replace(handle=0)
                for node, upload in found]

    def _needed(self) -> list[_Node]:
        """Return the calls that make all tensors, in the order of recording."""
        found: dict[int, _Node] = {}
        open_nodes = list(self._nodes.values())
        while open_nodes:
            node = open_nodes.pop()
            if node.order not in found:
                found[node.order] = node
                open_nodes.extend(node.inputs)
        return [node for _, node in sorted(found.items())]


def _tried(make: Callable[[], None]) -> str:
    """Make tensors again; return why there was not enough memory, or ''."""
    try:
        make()
    except LinkError:
        raise
    except OutOfMemory as error:
        return str(error)
    except Exception:   # the call has also failed on the server
        pass
    return ''


def _may_view(op: str) -> bool:
    function = overload(op.removeprefix('aten.'))
    return operator(function).composite or any(r.alias_info for r in function._schema.returns)


def _written(call: Call) -> set[int]:
    """Return the handles of the arguments that a call changes."""
    if not call.op.startswith('aten.'):
        return set()
    function = overload(call.op.removeprefix('aten.'))
    names = operator(function).writes
    if not names:
        return set()
    arguments = [*zip((a.name for a in function._schema.arguments), call.arguments, strict=False),
                 *call.keywords]
    return {h for name, value in arguments if name in names
            for h in Call('', (value,)).inputs()}
