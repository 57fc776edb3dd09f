"""The wrapper that the program holds for a tensor on the server: a handle and the tensor's meta.

To the program and to PyTorch, the wrapper is a tensor on 'cuda:0'. Its values are on the server.
"""

from __future__ import annotations

import threading
import types
from collections import OrderedDict, deque
from copy import deepcopy
from functools import lru_cache
from typing import Any

import torch

from ..protocol.record import Meta
from ..protocol.tensors import DTYPES, meta_of

CUDA = torch.device('cuda:0')
# Number of bytes of a wrapper's storage, as PyTorch sees it. It is so large that PyTorch never
# finds a view out of bounds; the server checks the bounds.
SIZE = 1 << 60

PLACES = 1 << 62   # lowest `data_ptr` of memory on the server; it is above all real addresses
NOTHING = -1     # handle of a wrapper whose tensor has moved to another wrapper

released: deque[int] = deque()   # handles of deleted wrappers, which `Lifetimes.collect` frees
_make = torch.Tensor._make_wrapper_subclass


def _not_installed(function: Any, args: Any, kwargs: Any) -> Any:
    raise RuntimeError('no rrto device is installed in this process')


class Hook:
    """The functions of the device that this module calls; `intercept` sets them."""

    dispatch: Any = staticmethod(_not_installed)
    copy: Any = staticmethod(_not_installed)      # set to `Device.copy`
    memory: Any = staticmethod(_not_installed)    # set to `Lifetimes.memory`
    ask: Any = staticmethod(_not_installed)       # set to `Device.ask`
    saving = threading.local()    # `saving.copied`: the copies that the running torch.save has made


class Storage(torch.UntypedStorage):
    """Identity and size of the memory of a tensor on the server.

    `data_ptr()` is not an address, but a number that is equal for tensors that share memory.
    """

    _key: int
    _size: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device of the tensor."""
        return CUDA

    def data_ptr(self) -> int:
        """Return the number that identifies the memory; 0 for memory of 0 bytes."""
        return (self._key << 40) + PLACES if self._size else 0

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self._size

    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    def cuda(self, device: Any = None, non_blocking: bool = False) -> Storage:
        """Return the storage itself."""
        return self

    def __len__(self) -> int:
        return self._size


def _not_here(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("rrto: the storage of the device's tensors is not on this machine; use "
                       'tensor.cpu()')


for _name in ('__getitem__', '__setitem__', '__iter__', 'resize_', 'copy_', 'clone', 'cpu', 'to',
               'tolist', 'fill_'):
    setattr(Storage, _name, _not_here)


# The latest storages. Libraries compare storages by `id`, so each must stay for a while.
_storages: deque[Storage] = deque(maxlen=1024)


def storage_of(tensor: Any) -> Storage:
    """Return the storage of a remote tensor; this costs a round trip."""
    memory = Hook.memory(tensor)
    made = new_storage(memory.key, memory.size)
    _storages.append(made)
    return made


def new_storage(key: int, size: int) -> Storage:
    """Return the storage of a memory; `key` is unique to the memory, `size` is in bytes."""
    make_storage: Any = torch.UntypedStorage.__new__
    made: Storage = make_storage(Storage, 0, device='meta')
    made._key, made._size = key, size
    return made


class RemoteTensor(torch.Tensor):
    """The wrapper of the tensor with number `handle` on the server; base class of all wrappers."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    handle: int

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        return Hook.dispatch(function, args, kwargs)

    def __del__(self) -> None:
        if self.handle != NOTHING:
            released.append(self.handle)

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values if `force` is True; otherwise raise the error that CUDA raises."""
        if force:
            return self.detach().cpu().numpy(force=True)
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use "
                               'tensor.detach().numpy() instead.')
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to "
                        'copy the tensor to host memory first.')

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.numpy()

    def is_conj(self) -> bool:
        """Return whether the tensor is lazily conjugated; this costs a round trip."""
        return self.is_complex() and bool(Hook.ask(torch.ops.aten.is_conj.default, self))

    def is_neg(self) -> bool:
        """Return whether the tensor is lazily negated; this costs a round trip."""
        return bool(Hook.ask(torch.ops.aten.is_neg.default, self))

    def resolve_conj(self) -> Any:
        """Return the tensor without lazy conjugation; this costs a round trip."""
        return self.clone() if self.is_conj() else self

    def resolve_neg(self) -> Any:
        """Return the tensor without lazy negation; this costs a round trip."""
        return self.clone() if self.is_neg() else self

    def untyped_storage(self) -> Storage:
        """Return the identity and the size of the tensor's memory."""
        return storage_of(self)

    def data_ptr(self) -> int:
        """Return the storage's `data_ptr` plus the offset in bytes; 0 for memory of 0 bytes."""
        start = self.untyped_storage().data_ptr()
        return start and start + int(self.storage_offset()) * self.itemsize

    def tolist(self) -> Any:
        """Return the values as nested lists."""
        return self.detach().cpu().tolist()

    def __format__(self, spec: str) -> str:
        return self.item().__format__(spec) if not self.dim() else object.__format__(self, spec)

    def __repr__(self, **kwargs: Any) -> str:  # type: ignore[override]
        text = repr(self.detach().cpu().requires_grad_(self.requires_grad and self.is_leaf))
        place = text.rfind(']') + 1 or min(k for k in (text.find(','), text.rfind(')')) if k > 0)
        function = f', grad_fn=<{self.grad_fn.name()}>)' if self.grad_fn else ')'
        return text[:place] + ", device='cuda:0'" + text[place:-1] + function

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Save the tensor as a CPU tensor with a mark, which programs without rrto ignore."""
        state = {name: value for name, value in vars(self).items() if name not in _INNER}
        if getattr(self, '_is_param', False):
            hooks: OrderedDict[Any, Any] = OrderedDict()
            plain = self.detach(), self.requires_grad, hooks
            return (torch._utils._rebuild_parameter_with_state, (*plain, state)) if state else (
                torch._utils._rebuild_parameter, plain)
        saved = Hook.copy(self, getattr(Hook.saving, 'copied', {}), True)
        saved = as_subclass(saved, of_program(type(self)) or torch.Tensor)
        vars(saved).update(state)
        return _marked(*saved.requires_grad_(self.requires_grad).__reduce_ex__(protocol)[:2])

    def __copy__(self) -> RemoteTensor:
        return self._again(self.detach())

    def __deepcopy__(self, memo: dict[Any, Any]) -> RemoteTensor:
        if not self.is_leaf:
            raise RuntimeError('Only Tensors created explicitly by the user (graph leaves) support '
                               'the deepcopy protocol at the moment.')
        if id(self) not in memo:
            copied = self._again(Hook.copy(self, memo.setdefault('rrto', {}), False))
            vars(copied).update({name: deepcopy(value, memo) for name, value in vars(self).items()
                                 if name not in _INNER})
            memo[id(self)] = copied
        found: RemoteTensor = memo[id(self)]
        return found

    def _again(self, values: Any) -> RemoteTensor:
        """Return `values` with the class (such as Parameter) and `requires_grad` of this tensor."""
        if getattr(self, '_is_param', False):
            values = torch.nn.Parameter(values, self.requires_grad)
        kind = of_program(type(self))
        if kind is not None:
            values = as_subclass(values, kind)
        made: RemoteTensor = values.requires_grad_(self.requires_grad)
        return made


# Attributes that copies do not get from the original.
_INNER = frozenset(('handle', '_is_param', '_home'))

# A key in the metadata of a saved tensor: the tensor was on the device. PyTorch ignores the key.
MARK = '_rrto_on_device'
# Position of the metadata among the arguments of each function that makes a tensor from a file.
METADATA = {'_rebuild_tensor_v2': 6, '_rebuild_tensor_v3': 7}


def _marked(function: Any, arguments: Any) -> Any:
    """Add `MARK` to what `__reduce_ex__` of a CPU tensor has returned."""
    if function is torch._tensor._rebuild_from_type_v2:
        inner, kind, given, state = arguments
        inner, given = _marked(inner, given)
        return function, (inner, kind, given, state)
    at = METADATA.get(getattr(function, '__name__', ''))
    if at is None:
        return function, arguments
    return function, (*arguments[:at], {**dict(*arguments[at:]), MARK: True})


class Value(RemoteTensor):
    """The wrapper of a call's result. `__slots__` makes access to `handle` 3 times as fast."""

    __slots__ = ('handle',)


class Place(RemoteTensor):
    """A remote tensor, for example a parameter, that `set_data` can change into a CPU tensor.

    `set_data` changes the class of the tensor object, so `Place` cannot have `__slots__`.
    """

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        """Create a parameter, because some programs call `type(parameter)(...)` to do this."""
        return torch.nn.Parameter(data, requires_grad)


class Held(Place):
    """A parameter on the device."""


class Guest(RemoteTensor):
    """A tensor of a subclass that the program defines.

    The handle is in `__slots__`. So it does not change when the subclass copies all attributes
    (`__dict__`) of another tensor.
    """

    __slots__ = ('handle',)

    @classmethod
    def __torch_function__(cls, *args: Any) -> Any:
        """Run torch.Tensor's `__torch_function__`.

        PyTorch would skip that method for a class with `__torch_dispatch__`.
        """
        return vars(torch.Tensor)['__torch_function__'].__func__(cls, *args)


def seen_as(tensor: RemoteTensor) -> type:
    """Return the class that this tensor would have on CUDA."""
    return of_program(type(tensor)) or (
        torch.nn.Parameter if getattr(tensor, '_is_param', False) else torch.Tensor)


def of_program(kind: type) -> type | None:
    """Return the program's class from which `_joined` has derived `kind`; None if there is none."""
    return getattr(kind, '_of_program', None)


def _named_as(kind: type, ours: tuple[type, ...]) -> None:
    """Give our classes the name and module of `kind`, because libraries check name and module."""
    for one in ours:
        one.__module__, one.__name__ = kind.__module__, kind.__name__
        one.__qualname__ = kind.__qualname__


_named_as(torch.Tensor, (Value, Place, Guest))
_named_as(torch.nn.Parameter, (Held,))


@lru_cache(None)
def _joined(kind: type, ours: type[RemoteTensor]) -> Any:
    """Return a class derived from the program's class `kind` and from our class `ours`."""
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return Held if ours is Place and kind is torch.nn.Parameter else ours
    body: dict[str, Any] = {'__module__': kind.__module__, '__qualname__': kind.__qualname__,
                            '_of_program': kind}
    if ours is Guest:
        body['__slots__'] = ()
    if kind.__reduce_ex__ is torch.nn.Parameter.__reduce_ex__:
        body['__reduce_ex__'] = RemoteTensor.__reduce_ex__
    if _is_lazy(kind):
        lazy: Any = kind

        def materialize(self: Any, *args: Any, **kwargs: Any) -> None:
            lazy.materialize(self, *args, **kwargs)
            if isinstance(self, RemoteTensor):
                vars(self)['_home'] = lazy.cls_to_become

        body |= {'cls_to_become': _joined(lazy.cls_to_become, ours), 'materialize': materialize,
                 'shape': torch._C.TensorBase.shape,
                 '__reduce_ex__': lambda self, protocol: (kind, (self.requires_grad,))}
    return types.new_class(kind.__name__, (kind, ours), exec_body=lambda names: names.update(body))


_parameters: Any = torch.nn.parameter
LAZY = _parameters.UninitializedTensorMixin


def _is_lazy(kind: type) -> bool:
    """Return whether tensors of a class have no shape yet, as the parameters of lazy modules."""
    return issubclass(kind, LAZY)


def as_subclass(tensor: torch.Tensor, kind: Any) -> Any:
    """Do what `tensor.as_subclass(kind)` does, also for a remote tensor.

    PyTorch's method makes an alias of the tensor, but before 2.9 it refuses an alias that already
    has a class. While this function makes the alias, `alias_kind` returns that class.
    """
    kind = of_program(kind) or kind
    plain = issubclass(Value, kind)
    if not isinstance(tensor, RemoteTensor) \
            or not plain and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return _as_subclass(tensor, kind)
    if _is_lazy(kind):
        made = _make_subclass(kind, torch.empty(0, dtype=tensor.dtype, device='cpu'))
        set_data(made, tensor)
        return made
    _alias.kind = Value if plain else _joined(kind, Guest)
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.ops.aten.alias.default(tensor)
    finally:
        del _alias.kind


def make_subclass(cls: Any, data: torch.Tensor, requires_grad: bool = False, **kwargs: Any) -> Any:
    """Do what `torch.Tensor._make_subclass` does, also for a remote tensor."""
    if not isinstance(data, RemoteTensor):
        return _make_subclass(cls, data, requires_grad, **kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        return as_subclass(data.detach(), cls).requires_grad_(requires_grad)


def alias_kind() -> type[RemoteTensor]:
    """Return the class for a new alias; the class cannot be changed after the alias is made."""
    return getattr(_alias, 'kind', Value)


_alias = threading.local()
_as_subclass: Any = torch.Tensor.as_subclass
_make_subclass: Any = torch.Tensor._make_subclass


def make(handle: int, meta: Meta, kind: type[RemoteTensor] = Value) -> RemoteTensor:
    """Return a new wrapper of a handle; its class is `kind`."""
    tensor: RemoteTensor = _make(kind, meta.shape, meta.stride, meta.offset, None,
                                 DTYPES[meta.dtype], torch.strided, CUDA, False, False, None, False,
                                 False, None, SIZE)
    tensor.handle = handle
    return tensor


def make_view(handle: int, meta: Meta, of: torch.Tensor, kind: type[RemoteTensor] = Value
              ) -> RemoteTensor:
    """Return the wrapper of a view of the tensor `of`.

    In inference mode, a view of an ordinary tensor is an ordinary tensor, not an inference tensor.
    """
    if torch.is_inference_mode_enabled() and not of.is_inference():
        with torch._C._InferenceMode(False):
            return make(handle, meta, kind)
    return make(handle, meta, kind)


_data: Any = torch._C.TensorBase.data   # PyTorch's own attribute `data`
_new_parameter = torch.nn.Parameter.__new__


def new_parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
    """Do what `nn.Parameter(...)` does; a remote parameter can move to the CPU and back."""
    cls = of_program(cls) or cls
    if not isinstance(data, RemoteTensor):
        return _new_parameter(cls, data, requires_grad)
    parameter: Any = _place(data.detach(), cls)
    parameter._is_param = True
    return parameter.requires_grad_(requires_grad)


def _place(value: Any, home: type = torch.Tensor) -> Place:
    """Return a `Place` for the tensor of `value`; the caller must not use `value` afterwards."""
    place = make(value.handle, meta_of(value), _joined(home, Place))
    value.handle = NOTHING
    assert isinstance(place, Place)
    return place


def get_data(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor.data`: a tensor with the same values, but without gradient history."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach() if isinstance(tensor, RemoteTensor) else _data.__get__(tensor)


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Do what `tensor.data = value` does: give `tensor` new values, also on another device.

    Modules use this assignment to move their parameters. To another device or dtype, swap `tensor`
    and an alias of `value`, as `torch.utils.swap_tensors` does. Then autograd graphs keep the old
    values, and the gradient of `tensor` moves too, because PyTorch accepts no other gradient.
    """
    here, there = isinstance(tensor, RemoteTensor), isinstance(value, RemoteTensor)
    if not here and not there:
        _data.__set__(tensor, value)
        return
    if here and not isinstance(tensor, Place) and not there:
        raise RuntimeError('rrto: .data of a tensor created on the device cannot be set to a CPU '
                           'tensor unless it is a parameter: assign a new tensor instead')
    one: Any = tensor
    if here and there and tensor.dtype is value.dtype:
        other: Any = get_data(value)
        one.handle, other.handle = other.handle, one.handle
        with torch._C._AutoDispatchBelowAutograd(), torch._C.DisableTorchFunctionSubclass():
            move(one, meta_of(other))
        return
    gradient = tensor.grad if tensor.is_leaf else None
    tensor.grad = None    # a gradient that a tensor holds cannot be swapped
    try:
        _swap(tensor, value)
        if gradient is not None:
            gradient = _moved_gradient(gradient, tensor)
    finally:
        tensor.grad = gradient


def _moved_gradient(gradient: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor | None:
    """Move a gradient to the device and dtype of its tensor, in place if this is possible."""
    if gradient.shape != tensor.shape:
        return None
    moved = gradient.detach().to(tensor.device, tensor.dtype)
    if isinstance(gradient, RemoteTensor) and not isinstance(gradient, Place):
        return moved
    set_data(gradient, moved)
    return gradient


def _swap(tensor: Any, value: Any) -> None:
    here, there = isinstance(tensor, RemoteTensor), isinstance(value, RemoteTensor)
    other = get_data(value)
    if not here:
        other = _place(other)
    other.requires_grad_(tensor.requires_grad)
    torch._C._swap_tensor_impl(tensor, other)
    one: Any = tensor
    two: Any = other
    if here and there:
        one.handle, two.handle = two.handle, one.handle
    elif there:
        home: Any = type(tensor)
        one.__class__, two.__class__ = _joined(home, Place), home
        one.handle = vars(two).pop('handle')
        one._home, one._is_param = home, issubclass(home, torch.nn.Parameter)
    else:
        parameter = vars(one).pop('_is_param', False)
        home = vars(one).pop('_home', None) or of_program(type(one)) or (
            torch.nn.Parameter if parameter else torch.Tensor)
        handle = vars(one).pop('handle')
        one.__class__, two.__class__ = home, Place
        two.handle = handle


def move(tensor: RemoteTensor, meta: Meta) -> None:
    """Change the shape, strides and offset of a wrapper to those of `meta`."""
    with torch._C._DisableTorchDispatch():
        tensor.as_strided_(meta.shape, meta.stride, meta.offset)
