"""`type(x)` as a program sees it: on CUDA a tensor is a `torch.Tensor`, a parameter a `Parameter`.

Ours are of classes of their own, which PyTorch calls. So a module that compares, keeps or looks up
types gets a `type` among its globals that answers as on CUDA. One that uses `type` otherwise too,
as a base class or in `isinstance`, keeps Python's, and is named once on stderr.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import torch

from .remote import RemoteTensor, seen_as

_USES = re.compile(rb'\btype\([^\n]*\)\s*(?:is|==|!=|in|not)\b|(?:\bis|\bnot|==|!=|\bin)\s+type\('
                   rb'|=\s*type\(|\[type\(|get\(type\(')
_TENSORS = re.compile(rb'\b(?:torch|Tensor|Parameter)\b')
_OURS = (os.path.dirname(__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep)
_PYTHONS = sysconfig.get_path('stdlib') + os.sep


def type_of(value: Any) -> Any:
    """`type(value)`, as on CUDA."""
    kind = builtins.type(value)
    return seen_as(value) if issubclass(kind, RemoteTensor) else kind


def install() -> None:
    """Look at the modules that are being imported, the program's own first, and all later ones."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == '<module>':
            _look(frame.f_globals, frame.f_code.co_filename)
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
        if not (_USES.search(source) and _TENSORS.search(source)):
            return
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):   # Python says it better
        return
    calls = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)
             and len(node.args) == 1 and not node.keywords}
    if all(node in calls for node in ast.walk(tree) if _is_type(node)):
        names['type'] = type_of
        return
    for line in _comparisons(tree, calls):
        print(f'rrto: {path}:{line}: type(x) of a tensor on the device is a class of its own, not '
              'torch.Tensor; write isinstance(x, torch.Tensor)', file=sys.stderr)


def _is_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == 'type' or \
        isinstance(node, ast.arg) and node.arg == 'type'


def _comparisons(tree: ast.AST, calls: set[Any]) -> Iterator[int]:
    """Lines on which `type(x)` is compared with a class of PyTorch's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(side, ast.Call) and side.func in calls and _is_type(side.func)
                   for side in sides) and any(_names_tensors(side) for side in sides):
                yield node.lineno


def _names_tensors(node: ast.AST) -> bool:
    return any(getattr(part, 'attr', getattr(part, 'id', '')) in ('Tensor', 'Parameter')
               for part in ast.walk(node))
