"""Compiles and runs CUDA kernels without a GPU, for tests.

`compile_by` compiles kernels with NVRTC. A stand-in for cupy compiles them with g++ and runs them
on the CPU.

The stand-in delays operations as a GPU does: a stream runs its queue only when somebody waits for
it. Memory from `torch.empty` is first filled with bytes 0xa5. It also has guard bytes 0xa5 before
and after it, so that a test finds a write outside of the allocation.
"""

import ctypes
import hashlib
import os
import re
import subprocess
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from types import SimpleNamespace

import numpy as np
import torch
from rog_core import cuda

HERE = Path(__file__).parent
# tools/arm64.py shows the checkout read-only
BUILT = (HERE.parents[3] / 'build' if os.access(HERE, os.W_OK) else Path(gettempdir())) / 'cuda_cpu'
FAMILIES = sorted(path.stem for path in Path(cuda.__file__).parent.glob('*.cu'))
ARCHITECTURES = (72, 75, 86, 87, 89, 90)
POISON, MARGIN = 0xa5, 64
_KERNEL = re.compile(r'extern "C" __global__ void (\w+)\(([^)]*)\)')
_PARAMETER = re.compile(r'(?:const )?(\w[\w ]*?) *(\*?)(\w+)(?:,|$)')
_MEMORY = {'float': torch.float32, 'long long': torch.int64, 'unsigned char': torch.uint8,
           'int': torch.int32}
_NUMBERS = {'float': (np.float32, ctypes.c_float), 'int': (np.int32, ctypes.c_int)}


def _convert(argument, kind, pointer):
    """Return the ctypes value for an argument.

    The argument must have the type of the kernel's parameter.
    """
    if pointer:
        assert argument.dtype == _MEMORY[kind]
        return ctypes.c_void_p(argument.data_ptr())
    number, converted = _NUMBERS[kind]
    assert type(argument) is number
    return converted(argument)


@cache
def build(text, *defines):
    """Compile kernels with g++; return a function that launches a kernel by its name.

    The compiled library stays in `BUILT`, so that it is compiled only once.
    """
    wrappers, parameters = [], {}
    for name, declared in _KERNEL.findall(text):
        parameters[name] = _PARAMETER.findall(declared)
        names = ', '.join(p[2] for p in parameters[name])
        wrappers.append(
            f'extern "C" int launch_{name}(unsigned b, unsigned t, unsigned s, {declared}) '
            f'{{ return launch(b, t, s, [=] {{ {name}({names}); }}); }}')
    whole = '\n'.join([(HERE / 'cuda_cpu.h').read_text(), text, *wrappers])
    command = ['g++', '-O1', '-std=c++14', '-ffp-contract=off', '-U_FORTIFY_SOURCE', '-shared',
               '-fPIC', '-w', *defines, 'kernels.cpp', '-o', 'kernels.so']
    built = BUILT / hashlib.sha256(f'{command}{whole}'.encode()).hexdigest()[:16]
    if not built.exists():
        BUILT.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=BUILT) as folder:
            Path(folder, 'kernels.cpp').write_text(whole)
            subprocess.run(command, cwd=folder, check=True)
            Path(folder, 'kernels.so').rename(built)
    library = ctypes.CDLL(str(built))

    def run(name, blocks, threads, arguments, seed=0):
        pairs = zip(arguments, parameters[name], strict=True)
        code = library[f'launch_{name}'](blocks, threads, seed, *(
            _convert(a, kind, pointer) for a, (kind, pointer, _) in pairs))
        assert code == 0, f'threads of {name} wait for one another for ever'
    return run


class OnGpu(torch.Tensor):
    """A tensor in CPU memory whose `is_cuda` is True; most operations first wait for the stream."""

    is_cuda = True
    stand_in = None
    _AT_ONCE = {'__get__', '__dlpack__', '__dlpack_device__', 'as_subclass', 'data_ptr',
                'get_device', 'is_contiguous'}

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), named=None):
        if function.__name__ not in cls._AT_ONCE:
            cls.stand_in.stream.synchronize()
        return super().__torch_function__(function, types, arguments, named or {})


class Stream:
    """A CUDA stream that runs its queue only when somebody waits for it."""

    def __init__(self, number):
        self.cuda_stream, self.queue = number, []

    def synchronize(self):
        while self.queue:
            self.queue.pop(0)()


class StandIn:
    """Stand-in for cupy, and for those parts of `torch.cuda` that `rog_core.cuda` uses.

    ``seed``: seed of the order in which threads run. ``launches``: for each launch the name of the
    kernel, the number of blocks, and the number of threads in a block.
    """

    def __init__(self, monkeypatch):
        self.seed, self.launches, self.stream = 0, [], Stream(7)
        self._made, self._within, self._empty = [], [], torch.empty
        monkeypatch.setattr(torch, 'empty', self._poisoned)
        monkeypatch.setattr(torch.cuda, 'current_stream', lambda device: self.stream)
        monkeypatch.setattr(torch.cuda, 'synchronize', self.finish)
        monkeypatch.setattr(OnGpu, 'stand_in', self)
        stand_in, entered = self, self._entered

        programs = []

        def compile_using_nvrtc(text, options):
            programs.append(build(text, *(o for o in options if o.startswith('-D'))))
            return str(len(programs) - 1).encode(), None

        class Module:
            def load(self, binary):
                self.run = programs[int(binary)]

            def get_function(self, name):
                def kernel(grid, block, arguments, stream):
                    stand_in._launch(self.run, name, *grid, *block, arguments, stream)
                return kernel

        self.cupy = SimpleNamespace(cuda=SimpleNamespace(
            compiler=SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc),
            function=SimpleNamespace(Module=Module),
            Device=lambda device: entered('device', device),
            Stream=SimpleNamespace(from_external=lambda stream: stream.__cuda_stream__()[1])))
        monkeypatch.setattr(cuda, '_pointer', self._tensor)

    @contextmanager
    def _entered(self, *what):
        self._within.append(what)
        yield
        self._within.pop()

    def _launch(self, run, name, blocks, threads, arguments, stream):
        assert self._within == [('device', -1)] and stream == self.stream.cuda_stream
        self.launches.append((name, blocks, threads))
        self.stream.queue.append(lambda: run(name, blocks, threads, arguments, self.seed))

    def _tensor(self, tensor):
        """Return the tensor instead of its address, so that `_convert` can check its dtype."""
        assert tensor.is_contiguous()
        found = tensor.as_subclass(torch.Tensor)
        assert found.data_ptr() == tensor.data_ptr()
        return found

    def _poisoned(self, shape, dtype, device, pin_memory=False):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape)) * dtype.itemsize
        whole = self._empty(size + 2 * MARGIN, dtype=torch.uint8).fill_(POISON)
        self._made.append((whole, size))
        made = whole[MARGIN:MARGIN + size].view(dtype).view(shape)
        return self._pinned(made) if pin_memory else made

    def _pinned(self, made):
        stand_in = self

        class Pinned(torch.Tensor):
            """Pinned CPU memory, which is copied only when the stream runs its queue."""

            def to(self, device, non_blocking):
                assert non_blocking
                there = stand_in._poisoned(self.shape, self.dtype, device)
                stand_in.stream.queue.append(lambda: there.copy_(made))
                return there

            def copy_(self, values, non_blocking):
                assert non_blocking
                stand_in.stream.queue.append(lambda: made.copy_(values))

        return made.as_subclass(Pinned)

    def finish(self):
        """Wait for the stream; check that the kernels wrote only inside the allocated memory."""
        self.stream.synchronize()
        for whole, size in self._made:
            assert (whole[:MARGIN] == POISON).all() and (whole[MARGIN + size:] == POISON).all()
        self._made.clear()


def compile_by(nvrtc, text, architecture, options):
    """Compile with ``nvrtc`` (a ctypes library); return the code, and the messages of ptxas.

    The code is a cubin if ``architecture`` is sm_N, and PTX if it is compute_N.
    """
    kind = 'CUBIN' if architecture.startswith('sm') else 'PTX'
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b'k.cu', 0, None,
                                    None) == 0
    words = [*options, f'--gpu-architecture={architecture}']
    words += ['--ptxas-options=-v'] * (kind == 'CUBIN')
    code = nvrtc.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(
        *(w.encode() for w in words)))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    nvrtc[f'nvrtcGet{kind}Size'](program, ctypes.byref(size))
    out = ctypes.create_string_buffer(size.value)
    nvrtc[f'nvrtcGet{kind}'](program, out)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return out.raw, log.value.decode()


_USE = re.compile(r"Compiling entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill "
                  r'stores, (\d+) bytes spill loads.*?Used (\d+) registers', re.S)


def usage(log):
    """Return for each kernel its registers, and the sum of its stack bytes and spilled bytes.

    ``log``: messages of ptxas, which contain these numbers.
    """
    return {name: (int(registers), int(frame) + int(stores) + int(loads))
            for name, frame, stores, loads, registers in _USE.findall(log)}
