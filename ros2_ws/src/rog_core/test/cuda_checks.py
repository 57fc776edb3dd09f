"""CUDA kernels without a GPU: compiled by NVRTC, and run on the CPU in place of cupy's."""

import ctypes
import re
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

HERE = Path(__file__).parent
FAMILIES = ('onebit',)
ARCHITECTURES = (72, 75, 86, 87, 89, 90)
_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')


def build(text, folder):
    """Compile kernels with g++; returns a function that launches one of them by name."""
    wrappers = []
    for name, parameters in _KERNEL.findall(text):
        names = ', '.join(re.findall(r'(\w+)\s*(?:,|$)', parameters))
        comma = ', ' if parameters.strip() else ''
        wrappers.append(f'extern "C" int launch_{name}(unsigned b, unsigned t{comma}{parameters})'
                        f' {{ return launch(b, t, [=] {{ {name}({names}); }}); }}')
    (folder / 'kernels.cpp').write_text('\n'.join(['#include "cuda_cpu.h"', text, *wrappers]))
    subprocess.run(['g++', '-O1', '-std=c++14', '-ffp-contract=off', '-shared', '-fPIC', '-w',
                    f'-I{HERE}', 'kernels.cpp', '-o', 'kernels.so'], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / 'kernels.so'))

    def run(name, blocks, threads, arguments):
        convert = {np.int32: ctypes.c_int, np.float32: ctypes.c_float}
        code = library[f'launch_{name}'](blocks, threads, *(
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, torch.Tensor)
            else convert[type(a)](a) for a in arguments))
        assert code == 0, f'threads of {name} wait for one another for ever'
    return run


def stand_in(build_text):
    """What `rog_core.codecs.cuda` uses of cupy, on CPU tensors; ``build_text``: `build`."""
    launches = []

    class RawModule:
        def __init__(self, code, options):
            assert '--fmad=false' in options
            self.run = build_text(code)

        def get_function(self, name):
            def kernel(grid, block, arguments):
                launches.append((name, *grid, *block))
                self.run(name, *grid, *block, arguments)
            return kernel

    def from_dlpack(tensor):
        assert tensor.is_contiguous()
        return torch.from_dlpack(tensor)

    return SimpleNamespace(
        RawModule=RawModule, from_dlpack=from_dlpack, launches=launches,
        cuda=SimpleNamespace(Device=lambda device: nullcontext(),
                             ExternalStream=lambda stream, device: nullcontext()))


def cubin(nvrtc, text, architecture, options):
    """Compile with NVRTC (a ctypes library); returns the cubin and what ptxas says of it."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b'k.cu', 0, None,
                                    None) == 0
    words = [*options, f'--gpu-architecture=sm_{architecture}', '--ptxas-options=-v']
    code = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(
        *(w.encode() for w in words)))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    out = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, out)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return out.raw, log.value.decode()
