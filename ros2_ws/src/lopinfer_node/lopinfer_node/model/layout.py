"""Memory formats: in which order the elements of a tensor lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

# by the number of axes: the format that puts the channels last, for which GPUs have faster kernels
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def format_of(tensor: torch.Tensor) -> torch.memory_format:
    """Return the format of `CHANNELS_LAST` if the tensor has exactly its strides.

    Any other tensor counts as contiguous, also one that fits both because an axis has one element.
    """
    last = CHANNELS_LAST.get(tensor.ndim)
    if last is None:
        return torch.contiguous_format
    strides = [torch.empty(tensor.shape, device='meta', memory_format=form).stride()
               for form in (last, torch.contiguous_format)]
    return last if tensor.stride() == strides[0] != strides[1] else torch.contiguous_format


def flat(tensor: torch.Tensor, form: torch.memory_format = torch.contiguous_format
         ) -> torch.Tensor:
    """Return the elements, in the order of a format, as one dimension of stride 1.

    They are copied if the tensor has another format, or is lazily conjugated or negated. The
    stride must be set, because a contiguous tensor of one element may have any stride. Some strides
    prevent a view as bytes.
    """
    own = tensor.resolve_conj().resolve_neg()
    return own.contiguous(memory_format=form).as_strided((own.numel(),), (1,))


def shaped(elements: torch.Tensor, shape: Sequence[int],
           form: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    """Return the tensor from which `flat` has made `elements`, as a view."""
    if form is torch.contiguous_format:
        return elements.view(list(shape))
    return elements.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
