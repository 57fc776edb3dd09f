"""Replacements for `torch.cuda` and related functions; they use the remote device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn.utils import rnn

from ...protocol.tensors import check_device
from .. import remote
from ..device import Device
from ..remote import CUDA, RemoteTensor
from . import accelerator, files, legacy, memory, seen, tracing


class Properties(NamedTuple):
    """The result of `get_device_properties`, with the properties that a remote device provides."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int = 1


class Event:
    """Replaces `torch.cuda.Event`, which marks a point in the order of calls.

    The server executes calls in order, so an event is done when all calls before it are done.
    """

    _device: Device

    def __init__(self, enable_timing: bool = False, blocking: bool = False,
                 interprocess: bool = False, external: bool = False) -> None:
        self._at: float | None = None
        self._timed = enable_timing

    def record(self, stream: Any = None) -> None:
        """Record the time when all calls made so far are done, if the event measures time."""
        if self._timed:
            self._at = self._device.connection.clock()

    def wait(self, stream: Any = None) -> None:
        """Do nothing, because there is only one stream."""

    def query(self) -> bool:
        """Return True, as if all calls before the event were done."""
        return True

    def synchronize(self) -> None:
        """Wait until the server has executed all calls made so far."""
        self._device.connection.synchronize()

    def elapsed_time(self, end: Event) -> float:
        """Return the time from this event to the event `end`, in milliseconds.

        Raises RuntimeError if an event does not measure time, or was not recorded.
        """
        if not (self._timed and end._timed):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if self._at is None or end._at is None:
            raise RuntimeError('Both events must be recorded before calculating elapsed time.')
        return (end._at - self._at) * 1e3


class AnyEvent(Event):
    """Replaces `torch.Event`; the first argument of its constructor is the device."""

    def __init__(self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False,
                 interprocess: bool = False) -> None:
        super().__init__(enable_timing, blocking, interprocess)


class Stream:
    """Replaces a CUDA stream; all streams are the same, because the device has only one."""

    device = CUDA
    cuda_stream = device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        _check(device)
        self.priority = priority

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority, which are equal."""
        return 0, 0

    def synchronize(self) -> None:
        """Wait until the server has executed all calls made so far."""
        torch.cuda.synchronize()

    def wait_stream(self, stream: Any) -> None:
        """Do nothing, because there is only one stream."""

    wait_event = wait_stream

    def record_event(self, event: Any = None) -> Any:
        """Record `event`, or a new event if none is given; return the recorded event."""
        event = event or torch.cuda.Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return True, as if the stream had no work left."""
        return True

    def is_capturing(self) -> bool:
        """Return False, because there are no CUDA graphs."""
        return False

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        pass


def install(device: Device) -> None:
    """Patch `torch.cuda`, and the functions of other modules that treat CUDA specially."""
    Event._device = device
    others = {'_lazy_init': lambda: None, 'Stream': Stream, 'device': _DeviceScope,
              'Event': Event, 'device_of': lambda tensor: _DeviceScope()}
    for name, value in (_queries(device) | others).items():
        setattr(torch.cuda, name, value)
        for module in (torch.cuda.memory, torch.cuda.random, torch.cuda.streams):
            if name in vars(module):   # some programs use these modules directly
                setattr(module, name, value)
    memory.install(device)
    # PyTorch 2.4 asks for these abstract base classes when it imports torch._dynamo.
    bases: Any = getattr(torch, '_streambase', None)
    for name, kind in (('_EventBase', Event), ('_StreamBase', Stream)):
        if hasattr(getattr(bases, name, None), 'register'):
            getattr(bases, name).register(kind)
    _tensors(device)
    files.install(device)
    _no_gradients()
    accelerator.install(device)
    legacy.install()
    seen.install()
    tracing.install(device)
    torch.device = _DeviceName  # type: ignore[misc,assignment]
    torch.jit._builtins._register_builtin(_DeviceName, 'aten::device')
    _constructors()
    torch.Stream, torch.Event = Stream, AnyEvent  # type: ignore[misc,assignment]
    torch.compile = _no_compile


_Name = torch.device


class _Names(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Name)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, _Name)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _Name

    def __hash__(cls) -> int:
        return hash(_Name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (f'cuda:{args[0]}', *args[1:])
        return _Name(*args, **kwargs)


class _DeviceName(metaclass=_Names):
    """Replaces `torch.device`. Even in a PyTorch without CUDA, the argument 0 means 'cuda:0'."""


_DeviceName.__module__, _DeviceName.__qualname__, _DeviceName.__name__ = 'torch', 'device', 'device'


class _DeviceScope:
    """Replaces the context `torch.cuda.device(...)`, which has nothing to switch here.

    There is only one device; the constructor checks that the argument names this device.
    """

    def __init__(self, device: Any = None) -> None:
        _check(device)
        self.idx = self.prev_idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        pass


def _check(device: Any = None) -> None:
    if isinstance(device, int):
        device = f'cuda:{device}' if device >= 0 else None
    check_device(torch.device(device or 'cuda'))


def _checked(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the function `answer`: first check that the device in its first argument exists."""
    def call(device: Any = None, *args: Any, **kwargs: Any) -> Any:
        _check(device)
        return answer(device, *args, **kwargs)
    return call


def _queries(device: Device) -> dict[str, Callable[..., Any]]:
    """Return a dict that maps names in `torch.cuda` to functions that replace them.

    Each name has its own function object, because `torch._dynamo` requires this.
    """
    def query(name: str) -> Any:
        return device.connection.query(name)

    def ask(name: str) -> Callable[..., Any]:
        return _checked(lambda of=None: query(name))

    def constant(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def properties(of: Any = None) -> Properties:
        _check(of)
        major, minor = query('capability')
        return Properties(query('name'), major, minor, query('total'))

    def count() -> int:
        # as with CUDA, which knows the number before the fork
        return 1 if device.connection.forked else query('device_count')

    def seed(value: int) -> None:
        device.connection.seed(int(value))

    nothing = ('ipc_collect', 'set_stream', 'init', '_sleep', 'set_sync_debug_mode')
    stream = Stream()
    return {
        'is_available': constant(True), 'is_initialized': constant(True),
        '_is_in_bad_fork': lambda: device.connection.forked, 'is_bf16_supported': constant(True),
        'device_count': count, 'current_device': ask('current_device'),
        'set_device': _checked(lambda of=None: None),
        'get_device_name': ask('name'), 'get_device_capability': ask('capability'),
        'get_device_properties': properties, 'get_arch_list': constant([]),
        'synchronize': _checked(lambda of=None: device.connection.synchronize()),
        'manual_seed': seed, 'manual_seed_all': lambda value: seed(value),
        'current_stream': _checked(lambda of=None: stream),
        'default_stream': _checked(lambda of=None: stream),
        'stream': lambda s=None: nullcontext(s), 'is_current_stream_capturing': constant(False),
        'get_sync_debug_mode': constant(0), **{name: constant(None) for name in nothing},
    }


def _tensors(device: Device) -> None:
    """Patch methods of tensors: pinning, subclasses, `.data`, conjugation and device numbers."""
    for name, value in (('pin_memory', _pin), ('is_pinned', _is_pinned),
                        ('record_stream', lambda self, stream: None),
                        ('as_subclass', remote.as_subclass),
                        ('_make_subclass', staticmethod(remote.make_subclass)),
                        ('data', property(remote.get_data, remote.set_data))):
        setattr(torch.Tensor, name, value)
    for name in ('is_conj', 'is_neg', 'resolve_conj', 'resolve_neg'):
        setattr(torch, name, lambda input, name=name: getattr(input, name)())
    torch.nn.Parameter.__new__ = remote.new_parameter  # type: ignore[method-assign]
    for owner, name in ((torch.Tensor, 'to'), (torch.Tensor, 'cuda'), (torch.nn.Module, 'to'),
                        (torch.nn.Module, 'cuda'), (rnn.PackedSequence, 'to')):
        setattr(owner, name, _numbered(getattr(owner, name)))
    remote.LAZY._allowed_methods += [torch.Tensor.to, torch.Tensor.cuda]


def _pin(self: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Do what `pin_memory()` does, but return ordinary memory.

    The returned tensor is a copy that is only marked as pinned.
    """
    if isinstance(self, RemoteTensor):
        raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
    pinned = self if _is_pinned(self) else self.clone()
    pinned._rrto_pinned = True  # type: ignore[attr-defined]
    return pinned


def _is_pinned(self: torch.Tensor, device: Any = None) -> bool:
    return any(hasattr(tensor, '_rrto_pinned') for tensor in (self, self._base))


def _constructors() -> None:
    """Patch functions that create tensors, for arguments that a PyTorch without CUDA refuses.

    The argument `device=0` means 'cuda:0'; `pin_memory=True` returns ordinary memory.
    """
    from torch.jit import _builtins
    from torch.utils import _device
    names = {function.__name__ for function in _device._device_constructors()}
    names |= {'normal', *(name for name in dir(torch) if name.endswith('_like'))}
    ignored = torch.overrides.get_ignored_functions()
    for owner, name in (*((torch, name) for name in names),
                        (torch.fft, 'fftfreq'), (torch.fft, 'rfftfreq'),
                        *((torch.Tensor, name) for name in dir(torch.Tensor)
                          if name.startswith('new_')), (torch.nn.Module, 'to_empty')):
        function = getattr(owner, name, None)
        if function is None:
            continue
        made = _constructor(function, 0 if function in ignored else 1)
        if owner is torch:
            made.__module__, made.__qualname__ = 'torch', name
        script = _builtins._find_builtin(function)
        if script is not None:
            _builtins._register_builtin(made, script)
        setattr(owner, name, made)
    _device._device_constructors.cache_clear()   # `torch.device(...)` as a context knows them by it


def _constructor(function: Callable[..., Any], relevant: int) -> Callable[..., Any]:
    """Wrap a function; the class of its first `relevant` arguments may override it."""
    has_override = torch.overrides.has_torch_function_unary

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if has_override(args[0] if relevant and args else None):
            return torch.overrides.handle_torch_function(call, args[:relevant], *args, **kwargs)
        pinned = kwargs.pop('pin_memory', None)
        if type(kwargs.get('device')) is int:
            kwargs['device'] = f"cuda:{kwargs['device']}"
        made = function(*args, **kwargs)
        if pinned:
            made._rrto_pinned = True
        return made
    return call


def _numbered(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method: even in a PyTorch without CUDA, the argument 0 then means 'cuda:0'."""
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Pass this function, not PyTorch's method, to `__torch_function__` of the tensor's class.
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(call, (self,), self, *args, **kwargs)
        if args and type(args[0]) is int:
            args = (f'cuda:{args[0]}', *args[1:])
        elif type(kwargs.get('device')) is int:
            kwargs['device'] = f"cuda:{kwargs['device']}"
        return method(self, *args, **kwargs)
    return call


def _no_compile(model: Any = None, **kwargs: Any) -> Any:
    """Replace `torch.compile`: return the model unchanged; the server runs its operators."""
    return model if model is not None else lambda function: function


def _no_gradients() -> None:
    """Make a backward pass through tensors of the device raise a clear error."""
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    @functools.wraps(run)
    def _run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if _on_device(outputs):
            raise RuntimeError('RRTO is for inference only: gradients cannot be computed through '
                               "tensors on 'cuda'; train on the CPU or on the server")
        return run(outputs, *args, **kwargs)

    autograd._engine_run_backward = _run


def _on_device(outputs: Any) -> bool:
    """Return whether the autograd graph of ``outputs`` contains a tensor of the device.

    PyTorch 2.4 tells this only of the outputs and of the tensors that get gradients.
    """
    if any(isinstance(t, RemoteTensor) for t in outputs):
        return True
    ahead: list[Any] = [getattr(t, 'grad_fn', None) for t in outputs]
    seen: set[Any] = {None}
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(getattr(node, 'variable', None), RemoteTensor) or any(
                m.device.type == 'cuda' for m in getattr(node, '_input_metadata', ())):
            return True
        ahead += [following for following, _ in node.next_functions]
    return False
