"""Make `type(x)` return `torch.Tensor` or `nn.Parameter` for remote tensors, as on CUDA.

Remote tensors have classes of their own, to which PyTorch dispatches operators. A module that
compares, stores or looks up types would therefore behave differently than on CUDA. To prevent this,
the patch puts another `type` into the globals of each module that has imported from PyTorch. For a
remote tensor, the new `type` returns the class that the tensor would have on CUDA. For all other
objects, it returns the same as Python's `type`.
"""

from __future__ import annotations

import builtins
import os
import sys
import sysconfig
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any

import torch

import rrto_bridge

from ..remote import RemoteTensor, seen_as

_OURS = (os.path.dirname(rrto_bridge.__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep)
_PYTHONS = sysconfig.get_path('stdlib') + os.sep


class _Type:
    """Replaces `type` in modules of a program."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kind = builtins.type(*args, **kwargs)
        if len(args) > 1:
            return kind
        if issubclass(kind, RemoteTensor):
            return seen_as(args[0])
        # For a class A, `type(A) is type` must stay true, although `type` is now this object.
        return self if kind is builtins.type or kind is _Type else kind

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, builtins.type)

    def __subclasscheck__(self, kind: Any) -> bool:
        return issubclass(kind, builtins.type)

    def __mro_entries__(self, bases: Any) -> tuple[type]:
        return (builtins.type,)

    def __getitem__(self, item: Any) -> Any:
        return builtins.type[item]

    def __or__(self, other: Any) -> Any:
        return builtins.type | other

    def __ror__(self, other: Any) -> Any:
        return other | builtins.type

    def __eq__(self, other: object) -> bool:
        return other is self or other is builtins.type

    def __hash__(self) -> int:
        return hash(builtins.type)

    def __getattr__(self, name: str) -> Any:
        return getattr(builtins.type, name)


TYPE = _Type()


def install() -> None:
    """Patch the modules that are being imported now, and all modules imported later."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        names, path = frame.f_globals, frame.f_code.co_filename
        if frame.f_code.co_name == '<module>' or names.get('__name__') == '__main__':
            _patch(names, path)
        frame = frame.f_back
    execute = SourceFileLoader.exec_module

    def exec_module(self: Any, module: Any) -> None:
        execute(self, module)
        if any(map(_of_torch, list(vars(module).values()))):
            _patch(vars(module), self.path)

    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]


def _of_torch(value: Any) -> bool:
    """Return whether a value is a module or a class of PyTorch."""
    kind = builtins.type(value)
    # Do not examine subclasses of ModuleType, because this might load a lazy module.
    names = vars(value) if kind is ModuleType or issubclass(kind, builtins.type) else {}
    home = names.get('__module__', names.get('__name__'))
    return str(home).partition('.')[0] == 'torch'


def _patch(names: dict[str, Any], path: str) -> None:
    if not path.startswith(_OURS) and (
            not path.startswith(_PYTHONS) or 'site-packages' in path):
        names['type'] = TYPE
