"""Sequences of several lengths, which `nn.TransformerEncoder` makes of its padding mask.

Nested tensors have no shape that could be sent. What stands for one is the padded tensor and its
mask: for each layer a server makes the nested tensor of them, and pads what the layer returns,
which changes no value.
"""

from __future__ import annotations

from typing import Any

import torch

from .remote import CUDA, Hook

LAYER = 17     # arguments of _transformer_encoder_layer_fwd between its source and its mask
NESTED_MASK = -1    # as the type of that mask: it is the padding of a nested source

_layer = torch.ops.aten._transformer_encoder_layer_fwd.default


class NestedTensor(torch.Tensor):
    """A nested tensor on the device: `padded`, of which `mask` says what is no padding."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_nested = True
    padded: torch.Tensor
    mask: torch.Tensor
    computed: bool    # by a layer: its padding is zero

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any,  # type: ignore[override]
                           args: Any = (), kwargs: Any = None) -> Any:
        if function is not _layer:
            refuse(str(function))
        return Hook.dispatch(function, args, kwargs)

    def to_padded_tensor(self, padding: float, output_size: Any = None) -> torch.Tensor:
        """As PyTorch's, where it need not be made anew."""
        if not self.computed or padding or tuple(output_size or ()) != tuple(self.padded.shape):
            refuse('to_padded_tensor')
        return self.padded


def refuse(what: str) -> None:
    """Raise what is said of anything else that is done with a nested tensor."""
    raise RuntimeError(f'rrto: {what} of a nested tensor is not possible on the device, where it '
                       'passes layers of nn.TransformerEncoder and nothing else; give '
                       'nn.TransformerEncoder enable_nested_tensor=False')


def nested_tensor(padded: torch.Tensor, mask: torch.Tensor, computed: bool) -> NestedTensor:
    """The nested tensor of these."""
    made: NestedTensor = torch.Tensor._make_wrapper_subclass(
        NestedTensor, padded.shape, dtype=padded.dtype, device=CUDA)
    made.padded, made.mask, made.computed = padded, mask, computed
    return made
