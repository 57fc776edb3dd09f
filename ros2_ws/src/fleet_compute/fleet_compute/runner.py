"""One process computes what several programs of a server have in common.

A program has a process of its own, a *tenant*. A tenant *offers* what it computes again and again,
a pure function of its inputs. The definition of an offer names all else, such as operators and
weights, so equal definitions are the same function. When two tenants have offered the same, the
runner loads it, once for all, and computes their requests, as batches where that saves time (see
`schedule`). Until then, when it is alone again, and whenever the runner cannot, a tenant computes
itself.

Inputs and results lie in memory that tenant and runner share, the *arena* of an offer. The messages
on their socket only say what to do:

    tenant: {"offer": number, "key": digest}, with the descriptors of definition and arena
            {"run": number, "id": k}, {"forget": number}
    runner: {"shared": number, "on": bool}, {"done": k, "error": text}
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from .batch import Function, together
from .graphs import Parts, graphs_on
from .schedule import USUAL, Ready, Schedule

MESSAGE = 1 << 12       # most bytes of a message
MOST_OFFERS = 64        # most offers of one tenant
MOST_BYTES = 1 << 28    # most bytes of a definition
ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
# A batch gives other roundings than its requests alone; it must not give more than that.
_TOLERANCE = 1e-3


class Form(NamedTuple):
    """The form of a tensor that fills its memory without gaps; `stride` in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Return the number of bytes."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


class Computation(Protocol):
    """A loaded definition. Calling it must change nothing but its own inputs.

    `name`: what the log calls it. `together`: whether a batch computes what single requests do.
    """

    name: str
    inputs: Sequence[Form]
    outputs: Sequence[Form]
    together: bool

    def __call__(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the outputs; raise what PyTorch raises."""


Load = Callable[[bytes], Computation]


class Arena:
    """Shared memory for the inputs and outputs of one request at a time.

    Raises ValueError if the memory behind `descriptor` is too small, or may become so.
    """

    def __init__(self, descriptor: int, inputs: Sequence[Form], outputs: Sequence[Form]) -> None:
        size = self.size(inputs, outputs)
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS \
                or os.fstat(descriptor).st_size != size:
            raise ValueError(f'the memory of an offer must be {size} bytes for ever')
        self._memory = mmap.mmap(descriptor, size)
        self._at = 0
        self.inputs = [self._view(form) for form in inputs]
        self.outputs = [self._view(form) for form in outputs]

    def _view(self, form: Form) -> torch.Tensor:
        count = torch.Size(form.shape).numel()
        if not count:
            return torch.empty_strided(form.shape, form.stride, dtype=form.dtype)
        flat = torch.frombuffer(self._memory, dtype=form.dtype, count=count, offset=self._at)
        self._at += _aligned(form.nbytes)
        return flat.as_strided(form.shape, form.stride)

    @staticmethod
    def size(inputs: Sequence[Form], outputs: Sequence[Form]) -> int:
        """Return the number of bytes that an arena takes."""
        return max(1, sum(_aligned(form.nbytes) for form in (*inputs, *outputs)))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _memory(size: int, content: bytes = b'') -> int:
    """Return the descriptor of new shared memory, whose size nobody can change."""
    descriptor = os.memfd_create('fleet_runner', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.truncate(descriptor, size)
        view = memoryview(content)
        while view:
            view = view[os.pwrite(descriptor, view, len(content) - len(view)):]
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


# -- the tenant's side -----------------------------------------------------------------------------

class Offer:
    """What a tenant has offered; `shared`: whether the runner computes it at present."""

    def __init__(self, tenant: Tenant, number: int, arena: Arena) -> None:
        self._tenant, self._number, self._arena = tenant, number, arena
        self.shared = False

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
        """Let the runner compute; return its results, which are valid until the next call.

        `inputs`: CPU tensors of the offered forms. None: the tenant must compute itself.
        """
        for own, tensor in zip(self._arena.inputs, inputs, strict=True):
            own.copy_(tensor)
        return self._arena.outputs if self._tenant.run(self._number) else None

    def close(self) -> None:
        """Take the offer back."""
        self.shared = False
        self._tenant.forget(self._number)


class Tenant:
    """A tenant's connection to the runner of its server.

    `patience`: seconds after which a tenant no longer waits for the runner, and never again.
    Raises OSError if there is no runner.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._patience = patience
        self._offers: dict[int, Offer] = {}
        self._made = self._runs = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(patience)
            self._socket.connect(str(path))
        except OSError:
            self._socket.close()
            raise
        self.lost = False       # whether the runner has gone, or takes too long

    def offer(self, key: str, definition: bytes, inputs: Sequence[Form],
              outputs: Sequence[Form]) -> Offer:
        """Offer a computation; `key`: a digest of its definition. Raises OSError."""
        descriptors = []
        try:
            descriptors += [_memory(len(definition), definition),
                            _memory(Arena.size(inputs, outputs))]
            self._made += 1
            found = Offer(self, self._made, Arena(descriptors[1], inputs, outputs))
            data = json.dumps({'offer': self._made, 'key': key}).encode()
            self._socket.settimeout(self._patience)
            socket.send_fds(self._socket, [data], descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._offers[self._made] = found
        return found

    def look(self) -> None:
        """Learn which offers are shared now, without waiting."""
        with self._guarded():
            while not self.lost:
                self._socket.settimeout(0)
                try:
                    self._take(self._socket.recv(MESSAGE))
                except BlockingIOError:
                    return

    def run(self, number: int) -> bool:
        """Ask for a request whose inputs lie in the arena; return whether its results do."""
        self._runs += 1
        until = time.monotonic() + self._patience
        with self._guarded():
            self._say(run=number, id=self._runs)
            while not self.lost:
                self._socket.settimeout(max(until - time.monotonic(), 1e-3))
                message = self._take(self._socket.recv(MESSAGE))
                if message.get('done') == self._runs:
                    return not message['error']
        return False

    def forget(self, number: int) -> None:
        """Take an offer back."""
        self._offers.pop(number, None)
        with self._guarded():
            self._say(forget=number)

    def close(self) -> None:
        """Take all offers back, and end the connection."""
        self.lost = True
        for offer in self._offers.values():
            offer.shared = False
        self._offers.clear()
        self._socket.close()

    def _say(self, **fields: Any) -> None:
        if not self.lost:
            self._socket.settimeout(self._patience)
            self._socket.send(json.dumps(fields).encode())

    def _take(self, data: bytes) -> dict[str, Any]:
        if not data:
            raise ConnectionError('the runner has ended')
        message: dict[str, Any] = json.loads(data)
        if (offer := self._offers.get(message.get('shared', 0))) is not None:
            offer.shared = message['on']
        return message

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        try:
            yield
        except (OSError, ValueError):   # OSError: it has ended, or is late
            self.close()


# -- the runner ------------------------------------------------------------------------------------

@dataclass(eq=False)
class _Common:
    """What at least one tenant has offered."""

    key: str
    definition: bytes
    members: dict[tuple[_Client, int], int] = field(default_factory=dict)   # descriptor of an arena
    arenas: dict[tuple[_Client, int], Arena] = field(default_factory=dict)
    told: dict[tuple[_Client, int], bool] = field(default_factory=dict)     # whether it is shared
    computation: Computation | None = None
    refused: bool = False
    proved: bool = False    # whether a batch has given what its requests give alone
    parts: Parts = field(default_factory=Parts)


@dataclass(eq=False)
class _Client:
    """One tenant."""

    socket: socket.socket
    offers: dict[int, _Common] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Request:
    client: _Client
    number: int
    id: int
    common: _Common
    arrived: float


class Runner:
    """Computes for the tenants that connect to `listener`; `load` makes computations.

    `log(text)` says what is shared, and what cannot be. `serve` and `turn` raise what PyTorch
    raises when this process can no longer use the device.
    """

    def __init__(self, listener: socket.socket, device: torch.device, load: Load,
                 log: Callable[[str], None]) -> None:
        self._listener, self._device, self._load, self._log = listener, device, load, log
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._commons: dict[str, _Common] = {}
        self._waiting: deque[_Request] = deque()
        self._schedule: Schedule[_Request] = Schedule()

    def serve(self) -> None:
        """Compute until the process ends."""
        while True:
            self.turn()

    def turn(self, wait: bool = True) -> None:
        """Take the messages that have come, and compute once; `wait`: for a message."""
        for key, _ in self._selector.select(None if wait and not self._waiting else 0):
            if key.data is None:
                self._accept()
            else:
                self._receive(key.data)
        if self._waiting:
            self._compute()

    # -- messages --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            client = _Client(self._listener.accept()[0])
        except OSError as error:    # no file descriptor is left: who comes waits until one goes
            self._log(f'programs compute alone: {error}')
            self._selector.unregister(self._listener)
        else:
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def _receive(self, client: _Client) -> None:
        descriptors: list[int] = []
        try:
            data, descriptors, *_ = socket.recv_fds(client.socket, MESSAGE, 2)
            message = json.loads(data) if data else None
            if message is None:
                self._leave(client)
            elif 'offer' in message:
                self._offer(client, int(message['offer']), str(message['key']), descriptors)
            elif 'run' in message:
                self._waiting.append(_Request(
                    client, message['run'], message['id'], client.offers[message['run']],
                    time.monotonic()))
            else:
                self._forget(client, message['forget'])
        except ConnectionError:     # it has gone, and has not read all
            self._leave(client)
        except Exception as error:  # of this tenant, whatever it is: the others stay
            self._log(f'a program computes alone: {type(error).__name__}: {error}')
            self._leave(client)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _offer(self, client: _Client, number: int, key: str, descriptors: Sequence[int]) -> None:
        definition, arena = descriptors
        size = os.fstat(definition).st_size
        if number in client.offers or len(client.offers) >= MOST_OFFERS or size > MOST_BYTES:
            raise ValueError(f'at most {MOST_OFFERS} offers of {MOST_BYTES} bytes, each of its own '
                             'number')
        common = self._commons.get(key) or _Common(key, os.pread(definition, size, 0))
        common.members[client, number] = os.dup(arena)
        client.offers[number] = self._commons[key] = common
        self._tell(common)

    def _forget(self, client: _Client, number: int) -> None:
        common = client.offers.pop(number)
        os.close(common.members.pop((client, number)))
        common.arenas.pop((client, number), None)
        common.told.pop((client, number), None)
        if not common.members:
            self._commons.pop(common.key, None)
        self._tell(common)

    def _leave(self, client: _Client) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(client.socket)
        client.socket.close()
        self._waiting = deque(r for r in self._waiting if r.client is not client)
        for number in list(client.offers):
            self._forget(client, number)
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _tell(self, common: _Common) -> None:
        """Load what has got a second tenant; tell all tenants of an offer whether it is shared."""
        tenants = {client for client, _ in common.members}
        if len(tenants) > 1 and not common.refused and common.computation is None:
            try:
                common.computation = self._load(common.definition)
                self._log(f'{len(tenants)} programs share {common.computation.name}')
            except Exception as error:  # such as no memory: the tenants compute themselves
                common.refused = True
                self._log(f'programs do not share what is equal: {type(error).__name__}: {error}')
        on = common.computation is not None and len(tenants) > 1
        if not on:
            common.computation, common.proved, common.parts = None, False, Parts()
            common.arenas.clear()
        for client, number in list(common.members):
            now = on and self._mapped(common, (client, number))
            if common.told.get((client, number)) is not now and self._say(
                    client, shared=number, on=now):
                common.told[client, number] = now

    def _mapped(self, common: _Common, member: tuple[_Client, int]) -> bool:
        computation = common.computation
        assert computation is not None
        try:
            if member not in common.arenas:
                common.arenas[member] = Arena(common.members[member], computation.inputs,
                                              computation.outputs)
        except (OSError, ValueError) as error:
            self._log(f'a program computes alone: {error}')
            return False
        return True

    def _say(self, client: _Client, **fields: Any) -> bool:
        try:
            client.socket.send(json.dumps(fields).encode(), socket.MSG_DONTWAIT)
        except OSError:     # it has ended, or does not read
            return False
        return True

    # -- computing -------------------------------------------------------------------------------

    def _compute(self) -> None:
        now = time.monotonic()
        chosen = self._schedule.choose([
            Ready(r, r.common, '', r.arrived, r.arrived + USUAL) for r in self._waiting], now)
        requests = [ready.request for ready in chosen]
        for request in requests:
            self._waiting.remove(request)
        common = requests[0].common
        errors = self._results(common, requests)
        self._schedule.note(common, '', len(requests), time.monotonic() - now)
        for request, error in zip(requests, errors, strict=True):
            self._say(request.client, done=request.id, error=error[:200])

    def _results(self, common: _Common, requests: Sequence[_Request]) -> list[str]:
        """Compute requests; return for each why it has no results in its arena, or ''."""
        computation = common.computation
        arenas = [common.arenas.get((r.client, r.number)) for r in requests]
        if computation is None or any(arena is None for arena in arenas):
            self._tell(common)      # who asks has read its messages, so it hears this one
            return ['it is not shared'] * len(requests)
        if len(requests) > 1:
            try:
                self._batch(common, computation, arenas)
                return [''] * len(requests)
            except Exception:   # any error of any operator: each request alone
                self._schedule.never_together(common)
        return [self._alone(common, computation, arena) for arena in arenas]

    def _batch(self, common: _Common, computation: Computation, arenas: Sequence[Any]) -> None:
        if not computation.together:
            raise ValueError('a batch would not compute what single requests do')
        inputs = [self._placed(arena) for arena in arenas]
        with torch.inference_mode():
            results = together(computation, inputs, self._apply(common, computation, len(arenas)))
            if not common.proved:
                _check(results[0], computation(*self._placed(arenas[0])))
                common.proved = True
            for arena, tensors in zip(arenas, results, strict=True):
                _keep(arena, tensors)

    def _alone(self, common: _Common, computation: Computation, arena: Any) -> str:
        try:
            with torch.inference_mode():
                apply = self._apply(common, computation, 1)
                _keep(arena, apply(computation, self._placed(arena)))
        except Exception as error:  # the tenant computes itself, and meets the error
            if self._device.type == 'cuda':
                torch.cuda.synchronize(self._device)    # raises if the error has broken the GPU
            return f'{type(error).__name__}: {error}'
        return ''

    def _placed(self, arena: Arena) -> list[torch.Tensor]:
        """Return copies of the inputs, on the device: the computation may change them."""
        with torch.inference_mode():
            return [tensor.to(self._device, copy=True) for tensor in arena.inputs]

    def _apply(self, common: _Common, computation: Computation, size: int
               ) -> Callable[..., Sequence[torch.Tensor]]:
        """Return what calls a function for so many requests, from a graph where there is one."""
        graphs = graphs_on(self._device)

        def apply(function: Function, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            if graphs is None:
                return function(*tensors)
            return graphs.run(common.parts, size, computation.name, function, tensors)
        return apply


def _keep(arena: Arena, tensors: Sequence[torch.Tensor]) -> None:
    """Copy results into an arena; raise ValueError if they have not the forms that it expects."""
    for own, tensor in zip(arena.outputs, tensors, strict=True):
        if own.shape != tensor.shape or own.dtype != tensor.dtype:
            raise ValueError(f'a result is {tuple(tensor.shape)}, {tensor.dtype}; '
                             f'{tuple(own.shape)}, {own.dtype} were offered')
        own.copy_(tensor)


def _check(batched: Sequence[torch.Tensor], alone: Sequence[torch.Tensor]) -> None:
    """Raise AssertionError if a batch gives something else than a request alone."""
    for one, other in zip(batched, alone, strict=True):
        most = float(other.abs().max()) if other.is_floating_point() and other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0.0, equal_nan=True,
                                   atol=_TOLERANCE * most if most < float('inf') else 0.0)
