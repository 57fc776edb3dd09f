"""Nested tensors, which hold sequences of different lengths.

`nn.TransformerEncoder` makes them from a padded tensor and a mask. The shape of a nested tensor
cannot be sent, so the padded tensor and its mask are sent instead. For each layer the server builds
the nested tensor from them, and pads the layer's result. This does not change any value.
"""

from __future__ import annotations

from typing import Any

import torch

from .remote import CUDA, Hook

_layer = torch.ops.aten._transformer_encoder_layer_fwd.default


class NestedTensor(torch.Tensor):
    """A nested tensor on the device; `mask` is True where `padded` has values, not padding."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_nested = True
    padded: torch.Tensor
    mask: torch.Tensor
    computed: bool    # whether a layer has returned this tensor; if so, its padding is zero

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        if function is not _layer:
            refuse(str(function))
        return Hook.dispatch(function, args, kwargs)

    def to_padded_tensor(self, padding: float, output_size: Any = None) -> torch.Tensor:
        """Return the padded tensor if it has the requested size and padding.

        Otherwise raise RuntimeError.
        """
        if not self.computed or padding or tuple(output_size or ()) != tuple(self.padded.shape):
            refuse('to_padded_tensor')
        return self.padded


def refuse(what: str) -> None:
    """Raise the error for an unsupported use of a nested tensor."""
    raise RuntimeError(f'rrto: {what} of a nested tensor is not possible on the device, which '
                       'supports nested tensors only in the layers of nn.TransformerEncoder: use '
                       'nn.TransformerEncoder(..., enable_nested_tensor=False)')


def nested_tensor(padded: torch.Tensor, mask: torch.Tensor, computed: bool) -> NestedTensor:
    """Return the nested tensor of a padded tensor and its padding mask."""
    made: NestedTensor = torch.Tensor._make_wrapper_subclass(
        NestedTensor, padded.shape, dtype=padded.dtype, device=CUDA)
    made.padded, made.mask, made.computed = padded, mask, computed
    return made
