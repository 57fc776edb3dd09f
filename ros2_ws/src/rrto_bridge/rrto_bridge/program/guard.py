"""Let tensors report 'cuda:0' in a PyTorch without CUDA, or without a usable GPU.

A device guard is PyTorch's interface for switching devices; it also counts the devices. A PyTorch
without CUDA has no guard for CUDA, and a PyTorch with CUDA has one that needs a GPU. PyTorch's C++
headers let a library register a guard (`C10_REGISTER_GUARD_IMPL`, made for devices of others);
Python has nothing for this. So this file compiles `SOURCE` once for each PyTorch, in a second.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import torch
from fleet_env.durable import cache_folder

from ..protocol.errors import ConfigError

SOURCE = b"""
#include <c10/core/impl/DeviceGuardImplInterface.h>

using namespace c10;

struct Guard final : impl::DeviceGuardImplInterface {
  const Device only{DeviceType::CUDA, 0};
  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return only; }
  Device exchangeDevice(Device) const override { return only; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, only); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, only); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, only); }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)
"""


def install() -> None:
    """Install a CUDA device guard that does nothing; raises ConfigError if that fails."""
    if torch.cuda.device_count():
        raise ConfigError("this PyTorch uses this machine's GPU: hide it with "
                          'CUDA_VISIBLE_DEVICES= (empty), as `rrto run` does')
    try:
        torch.ops.load_library(_library())
    except OSError as error:
        raise ConfigError('rrto must compile a device guard once for each PyTorch, but for '
                          f'{torch.__version__} it got: {error}. Install g++ or set CXX; let '
                          f'{cache_folder("rrto")} be writable or set XDG_CACHE_HOME') from error


def _library() -> Path:
    """Return the compiled `SOURCE`; raises OSError if it can neither be found nor be compiled."""
    folder = Path(torch.__file__).parent
    command = [os.environ.get('CXX') or 'c++', '-shared', '-fPIC', '-std=c++2a', '-x', 'c++', '-',
               f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}',
               f'-I{folder}/include', f'-L{folder}/lib', '-lc10', '-o']
    made_for = [torch.__version__, str(torch.version.git_version), platform.machine(), *command]
    made = hashlib.sha256(repr(made_for).encode() + SOURCE).hexdigest()
    path = cache_folder('rrto') / f'{made[:16]}.so'
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as new:
            done = subprocess.run([*command, f'{new}/guard.so'], input=SOURCE, check=False,
                                  capture_output=True)
            if done.returncode:
                raise OSError(f'{command[0]}: {done.stderr.decode(errors="replace")[:500]}')
            os.replace(f'{new}/guard.so', path)   # other programs see all of the file or none
    return path
