"""Detect whether a model has changed since it was given, from what its modules hold.

Version counters of PyTorch show writes to weights. Attributes are compared by identity, and numbers
and texts by value; what the objects in attributes contain is not read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

from .state import hooks_of, untouched

_MISSING = object()
_NOT_ATTRIBUTES = frozenset(vars(torch.nn.Module()))
_VALUES = (bool, int, float, complex, str, bytes, range, slice, torch.dtype, torch.device)


class Snapshot:
    """The modules, weights, mode, hooks and attributes of a model when this object is made."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._results: set[str] = set()     # attributes in which the model stores results
        self.settle()

    def settle(self) -> None:
        """Take the present state; later checks compare with this state."""
        self._items = _items(self._model)
        modules = list(self._model.modules())
        held = [of for m in modules for of in (
            m._parameters, m._buffers, m._modules, m._forward_hooks, m._forward_pre_hooks)]
        self._held, self._empty = [of for of in held if of], [of for of in held if not of]
        self._own = [vars(m) for m in modules]
        self._plain = [(own, key) for own in self._own for key, value in own.items()
                       if isinstance(value, torch.Tensor)]
        self._attributes, self._parts = self._now()
        tensors = {path: value for path, value in self._items.items()
                   if isinstance(value, torch.Tensor)}
        self._marks = {path: (tensor, _mark(tensor)) for path, tensor in tensors.items()}
        self._counted = [t for t in tensors.values() if not t.is_inference()]
        self._addressed = [t for t in tensors.values() if _address(t)]
        # memory that is kept is not reused, so what replaces it has another address
        self._memory = [t.untyped_storage() for t in self._addressed]
        self._numbers = self._numbered()

    def note_results(self, model: torch.nn.Module, run: Callable[[], Any]) -> None:
        """Find the attributes in which a run stores results; they do not count as changes.

        ``run()`` runs ``model``, which is the model or a copy, and which is then as before.
        """
        with untouched(model):
            before = _items(model)
            run()
            self._results |= set(_differences(before, _items(model)))

    def change(self) -> str:
        """Return what has changed, such as the path of a weight; '' if nothing has."""
        try:
            # Attributes are mostly numbers, and a list compares the same objects fast.
            attributes, parts = self._now()
            if not any(self._empty) and self._numbered() == self._numbers \
                    and attributes == self._attributes and len(parts) == len(self._parts) \
                    and all(map(operator.is_, parts, self._parts)):
                return ''
        except Exception:   # attributes cannot be compared, or another thread adds some
            pass
        found = next((path for path in _differences(self._items, _items(self._model))
                      if path not in self._results), '') or next(
            (path for path, (tensor, mark) in self._marks.items()
             if path not in self._results and _mark(tensor) != mark), '')
        if not found:   # equal values, or results, have replaced the former ones
            self.settle()
        return found

    def _now(self) -> tuple[list[Any], list[Any]]:
        """Return the values of all attributes, and the weights, submodules and hooks."""
        return (list(chain.from_iterable([own.values() for own in self._own])),
                list(chain.from_iterable([*(of.values() for of in self._held),
                                          [own.get(key) for own, key in self._plain]])))

    def _numbered(self) -> tuple[list[int], list[int]]:
        return [t._version for t in self._counted], [t.data_ptr() for t in self._addressed]


def _items(model: torch.nn.Module) -> dict[str, Any]:
    """Return what each module of a model holds, by path."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        name = path or 'the model'
        found[f'the mode of {name}'] = module.training
        found[f'the hooks of {name}'] = tuple(hooks_of(module).values())
        own = {k: v for k, v in vars(module).items() if k not in _NOT_ATTRIBUTES}
        for held in module._parameters, module._buffers, module._modules, own:
            found.update((f'{path}.{key}' if path else key, value) for key, value in held.items())
    return found


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [path for path in {**before, **now}
            if not _same(before.get(path, _MISSING), now.get(path, _MISSING))]


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    # As text, a NaN equals itself, and 0.0 differs from -0.0.
    return isinstance(old, _VALUES) and repr(old) == repr(new)


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return 0 if tensor.is_inference() else tensor._version, _address(tensor)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:   # a tensor without memory of its own, such as a sparse one
        return 0
