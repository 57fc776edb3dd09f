"""Uses an operator that newer versions of PyTorch lack, and an argument that older ones lack."""

import torch
from results import COUNT, DEVICE, show
from torch import nn

torch.manual_seed(6)
attention = nn.functional.scaled_dot_product_attention
grouped = {'enable_gqa': True} if 'enable_gqa' in (attention.__doc__ or '') else {}
for _ in range(COUNT):
    query, keys = torch.rand(1, 4, 6, 8).to(DEVICE), torch.rand(1, 2, 6, 8).to(DEVICE)
    if not grouped:
        keys = keys.repeat_interleave(2, 1)
    matrix = attention(query, keys, keys, **grouped)[0, 0] @ query[0, 0].t()
    show('changed', matrix.cpu())
    square = matrix @ matrix.t() + torch.eye(6, device=DEVICE)
    if hasattr(torch.ops.aten, 'cholesky'):
        show('changed', torch.ops.aten.cholesky(square).cpu())
