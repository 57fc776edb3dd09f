"""The patches for reading and writing tensors in files: `torch.load`, `torch.save`, TorchScript.

PyTorch reads CUDA tensors directly into CUDA memory, by address. A remote device has no such
addresses. So the patches read tensors into the memory of this machine, and then move them to the
device. Tensors that share memory in the file also share memory on the device.
"""

from __future__ import annotations

import functools
import itertools
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import serialization

from ...protocol.tensors import check_device, dense
from .. import remote
from ..device import Device
from ..remote import RemoteTensor, Storage

_ConcreteType: Any = torch._C.ConcreteModuleType


def install(device: Device) -> None:
    """Patch `Module._apply`, and the functions that read or write files.

    Tensors of modules, and tensors from files, count as weights, which the server can keep.
    """
    apply = torch.nn.Module._apply

    @functools.wraps(apply)
    def _apply(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        with device.loading_weights():
            if isinstance(self, torch.jit.ScriptModule):
                return _apply_to_script(self, function)
            return apply(self, function, *args, **kwargs)

    torch.nn.Module._apply = _apply  # type: ignore[method-assign,assignment]
    _loading(device)
    _saving()
    _loading_scripts(device)
    _saving_scripts()


def _loading(device: Device) -> None:
    """Patch `torch.load` and `pickle`: tensors that were on a CUDA device come back to it."""
    load, restore_location = torch.load, serialization._get_restore_location
    read = serialization._load

    @functools.wraps(load)
    def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        outer, _now.loading = _now.loading, Loading(map_location, restore_location)
        try:
            with device.loading_weights():
                return _now.loading.finished(load(f, map_location, *args, **kwargs))
        finally:
            _now.loading = outer

    @functools.wraps(read)
    def _read(*args: Any, **kwargs: Any) -> Any:
        if _now.loading is not None:
            _now.loading.complete = True
        return read(*args, **kwargs)

    def _restore_location(map_location: Any) -> Any:
        return restore_location(map_location) if _now.loading is None else _now.loading.locate

    def rebuilding(rebuild: Any, at: int) -> Any:
        @functools.wraps(rebuild)
        def rebuilt(storage: Any, *args: Any) -> torch.Tensor:
            tensor = rebuild(storage, *args)
            marked = len(args) > at and remote.MARK in (args[at] or ())
            loading = _now.loading
            cdata = tensor.untyped_storage()._cdata
            if loading is not None and cdata in loading.located:
                return loading.rebuilt(tensor, marked, *loading.located[cdata])
            if tensor.device.type == 'cpu' and (marked or hasattr(storage, remote.MARK)):
                with device.loading_weights():
                    return Moving()(tensor)
            return tensor
        return rebuilt

    torch.load = _load
    serialization._load, serialization._get_restore_location = _read, _restore_location
    for name, at in remote.METADATA.items():
        if hasattr(torch._utils, name):
            setattr(torch._utils, name, rebuilding(getattr(torch._utils, name), at - 1))
    torch._weights_only_unpickler._get_allowed_globals.cache_clear()
    storages: Any = torch.UntypedStorage
    storages.cuda, storages.to = _storage_on_device, _storage_to


class _Now(threading.local):
    loading: Loading | None = None   # the running `torch.load`


_now = _Now()


class Loading:
    """One run of `torch.load`: decides which storages of the file move to the device.

    `complete`: whether a storage has its values when its tensors are made. In a file of the old
    format, the values follow at the end; then `finished` moves the tensors.
    """

    def __init__(self, map_location: Any, restore_location: Any) -> None:
        self._map, self._place = map_location, restore_location(map_location)
        self.complete = False
        # Maps the `_cdata` of each storage to the storage and whether it moves to the device; None:
        # it moves if it was saved from there.
        self.located: dict[int, tuple[Any, bool | None]] = {}
        self._moving = Moving()

    def locate(self, storage: Any, location: str) -> Any:
        """Return the storage in its new place; for the device, return it as it is."""
        moves: bool | None = None
        if callable(self._map):
            placed = self._map(storage, location)
            if placed is not None:
                moves = placed.device.type == 'cuda'
                storage = storage if moves else placed
            else:
                moves = self._on_device(location) or None
        elif self._map is None or isinstance(self._map, dict):
            moves = self._on_device(self._target(location)) or None
        else:
            moves = self._on_device(str(self._map))
        if not moves:
            storage = self._place(storage, location)
        self.located[storage._cdata] = storage, moves
        return storage

    def _target(self, location: str) -> str:
        return str(self._map.get(location, location) if isinstance(self._map, dict) else location)

    def _on_device(self, location: str) -> bool:
        if location.partition(':')[0] != 'cuda':
            return False
        check_device(torch.device(location))
        return True

    def rebuilt(self, tensor: torch.Tensor, marked: bool, storage: Any, moves: bool | None
                ) -> torch.Tensor:
        """Return a tensor of the file, on the device if it belongs there."""
        if moves is None and marked:
            moves = self._on_device(self._target(str(remote.CUDA)))
            self.located[storage._cdata] = storage, moves
        return self._moving(tensor) if moves and self.complete else tensor

    def finished(self, loaded: Any) -> Any:
        """Return what the file contained; if it had the old format, move its tensors now."""
        moved = {key for key, (_, moves) in self.located.items() if moves}
        if self.complete or not moved:
            return loaded
        if isinstance(loaded, torch.TypedStorage):   # `pickle` makes a tensor of it
            setattr(loaded, remote.MARK, True)
        return _moved(loaded, Moving(moved))


def _storage_on_device(self: Any, device: Any = None, non_blocking: bool = False) -> Storage:
    """Return what the storage would be on the device: `map_location` may return this."""
    check_device(torch.device('cuda' if device is None else f'cuda:{device}'
                              if isinstance(device, int) else device))
    return remote.new_storage(next(_unused), self.nbytes())


def _storage_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
    if torch.device(device).type == 'cuda':
        return self.cuda(device)
    return _to(self, device=device, non_blocking=non_blocking)


_to: Any = getattr(torch.UntypedStorage, 'to', None)    # not in PyTorch 2.4
_unused = itertools.count(-1, -1)    # keys of memory that no tensor has


def _saving() -> None:
    save = torch.save

    @functools.wraps(save)
    def _save(*args: Any, **kwargs: Any) -> Any:
        remote.Hook.saving.copied = {}
        try:
            return save(*args, **kwargs)
        finally:
            del remote.Hook.saving.copied

    torch.save = _save


class Moving:
    """Moves tensors to the device.

    `only`: `_cdata` of the storages to move; None: move all storages.
    """

    def __init__(self, only: set[int] | None = None) -> None:
        self._only = only
        # Maps the `id` of each moved tensor to the tensor and its copy on the device.
        self._done: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        # Maps the address and dtype of a storage to a copy of the whole storage on the device.
        self._bases: dict[Any, torch.Tensor] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the tensor on the device; the same tensor always gives the same copy.

        The copies of tensors that share memory also share memory. Return the tensor itself if it is
        on the device already, or if its storage is not among the storages to move.
        """
        if isinstance(tensor, RemoteTensor) or self._only is not None \
                and tensor.untyped_storage()._cdata not in self._only:
            return tensor
        if id(tensor) not in self._done:
            moved = self._move(tensor.detach()).requires_grad_(tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter):
                moved = torch.nn.Parameter(moved, tensor.requires_grad)
            self._done[id(tensor)] = tensor, moved
        return self._done[id(tensor)][1]

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key, size = (storage.data_ptr(), tensor.dtype), storage.nbytes() // tensor.itemsize
        base = self._bases.get(key) if size else None
        if base is None:
            if tensor.numel() == size and dense(tensor.shape, tensor.stride()):
                self._bases[key] = moved = tensor.cuda()
                return moved
            flat = tensor.as_strided((size,), (1,), 0)
            base = self._bases[key] = flat.cuda()
        return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _moved(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return `value` with `move` applied to its tensors, also in containers and modules."""
    if isinstance(value, torch.nn.Module):
        return value._apply(lambda t: _moved(t, move))
    if isinstance(value, torch.Tensor):
        return move(value)
    if isinstance(value, dict):
        for key in value:
            value[key] = _moved(value[key], move)
        return value
    if isinstance(value, list):
        value[:] = [_moved(item, move) for item in value]
        return value
    if isinstance(value, tuple):
        items = [_moved(item, move) for item in value]
        return type(value)(*items) if hasattr(value, '_fields') else type(value)(items)
    return value


# -- TorchScript, whose modules keep their tensors in C++ objects ---------------------------------


def _apply_to_script(module: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to every tensor of a TorchScript module, as `Module._apply` does."""
    for child in module.children():
        child._apply(function)
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None:
            with torch.no_grad():
                module._c.setattr(name, function(tensor).requires_grad_(tensor.requires_grad))
    return module


def _replace(module: Any, function: Callable[[torch.Tensor], torch.Tensor]
             ) -> list[Callable[[], None]]:
    """Replace every tensor of a TorchScript module by `function(tensor)`.

    The tensors are parameters, buffers, attributes and constants. Return functions that restore the
    old tensors.
    """
    undo: list[Callable[[], None]] = []
    for part in module.modules():
        script = part._c
        kinds = _ConcreteType.from_jit_type(script._type()).get_attributes()
        for name, (kind, *_) in kinds.items():
            if 'Tensor' not in str(kind):
                continue
            value = script.getattr(name)
            with torch.no_grad():
                script.setattr(name, _with(value, function))
            undo.append(functools.partial(script.setattr, name, value))
        for name in script._method_names():
            for node in script._get_method(name).graph.findAllNodes('prim::Constant'):
                if node.hasAttribute('value') and node.kindOf('value') == 't':
                    tensor = node.t('value')
                    node.t_('value', function(tensor))
                    undo.append(functools.partial(node.t_, 'value', tensor))
    return undo


def _with(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a copy of `value` in which `function(tensor)` replaces every tensor."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _with(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_with(item, function) for item in value]
        return items if isinstance(value, list) else type(value)(*items) \
            if hasattr(value, '_fields') else tuple(items)
    return value


def _loading_scripts(device: Device) -> None:
    load = torch.jit.load

    @functools.wraps(load)
    def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = torch.device(map_location) if isinstance(map_location, str) else map_location
        if isinstance(place, torch.device) and place.type != 'cuda' \
                or place is None and not _names_cuda(f):
            return _moving_by_operator(load(f, place, *args, **kwargs))
        if isinstance(place, torch.device):
            check_device(place)
        elif place is not None:
            return load(f, place, *args, **kwargs)   # `load` raises an error for an invalid type
        module = _moving_by_operator(load(f, 'cpu', *args, **kwargs))
        with device.loading_weights():
            _replace(module, Moving())
        return module

    torch.jit.load = _load
    script = torch.jit.script

    @functools.wraps(script)
    def _script(*args: Any, **kwargs: Any) -> Any:
        return _moving_by_operator(script(*args, **kwargs))

    torch.jit.script = _script


def _moving_by_operator(script: Any) -> Any:
    """Make TorchScript code run `tensor.to(device)` by PyTorch's operator; return `script`.

    The interpreter of TorchScript has its own implementation of `to`, which fails in a PyTorch
    without CUDA.
    """
    graphs: list[Any]
    if isinstance(script, torch.jit.ScriptFunction):
        graphs = [script.graph]
    elif isinstance(script, torch.jit.ScriptModule):
        parts: Any = script.modules()
        graphs = [part._c._get_method(name).graph for part in parts
                  for name in part._c._method_names()]
    else:
        return script
    for graph in graphs:
        for node in graph.findAllNodes('aten::to'):
            tensor, place, *rest = node.inputs()
            if 'to.prim_Device' in node.schema() and str(place.type()) == 'Device' \
                    and str(rest[0].type()) == 'NoneType':
                dtype = graph.create('prim::dtype', [tensor], 1)
                dtype.output().setType(torch._C.IntType.get())
                moved = graph.create('aten::to', [tensor, place, dtype.output(), *rest[1:],
                                                  rest[0]], 1)
                moved.output().setType(node.output().type())
                dtype.insertBefore(node)
                moved.insertBefore(node)
                node.output().replaceAllUsesWith(moved.output())
                node.destroy()
    return script


def _names_cuda(f: Any) -> bool:
    """Return whether a TorchScript file places tensors on CUDA."""
    at = f.tell() if hasattr(f, 'tell') else None
    try:
        with zipfile.ZipFile(f) as archive:
            return any(b'cuda' in archive.read(name) for name in archive.namelist()
                       if name.endswith(('data.pkl', 'constants.pkl')))
    except (OSError, zipfile.BadZipFile):   # `load` reports the error
        return False
    finally:
        if at is not None:
            f.seek(at)


def _saving_scripts() -> None:
    """Make TorchScript modules save remote tensors as CPU tensors, like `torch.save`."""
    @contextmanager
    def at_home(module: Any) -> Iterator[None]:
        copies: dict[int, torch.Tensor] = {}
        undo = _replace(module, lambda t: remote.Hook.copy(t, copies, True)
                        if isinstance(t, RemoteTensor) else t)
        try:
            yield
        finally:
            for put_back in undo:
                put_back()

    def homely(save: Any) -> Any:
        @functools.wraps(save)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with at_home(self):
                return save(self, *args, **kwargs)
        return call

    for name in ('save', 'save_to_buffer', '_save_for_lite_interpreter',
                 '_save_to_buffer_for_lite_interpreter'):
        kinds: tuple[Any, ...] = torch.jit.RecursiveScriptModule, torch.jit.ScriptModule
        for kind in kinds:   # patch ScriptModule too, because traced modules use its methods
            if name in vars(kind):
                setattr(kind, name, homely(getattr(kind, name)))
