"""Lets tensors say that they are on 'cuda:0' in a PyTorch that has no CUDA, or no GPU to use.

PyTorch itself does this for fake tensors of CUDA programs (`torch._C._ensureCUDADeviceGuardSet`),
but only in a build with CUDA, where it replaces a guard that counts no devices. A CPU build has no
CUDA guard at all; the one of the lazy backend counts no devices either, so it is put in its place
first.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from .errors import ConfigError

_CUDA, _LAZY = 1, 17  # c10::DeviceType
_REGISTRY = '_ZN3c104impl26device_guard_impl_registryE'


def install() -> None:
    """Install a CUDA device guard that does nothing; raises ConfigError where it cannot be."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        if torch.cuda.device_count():
            raise ConfigError('this PyTorch has a GPU of its own in use; set CUDA_VISIBLE_DEVICES= '
                              'to nothing, as `rrto run` does')
        torch._C._ensureCUDADeviceGuardSet()
        return
    library = Path(torch.__file__).parent / 'lib' / 'libc10.so'
    try:
        registry = (ctypes.c_void_p * (_LAZY + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise ConfigError(f'PyTorch {torch.__version__} is not known to rrto: {error}') from error
    if not registry[_CUDA]:
        registry[_CUDA] = registry[_LAZY]
    torch._C._ensureCUDADeviceGuardSet()
    if not registry[_CUDA] or registry[_CUDA] == registry[_LAZY]:
        registry[_CUDA] = None
        raise ConfigError(f'PyTorch {torch.__version__} does not take a guard for CUDA')
