"""Argument checks that PyTorch lacks, for operators that address memory with their arguments.

The file also has replacements for operators that exist only in another backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..protocol.operators import LAYER, NESTED_MASK, RECURRENT
from ..protocol.tensors import dense

Call = Callable[..., Any]

aten = torch.ops.aten

# These operators return uninitialised memory, which the server fills with zeros.
UNINITIALISED = frozenset(('empty', 'empty_strided', 'empty_like', 'empty_permuted', 'new_empty',
                            'new_empty_strided'))

# Maps an operator to a method of torch.Tensor. The method returns the same result as the operator,
# but reads no values.
_ASKED: dict[str, Call] = {'is_conj': torch.Tensor.is_conj, 'is_neg': torch.Tensor.is_neg}


def prepared(operator: Any, device: torch.device) -> Call:
    """Return the callable for an operator: the operator itself, or a wrapper that makes it safe."""
    function: Call = operator
    base = operator._schema.name.removeprefix('aten::')
    outs = [a.name for a in operator._schema.arguments
            if a.kwarg_only and a.alias_info and a.alias_info.is_write]
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
    if outs:
        function = _restoring(function, outs)
    check = _CHECKS.get(base) or _CHECKS.get(base.removesuffix('_'))
    return function if check is None else _checked(function, check)


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


def _restoring(function: Call, outs: list[str]) -> Call:
    """Wrap an operator, so that an error leaves the shapes of its output arguments unchanged.

    `outs`: the names of these arguments. Without the wrapper, a failed operator might leave a shape
    that exceeds the tensor's memory.
    """
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [kwargs[name] for name in outs if kwargs.get(name) is not None]
        before = [(t, t.size(), t.stride(), t.storage_offset())
                  for out in given for t in (out if isinstance(out, list) else [out])]
        try:
            return function(*args, **kwargs)
        except BaseException:
            for tensor, size, stride, offset in before:
                if tensor.size() != size:
                    tensor.as_strided_(size, stride, offset)
            raise
    return call


def _checked(function: Call, check: Call) -> Call:
    def call(*args: Any, **kwargs: Any) -> Any:
        check(*args, **kwargs)
        return function(*args, **kwargs)
    return call


def _need(holds: Any, what: str) -> None:
    if not holds:
        raise ValueError(what)


# -- checks: each function has the same parameters as its operator ---------------------------------

def _channels(input: torch.Tensor, *rest: Any, **named: Any) -> None:
    """Check that weights and statistics of a batch norm have one element per channel."""
    _need(input.dim() > 1, 'batch norm needs a tensor with a channel dimension')
    channels = input.shape[1]
    for value in (*rest, *named.values()):
        if isinstance(value, torch.Tensor) and value.numel() != channels:
            raise ValueError(f'weights and statistics of a batch norm must have {channels} '
                             f'elements, one per channel, got {value.numel()}')


def _statistics(input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                training: Any = False, *rest: Any, **named: Any) -> None:
    _channels(input, weight, bias, running_mean, running_var)
    _need((running_mean is None) == (running_var is None),
          'batch norm needs both running_mean and running_var, or neither')
    _need(training is True or running_mean is not None,
          'batch norm without training needs statistics')


def _no_training(input: torch.Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any,
                 *rest: Any, **named: Any) -> None:
    _statistics(input, weight, bias, running_mean, running_var)


def _groups(input: torch.Tensor, weight: Any, bias: Any, N: int, C: int, HxW: int, group: int,
            eps: float) -> None:
    _need(N * C * HxW == input.numel() and N >= 0 and C > 0 and group > 0 and C % group == 0,
          f'group norm: {tuple(input.shape)} does not match {N} x {C} x {HxW}')


def _transform(self: torch.Tensor, dim: list[int], *rest: Any, **named: Any) -> None:
    _need(dim and all(0 <= d < self.dim() for d in dim) and len(set(dim)) == len(dim),
          f'transform dimensions must be distinct and in [0, {self.dim()}), got {dim}')


def _inverse(self: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int,
             **named: Any) -> None:
    _transform(self, dim)
    _need(last_dim_size > 0 and self.shape[dim[-1]] == last_dim_size // 2 + 1,
          f'a real transform of size {last_dim_size} does not match {tuple(self.shape)}')


def _noise(self: torch.Tensor, noise: torch.Tensor, lower: Any = 0, upper: Any = 0,
           training: bool = False, *rest: Any, **named: Any) -> None:
    _need(not training or (noise.shape == self.shape and noise.dtype == self.dtype
                           and dense(noise.shape, noise.stride())),
          'noise must have the shape and dtype of the input')


def _strided(self: torch.Tensor, size: list[int], stride: list[int],
             storage_offset: int | None = None, **named: Any) -> None:
    """Check that a view lies in its tensor's memory; PyTorch's check overflows beyond 64 bits."""
    offset = int(self.storage_offset()) if storage_offset is None else storage_offset
    _extent(size, stride, offset, self.untyped_storage().nbytes() // self.itemsize)


def _scattered(self: torch.Tensor, src: torch.Tensor, size: list[int], stride: list[int],
               storage_offset: int | None = None, **named: Any) -> None:
    _strided(self, size, stride, storage_offset)


def _made(size: list[int], stride: list[int], *rest: Any, **named: Any) -> None:
    _extent(size, stride, 0, _MOST)


def _made_like(self: torch.Tensor, size: list[int], stride: list[int], *rest: Any, **named: Any
               ) -> None:
    _extent(size, stride, 0, _MOST)


_MOST = 1 << 58    # maximum number of elements of a tensor


def _extent(size: list[int], stride: list[int], offset: int, elements: int) -> None:
    _need(len(size) == len(stride) and min(size, default=0) >= 0 and min(stride, default=0) >= 0
          and offset >= 0,
          f'a view must have valid sizes, got {size} with strides {stride} at {offset}')
    end = offset + 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    _need(0 in size or end <= elements,
          f'a view of {size} with strides {stride} at {offset} must fit {elements} elements')


def _segments(data: torch.Tensor, reduce: str, *, axis: int = 0, unsafe: bool = False,
              **named: Any) -> None:
    _need(not unsafe, 'a server does not execute segment_reduce(unsafe=True)')
    lengths = named.get('lengths')
    _need(named.get('offsets') is None and named.get('indices') is None and lengths is not None,
          'a server executes segment_reduce only with lengths')
    assert lengths is not None
    _need(lengths.dim() >= 1 and 0 <= axis < data.dim() and axis == lengths.dim() - 1
          and lengths.shape[:-1] == data.shape[:axis] and bool((lengths >= 0).all())
          and bool((lengths.sum(-1) == data.shape[axis]).all()),
          'segment lengths must fit the data')


def _groups_of_rows(self: torch.Tensor, mat2: torch.Tensor, offs: Any = None, *rest: Any,
                    **named: Any) -> None:
    """Check `offs`, the ends of the groups, because the operator uses them as memory offsets."""
    if offs is not None:
        rows = self.shape[0] if (self.dim(), mat2.dim()) == (2, 3) else mat2.shape[-1] \
            if self.dim() == 3 else self.shape[-1]
        ends = [0, *offs.tolist(), rows] if offs.dim() == 1 else []
        _need(len(ends) > 2 and ends == sorted(ends),
              f'ends of groups must ascend within {rows}, got {ends[1:-1]}')


def _frames(grad_in: torch.Tensor, input_sizes: list[int], dim: int, size: int, step: int,
            **named: Any) -> None:
    """Check that `grad_in` has the shape of `unfold`'s result for a tensor of shape `input_sizes`.

    `grad_in` holds the frames that the operator adds up, as in `istft`.
    """
    frames = torch.empty(input_sizes, device='meta').unfold(dim, size, step)
    _need(grad_in.shape == frames.shape, f'frames must have the shape {tuple(frames.shape)}, got '
          f'{tuple(grad_in.shape)}')


def _pivots(LU: torch.Tensor, pivots: torch.Tensor, *rest: Any, **named: Any) -> None:
    n = LU.shape[-1] if LU.dim() else 0
    _need(LU.dim() >= 2 and pivots.dim() >= 1 and pivots.shape == LU.shape[:-1]
          and bool(((pivots >= 1) & (pivots <= n)).all()), 'pivots must fit the matrix')


def _pairs(LD: torch.Tensor, pivots: torch.Tensor, *rest: Any, **named: Any) -> None:
    n = LD.shape[-1] if LD.dim() else 0
    # `abs`, because negative pivots mark 2 x 2 blocks.
    _need(LD.dim() >= 2 and pivots.shape == LD.shape[:-1]
          and bool(((pivots.abs() >= 1) & (pivots.abs() <= n)).all()), 'pivots must fit the matrix')


def _norms(v: torch.Tensor, g: torch.Tensor, dim: int = 0) -> None:
    _need(v.dim() and dim in (0, v.dim() - 1) and g.numel() == v.shape[dim]
          and v.dtype == g.dtype, 'norms must fit the weight')


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim: int,
               num_head: int, *rest: Any, **named: Any) -> None:
    _need(embed_dim > 0 and num_head > 0 and embed_dim % num_head == 0,
          f'{num_head} heads must divide {embed_dim} features')


def _layer(source: torch.Tensor, embed_dim: int, num_heads: int, qkv_weight: torch.Tensor,
           qkv_bias: torch.Tensor, proj_weight: torch.Tensor, proj_bias: torch.Tensor,
           use_gelu: bool, norm_first: bool, eps: float, *rest: Any, **named: Any) -> None:
    _attention(source, source, source, embed_dim, num_heads)
    *norms, first, first_bias, second, second_bias = rest[:8]
    n, inner = embed_dim, first_bias.numel()
    wanted = ((qkv_weight, (3 * n, n)), (qkv_bias, (3 * n,)), (proj_weight, (n, n)),
              (proj_bias, (n,)), *((norm, (n,)) for norm in norms), (first, (inner, n)),
              (first_bias, (inner,)), (second, (n, inner)), (second_bias, (n,)))
    _need(source.dim() == 3 and source.shape[-1] == n and all(
        weight.shape == shape and weight.dtype == source.dtype for weight, shape in wanted),
          'weights must fit the layer')


_CHECKS: dict[str, Call] = {
    '_transformer_encoder_layer_fwd': _layer, '_native_multi_head_attention': _attention,
    'native_batch_norm': _statistics, 'cudnn_batch_norm': _statistics,
    'miopen_batch_norm': _statistics, '_native_batch_norm_legit': _channels,
    '_batch_norm_with_update': _channels, '_batch_norm_no_update': _no_training,
    '_native_batch_norm_legit_no_training': _no_training, 'native_group_norm': _groups,
    '_fft_c2c': _transform, '_fft_r2c': _transform, '_fft_c2r': _inverse,
    'as_strided': _strided, 'as_strided_copy': _strided, 'as_strided_scatter': _scattered,
    'empty_strided': _made, 'new_empty_strided': _made_like,
    'rrelu_with_noise': _noise, 'segment_reduce': _segments, 'linalg_lu_solve': _pivots,
    'linalg_ldl_solve': _pairs, '_weight_norm_interface': _norms, '_grouped_mm': _groups_of_rows,
    'unfold_backward': _frames,
}


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
