"""Compute one function for several requests at once.

PyTorch's `torch.vmap` replaces each operator by the operator for one more axis. So what a request
gets does not depend on the other requests, whatever the axes of the program's own tensors mean, and
no shape in the program's arguments needs to change.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

Function = Callable[..., Sequence[torch.Tensor]]

# An operator without a rule of its own for batches is computed request by request.
warnings.filterwarnings('ignore', message='There is a performance drop because we have not yet')


def together(function: Function, requests: Sequence[Sequence[torch.Tensor]]
             ) -> list[list[torch.Tensor]]:
    """Return `function(*tensors)` for the tensors of each request.

    `requests`: for each request, tensors of the same shapes, dtypes and device as those of the
    others. Raises whatever PyTorch raises if an operator cannot be batched, or fails for one of
    the requests; nothing has changed then, and each request can be computed alone.
    """
    stacked = [torch.stack(same) for same in zip(*requests, strict=True)]
    results = torch.vmap(lambda *tensors: tuple(function(*tensors)))(*stacked) if stacked else ()
    columns = [result.unbind() for result in results]
    return [[column[k] for column in columns] for k in range(len(requests))]
