"""Imports torchvision, even if PyTorch's CPU build cannot load torchvision's C++ library."""

import importlib

import torch

try:
    torchvision = importlib.import_module('torchvision')
except RuntimeError:
    _library = torch.library.Library('torchvision', 'DEF')
    for _op in ('nms', 'qnms'):
        _library.define(f'{_op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor')
    torchvision = importlib.import_module('torchvision')
