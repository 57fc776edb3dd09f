"""The device behind 'cuda:0': turns dispatched operators into calls, and results into tensors."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import get_default_dtype

from . import placement
from .allow import resolve
from .client import ClientMachine
from .cpu_fallback import CpuFallback
from .errors import LinkError, OutOfMemory, Refused, RrtoError, Unsendable
from .handlers import handlers
from .inprocess import InProcess
from .migration import migrate
from .operators import COMPOSITE, DEFAULT, EXPLICIT, USUAL, Operator, operator, overload
from .percall import NoReplay, PerCall, Result
from .placement import NotOnDevice
from .record import Call, Meta, Ref
from .remote import CUDA, NOTHING, RemoteTensor, alias_kind, make, make_view, move, released
from .step_matcher import MISS, compiled
from .tensors import check_dense, check_device, meta_of, ordinary, pack, special, unpack
from .turns import Turns

OUT_OF_MEMORY: type[Exception] = getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)
_TO_COPY = torch.ops.aten._to_copy.default
ROOM = 60    # most Python stack frames of a call
aten = torch.ops.aten


class Memory(NamedTuple):
    """The memory of a tensor: tensors that share it have the same `key`; `size` in bytes."""

    key: int
    size: int
    shared: bool     # other tensors of the program use it


class Device:
    """The remote device of one process; threads take turns.

    `connect` creates the engine. It is called at the first use of the device, and again when a lost
    server returns; then it may raise RrtoError.
    """

    def __init__(self, connect: Callable[[], PerCall]) -> None:
        self._connect = connect
        self._lost: PerCall | None = None       # the engine of the lost server
        self._next: PerCall | None = None       # the engine of a server that has returned
        self.follower: Any = NoReplay()
        self.lock = threading.RLock()
        self.turns = Turns(self.lock)
        self.forked = False                     # this is a child of a process that used the device
        self._parents: PerCall | None = None    # kept alive there: only the parent closes it
        self._seed: int | None = None           # sent at the first use of the device
        self._announced: set[str] = set()       # operators reported as run on this machine
        self._deferred: dict[int, Any] = {}       # empty tensors not yet created on the server
        self._shared: Counter[int] = Counter()  # handle -> additional wrappers
        self._temporary = NOTHING               # the last handle of a deferred tensor
        self._thread = threading.local()
        here = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())

    def _after_fork(self) -> None:
        """Detach a forked child: it has neither the parent's threads nor its turn at the link."""
        self.lock, self.follower = threading.RLock(), NoReplay()
        self.turns = Turns(self.lock)
        engine = self.__dict__.pop('engine', None)
        if engine is not None:
            self.forked, self._parents = True, engine

    @cached_property
    def engine(self) -> PerCall:
        """The engine that executes the calls."""
        if self.forked:
            raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. To use CUDA with '
                               "multiprocessing, you must use the 'spawn' start method")
        self._use(self._connect())
        if self._seed is not None:
            self._ask('seed', self._seed)  # continues on this machine if the server is lost already
        return self.engine

    def busy(self) -> bool:
        """Return whether an exception in this thread would now leave state inconsistent."""
        return self.lock._is_owned() and not self.engine.port.idle  # type: ignore[attr-defined]

    def _ask(self, what: str, *arguments: Any) -> Any:
        """Call a method of the engine; if the server is lost, on this machine if allowed."""
        try:
            return getattr(self.engine, what)(*arguments)
        except LinkError as error:
            if self.engine.journal is None:
                raise
            self._go_local(error)
            return getattr(self.engine, what)(*arguments)

    def _go_local(self, error: LinkError) -> None:
        lost = self.engine
        assert lost.journal is not None
        for call, data in lost.lost():
            lost.journal.made(call, data)
        port = InProcess(ClientMachine('async').follow(lost.machine))
        with torch.inference_mode():
            lost.journal.rebuild(port.performer.context)
        self._use(PerCall(port))
        print(f'rrto: {error}; continuing on this machine', file=sys.stderr)
        self._lost = lost
        lost.port.watch(self._found)

    def _use(self, engine: PerCall) -> None:
        self.engine = engine
        self.follower = engine.follower

    def _found(self) -> bool:
        """Connect to a server that another thread has seen; return whether it works."""
        try:
            self._next = self._connect()
        except RrtoError:
            return False
        return True

    def _return(self, found: PerCall) -> None:
        """Continue on a server that has returned; an inference begins."""
        here, lost = self.engine, self._lost
        assert isinstance(here.port, InProcess) and lost is not None
        here.synchronize()
        self._next = None
        found.machine.follow(here.machine)
        try:
            migrate(here.port.performer.context, found)
        except RrtoError as error:
            found.port.close()
            print(f'rrto: {error}; staying on this machine', file=sys.stderr)
            if isinstance(error, LinkError):
                lost.port.watch(self._found)
            return
        self._use(found)
        lost.port.close()
        self._lost = None
        print('rrto: the server is back; continuing there', file=sys.stderr)

    # -- what PyTorch dispatches -----------------------------------------------------------------

    def dispatch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run an operator with a remote tensor or the remote device among its arguments."""
        with self.lock:
            follower = self.follower
            step = follower.expected
            if step is not None and get_default_dtype() is USUAL:
                match = step.compiled or compiled(step)
                result = match(function, args, kwargs, follower.base)
                if result is not MISS:
                    follower.advance()
                    if self.turns.contended:
                        self.turns.claim()
                    return result
            if self.turns.enter(function is _TO_COPY and not isinstance(args[0], RemoteTensor)):
                return self.dispatch(function, args, kwargs)   # other threads made calls meanwhile
            if operator(function).decomposes:
                # Not function.decompose(): its decompositions in Python round differently.
                return function._op_dk(COMPOSITE, *args, **(kwargs or {}))
            _headroom(ROOM)   # raise a RecursionError before any state changes
            try:
                handler = HANDLERS.get(function)
                if handler is not None:
                    return handler(self, *args, **(kwargs or {}))
                return self.run(function, args, kwargs or {})
            except OutOfMemory as error:
                raise OUT_OF_MEMORY(str(error)) from None

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run any operator on the server, or on this machine if the server cannot."""
        facts = operator(function)
        try:
            resolve(facts.name)
        except Refused as error:
            if facts.python:
                return function._op_dk(EXPLICIT, *args, **kwargs)
            return self._run_on_cpu(function, facts, args, kwargs, error)
        self.collect()
        if facts.out:
            for name in facts.writes:
                self._own(kwargs.get(name))
        given: list[RemoteTensor] = []
        try:
            arguments = tuple([self._argument(a, given, facts) for a in args])
            keywords = tuple([(k, self._argument(v, given, facts)) for k, v in kwargs.items()])
            if facts.moves:
                return self._move(facts, args[0], given, arguments, keywords)
            result = self._call(facts, facts.name, arguments, keywords, given)
        except NotOnDevice:
            return placement.execute(self, function, facts, args, kwargs)
        except (Refused, Unsendable) as error:   # only with these arguments
            return self._run_on_cpu(function, facts, args, kwargs, error)
        return self._tensors(result, facts, given)

    def _call(self, facts: Operator, name: str, arguments: Any, keywords: Any,
              given: list[RemoteTensor]) -> Result:
        default = get_default_dtype()
        if default is not USUAL:
            keywords = (*keywords, (DEFAULT, special(default)))
        masked = facts.index and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])
        call = Call(name, arguments, keywords, wanted=facts.wanted or masked)
        result: Result = self._ask('execute', call, tuple([meta_of(t) for t in given]), facts.view)
        if call.wanted:
            self.turns.has_value()
        return result

    def _argument(self, value: Any, given: list[RemoteTensor], facts: Operator) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list or kind is tuple or kind is torch.Size:
            return tuple([self._argument(item, given, facts) for item in value])
        if isinstance(value, torch.Tensor):
            if not isinstance(value, RemoteTensor):
                raise NotOnDevice
            self._materialise(value)
            given.append(value)
            return Ref(value.handle)
        return special(value)

    def _tensors(self, result: Result, facts: Operator, given: list[RemoteTensor]) -> Any:
        if not result.handles:
            return [] if facts.lists else result.value
        flat: list[Any] = []
        order = given[::-1] if facts.out else given   # `out` is the last argument, and the result
        for handle, meta in zip(result.handles, result.metas, strict=True):
            known = next((t for t in order if t.handle == handle), None)
            if known is not None and meta is not None and meta != meta_of(known):
                move(known, meta)
            if known is not None or handle is None or meta is None:
                flat.append(known)
            else:
                flat.append(make_view(handle, meta, given[0]) if facts.view else make(handle, meta))
        return flat if facts.lists else flat[0] if len(flat) == 1 else tuple(flat)

    def _move(self, facts: Operator, tensor: RemoteTensor, given: list[RemoteTensor],
              arguments: Any, keywords: Any) -> RemoteTensor:
        """Run an in-place view. The tensor gets a new handle: a handle never changes its shape."""
        view = operator(overload(facts.moves.removeprefix('aten.')))
        result = self._call(view, view.name, arguments, keywords, given)
        handle, meta = result.handles[0], result.metas[0]
        assert handle is not None and meta is not None
        released.append(tensor.handle)
        tensor.handle = handle
        move(tensor, meta)
        return tensor

    # -- copies ----------------------------------------------------------------------------------

    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """Copy host to device."""
        check_dense(tensor)
        meta, data = pack(tensor)
        with self.lock:
            if self._next is not None:
                self._return(self._next)
            self.collect()
            weight = getattr(self._thread, 'weights', False)
            return make(self._ask('upload', meta, data, weight), meta)

    def download(self, tensor: RemoteTensor) -> torch.Tensor:
        """Copy device to host."""
        return self.downloads([tensor])[0]

    def downloads(self, tensors: list[RemoteTensor]) -> list[torch.Tensor]:
        """Copy several tensors from device to host in one round trip."""
        with self.lock:
            self.collect()
            for tensor in tensors:
                self._materialise(tensor)
            found = self._ask('downloads', [(t.handle, meta_of(t)) for t in tensors])
            self.turns.has_value()
        return [unpack(meta, data) for meta, data in found]

    @contextmanager
    def loading_weights(self) -> Iterator[None]:
        """Treat uploads of this thread as weights meanwhile: the server may have kept them."""
        before = getattr(self._thread, 'weights', False)
        self._thread.weights = True
        try:
            yield
        finally:
            self._thread.weights = before

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
                  ) -> Any:
        """`copy_` between the two sides, or on the server."""
        if not isinstance(target, RemoteTensor):
            return target.copy_(self.download(source))  # type: ignore[arg-type]
        if isinstance(source, RemoteTensor):
            return self.run(aten.copy_.default, (target, source), {})
        if target.handle in self._deferred:
            dense = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
            uploaded = self.upload(dense.copy_(source))
            if uploaded.stride() == target.stride():
                target.handle, uploaded.handle = uploaded.handle, target.handle
                return target
        return self.run(aten.copy_.default, (target, self.upload(source.to(target.dtype))), {})

    def to_copy(self, tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """`_to_copy`: to the other side, or to another dtype or layout."""
        device = kwargs.get('device')
        if isinstance(tensor, RemoteTensor) and (device is None or device.type == 'cuda'):
            kwargs.pop('non_blocking', None)
            return self.run(aten._to_copy.default, (tensor,), kwargs)
        if isinstance(tensor, RemoteTensor):
            if device is not None and device.type == 'meta':
                values = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                                             device=device)
            else:
                values = self.download(tensor)
            return aten._to_copy.default(values, **kwargs)
        check_device(kwargs.pop('device', None) or CUDA)
        return self.upload(aten._to_copy.default(tensor, **kwargs) if kwargs else tensor)

    # -- tensors that need no call ---------------------------------------------------------------

    def alias(self, tensor: RemoteTensor) -> RemoteTensor:
        """Return another wrapper of the same tensor; create the tensor first if it is deferred."""
        self._materialise(tensor)
        self._shared[tensor.handle] += 1
        return make_view(tensor.handle, meta_of(tensor), tensor, alias_kind())

    def set_to(self, target: RemoteTensor, source: RemoteTensor) -> RemoteTensor:
        """Make `target` another wrapper of the tensor behind `source`."""
        if target.device != source.device:
            raise RuntimeError('Attempted to set the storage of a tensor on device '
                               f'"{target.device}" to a storage on different device '
                               f'"{source.device}".  This is no longer allowed; the devices must '
                               'match.')
        if target.dtype != source.dtype:
            raise RuntimeError(f'Could not set tensor of type {source.dtype} to a tensor of type '
                               f'{target.dtype}')
        return self._become(target, self.alias(source))

    def _become(self, target: RemoteTensor, other: RemoteTensor) -> RemoteTensor:
        """Make `target` the tensor behind `other`, which nothing else uses."""
        target.handle, other.handle = other.handle, target.handle
        move(target, meta_of(other))
        return target

    def _own(self, tensor: Any) -> None:
        """Give a tensor whose shape may change a handle that its aliases do not share."""
        if isinstance(tensor, RemoteTensor) and self._shared.get(tensor.handle, 0):
            self._become(tensor, self.run(aten.alias.default, (tensor,), {}))

    def resize(self, tensor: RemoteTensor, size: Any, *, memory_format: Any = None
                ) -> RemoteTensor:
        """Resize to a view of the same memory, or to a copy if nothing else uses the old memory."""
        size, offset = tuple(size), int(tensor.storage_offset())
        if size == tuple(tensor.shape) and memory_format is None:
            return tensor
        made = torch.empty(size, dtype=tensor.dtype, device='meta',
                           memory_format=memory_format or torch.contiguous_format)
        memory = self.memory(tensor)
        if (offset + made.numel()) * tensor.itemsize <= memory.size:
            return self._become(tensor, self._strided(tensor, size, made.stride(), offset))
        if memory.shared:
            raise RuntimeError('rrto: resize_ cannot enlarge a tensor that shares its memory with '
                               'others; create a new tensor')
        whole = torch.empty(offset + made.numel(), dtype=tensor.dtype, device=CUDA)
        count = memory.size // tensor.itemsize
        if count:
            old = self._strided(tensor, (count,), (1,), 0)
            self.run(aten.copy_.default, (self._strided(whole, (count,), (1,), 0), old), {})
        return self._become(tensor, self._strided(whole, size, made.stride(), offset))

    def _strided(self, tensor: torch.Tensor, *where: Any) -> RemoteTensor:
        view: RemoteTensor = self.run(aten.as_strided.default, (tensor, *where), {})
        return view

    def memory(self, tensor: RemoteTensor) -> Memory:
        """Return the facts about a tensor's memory: a round trip."""
        with self.lock:
            self.collect()
            self._materialise(tensor)
            key, size, sharers = self._ask('memory', tensor.handle)
        return Memory(key, size, sharers > 1 or self._shared.get(tensor.handle, 0) > 0)

    def copy(self, tensor: RemoteTensor, copied: dict[int, torch.Tensor], away: bool
             ) -> torch.Tensor:
        """Copy a tensor, to this machine if `away`. Copies share memory as their originals do.

        `copied`: memory key -> copy of memory that tensors share.
        """
        with self.lock:
            memory = self.memory(tensor)
            count, start = memory.size // tensor.itemsize, int(tensor.storage_offset())
            if not memory.shared and tensor.numel() == count:
                return self.download(tensor) if away else self.run(
                    aten.clone.default, (tensor,), {})
            if memory.key not in copied:
                whole = self._strided(tensor, (count,), (1,), 0)
                copied[memory.key] = self.download(whole) if away else self.run(
                    aten.clone.default, (whole,), {})
            flat = copied[memory.key]
            if flat.dtype != tensor.dtype:
                flat = flat.view(tensor.dtype)
            where = tensor.shape, tensor.stride(), start
            return flat.as_strided(*where) if away else self._strided(flat, *where)

    def empty(self, function: Any, meta: Meta, args: Any, kwargs: Any) -> RemoteTensor:
        """Return an empty tensor and defer its call, which a first copy into it may replace.

        Until `_materialise` creates it on the server it has exactly one wrapper: whatever makes an
        alias or view of it creates it first.
        """
        self._temporary -= 1
        self._deferred[self._temporary] = function, args, kwargs
        return make(self._temporary, meta)

    def _materialise(self, tensor: RemoteTensor) -> None:
        """Create a deferred empty tensor on the server."""
        if tensor.handle in self._deferred:
            function, args, kwargs = self._deferred.pop(tensor.handle)
            facts = operator(function)
            keywords = tuple([(k, self._argument(v, [], facts)) for k, v in kwargs.items()
                              if k not in ('pin_memory', 'non_blocking')])
            arguments = tuple([self._argument(a, [], facts) for a in args])
            call = Call(facts.name, arguments, keywords)
            handle = self._ask('execute', call, (), False).handles[0]
            assert handle is not None
            tensor.handle = handle

    # -- the device itself -----------------------------------------------------------------------

    def query(self, name: str) -> Any:
        """Return the server's answer about its device; see `perform._answer`."""
        with self.lock:
            return self._ask('query', name)

    def ask(self, function: Any, tensor: RemoteTensor) -> Any:
        """Run an operator on the server that PyTorch itself would answer on this machine."""
        with self.lock:
            return self.run(function, (tensor,), {})

    def seed(self, seed: int) -> None:
        """Seed the random operators. This does not connect to a server."""
        with self.lock:
            seed = torch.Generator().manual_seed(seed).initial_seed()   # not negative
            self._seed = seed
            if 'engine' in self.__dict__:
                self.turns.enter(True)
                self._ask('seed', seed)

    @property
    def next_handle(self) -> int:
        """A handle that no tensor created later precedes."""
        return self.engine.machine.allocate(1) if 'engine' in self.__dict__ else 0

    @property
    def first_seed(self) -> int:
        """The seed that was last set, or PyTorch's own."""
        return torch.initial_seed() if self._seed is None else self._seed

    def random(self, state: bytes = b'') -> bytes:
        """Return the state of the random generator; set it first if `state` is not empty."""
        with self.lock:
            found: bytes = self._ask('random', state)
            return found

    def synchronize(self) -> None:
        """Wait until every call is done; raise the error of a call that nobody waited for."""
        with self.lock:
            self._ask('synchronize')

    def clock(self) -> float:
        """Return the time (s) at which every earlier call is done."""
        self.synchronize()
        return time.monotonic()

    # -- memory ----------------------------------------------------------------------------------

    def collect(self) -> None:
        """Tell the server which tensors the program has dropped, once there are enough."""
        journal = self.engine.journal
        if journal is not None and self.follower.expected is None:
            for handle in journal.deep():
                journal.fetched(handle, *self._ask('download', handle))
        if len(released) < self.engine.batch:
            return
        dropped = []
        while released:
            handle = released.popleft()
            if self._shared.get(handle, 0) > 0:
                self._shared[handle] -= 1
            elif self._deferred.pop(handle, None) is None:
                self._shared.pop(handle, None)
                dropped.append(handle)
        if dropped:
            self._ask('free', dropped)

    # -- what the server cannot do ---------------------------------------------------------------

    def existing(self, values: Any) -> Iterator[RemoteTensor]:
        """Yield the remote tensors among values, also in nested lists, created on the server."""
        for value in values:
            if isinstance(value, RemoteTensor):
                self._materialise(value)
                yield value
            elif isinstance(value, (list, tuple)):
                yield from self.existing(value)

    def overwrite(self, tensor: RemoteTensor, values: torch.Tensor) -> None:
        """Copy values that were computed on this machine into a tensor."""
        if values.shape != tensor.shape:   # `out=`
            self._own(tensor)
            self._become(tensor, self.upload(values))
        else:
            self.copy_into(tensor, values)

    def _run_on_cpu(self, function: Any, facts: Operator, args: Any, kwargs: Any, why: Exception
                  ) -> Any:
        """Fetch the arguments, run the operator on the CPU, and send its results back."""
        if placement.others(placement.given(function, args, kwargs)):
            return NotImplemented
        if facts.view:
            raise RuntimeError(f'rrto: {why}; this machine cannot make a view: use .cpu()')
        if facts.name.startswith('aten.') and placement.writes_here(function, facts, args, kwargs):
            return placement.execute(self, function, facts, args, kwargs)
        wanted = kwargs.get('device')      # where the program wants the result
        stays = isinstance(wanted, torch.device) and wanted.type == 'cpu'
        drawn = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        fallback = CpuFallback(self, (*args, *kwargs.values()))
        trusted = facts.name.startswith('aten.')   # to say in its schema what it writes
        if not trusted:
            fallback.snapshot()
        with ordinary():
            result = function(*[fallback.fetched(a) for a in args],
                              **{k: fallback.fetched(v) for k, v in kwargs.items()})
            if not trusted:
                fallback.write_changed(result)
        returned = result if stays else fallback.sent(result)
        for name, value in [*zip((a.name for a in function._schema.arguments), args, strict=False),
                            *kwargs.items()]:
            if name in facts.writes:
                fallback.write(value)
        if facts.name not in self._announced and not drawn and not stays:
            self._announced.add(facts.name)
            print(f'rrto: {facts.name} runs on this machine, not on the server ({why}); '
                  f'first used at {users_line()}', file=sys.stderr)
        return returned


def _headroom(frames: int) -> None:
    if frames:
        _headroom(frames - 1)


def users_line() -> str:
    """Return file and line of the running program, for messages."""
    frame = sys._getframe(1)
    ours = os.path.dirname(__file__), os.path.dirname(torch.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    return f'{frame.f_code.co_filename}:{frame.f_lineno}'


_PLAIN = frozenset((int, float, bool, str, complex, type(None)))
HANDLERS = handlers(Device)
