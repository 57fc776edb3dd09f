"""What a model keeps beside its results: put back after a trace, and watched from then on."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, SimpleNamespace
from typing import Any

import torch

from ..errors import ModelError

_CONTAINERS = (dict, list, set, OrderedDict, defaultdict, deque)
# Objects of these are not followed: they lead to what other threads work with.
_NO_STATE = {*sys.stdlib_module_names, 'torch', 'numpy'}


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Take back what the model's own code stores in its modules while the block runs.

    Attributes, also those of objects in them, and lists, dictionaries, sets and deques hold the
    same objects afterwards; tensors that are not parameters have their values again. Without it a
    model that keeps a result, such as a cache, would keep a tensor of the tracer, which has no
    values.
    """
    containers: dict[int, tuple[Any, Any]] = {}
    tensors: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}
    todo: list[Any] = [vars(module) for module in model.modules()]
    while todo:
        value = todo.pop()
        if type(value) in _CONTAINERS and id(value) not in containers:
            containers[id(value)] = value, value.copy()
            todo += value.values() if isinstance(value, dict) else value
        elif isinstance(value, tuple):
            todo += value
        elif isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            tensors[id(value)] = value, value.detach().clone(), value._version
        elif type(value).__module__.partition('.')[0] not in _NO_STATE \
                or isinstance(value, SimpleNamespace):
            todo.append(getattr(value, '__dict__', None))
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for value, former in containers.values():
            _restore(value, former)
        with torch.no_grad():
            for tensor, before, version in tensors.values():
                if tensor._version != version:
                    tensor.data = before


def _restore(value: Any, former: Any) -> None:
    """Give a container its former items; one that did not change is not written at all."""
    if isinstance(value, dict):
        for key in value.keys() - former.keys():
            del value[key]
        value.update({k: v for k, v in former.items() if k not in value or value[k] is not v})
    elif len(value) != len(former) or any(a is not b for a, b in zip(value, former, strict=True)):
        value.clear()
        value.update(former) if isinstance(value, set) else value.extend(former)


def refuse_hooks(model: torch.nn.Module) -> None:
    """A hook may do anything beside computing, for example keep a result; on a server it can't."""
    hooks = [(name or 'the model', _hooks(module)) for name, module in model.named_modules()]
    for name, found in [('every module', _everywhere()), *hooks]:
        for hook in found.values():
            raise ModelError(f'{name} has the forward hook '
                             f'{getattr(hook, "__qualname__", hook)}, which would not be called '
                             'for what the server computes; remove it')


def _hooks(module: torch.nn.Module) -> dict[int, Any]:
    """A module's forward hooks, but those of libraries: they make a weight or gather results."""
    return {k: hook for k, hook in (*module._forward_hooks.items(),
                                    *module._forward_pre_hooks.items())
            if not str(getattr(hook, '__module__', '')).startswith(('torch.', 'transformers.'))}


def _everywhere() -> dict[int, Any]:
    """Forward hooks of all modules of the process."""
    of = torch.nn.modules.module
    return {**of._global_forward_hooks, **of._global_forward_pre_hooks}


_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))


class Snapshot:
    """What a model computes with: modules, weights, mode, hooks, attributes but lists and dicts.

    No value is copied: a weight that was written to has another version.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._held = self._holds()
        self._attributes = self._plain()

    def settle(self) -> None:
        """What the model's own code has stored since is no change, as while it is traced."""
        self._attributes = self._plain()

    def change(self) -> str:
        """What is another than it was, in words; '' if nothing is."""
        held, attributes = self._holds(), self._plain()
        for before, now in (self._held, held), (self._attributes, attributes):
            if before != now:
                return next(_words(key) for key in [*before, *now]
                            if key not in before or key not in now or before[key] != now[key])
        return ''

    def _holds(self) -> dict[str, Any]:
        found: dict[str, Any] = {'the hooks of all modules': tuple(_everywhere())}
        for path, module in self._model.named_modules():
            found[path or 'the model'] = module
            found[f'the mode of {path or "the model"}'] = module.training
            found[f'the hooks of {path or "the model"}'] = tuple(_hooks(module))
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                found[f'{path}.{name}'.lstrip('.')] = tensor is not None and _mark(tensor)
        return found

    def _plain(self) -> dict[tuple[str, str], Any]:
        return {(path, name): _value(value) for path, module in self._model.named_modules()
                for name, value in vars(module).items() if name not in _OF_EVERY_MODULE}


def _value(value: Any) -> Any:
    """What is another for another value. Lists and dicts are not followed: they keep results."""
    if isinstance(value, torch.Tensor):
        return _mark(value)
    if isinstance(value, (bool, int, str, FunctionType, BuiltinFunctionType, MethodType)):
        return type(value), value
    if isinstance(value, (float, complex)):
        return type(value), str(value)  # a NaN is equal to itself, and 0.0 is not -0.0
    if isinstance(value, tuple):
        return type(value), *map(_value, value)
    return type(value)


def _words(key: str | tuple[str, str]) -> str:
    return key if isinstance(key, str) else '.'.join(key).lstrip('.')


def _mark(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Another tensor, other memory or a write makes another mark."""
    memory = tensor.data_ptr() if tensor.layout is torch.strided else 0
    return id(tensor), memory, 0 if tensor.is_inference() else tensor._version
