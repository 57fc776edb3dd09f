"""A PyTorch model as one flat array of float32, which the protocol transfers.

The array contains the trained parameters, then the buffers; the order is that of
`rog_core.model.partition.RowPartition`. The exchanged buffers are those of ``state_dict()`` that
are floating-point numbers or integers, such as the statistics of batch normalisation.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedParameter

from ..errors import ConfigError, LocalProtocolError
from .partition import Parameter, Role, RowPartition, partition_of

TYPES = (torch.float32, torch.float16, torch.bfloat16)  # of parameters; rows are always float32
EXACT = 1 << 24  # integers below this magnitude are exact in float32


@dataclass(frozen=True)
class Buffer:
    """A buffer that robots exchange; ``owner`` holds it as its buffer ``leaf``."""

    name: str
    owner: torch.nn.Module = field(repr=False)
    leaf: str
    shape: torch.Size
    role: Role

    def tensor(self) -> torch.Tensor:
        """Return the buffer; raise `LocalProtocolError` if it no longer has its shape."""
        now = self.owner._buffers.get(self.leaf)
        if now is None or now.shape != self.shape:
            raise LocalProtocolError(
                f'buffer {self.name} must keep its shape {tuple(self.shape)}, got '
                f'{None if now is None else tuple(now.shape)}: register a buffer that grows or '
                'goes with persistent=False, then it stays on each robot')
        return now


@dataclass(frozen=True)
class Contents:
    """The tensors of a model: what the fleet trains and exchanges, and what stays on each robot.

    It is made once, when the model is new: later, the program may change ``requires_grad``.
    ``trained`` and ``frozen``: (name, parameter). ``left_out``: name and reason of each entry of
    ``state_dict()`` that is not exchanged.
    """

    model: torch.nn.Module
    trained: list[tuple[str, torch.nn.Parameter]]
    buffers: list[Buffer]
    frozen: list[tuple[str, torch.nn.Parameter]]
    left_out: dict[str, str]

    def partition(self, granularity: str, codec: str) -> RowPartition:
        """Divide the model into rows."""
        parts = [Parameter(n, tuple(p.shape)) for n, p in self.trained]
        parts += [Parameter(b.name, tuple(b.shape), b.role) for b in self.buffers]
        parts += [Parameter(n, tuple(p.shape), Role.FROZEN) for n, p in self.frozen]
        return partition_of(parts, granularity, codec)

    def tensors(self, frozen: bool = False) -> Iterator[torch.Tensor]:
        """Yield the tensors in the order of the flat array, with the frozen ones if asked."""
        yield from (p.detach() for _, p in self.trained)
        yield from (b.tensor() for b in self.buffers)
        if frozen:
            yield from (p.detach() for _, p in self.frozen)

    def flatten(self) -> np.ndarray:
        """Return trained parameters and buffers as one flat float32 array, on the host."""
        return _joined(self.tensors())

    def frozen_values(self) -> np.ndarray:
        """Return the frozen parameters as one flat float32 array, on the host."""
        return _joined(p.detach() for _, p in self.frozen)

    def store(self, weights: np.ndarray) -> None:
        """Store a flat float32 array in the trained parameters and the buffers.

        The array may also contain the frozen parameters, as that of a grown partition does.
        """
        tensors = list(self.tensors(frozen=True))
        sizes = [t.numel() for t in tensors]
        least = len(self.trained) + len(self.buffers)
        if len(weights) not in (sum(sizes), sum(sizes[:least])):
            raise ConfigError(
                f'the model has {sum(sizes[:least])} elements; {len(weights)} are given. Models '
                'must have the same shapes on all machines and in all calls')
        flat, at = torch.from_numpy(np.asarray(weights)), 0
        with torch.no_grad():
            for tensor in tensors:
                if at == len(weights):
                    break
                _store(tensor, flat[at:at + tensor.numel()])
                at += tensor.numel()


def contents_of(model: torch.nn.Module) -> Contents:
    """Return what the fleet does with each tensor of a model.

    Raises `ConfigError` if no parameter requires a gradient. Also raises `ConfigError` for a
    trained parameter that has no values, is of another type than `TYPES`, is on another device
    than the first one, or shares memory with another one.
    """
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f'the model is of type {type(model).__name__}; it must be a '
                          'torch.nn.Module')
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not trained:
        raise ConfigError('the model has no parameters that require a gradient')
    at: dict[int, str] = {}
    for name, parameter in trained:
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta:
            raise ConfigError(f'parameter {name} has no values yet (a lazy layer, or the device '
                              'meta); run the model once before, or move it to a device')
        if parameter.dtype not in TYPES or parameter.device != trained[0][1].device:
            raise ConfigError(f'parameter {name} is {parameter.dtype} on {parameter.device}; all '
                              'must be float32, float16 or bfloat16 on one device '
                              f'({trained[0][1].device})')
        other = at.setdefault(parameter.data_ptr(), name) if parameter.numel() else name
        if other != name:
            raise ConfigError(f'parameters {other} and {name} share memory; to tie them, make '
                              'them one parameter: a.weight = b.weight')
    buffers, left_out = _buffers(model)
    frozen: list[tuple[str, torch.nn.Parameter]] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not parameter.numel():
            continue
        if isinstance(parameter, UninitializedParameter) or parameter.is_meta \
                or parameter.dtype not in TYPES or parameter.device != trained[0][1].device:
            left_out[name] = f'it is frozen, and {parameter.dtype} on {parameter.device}'
        else:
            frozen.append((name, parameter))
    return Contents(model, trained, buffers, frozen, left_out)


def _buffers(model: torch.nn.Module) -> tuple[list[Buffer], dict[str, str]]:
    found: list[Buffer] = []
    left_out: dict[str, str] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for leaf, tensor in module._buffers.items():
            if tensor is None or leaf in module._non_persistent_buffers_set \
                    or id(tensor) in seen or not tensor.numel():
                continue
            seen.add(id(tensor))
            name = f'{prefix}.{leaf}' if prefix else leaf
            if reason := _unfit(tensor):
                left_out[name] = reason
            else:
                role = Role.AVERAGE if tensor.is_floating_point() else Role.MAXIMUM
                found.append(Buffer(name, module, leaf, tensor.shape, role))
    return found, left_out


def _unfit(tensor: torch.Tensor) -> str:
    """Return why a buffer stays on each robot; empty if robots exchange it."""
    if tensor.is_meta or tensor.is_complex() or tensor.dtype == torch.bool \
            or tensor.is_quantized or tensor.layout != torch.strided:
        return f'it is a buffer of type {tensor.dtype}, {tensor.layout}'.replace(
            ', torch.strided', '')
    if tensor.is_inference() or 0 in tensor.stride():
        return 'it is a buffer that cannot be changed in place'
    if tensor.is_floating_point():
        return '' if tensor.isfinite().all() else 'it is a buffer with NaN or infinite values'
    whole = tensor.to(torch.int64)
    if int(whole.max()) >= EXACT or int(whole.min()) <= -EXACT:
        return f'it is a buffer with integers of {EXACT} or more'
    return ''


class FlatModel:
    """The model of a robot, whose trained parameters are views of one flat tensor.

    ``weights`` and ``gradient``, float32 (elements,): see `RowPartition`; their part of the buffers
    holds no values of the model, because a forward pass changes buffers. ``own``, float32
    (elements of the buffers,): the values that `load` stores in the buffers. ``shared``: whether
    the memory of these tensors is shared with processes that are forked later. Raises `ConfigError`
    if `contents_of` refuses the model.

    Parameters of float16 or bfloat16 are no views: `load` and `collect` convert them.
    """

    def __init__(self, model: torch.nn.Module, shared: bool = False) -> None:
        self._model, self.contents = model, contents_of(model)
        self.named = self.contents.trained
        values = list(self.contents.tensors())
        split = sum(p.numel() for _, p in self.named)
        elements = sum(t.numel() for t in values)
        device = self.named[0][1].device
        most = elements + sum(p.numel() for _, p in self.contents.frozen)
        # On a CPU, memory that is never written takes no room, so that of the frozen parameters
        # is there from the beginning.
        room = most if device.type == 'cpu' else elements
        self._weights, self._gradient = (_zeros(room, device, shared) for _ in range(2))
        self.weights, self.gradient = self._weights[:elements], self._gradient[:elements]
        self.own = _zeros(elements - split, device, shared)
        self._buffers, self.grown = slice(split, elements), False
        # name and parameter, its elements, and the view of `gradient` for its gradient
        self._views: list[tuple[str, torch.nn.Parameter, slice, torch.Tensor]] = []
        self._is_first = True  # whether no gradient has been collected yet
        self._given = {id(p) for p in model.parameters()}
        self._alone: set[str] = set()  # integer buffers that stay on this robot from now on
        with torch.no_grad():
            _fill(self.weights, values)
            self.own.copy_(self.weights[self._buffers])
        self._adopt(self.named, 0)

    def partition(self, granularity: str, codec: str) -> RowPartition:
        """Return the partition of this model into rows."""
        return self.contents.partition(granularity, codec)

    def _adopt(self, named: list[tuple[str, torch.nn.Parameter]], at: int) -> None:
        for name, parameter in named:
            part = slice(at, at + parameter.numel())
            if parameter.dtype == torch.float32:
                parameter.data = self._weights[part].view(parameter.shape)
            self._views.append((name, parameter, part,
                                self._gradient[part].view(parameter.shape)))
            at = part.stop
        self._versions = self._counted()

    def grow(self, copy: bool = True) -> None:
        """Put the frozen parameters into the flat tensors, after the buffers.

        ``copy``: whether ``weights`` gets their values; if not, they get those of ``weights``.
        """
        if self.grown:
            return
        self.grown = True
        at, frozen = len(self.weights), self.contents.frozen
        with torch.no_grad():
            if len(self._weights) == at:  # on a GPU
                more = sum(p.numel() for _, p in frozen)
                self._weights, self._gradient = (
                    torch.cat([t, t.new_zeros(more)]) for t in (self._weights, self._gradient))
                former, self._views = self._views, []
                self._adopt([(name, p) for name, p, *_ in former], 0)
            if copy:
                _fill(self._weights[at:], [p.detach() for _, p in frozen])
        self.weights, self.gradient = self._weights, self._gradient
        self._adopt(frozen, at)

    def frozen(self) -> torch.Tensor:
        """Return the values of the frozen parameters, float32 (elements,)."""
        return torch.cat([p.detach().reshape(-1).to(self.weights)
                          for _, p in self.contents.frozen])

    @property
    def switched(self) -> tuple[int, ...]:
        """Numbers of the parameters, in the grown partition, that were frozen or unfrozen."""
        trained, frozen = self.named, self.contents.frozen
        first = len(trained) + len(self.contents.buffers)
        return (*(k for k, (_, p) in enumerate(trained) if not p.requires_grad),
                *(k for k, (_, p) in enumerate(frozen, first) if p.requires_grad))

    @property
    def unfrozen(self) -> list[str]:
        """Names of the parameters that were frozen when the model was given, and are not now."""
        return [name for name, p in self.contents.frozen if p.requires_grad]

    def load(self) -> None:
        """Store `own` in the model's buffers, and the weights in parameters that are no views."""
        with torch.no_grad():
            at = 0
            for buffer in self.contents.buffers:
                to = buffer.tensor()
                if buffer.name not in self._alone:
                    _store(to, self.own[at:at + to.numel()])
                at += to.numel()
            self.load_weights()

    @property
    def is_all_views(self) -> bool:
        """Whether every parameter is a view of `weights`, so that `load_weights` does nothing."""
        return all(p.dtype == torch.float32 for _, p, *_ in self._views)

    def load_weights(self) -> None:
        """Store the weights in the parameters that are no views."""
        with torch.no_grad():
            for _, parameter, part, _ in self._views:
                if parameter.dtype != torch.float32:
                    parameter.copy_(self._weights[part].view(parameter.shape))

    def collect(self, computed: bool = False) -> None:
        """Copy gradients that the program has stored in other tensors into `gradient`.

        ``computed``: whether `gradient` is already what a `Computation` has computed, so that only
        a tensor that the program has put in its place is copied.
        The first gradient of a frozen parameter, which the program has unfrozen, makes the tensors
        `grow`. Raises `LocalProtocolError` if no parameter has got a gradient in the first batch.
        """
        if not self.grown and any(p.requires_grad for _, p in self.contents.frozen):
            self.grow()
        if self._is_first and not any(p.grad is not None for _, p, *_ in self._views):
            raise LocalProtocolError(
                'the loss of the first batch must depend on a parameter that is trained, but none '
                'got a gradient: is the loss computed from the output of this model, without '
                'detach(), no_grad() or a copy of the model?')
        self._is_first = False
        for _, parameter, _, view in self._views:
            if computed and (parameter.grad is None or parameter.dtype != torch.float32):
                continue
            if parameter.grad is None or not parameter.requires_grad:
                view.zero_()
            elif parameter.grad is not view:
                # an embedding may have a sparse gradient
                view.copy_(parameter.grad.to_dense())
            if parameter.dtype == torch.float32:
                parameter.grad = view

    def collect_buffers(self) -> None:
        """Store in `gradient` the buffers before this computation minus those after it."""
        at = 0
        change = self.gradient[self._buffers]
        for buffer in self.contents.buffers:
            now, end = buffer.tensor().detach().reshape(-1), at + buffer.shape.numel()
            torch.sub(self.own[at:end], now.to(change), out=change[at:end])
            if buffer.role == Role.MAXIMUM and buffer.name not in self._alone \
                    and bool((change[at:end] > 0).any()):
                self._alone.add(buffer.name)
                warnings.warn(
                    f'the integers of buffer {buffer.name} have become smaller, so it is no '
                    'counter, of which a fleet has the largest: it stays on this robot from now on',
                    stacklevel=4)
            if buffer.name in self._alone:
                change[at:end] = 0
            at = end

    def held(self) -> list[tuple[slice, torch.Tensor]]:
        """Return the elements and a copy of the values of each parameter that is frozen now."""
        return [(part, self._weights[part].clone()) for _, parameter, part, _ in self._views
                if not parameter.requires_grad]

    def require_views(self) -> None:
        """Raise `LocalProtocolError` if a trained parameter is no longer a view of `weights`."""
        now, first = {id(p) for p in self._model.parameters()}, self._weights.data_ptr()
        for name, parameter, part, _ in self._views:
            moved = parameter.dtype == torch.float32 \
                and parameter.data_ptr() != first + part.start * parameter.element_size()
            if id(parameter) not in now or parameter.dtype not in TYPES or moved:
                raise LocalProtocolError(
                    f'parameter {name} is not where the optimizer has put it, so it would not be '
                    'trained; move or convert a model, or load weights with assign=True, before '
                    'you make its optimizer, and make only one optimizer for a model')
        known = {id(p) for _, p, *_ in self._views} | {id(p) for _, p in self.contents.frozen}
        for name, other in self._model.named_parameters():
            if other.requires_grad and id(other) in self._given - known:
                raise LocalProtocolError(
                    f'parameter {name} was unfrozen, but it is {other.dtype} on {other.device}; '
                    'parameters that are trained must be float32, float16 or bfloat16 on one '
                    'device')
            if other.requires_grad and id(other) not in known:
                raise LocalProtocolError(
                    f'parameter {name} was added, or replaced, after the optimizer was made, so '
                    'it would not be trained; build the whole model before its optimizer')

    def tell_changes(self) -> None:
        """Warn if the program has changed weights in place since the last call.

        A change is not an error: a program may store averaged weights in the model, evaluate them,
        and then restore the former weights. Changes through ``parameter.data`` are not detected.
        """
        former, self._versions = self._versions, self._counted()
        for (name, *_), before, now in zip(self._views, former, self._versions, strict=True):
            if before != now:
                warnings.warn(
                    f'the program has changed parameter {name} in place: unless it has restored '
                    'the values, this robot now trains another model than the fleet, which does '
                    'not notice; change weights before you make the optimizer', stacklevel=4)
                return

    def _counted(self) -> list[int]:
        # PyTorch counts the in-place changes of each parameter. It does not count the changes that
        # this package makes, because they go through another tensor with the same memory,
        # `weights`.
        return [0 if p.dtype != torch.float32 else p._version for _, p, *_ in self._views]

    def zero_grad(self) -> None:
        """Set all gradients to zero, so that they remain views of `gradient`.

        Before the first batch they become None: then `collect` sees whether any of them was
        computed.
        """
        self.gradient.zero_()
        for _, parameter, _, view in self._views:
            is_view = parameter.dtype == torch.float32 and not self._is_first
            parameter.grad = view if is_view else None


def _zeros(elements: int, device: torch.device, shared: bool) -> torch.Tensor:
    if shared and elements:
        return torch.frombuffer(mmap.mmap(-1, 4 * elements), dtype=torch.float32)
    if device.type == 'cpu':
        return torch.from_numpy(np.zeros(elements, np.float32))
    return torch.zeros(elements, device=device)


def _fill(flat: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    at = 0
    for tensor in tensors:
        flat[at:at + tensor.numel()].copy_(tensor.reshape(-1))
        at += tensor.numel()


def _joined(tensors: Iterator[torch.Tensor]) -> np.ndarray:
    parts = [t.reshape(-1).to('cpu', torch.float32) for t in tensors]
    return torch.cat(parts).numpy() if parts else np.empty(0, np.float32)


def _store(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Copy float32 ``values`` into a tensor, unless they are its own, rounded to float32.

    So a float64 buffer that nobody changes keeps its values.
    """
    values = values.view(tensor.shape)
    if tensor.dtype != torch.float64 or not torch.equal(tensor.to(values), values):
        tensor.copy_(values)


def flatten(model: torch.nn.Module) -> np.ndarray:
    """Return trained parameters and buffers as one flat float32 array, on the host."""
    return contents_of(model).flatten()


def frozen_values(model: torch.nn.Module) -> np.ndarray:
    """Return the frozen parameters as one flat float32 array, on the host."""
    return contents_of(model).frozen_values()


def unflatten(model: torch.nn.Module, weights: np.ndarray) -> None:
    """Store a flat float32 array in the trained parameters and the buffers."""
    contents_of(model).store(weights)


def partition_of_model(model: Any, granularity: str, codec: str) -> RowPartition:
    """Divide a model into rows; raise `ConfigError` if `contents_of` refuses it."""
    return contents_of(model).partition(granularity, codec)
