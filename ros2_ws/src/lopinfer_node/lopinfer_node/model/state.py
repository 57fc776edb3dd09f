"""Restores the state of a model after a trace, and finds its hooks."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from ..errors import ModelError

_CONTAINERS = (dict, list, set, OrderedDict, defaultdict, deque)
# Packages whose objects are not searched for state, because these objects refer to data of other
# threads.
_NO_STATE = {*sys.stdlib_module_names, 'torch', 'numpy'}


@contextlib.contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Undo what the model's code stored in its modules during the block.

    After the block, the attributes of modules and of the objects in modules refer to the same
    objects as before the block. The lists, dictionaries, sets and deques in these attributes also
    contain the same items as before. Tensors that are not parameters have their former values
    again. Otherwise, a model that caches a result would keep a tensor of the tracer, which has no
    values. The state of PyTorch's random generator for the CPU is also restored.
    """
    # After a trace that fails, PyTorch 2.8 leaves a hook there that refuses usual tensors.
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    containers: dict[int, tuple[Any, Any]] = {id(hooks): (hooks, hooks.copy())}
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
    """Restore a container's former items; do not write to an unchanged container."""
    if isinstance(value, dict):
        for key in value.keys() - former.keys():
            del value[key]
        value.update({k: v for k, v in former.items() if k not in value or value[k] is not v})
    elif len(value) != len(former) or any(a is not b for a, b in zip(value, former, strict=True)):
        value.clear()
        value.update(former) if isinstance(value, set) else value.extend(former)


def refuse_hooks(model: torch.nn.Module) -> None:
    """Raise ModelError for hooks, because a server cannot perform the side effects of a hook."""
    hooks = [(name or 'the model', hooks_of(module)) for name, module in model.named_modules()]
    for name, found in [('every module', every_hook()), *hooks]:
        for hook in found.values():
            raise ModelError(f'{name} has the forward hook '
                             f'{getattr(hook, "__qualname__", hook)}, which the server would not '
                             'call; remove it')


def hooks_of(module: torch.nn.Module) -> dict[int, Any]:
    """Return a module's forward hooks, except hooks of PyTorch and of transformers."""
    return {k: hook for k, hook in (*module._forward_hooks.items(),
                                    *module._forward_pre_hooks.items())
            if not str(getattr(hook, '__module__', '')).startswith(('torch.', 'transformers.'))}


def every_hook() -> dict[int, Any]:
    """Return the forward hooks that apply to all modules of the process."""
    of = torch.nn.modules.module
    return {**of._global_forward_hooks, **of._global_forward_pre_hooks}
