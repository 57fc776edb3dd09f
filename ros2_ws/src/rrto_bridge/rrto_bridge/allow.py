"""Which operators a server executes: ATen operators that compute with tensors and plain scalars.

Refused: what reads or writes files, storages or streams, prints, asserts in C, needs a backend that
the device is not (sparse, quantized, vendor libraries), or is an inner helper that trusts its
arguments.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Any

import torch

from .errors import Refused

_SCALARS = r'(Tensor|int|bool|float|number|str|Device|Generator)'
_TYPE = re.compile(rf'{_SCALARS}|Optional\[{_SCALARS}\]|List\[{_SCALARS}\]'
                   rf'|List\[Optional\[Tensor\]\]|Optional\[List\[(int|float)\]\]')

_REFUSED = re.compile(
    r'from_file|record_stream|set_?|set_data|data|output_nr|requires_grad_|retain.*|resize.*|pin_memory'
    r'|is_pinned|print|.*(_backward|sparse|quantize|mkldnn|cudnn|miopen|xnnpack|fbgemm|qscheme)(_.*)?'
    r'|q_.*|quantized_.*|fake_.*|sym_.*|lift.*|nested_.*|to_padded_tensor|.*names?|rename.*|align_.*'
    r'|refine_names|mps_.*|sspaddmm|coalesce|indices|values|crow_.*|col_.*|row_.*|ccol_.*|_.*')

# Inner operators that ordinary programs reach, and that check their arguments.
_INNER = frozenset(re.findall(r'\w+', '''
_adaptive_avg_pool2d _adaptive_avg_pool3d _addmm_activation _aminmax _batch_norm_no_update
_batch_norm_with_update _cdist_forward _conj _conj_physical _convolution _embedding_bag
_embedding_bag_forward_only _euclidean_dist _fft_c2c _fft_c2r _fft_r2c _fused_rms_norm
_fused_sdp_choice
_is_all_true _is_any_true _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd
_local_scalar_dense _log_softmax _logcumsumexp _masked_softmax _native_batch_norm_legit
_native_batch_norm_legit_no_training _native_multi_head_attention _neg_view _pack_padded_sequence
_pdist_forward _prelu_kernel _reshape_alias _safe_softmax _scaled_dot_product_attention_math
_scaled_dot_product_flash_attention_for_cpu _softmax _stack _thnn_fused_gru_cell
_thnn_fused_lstm_cell _to_copy _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _trilinear
_unique _unique2 _unsafe_index _unsafe_index_put _unsafe_view _upsample_bicubic2d_aa
_upsample_bilinear2d_aa _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d _weight_norm _weight_norm_interface
'''))
_FOREACH = re.compile(r'_foreach_[a-z0-9]+_?')


def resolve(name: str) -> Any:
    """The operator that a name such as 'aten.relu.default' means. Raises Refused."""
    return _resolve(name)


@lru_cache(4096)
def _resolve(name: str) -> Any:
    parts = name.split('.')
    if len(parts) != 3 or parts[0] != 'aten' or not all(p.isidentifier() for p in parts):
        raise Refused(f'{name[:80]} is no ATen operator')
    if not allowed(parts[1]):
        raise Refused(f'{name} is not in the list of operators that a server executes')
    packet = getattr(torch.ops.aten, parts[1], None)
    known = packet is not None and parts[2] in packet.overloads()
    op = getattr(packet, parts[2]) if known else None
    if op is None:
        raise Refused(f'{name} does not exist in PyTorch {torch.__version__}')
    for argument in op._schema.arguments:
        if not _TYPE.fullmatch(str(argument.type)):
            raise Refused(f'{name} takes {argument.type}, which is no tensor or plain scalar')
    return op


def allowed(name: str) -> bool:
    """Whether the operators called `name` ('relu_') may be executed."""
    return name in _INNER or bool(_FOREACH.fullmatch(name)) or not _REFUSED.fullmatch(name)


@lru_cache(1)
def operators_digest() -> str:
    """Digest of the allowed operators and their schemas; it must be equal on client and server."""
    schemas = sorted(str(s) for s in torch._C._jit_get_all_schemas()
                     if s.name.startswith('aten::') and allowed(s.name[6:]))
    return hashlib.sha256('\n'.join(schemas).encode()).hexdigest()[:16]
