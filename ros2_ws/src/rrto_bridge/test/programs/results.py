"""Defines `show`, by which every program in this folder prints a digest of each result."""

import hashlib
import os

import torch

COUNT = int(os.environ.get('RRTO_INFERENCES', '7'))
DEVICE = 'cuda' if torch.cuda.is_available() else 'cpu'


def show(name, *tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        assert tensor.device.type == 'cpu'
        digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    print(name, digest.hexdigest()[:16])
