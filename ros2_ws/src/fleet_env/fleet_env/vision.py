"""Imports torchvision beside a build of PyTorch for which its C++ library was not made."""

from __future__ import annotations

import importlib
from typing import Any

# The libraries that `import_torchvision` defines. If Python deleted one of them, PyTorch would
# remove the operators of this library.
_KEPT: list[Any] = []


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
