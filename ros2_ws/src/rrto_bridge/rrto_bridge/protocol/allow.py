"""The list of ATen operators that a server executes.

An operator is in the list if it meets three conditions. It computes with tensors and
plain scalars. It runs on strided tensors of any device. No arguments can misuse it: if
arguments address memory, the operator itself or `execution.checks` checks them first.

The server refuses all other operators; they run on the robot's CPU. A composite
operator calls other operators. PyTorch decomposes it into these operators, which are
then sent. The list contains only the composite operators that are sent whole
(`operators.WHOLE`).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch

from .errors import Refused, UnknownOperator
from .operators import WHOLE, form

_SCALARS = r'(Tensor|int|bool|float|number|str|Device|Generator)'
_TYPE = re.compile(rf'{_SCALARS}|Optional\[{_SCALARS}\]|List\[{_SCALARS}\]'
                   rf'|List\[Optional\[Tensor\]\]|Optional\[List\[(int|float)\]\]')

# An entry also allows the in-place variant of the operator: `relu` allows `relu_`.
_VIEWS = '''
alias as_strided as_strided_copy as_strided_scatter detach detach_copy diagonal diagonal_copy
diagonal_scatter expand expand_copy permute permute_copy select select_copy select_scatter slice
slice_copy slice_scatter split split_copy split_with_sizes split_with_sizes_copy unsafe_split
unsafe_split_with_sizes squeeze squeeze_copy t t_copy transpose transpose_copy unbind unbind_copy
unfold unfold_copy unsqueeze unsqueeze_copy view view_as_complex view_as_complex_copy view_as_real
view_as_real_copy view_copy alias_copy narrow_copy
'''
_COMPUTING = '''
abs acos acosh adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d
adaptive_max_pool3d add addbmm addcdiv addcmul addmm addmv addr affine_grid_generator all allclose
amax amin aminmax angle any arange argmax argmin asin asinh atan atan2 atanh avg_pool1d avg_pool2d
avg_pool3d baddbmm bartlett_window bernoulli binary_cross_entropy binary_cross_entropy_with_logits
bincount binomial bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
bitwise_xor blackman_window block_diag bmm bucketize cat cauchy ceil celu channel_shuffle cholesky
cholesky_inverse cholesky_solve clamp clamp_max clamp_min clone col2im complex conj_physical
constant_pad_nd conv_tbc convolution copy copysign cos cosh count_nonzero cummax cummin cumprod
cumsum deg2rad diag_embed digamma dist div dot elu embedding embedding_renorm empty empty_like
empty_permuted empty_strided eq equal erf erfc erfinv exp exp2 expm1 exponential eye fft_fftfreq
fft_rfftfreq fill flip floor floor_divide fmax fmin fmod frac fractional_max_pool2d
fractional_max_pool3d frexp full full_like gather gcd ge gelu geometric geqrf glu grid_sampler_2d
grid_sampler_3d gt hamming_window hann_window hardshrink hardsigmoid hardswish hardtanh heaviside
histc histogram huber_loss hypot i0 igamma igammac im2col index index_add index_copy index_fill
index_put index_reduce index_select is_conj is_neg is_same_size isin isinf isnan isneginf isposinf
kaiser_window
kthvalue lcm ldexp le leaky_relu lerp lgamma linear linspace log log10 log1p log2 log_normal
log_sigmoid_forward log_softmax logaddexp logaddexp2 logcumsumexp logical_and logical_not
logical_or logical_xor logit logspace logsumexp lt lu_unpack masked_fill masked_scatter
masked_select max max_pool2d_with_indices max_pool3d_with_indices max_unpool2d max_unpool3d
maximum mean median min minimum mish mm mode mse_loss mul multi_margin_loss
multilabel_margin_loss_forward multinomial mv mvlgamma nan_to_num nanmedian nansum
native_batch_norm native_dropout native_group_norm native_layer_norm ne neg new_empty
new_empty_strided new_full new_ones new_zeros nextafter nll_loss2d_forward nll_loss_forward
nonzero nonzero_static norm normal ones ones_like ormqr pixel_shuffle pixel_unshuffle poisson
polar polygamma pow prod put rad2deg rand rand_like randint randint_like randn randn_like random
randperm range reciprocal reflection_pad1d reflection_pad2d reflection_pad3d relu remainder renorm
repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d roll rot90 round
rrelu_with_noise rsqrt rsub scalar_tensor scatter scatter_add scatter_reduce searchsorted
segment_reduce sgn sigmoid sign signbit silu sin sinc sinh smooth_l1_loss soft_margin_loss softmax
softplus softshrink sort sqrt stack std std_mean sub sum take tan tanh threshold topk trace
triangular_solve tril tril_indices triu triu_indices trunc unfold_backward uniform
unique_consecutive unique_dim unique_dim_consecutive upsample_bicubic2d upsample_bilinear2d
upsample_linear1d upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_trilinear3d var
var_mean vdot where xlogy zero zeros zeros_like
'''
_SPECIAL = '''
airy_ai bessel_j0 bessel_j1 bessel_y0 bessel_y1 chebyshev_polynomial_t chebyshev_polynomial_u
chebyshev_polynomial_v chebyshev_polynomial_w entr erfcx hermite_polynomial_h
hermite_polynomial_he i0e i1 i1e laguerre_polynomial_l legendre_polynomial_p log_ndtr
modified_bessel_i0 modified_bessel_i1 modified_bessel_k0 modified_bessel_k1 ndtri
scaled_modified_bessel_k0 scaled_modified_bessel_k1 shifted_chebyshev_polynomial_t
shifted_chebyshev_polynomial_u shifted_chebyshev_polynomial_v shifted_chebyshev_polynomial_w
spherical_bessel_j0 xlog1py zeta
'''
_LINALG = '''
cholesky_ex cross eig eigvals householder_product inv_ex ldl_factor_ex ldl_solve lstsq lu
lu_factor_ex lu_solve matrix_exp pinv qr solve_triangular vector_norm
'''
_FOREACH = '''
abs acos add addcdiv addcmul asin atan ceil clamp_max clamp_min clone copy_ cos cosh div erf erfc
exp expm1 floor frac lerp lgamma log log10 log1p log2 max maximum minimum mul neg norm pow
reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc zero
'''
_INNER = '''
__ilshift__ __irshift__ __lshift__ __rshift__ _adaptive_avg_pool2d _adaptive_avg_pool3d
_addmm_activation _aminmax _assert_async _batch_norm_no_update _batch_norm_with_update
_cdist_forward _conj _conj_physical _convolution _embedding_bag _embedding_bag_forward_only
_euclidean_dist _fft_c2c _fft_c2r _fft_r2c _grouped_mm _int_mm _is_all_true _is_any_true
_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd _local_scalar_dense
_log_softmax _native_batch_norm_legit _native_batch_norm_legit_no_training
_native_multi_head_attention _neg_view _nested_tensor_from_mask_left_aligned _pack_padded_sequence
_pdist_forward _prelu_kernel _safe_softmax _sample_dirichlet _softmax _standard_gamma
_thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy _transformer_encoder_layer_fwd _trilinear
_unique _unique2 _unsafe_view _upsample_bicubic2d_aa _upsample_bilinear2d_aa
_upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
_weight_norm_interface
'''
# If PyTorch on the robot was built with CUDA, it calls these operators instead of the general
# operators. `execution.checks` has replacements for some of them, for a server without CUDA.
_CUDA = '''
cudnn_affine_grid_generator cudnn_batch_norm cudnn_grid_sampler miopen_batch_norm
_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention
_scaled_dot_product_flash_attention
'''

_ALLOWED = frozenset([
    *(_VIEWS + _COMPUTING + _INNER + _CUDA).split(),
    *(f'special_{name}' for name in _SPECIAL.split()),
    *(f'linalg_{name}' for name in _LINALG.split()),
    *(f'_foreach_{name}' for name in _FOREACH.split()),
    *(name.partition('.')[0] for name in WHOLE)])


@lru_cache(4096)
def resolve(name: str) -> Any:
    """Return the operator for a name such as 'aten.relu.default'. Raises Refused."""
    parts = name.split('.')
    if len(parts) != 3 or parts[0] != 'aten' or not all(p.isidentifier() for p in parts):
        raise Refused(f'{name[:80]} is not an ATen operator')
    if not allowed(parts[1]):
        raise Refused(f'{name} is not in the list of operators that a server executes')
    packet = getattr(torch.ops.aten, parts[1], None)
    known = packet is not None and parts[2] in packet.overloads()
    op = getattr(packet, parts[2]) if known else None
    if op is None:
        raise UnknownOperator(f'{name} does not exist in PyTorch {torch.__version__}')
    for argument in op._schema.arguments:
        if not _TYPE.fullmatch(str(argument.type)):
            raise Refused(f'{name} takes {argument.type}, which is neither tensor nor plain scalar')
    if not any('Tensor' in str(value.type) for value in (*op._schema.arguments,
                                                         *op._schema.returns)):
        # Operators without tensors exist for TorchScript; nothing checks their arguments.
        raise Refused(f'{name} computes with plain numbers')
    return op


def allowed(name: str) -> bool:
    """Return whether the server may execute operators called `name` (such as 'relu_')."""
    return name in _ALLOWED or name.removesuffix('_') in _ALLOWED


def agree(name: str, theirs: tuple[str, ...]) -> bool:
    """Return whether an operator takes here every argument that the program's PyTorch knows.

    `theirs`: `operators.form` of the operator in the program's PyTorch. A newer PyTorch may have
    more arguments than an older one, at the end and with defaults. If the program's has more, the
    result is False: a call that passes one of them must be refused. Raises UnknownOperator if the
    two differ in anything else, and Refused as `resolve` does.
    """
    ours = form(resolve(name))
    common = min(len(ours), len(theirs))
    if ours[:common] != theirs[:common] or not all(
            '=' in argument for argument in (*ours[common:], *theirs[common:])):
        raise UnknownOperator(f'{name} has another form in PyTorch {torch.__version__}')
    return len(ours) >= len(theirs)
