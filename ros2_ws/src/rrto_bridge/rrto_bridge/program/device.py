"""The device 'cuda:0': gets operators from PyTorch's dispatcher and sends them to the server."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import get_default_dtype

import rrto_bridge

from ..client.ownprocess import Here
from ..client.percall import PerCall, Result
from ..protocol.errors import Refused, Unsendable
from ..protocol.operators import (
    COMPOSITE,
    DEFAULT,
    EXPLICIT,
    USUAL,
    Operator,
    operator,
    overload,
    resolve,
)
from ..protocol.record import Call
from ..protocol.tensors import check_dense, check_device, meta_of, ordinary, pack, special, unpack
from . import handlers, placement
from .connection import Connection
from .cpu_fallback import CpuFallback
from .lifetimes import Lifetimes, NotOnDevice, become
from .remote import CUDA, RemoteTensor, make, make_view, move, released
from .step_matcher import MISS, compiled

_TO_COPY = torch.ops.aten._to_copy.default
ROOM = 60    # maximum number of Python stack frames that a call needs
aten = torch.ops.aten


class Device:
    """The remote device of one process: runs operators, and moves values from and to the server.

    `connect` connects to the server; for `local`, see `Connection`, too.
    """

    def __init__(self, connect: Callable[[], PerCall], local: Here | None = None) -> None:
        self.connection = Connection(connect, local)
        self.lifetimes = Lifetimes(self.connection)
        self.connection.dropped = self.lifetimes.dropped
        self._announced: set[str] = set()       # operators that `_run_on_cpu` reported to the user
        self._thread = threading.local()

    # -- what PyTorch dispatches -----------------------------------------------------------------

    def dispatch(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Run an operator whose arguments include a remote tensor or the remote device."""
        connection = self.connection
        with connection.lock:
            follower = connection.follower
            step = follower.expected
            if step is not None and get_default_dtype() is USUAL:
                match = step.compiled or compiled(step)
                result = match(function, args, kwargs, follower.base)
                if result is not MISS:
                    follower.advance()
                    if connection.turns.contended:
                        connection.turns.claim()
                    return result
            begins = function is _TO_COPY and not isinstance(args[0], RemoteTensor)
            if connection.turns.enter(begins):
                # While this thread waited, other threads may have made calls. Then replay expects
                # another step now. So dispatch the operator again.
                return self.dispatch(function, args, kwargs)
            if operator(function).decomposes:
                # Do not use function.decompose(): its Python decompositions round differently.
                return function._op_dk(COMPOSITE, *args, **(kwargs or {}))
            # Raise RecursionError here if too few stack frames are free, before any state changes.
            _headroom(ROOM)
            handler = HANDLERS.get(function)
            if handler is not None:
                return handler(self, *args, **(kwargs or {}))
            return self.run(function, args, kwargs or {})

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run any operator on the server; if the server refuses it, run it on this machine."""
        facts = operator(function)
        try:
            resolve(facts.name)
            self.connection.check(facts.name)
        except Refused as error:
            if facts.python:
                return function._op_dk(EXPLICIT, *args, **kwargs)
            return self._run_on_cpu(function, facts, args, kwargs, error)
        lifetimes = self.lifetimes
        lifetimes.collect()
        if facts.out:
            for name in facts.writes:
                self._own(kwargs.get(name))
        given: list[RemoteTensor] = []
        try:
            arguments = tuple([lifetimes.argument(a, given) for a in args])
            keywords = tuple([(k, lifetimes.argument(v, given)) for k, v in kwargs.items()])
            if facts.moves:
                return self._move(facts, args[0], given, arguments, keywords)
            result = self._call(facts, facts.name, arguments, keywords, given)
        except NotOnDevice:
            return placement.execute(self, function, facts, args, kwargs)
        except (Refused, Unsendable) as error:
            # The server executes this operator, but not with these arguments.
            return self._run_on_cpu(function, facts, args, kwargs, error)
        return self._tensors(result, facts, given)

    def _call(self, facts: Operator, name: str, arguments: Any, keywords: Any,
              given: list[RemoteTensor]) -> Result:
        default = get_default_dtype()
        if default is not USUAL:
            keywords = (*keywords, (DEFAULT, special(default)))
        masked = facts.index and any(t.dtype in (torch.bool, torch.uint8) for t in given[1:])
        call = Call(name, arguments, keywords, wanted=facts.wanted or masked)
        result: Result = self.connection.ask('execute', call, tuple([meta_of(t) for t in given]),
                                             facts.view)
        if call.wanted:
            self.connection.turns.has_value()
        return result

    def _tensors(self, result: Result, facts: Operator, given: list[RemoteTensor]) -> Any:
        if not result.handles:
            return [] if facts.lists else result.value
        flat: list[Any] = []
        # An `out=` tensor is the result. It is the last argument, so search from the end.
        order = given[::-1] if facts.out else given
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
        """Run an operator such as `t_`, which makes a tensor a view of itself.

        The server runs the operator that returns an ordinary view. Then `tensor` gets the handle
        of the new view, because the tensor with a given handle never changes its shape.
        """
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
        """Copy a CPU tensor to the device; return the copy."""
        check_dense(tensor)
        meta, data = pack(tensor)
        with self.connection.lock:
            # If a server is available again, free all dropped tensors before the other tensors move
            # to it.
            self.lifetimes.collect(at_once=self.connection.returning)
            self.connection.resume()
            weight = getattr(self._thread, 'weights', False)
            sent = data if weight else self.connection.engine.port.encoded(meta, data)
            return make(self.connection.ask('upload', meta, sent, weight), meta)

    def download(self, tensor: RemoteTensor) -> torch.Tensor:
        """Copy a remote tensor to the CPU; return the copy."""
        return self.downloads([tensor])[0]

    def downloads(self, tensors: list[RemoteTensor]) -> list[torch.Tensor]:
        """Copy remote tensors to the CPU, with one round trip for all if possible."""
        with self.connection.lock:
            self.lifetimes.collect()
            for tensor in tensors:
                self.lifetimes.materialise(tensor)
            found = self.connection.ask('downloads', [(t.handle, meta_of(t)) for t in tensors])
            self.connection.turns.has_value()
        return [unpack(meta, data) for meta, data in found]

    @contextmanager
    def loading_weights(self) -> Iterator[None]:
        """Return a context in which uploads of this thread count as weights.

        If the server has kept the bytes of a weight, the weight is not sent again.
        """
        before = getattr(self._thread, 'weights', False)
        self._thread.weights = True
        try:
            yield
        finally:
            self._thread.weights = before

    def copy_into(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
                  ) -> Any:
        """Run `copy_`; one or both of its tensors are on the server."""
        if not isinstance(target, RemoteTensor):
            return target.copy_(self.download(source))  # type: ignore[arg-type]
        if isinstance(source, RemoteTensor):
            return self.run(aten.copy_.default, (target, source), {})
        if self.lifetimes.is_deferred(target):
            dense = torch.empty_strided(target.shape, target.stride(), dtype=target.dtype)
            uploaded = self.upload(dense.copy_(source))
            if uploaded.stride() == target.stride():
                target.handle, uploaded.handle = uploaded.handle, target.handle
                return target
        return self.run(aten.copy_.default, (target, self.upload(source.to(target.dtype))), {})

    def to_copy(self, tensor: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Run `_to_copy`: copy a tensor from or to the server, or to another dtype or layout."""
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

    # -- the memory of tensors ------------------------------------------------------------------

    def _own(self, tensor: Any) -> None:
        """Assign a new handle to a tensor if other `RemoteTensor` objects have the same handle.

        Afterwards the shape of the tensor can change without an effect on those objects.
        """
        if isinstance(tensor, RemoteTensor) and self.lifetimes.has_aliases(tensor):
            become(tensor, self.run(aten.alias.default, (tensor,), {}))

    def resize(self, tensor: RemoteTensor, size: Any, *, memory_format: Any = None
                ) -> RemoteTensor:
        """Resize a tensor in place; if its memory is too small, use new memory.

        Raises RuntimeError if the memory is too small and other tensors share it.
        """
        size, offset = tuple(size), int(tensor.storage_offset())
        if size == tuple(tensor.shape) and memory_format is None:
            return tensor
        made = torch.empty(size, dtype=tensor.dtype, device='meta',
                           memory_format=memory_format or torch.contiguous_format)
        memory = self.lifetimes.memory(tensor)
        if (offset + made.numel()) * tensor.itemsize <= memory.size:
            return become(tensor, self._strided(tensor, size, made.stride(), offset))
        if memory.shared:
            raise RuntimeError('rrto: resize_ cannot enlarge a tensor that shares its memory with '
                               'others; create a new tensor')
        whole = torch.empty(offset + made.numel(), dtype=tensor.dtype, device=CUDA)
        count = memory.size // tensor.itemsize
        if count:
            old = self._strided(tensor, (count,), (1,), 0)
            self.run(aten.copy_.default, (self._strided(whole, (count,), (1,), 0), old), {})
        return become(tensor, self._strided(whole, size, made.stride(), offset))

    def _strided(self, tensor: torch.Tensor, *where: Any) -> RemoteTensor:
        view: RemoteTensor = self.run(aten.as_strided.default, (tensor, *where), {})
        return view

    def copy(self, tensor: RemoteTensor, copied: dict[int, torch.Tensor], away: bool
             ) -> torch.Tensor:
        """Return a copy of a tensor, on this machine if `away` is True, otherwise on the server.

        The copies of tensors that share memory also share memory. For this purpose, `copied` maps
        the key of each shared memory to the copy of that memory; this method adds missing entries.
        """
        with self.connection.lock:
            memory = self.lifetimes.memory(tensor)
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

    def ask(self, function: Any, tensor: RemoteTensor) -> Any:
        """Run an operator such as `is_conj` on the server.

        PyTorch itself would examine the `RemoteTensor` object in this process instead of the tensor
        on the server.
        """
        with self.connection.lock:
            return self.run(function, (tensor,), {})

    # -- what the server cannot do ---------------------------------------------------------------

    def overwrite(self, tensor: RemoteTensor, values: torch.Tensor) -> None:
        """Copy values that were computed on this machine into a remote tensor."""
        if values.shape != tensor.shape:   # the operator has resized its `out=` argument
            self._own(tensor)
            become(tensor, self.upload(values))
        else:
            self.copy_into(tensor, values)

    def _run_on_cpu(self, function: Any, facts: Operator, args: Any, kwargs: Any, why: Exception
                  ) -> Any:
        """Fetch the arguments, run the operator on the CPU, and send its results back."""
        if placement.others(placement.given(function, args, kwargs)):
            return NotImplemented
        if facts.view:
            raise RuntimeError(f'rrto: {why}; this machine cannot make a view: use .cpu()')
        if facts.name.startswith('aten.'):
            if placement.writes_here(function, facts, args, kwargs):
                return placement.execute(self, function, facts, args, kwargs)
            placement.check(function, facts, args, kwargs)
        wanted = kwargs.get('device')      # the device that the program requests for the result
        stays = isinstance(wanted, torch.device) and wanted.type == 'cpu'
        drawn = any(isinstance(value, torch.Generator) for value in (*args, *kwargs.values()))
        fallback = CpuFallback(self, (*args, *kwargs.values()))
        trusted = facts.name.startswith('aten.')   # ATen schemas mark all written arguments
        if not trusted:
            fallback.snapshot()
        with ordinary():
            result = function(*[fallback.fetched(a) for a in args],
                              **{k: fallback.fetched(v) for k, v in kwargs.items()})
            if not trusted:
                fallback.write_changed(result)
        returned = result if stays else fallback.sent(result)
        if trusted:
            names = (argument.name for argument in function._schema.arguments)
            for name, value in [*zip(names, args, strict=False), *kwargs.items()]:
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
    """Return the file and line of the program's own code that runs now, for messages."""
    frame = sys._getframe(1)
    ours = os.path.dirname(rrto_bridge.__file__), os.path.dirname(torch.__file__)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        frame = frame.f_back
    return f'{frame.f_code.co_filename}:{frame.f_lineno}'


HANDLERS: dict[Any, handlers.Handler] = {
    **handlers.HANDLERS, aten.copy_.default: Device.copy_into,
    aten._to_copy.default: Device.to_copy, aten.resize_.default: Device.resize}
