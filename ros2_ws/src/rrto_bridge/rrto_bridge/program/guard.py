"""Let tensors report 'cuda:0' in a PyTorch without CUDA, or without a usable GPU.

A device guard is PyTorch's interface for switching devices; it also counts the devices. PyTorch's
function `_ensureCUDADeviceGuardSet` (made for fake tensors) installs a CUDA guard that does
nothing, but only in place of a registered CUDA guard that counts 0 devices. A CPU build has no CUDA
guard. Therefore this file first registers the guard of the lazy backend, which counts 0 devices, as
the CUDA guard; PyTorch's function then replaces it.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch

from ..protocol.errors import ConfigError

_CUDA, _LAZY = 1, 17  # numbers of device types in c10::DeviceType, a C++ enum of PyTorch
_REGISTRY = '_ZN3c104impl26device_guard_impl_registryE'


def install() -> None:
    """Install a CUDA device guard that does nothing; raises ConfigError if that fails."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        if torch.cuda.device_count():
            raise ConfigError("this PyTorch uses this machine's GPU: hide it with "
                              'CUDA_VISIBLE_DEVICES= (empty), as `rrto run` does')
        torch._C._ensureCUDADeviceGuardSet()
        return
    library = Path(torch.__file__).parent / 'lib' / 'libc10.so'
    try:
        registry = (ctypes.c_void_p * (_LAZY + 1)).in_dll(ctypes.CDLL(str(library)), _REGISTRY)
    except (OSError, ValueError) as error:
        raise ConfigError(f'rrto does not support PyTorch {torch.__version__}: {error}') from error
    if not registry[_CUDA]:
        registry[_CUDA] = registry[_LAZY]
    torch._C._ensureCUDADeviceGuardSet()
    if not registry[_CUDA] or registry[_CUDA] == registry[_LAZY]:
        registry[_CUDA] = None
        raise ConfigError(f'PyTorch {torch.__version__} rejects a CUDA device guard')
