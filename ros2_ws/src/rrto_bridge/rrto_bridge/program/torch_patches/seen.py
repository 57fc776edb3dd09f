"""Make `type(x)` return `torch.Tensor` or `nn.Parameter` for remote tensors, as on CUDA.

Remote tensors have classes of their own, to which PyTorch dispatches operators. A module that
compares, stores or looks up types would therefore behave differently than on CUDA. To prevent this,
the patch puts another `type` into the globals of such a module. For a remote tensor, the new `type`
returns the class that the tensor would have on CUDA. For all other objects, it returns the same as
Python's `type`.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import sysconfig
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import torch

import rrto_bridge

from ..remote import RemoteTensor, seen_as

_USES = re.compile(rb'\btype\([^\n]*\)\s*(?:is|==|!=|in|not)\b|(?:\bis|\bnot|==|!=|\bin)\s+type\('
                   rb'|=\s*type\(|\[type\(|get\(type\(')
_TENSORS = re.compile(rb'\b(?:torch|Tensor|Parameter)\b')
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
        if frame.f_code.co_name == '<module>':
            _look(names, path)
        if names.get('__name__') == '__main__' and not os.path.exists(path):
            # The code of `python -c`, a prompt or a notebook is not in a file. It cannot be
            # searched for uses of `type`, so replace `type` in any case.
            names['type'] = TYPE
        frame = frame.f_back
    execute = SourceFileLoader.exec_module

    def exec_module(self: Any, module: Any) -> None:
        _look(vars(module), self.path)
        execute(self, module)

    SourceFileLoader.exec_module = exec_module  # type: ignore[method-assign]


def _look(names: dict[str, Any], path: str) -> None:
    if path.startswith(_OURS) or path.startswith(_PYTHONS) and 'site-packages' not in path:
        return
    try:
        source = Path(path).read_bytes()
    except OSError:   # the module is not from a file
        return
    if b'type(' in source and _TENSORS.search(source) and _USES.search(source):
        names['type'] = TYPE
