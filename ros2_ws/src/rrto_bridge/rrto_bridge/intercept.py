"""Installs a Device as PyTorch's 'cuda:0' in this process.

PyTorch sends every operator on a tensor of ours to its class; what makes a new tensor on the device
has no such argument and comes through the backend's own key.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from . import cuda_api, guard, signals
from .device import Device
from .operators import WHOLE, overload
from .remote import Hook

_KEPT: list[Any] = []   # registrations end with their library object

# Reached below the wrappers' dispatch (torch.tensor builds there), or with kernels in a CUDA build.
_OVERRIDES = ('copy_', 'empty.memory_format', 'empty_strided')


def install(device: Device) -> None:
    """Make `device` the CUDA device of this process. Raises ConfigError; once per process."""
    guard.install()
    Hook.dispatch, Hook.copy = device.dispatch, device.copy
    backend = torch.library.Library('_', 'IMPL')
    backend.fallback(_from_backend, 'CUDA')
    kernels = torch.library.Library('aten', 'IMPL')
    for names, key in ((_OVERRIDES, 'CUDA'), (WHOLE, 'AutogradCUDA')):
        for name in names:
            kernels.impl(name, partial(_from_backend, overload(name)), key)
    _KEPT.extend((backend, kernels))
    cuda_api.install(device)
    signals.install(device.busy)


def _from_backend(function: Any, *args: Any, **kwargs: Any) -> Any:
    return Hook.dispatch(function, args, kwargs)
