"""Find the objects that the code of a model reads besides its arguments.

The search begins at the modules of the model and goes through their functions. It finds
attributes, weights and submodules of modules. It also finds each list, dictionary or
object whose name the code contains, and the items in it. Such an object can be an
attribute, a global, a closure variable or an attribute of a class.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.sharedctypes import SynchronizedBase
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import ReferenceType

import numpy as np
import torch

from .state import CONTAINERS, NO_STATE

MISSING = object()
MODULE, NAMED, ITEMS, COMPUTED = 'attributes of a module', 'things by name', 'items', 'value'
_MEMORY = (bytearray, memoryview, array, ctypes._SimpleCData, ctypes.Array, ctypes.Structure)
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
_DYNAMIC = {'getattr', 'vars', '__dict__', '__getattribute__', 'attrgetter'}
_NOT_READ = {'__init__', '__post_init__', '__new__', '__del__', '__repr__', '__reduce__',
             '__getstate__', '__setstate__', '__deepcopy__', '__copy__', '__init_subclass__',
             '__eq__', '__hash__', '__annotate__', '__annotate_func__'}


class Picked:
    """The items with certain names in a namespace, such as the globals of a module.

    ``get(name, default)`` reads one item.
    """

    def __init__(self, get: Callable[[str, Any], Any], names: Iterable[str]) -> None:
        self._get, self._names = get, tuple(names)

    def items(self) -> list[tuple[str, Any]]:
        """Return names and values; `MISSING` is the value of a name that does not exist."""
        return [(name, self._get(name, MISSING)) for name in self._names]

    def without(self, names: Collection[str]) -> Picked:
        """Return the items whose names are not in ``names``."""
        return Picked(self._get, [name for name in self._names if name not in names])

    def __iter__(self) -> Iterator[Any]:
        return iter([self._get(name, MISSING) for name in self._names])

    def __len__(self) -> int:
        return len(self._names)


class _Owner:
    """An object whose items the search visits only if the code of the model reads them by name."""

    def __init__(self, path: str, get: Callable[[str, Any], Any],
                 wanted: Callable[[], Iterable[str]], held: bool = True) -> None:
        self.path, self.get, self.held = path, get, held
        self._wanted = wanted
        self.names: dict[str, None] = {}

    def more(self) -> list[tuple[str, Any]]:
        """Return the items that the code reads, except items that earlier calls returned."""
        new = [name for name in self._wanted() if name not in self.names]
        self.names.update(dict.fromkeys(new))
        return [(join(self.path, name), self.get(name, None)) for name in new]


class Followed:
    """Finds the items that the code of a model reads.

    ``held``: the containers of these items, a list of (path, container, kind); the kind is
    `MODULE`, `NAMED`, `ITEMS` or `COMPUTED`. ``tensors``, ``arrays``: tensors and arrays by path.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.held: list[tuple[str, Any, str]] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self._names: set[str] = {'forward'}
        self._dynamic = False
        self._owners: list[_Owner] = []
        self._globals: dict[int, set[str]] = {}
        self._classes: set[type] = set()
        self._seen: dict[int, Any] = {}
        self._todo: list[tuple[str, Any]] = [('', model)]
        while self._todo:
            while self._todo:
                self._visit(*self._todo.pop())
            for owner in list(self._owners):
                self._todo += owner.more()
        self.held += [(owner.path, Picked(owner.get, owner.names), NAMED)
                      for owner in self._owners if owner.held and owner.names]

    def reads(self, name: str) -> bool:
        """Return whether the code of the model seems to read an attribute of this name."""
        return self._dynamic or name in self._names

    def _visit(self, path: str, value: Any) -> None:
        if value is None or isinstance(value, (bool, int, float, str)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            self.tensors[path] = value
        elif isinstance(value, np.ndarray):
            self.arrays[path] = value
        elif isinstance(value, torch.nn.Module):
            for name, module in value.named_modules():
                self._seen[id(module)] = module
                self._module(join(path, name), module)
        elif type(value) in CONTAINERS or isinstance(value, MappingProxyType):
            self._items(path, value)
        elif isinstance(value, _MEMORY):
            self._computed(path, lambda: bytes(value))
        elif isinstance(value, (tuple, frozenset)):
            self._todo += [(f'{path}[{at}]', v) for at, v in enumerate(value)]
        elif isinstance(value, (FunctionType, MethodType, staticmethod, classmethod, property,
                                partial)) or _wrapped(value) is not None:
            self._function(path, value)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, ModuleType):
            self._attributes(value.__name__, value)
        elif isinstance(value, BuiltinFunctionType):   # such as a method of a dictionary
            self._todo.append((path, value.__self__))
        elif isinstance(value, ReferenceType):
            self._todo.append((path, value()))
        elif isinstance(value, SynchronizedBase):
            self._todo.append((path, value.get_obj()))
        else:
            self._object(path, value)

    def _computed(self, path: str, value: Callable[[], Any]) -> None:
        self.held.append((path, Picked(lambda *_: value(), ['']), COMPUTED))

    def _items(self, path: str, value: Any) -> None:
        self.held.append((path, value, ITEMS))
        self._todo += [(f'{path}[{key!r}]', v) for key, v in (
            value.items() if hasattr(value, 'items') else enumerate(value))]

    def _attributes(self, path: str, value: ModuleType | FunctionType) -> None:
        """Follow the attributes of a module or function that the followed code names."""
        own = vars(value)
        if own and follows(value):
            self._owners.append(_Owner(path, own.get, lambda: self._names & own.keys()))

    def _module(self, path: str, module: torch.nn.Module) -> None:
        own = vars(module)
        self.held.append((path, own, MODULE))
        self.held += [(path, own[kind], NAMED) for kind in ('_parameters', '_buffers', '_modules')]
        for weights in module._parameters, module._buffers:
            self._todo += [(join(path, name), tensor) for name, tensor in weights.items()]
        self._owners.append(_Owner(path, own.get, lambda: [
            name for name, value in own.items() if name not in _OF_EVERY_MODULE and (
                self.reads(name) or isinstance(value, (torch.Tensor, np.ndarray)))], held=False))
        self._class(type(module))

    def _object(self, path: str, value: Any) -> None:
        if follows(type(value)) or isinstance(value, SimpleNamespace):
            own = getattr(value, '__dict__', {})
            slots = [name for kind in type(value).__mro__
                     for name in vars(kind).get('__slots__', ()) if hasattr(value, name)]
            self._owners.append(_Owner(path, partial(getattr, value), lambda: [
                name for name in (*own, *slots) if self.reads(name)]))
            # Compare the names of the object's attributes too, because a new attribute may hide an
            # attribute of the class, or replace a default.
            self._computed(path, lambda: tuple(sorted(own.keys() & self._names)))
            # Here the type is a subclass, because `_visit` itself handles plain dictionaries, lists
            # and sets.
            if isinstance(value, (dict, list, set)):
                self._items(path, value)
            self._class(type(value))

    def _class(self, kind: type) -> None:
        for base in kind.__mro__[:-1]:
            if base is torch.nn.Module or base in self._classes:
                continue
            self._classes.add(base)
            own: Mapping[str, Any] = vars(base)
            ours = follows(base)
            self._owners.append(_Owner(base.__qualname__, own.get, partial(self._of, own, ours)))

    def _of(self, own: Mapping[str, Any], ours: bool) -> list[str]:
        """Return the names in a class's namespace ``own`` that the code of the model may read.

        These are the names that the code contains, and the special methods, which Python calls
        without their names. For a class of a library (not ``ours``), return only `forward`.
        """
        if not ours:
            return ['forward'] if 'forward' in own else []
        return [name for name, value in own.items() if name in self._names
                or name.startswith('__') and isinstance(value, FunctionType)
                and name not in _NOT_READ]

    def _function(self, path: str, value: Any) -> None:
        if isinstance(value, (staticmethod, classmethod)):
            value = value.__func__
        if isinstance(value, property):
            self._todo += [(path, value.fget)]
        elif isinstance(value, partial):
            self._todo += [(path, value.func), (path, value.args), (path, value.keywords)]
        elif isinstance(value, MethodType):
            self._todo += [(path, value.__func__), (path, value.__self__)]
        elif isinstance(value, FunctionType) and follows(value):
            self._code(value)
        self._todo += [(path, _wrapped(value))]

    def _code(self, function: FunctionType) -> None:
        path = f'{function.__module__}.{function.__qualname__}'
        names = set(_names(function.__code__))
        self._names |= names
        self._dynamic |= not names.isdisjoint(_DYNAMIC)
        self._read(function.__module__, function.__globals__, names, set())
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
        self._owners.append(_Owner(path, partial(_cell, cells), lambda: cells))
        self._attributes(path, function)
        self._todo += [(path, function.__defaults__), (path, function.__kwdefaults__)]

    def _read(self, path: str, items: dict[str, Any], names: set[str], passed: set[int]) -> None:
        """Follow those globals of a module whose names are in ``names``.

        If such a global is itself a module, also follow the globals of that module whose names
        are in ``names``.
        """
        passed.add(id(items))
        known = self._globals.get(id(items))
        if known is None:
            known = self._globals[id(items)] = set()
            self._owners.append(_Owner(path, items.get, lambda: sorted(known)))
        for name in names & items.keys() - known:
            value = items[name]
            if not isinstance(value, ModuleType):
                known.add(name)
            elif follows(value) and id(vars(value)) not in passed:
                self._read(value.__name__, vars(value), names, passed)


def _wrapped(value: Any) -> Any:
    """Return the function that a decorator has wrapped in ``value``, or None."""
    try:
        return getattr(value, '__wrapped__', None)
    except Exception:
        return None


def _cell(cells: dict[str, Any], name: str, default: Any) -> Any:
    try:
        return cells[name].cell_contents
    except ValueError:   # the closure variable has no value yet
        return default


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that the code uses, and the strings in the code that may be names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def follows(value: Any) -> bool:
    """Return whether to search a class, function or module.

    Return False if its package is in `NO_STATE`.
    """
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, '__module__', '')
    return str(name).partition('.')[0] not in NO_STATE


def join(path: str, name: Any) -> str:
    """Return the path of the item ``name`` of the container at ``path``."""
    return f'{path}.{name}' if path and name != '' else f'{path}{name}'
