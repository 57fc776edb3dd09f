"""Kernels that replace PyTorch's: for another backend's operators, and for unwritten memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..protocol.operators import LAYER, NESTED_MASK, RECURRENT

Call = Callable[..., Any]

aten = torch.ops.aten

# These operators return uninitialised memory, which the server fills with zeros: a replay must
# return what the program's own calls have returned.
UNINITIALISED = frozenset(('empty', 'empty_strided', 'empty_like', 'empty_permuted', 'new_empty',
                            'new_empty_strided'))

# Maps an operator to a method of torch.Tensor. The method returns the same result as the operator,
# but reads no values.
_ASKED: dict[str, Call] = {'is_conj': torch.Tensor.is_conj, 'is_neg': torch.Tensor.is_neg}


def kernel(operator: Any, device: torch.device) -> Call:
    """Return the callable for an operator: the operator itself, or one that replaces it."""
    function: Call = operator
    base = operator._schema.name.removeprefix('aten::')
    if device.type != 'cuda' and base in _ELSEWHERE:
        function = _ELSEWHERE[base]
    function = _ASKED.get(base, function)
    if base in RECURRENT and operator._overloadname == 'data':
        function = _packed(function)
    if base == '_transformer_encoder_layer_fwd':
        function = _encoder_layer(function)
    if base in UNINITIALISED:
        function = _zeroed(function)
    if base == '_grouped_mm':
        function = _grouped(function)
    return function


def _zeroed(function: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = function(*args, **kwargs)
        # Number of elements, including the unused memory between elements.
        whole = made.untyped_storage().nbytes() // made.itemsize
        made.as_strided((whole,), (1,), 0).zero_()
        return made
    return call


def _grouped(function: Call) -> Call:
    """Wrap a grouped matrix product; the wrapper sets rows or columns outside all groups to 0.

    The operator itself does not write these rows or columns.
    """
    def call(self: torch.Tensor, mat2: torch.Tensor, offs: Any = None, *args: Any, **kwargs: Any
             ) -> torch.Tensor:
        made: torch.Tensor = function(self, mat2, offs, *args, **kwargs)
        if offs is not None and self.dim() != mat2.dim():
            end = int(offs[-1])
            (made[end:] if self.dim() == 2 else made[:, end:]).zero_()
        return made
    return call


def _packed(function: Call) -> Call:
    """Wrap an operator; the wrapper copies `batch_sizes` to the CPU, as GPU kernels require."""
    def call(data: torch.Tensor, batch_sizes: torch.Tensor, *args: Any) -> Any:
        return function(data, batch_sizes.cpu(), *args)
    return call


def _encoder_layer(function: Call) -> Call:
    """Wrap the transformer encoder layer, so that it accepts sequences of different lengths.

    See `program.nested_tensors`.
    """
    def call(source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args[LAYER + 1:] != (NESTED_MASK,):
            return function(source, *args, **kwargs)
        nested = torch._nested_tensor_from_mask(source, args[LAYER], False)
        return function(nested, *args[:LAYER]).to_padded_tensor(0.0, source.shape)
    return call


# -- operators of other backends -------------------------------------------------------------------

def _batch_norm(input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                training: bool, momentum: float, eps: float) -> Any:
    return aten.native_batch_norm.default(input, weight, bias, running_mean, running_var, training,
                                          momentum, eps)


def _cudnn_batch_norm(*args: Any, **kwargs: Any) -> Any:
    # This tensor is empty, because only a backward pass would use it, and no backward pass
    # runs here.
    reserve = torch.empty(0, dtype=torch.uint8)
    named = {{'exponential_average_factor': 'momentum', 'epsilon': 'eps'}.get(k, k): v
             for k, v in kwargs.items()}
    return (*_batch_norm(*args, **named), reserve)


def _miopen_batch_norm(*args: Any, **kwargs: Any) -> Any:
    return _cudnn_batch_norm(*args, **kwargs)[:3]


def _grid_sampler(self: torch.Tensor, grid: torch.Tensor) -> Any:
    # The last arguments select bilinear interpolation, padding with zeros and aligned corners.
    return aten.grid_sampler_2d.default(self, grid, 0, 0, True)


def _affine_grid(theta: torch.Tensor, N: int, C: int, H: int, W: int) -> Any:
    return aten.affine_grid_generator.default(theta, [N, C, H, W], True)


def _histc(self: torch.Tensor, bins: int = 100, min: Any = 0, max: Any = 0, **named: Any) -> Any:
    """Compute the histogram of a tensor of integers or floats, as CUDA does.

    Models with a mixture of experts call this operator with integers.
    """
    if self.is_floating_point() or named:
        return torch.histc(self, bins, min, max, **named)
    return torch.histc(self.double(), bins, min, max).to(self.dtype)


def _softmax(function: Call) -> Call:
    """Wrap softmax; if `half_to_float` is set, the wrapper first converts half precision to float.

    CUDA's operator does the same.
    """
    def call(self: torch.Tensor, dim: int, half_to_float: bool, **named: Any) -> torch.Tensor:
        made: torch.Tensor = function(self.float() if half_to_float else self, dim, False, **named)
        return made
    return call


_ELSEWHERE: dict[str, Call] = {
    'histc': _histc, '_softmax': _softmax(torch._softmax),
    '_log_softmax': _softmax(torch._log_softmax),
    'cudnn_batch_norm': _cudnn_batch_norm, 'miopen_batch_norm': _miopen_batch_norm,
    'cudnn_grid_sampler': _grid_sampler, 'cudnn_affine_grid_generator': _affine_grid,
}
