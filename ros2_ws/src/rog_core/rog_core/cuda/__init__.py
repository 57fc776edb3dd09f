"""CUDA kernels, one `.cu` file for each family of codecs.

One launch processes many segments. `rog_core.arrays` uses the kernels in `sums.cu`, which add a
step and sum magnitudes in one pass. cupy compiles a kernel when it is first used. Kernels work on
the memory of torch tensors and run on torch's current stream. Without cupy the rows of a model are
on the host, where numba has compiled the same loops (see `rog_core.worker.learner`). For finite
values, kernels and these loops give the same bytes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

Array = Any  # numpy.ndarray or torch.Tensor

THREADS = 256  # threads per block; one block works on one segment
# Maximum number of bytes that one kernel launch encodes. This limits the pinned memory: on a
# Jetson, pinned memory runs out before other memory. A push of the model ConvMLP-M fits into one
# launch with every codec except raw; for example, a push takes 8.7 MB with the codec e3m0.
AT_ONCE = 16 << 20
ALIGNED = 16  # each array of an upload begins at a multiple of this number of bytes
# The kernels must round like the CPU: no fused multiply-add, and denormals do not become 0.
OPTIONS = ('--std=c++14', '--fmad=false', '--ftz=false', f'-DTHREADS={THREADS}')


def source(family: str) -> str:
    """Return the CUDA source of ``family``.cu, preceded by common.cuh, which all kernels share."""
    here = Path(__file__).parent
    return (here / 'common.cuh').read_text() + (here / f'{family}.cu').read_text()


@cache
def _cupy() -> Any:
    """Return cupy; None where it is not installed."""
    try:
        import cupy
    except ImportError:
        return None
    return cupy


def usable(values: Array) -> bool:
    """Return whether the CUDA kernels can process ``values``.

    They need ``values`` on a CUDA device, and cupy must be installed.
    """
    return not isinstance(values, np.ndarray) and values.is_cuda and _cupy() is not None


def at_once(values: Array) -> int:
    """Return how many bytes `rog_core.transfer.sender.Rows.encode` should return at most per call.

    If the CUDA kernels cannot process ``values``, the result is 0, which means one window per call.
    """
    return AT_ONCE if usable(values) else 0


@cache
def _module(family: str, device: int) -> Any:
    """Compile the kernels of ``family``.cu; load them on ``device``, which must be current.

    cupy's `RawModule` is not used, because it adds ``-ftz=true``: denormals would become 0.
    """
    cupy = _cupy()
    binary, _ = cupy.cuda.compiler.compile_using_nvrtc(source(family), OPTIONS)
    module = cupy.cuda.function.Module()
    module.load(binary)
    return module


def launch(family: str, name: str, blocks: int, like: Array, *arguments: Any) -> None:
    """Start a kernel in torch's current stream on the device of ``like``; do not wait for its end.

    ``blocks``: number of thread blocks; with 0, no kernel is started. ``arguments``: contiguous
    tensors on that device, numpy scalars, and numpy arrays, which are copied to the device.
    """
    import torch
    if not blocks:
        return
    copies = iter(_upload(like, [a for a in arguments if isinstance(a, np.ndarray)]))
    given = [next(copies) if isinstance(a, np.ndarray) else a for a in arguments]
    cupy, device = _cupy(), like.get_device()
    stream = _stream(torch.cuda.current_stream(like.device).cuda_stream, device)
    with cupy.cuda.Device(device):
        _module(family, device).get_function(name)((blocks,), (THREADS,), tuple(
            _pointer(a) if isinstance(a, torch.Tensor) else a for a in given), stream=stream)


def _pointer(tensor: Array) -> np.uint64:
    """Return the address of a tensor, in the type that a kernel accepts.

    To pass the tensor by DLPack would take 20 us per tensor.
    """
    return np.uint64(tensor.data_ptr())


class _Torch:
    """A CUDA stream of torch, in the form that `cupy.cuda.Stream.from_external` accepts."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer   # (version of the stream protocol, stream)


@cache
def _stream(pointer: int, device: int) -> Any:
    """Return cupy's object for a stream of torch; only cupy 14 and later have `from_external`."""
    cuda = _cupy().cuda
    if hasattr(cuda.Stream, 'from_external'):
        return cuda.Stream.from_external(_Torch(pointer))
    return cuda.ExternalStream(pointer, device)


def sums(name: str, offsets: np.ndarray, like: Array, *arguments: Any) -> np.ndarray:
    """Run the kernel sums_``name`` of `sums.cu`; return the sums, float32 (segments,), on the host.

    ``offsets`` int64 (segments + 1,): the elements at which the segments begin and end.
    """
    segments = offsets.size - 1
    found = empty(4 * segments, like).view(like.dtype)
    launch('sums', f'sums_{name}', segments, like, offsets, found, *arguments)
    return download(found)


def empty(size: int, like: Array) -> Array:
    """Return an uninitialised tensor, uint8 (size,), on the device of ``like``."""
    import torch
    return torch.empty(size, dtype=torch.uint8, device=like.device)


def _pinned(shape: tuple[int, ...], dtype: Any) -> Array:
    import torch
    return torch.empty(shape, dtype=dtype, device='cpu', pin_memory=True)


def _upload(like: Array, arrays: list[np.ndarray]) -> list[Array]:
    """Copy arrays to the device of ``like``, all in one copy from a pinned buffer of torch."""
    if not arrays:
        return []
    import torch
    *begins, end = np.cumsum([0, *(-(-a.nbytes // ALIGNED) * ALIGNED for a in arrays)]).tolist()
    pinned = _pinned((end,), torch.uint8)
    host = pinned.numpy()
    for begin, a in zip(begins, arrays, strict=True):
        host[begin:begin + a.nbytes] = a.reshape(-1).view(np.uint8)
    there = pinned.to(like.device, non_blocking=True)
    return [there[begin:begin + a.nbytes].view(torch.from_numpy(a[:0]).dtype).view(a.shape)
            for begin, a in zip(begins, arrays, strict=True)]


def download(values: Array) -> np.ndarray:
    """Copy a tensor to the host through a pinned buffer; wait for the current stream."""
    import torch
    pinned = _pinned(values.shape, values.dtype)
    pinned.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    # copy: callers keep the result for long, and pinned memory is scarce
    return pinned.numpy().copy()
