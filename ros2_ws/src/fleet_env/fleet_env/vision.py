"""Imports torchvision beside a build of PyTorch for which its C++ library was not made."""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import Any

# The libraries that `import_torchvision` defines. If Python deleted one of them, PyTorch would
# remove the operators of this library.
_KEPT: list[Any] = []
# What PyTorch and torchvision say if torchvision is of another build or version than PyTorch.
_SAID = ('torchvision::', "Couldn't load custom C++ ops", 'PyTorch and torchvision were compiled')


def import_torchvision() -> Any:
    """Return the package torchvision, or None.

    With PyTorch's CPU build, the C++ library of PyPI's torchvision does not load. Without this
    library, the schemas of two operators are missing and the import fails. So this function
    defines the schemas. Models of classification and segmentation do not need the library.
    """
    try:
        return importlib.import_module('torchvision')
    except ModuleNotFoundError:
        return None
    except RuntimeError:
        import torch
        _KEPT.append(library := torch.library.Library('torchvision', 'DEF'))
        for op in ('nms', 'qnms'):
            library.define(f'{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
        return importlib.import_module('torchvision')


def imported(module: str) -> Any:
    """Import a module of the user's, which may import torchvision; see `import_torchvision`."""
    try:
        return importlib.import_module(module)
    except RuntimeError as error:
        if 'torchvision::' not in str(error):
            raise
        import_torchvision()
        return importlib.import_module(module)


def other_build(error: BaseException) -> str:
    """Return what to do if an error says that torchvision is not made for this PyTorch, else ''."""
    if not any(part in str(error) for part in _SAID):
        return ''
    import torch
    ours = torch.__version__
    try:
        version = metadata.version('torchvision')
    except metadata.PackageNotFoundError:
        return ''
    said = f'torchvision {version} is not made for torch {ours}; '
    if 'nv' in ours.partition('+')[2]:
        return said + "install the torchvision that NVIDIA offers for it, not PyPI's"
    build = f'cu{torch.version.cuda.replace(".", "")}' if torch.version.cuda else 'cpu'
    return (f'{said}install both from one place: pip install --force-reinstall --no-deps '
            f'torchvision=={version.partition("+")[0]} --index-url '
            f'https://download.pytorch.org/whl/{build}')
