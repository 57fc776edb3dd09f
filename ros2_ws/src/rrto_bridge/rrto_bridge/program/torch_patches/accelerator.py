"""The patches for `torch.accelerator`, random generators, and features that the device lacks."""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from typing import Any, NoReturn

import torch

from ...protocol.tensors import check_device
from ..device import Device
from ..remote import CUDA, RemoteTensor


class _Kind(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Plain)


_Plain = torch.Generator


class Generator(_Plain, metaclass=_Kind):
    """Replaces `torch.Generator`.

    A generator for 'cuda' draws numbers on this machine; the numbers are then sent to the server.
    """

    def __new__(cls, device: Any = 'cpu') -> Any:
        """Create a generator, like PyTorch's constructor."""
        wanted = torch.device(device)
        if wanted.type != 'cuda':
            return _Plain(device)
        check_device(wanted)
        return _Plain.__new__(cls, 'cpu')  # type: ignore[call-arg]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that the generator reports."""
        return CUDA

    def clone_state(self) -> Any:
        """Return another generator in the same state."""
        other = Generator(CUDA)
        other.set_state(self.get_state())
        return other


def install(device: Device) -> None:
    """Patch `torch.accelerator`, `torch.Generator`, and functions that must raise a clear error."""
    torch.Generator = Generator  # type: ignore[misc]
    _random_numbers(device)
    _accelerator()
    _data_parallel()
    _impossible()
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    _profiler()


def _random_numbers(device: Device) -> None:
    def get_state(of: Any = 'cuda') -> torch.Tensor:
        return torch.frombuffer(bytearray(device.connection.random()), dtype=torch.uint8)

    def set_state(state: torch.Tensor, of: Any = 'cuda') -> None:
        device.connection.random(state.cpu().contiguous().numpy().tobytes())

    def seed() -> None:
        device.connection.seed(torch.seed())

    for module in (torch.cuda, torch.cuda.random):
        for name, value in (
                ('get_rng_state', get_state), ('set_rng_state', set_state),
                ('get_rng_state_all', lambda: [get_state()]),
                ('set_rng_state_all', lambda states: set_state(states[0])),
                ('initial_seed', lambda: device.connection.first_seed),
                ('seed', seed), ('seed_all', lambda: seed())):
            setattr(module, name, value)


def _accelerator() -> None:
    module: Any = getattr(torch, 'accelerator', None)
    if module is None:   # PyTorch before 2.6 does not have this module
        return
    cuda: Any = torch.cuda
    answers = {
        'is_available': lambda: True, 'device_count': lambda: cuda.device_count(),
        'current_accelerator': lambda check_available=False: torch.device('cuda'),
        'current_device_index': lambda: 0, 'current_device_idx': lambda: 0,
        'set_device_index': cuda.set_device, 'set_device_idx': cuda.set_device,
        'set_stream': _nothing,
        'synchronize': lambda of=None: cuda.synchronize(),
        'current_stream': lambda of=None: cuda.current_stream(),
        'device_index': lambda index: nullcontext(),
        'get_device_capability': lambda of=None: {},
        'empty_cache': _nothing, 'empty_host_cache': _nothing,
        'get_memory_info': cuda.mem_get_info,
        **{name: getattr(cuda, name) for name in (
            'memory_stats', 'memory_allocated', 'max_memory_allocated', 'memory_reserved',
            'max_memory_reserved', 'reset_peak_memory_stats', 'reset_accumulated_memory_stats')}}
    for name, value in answers.items():
        if hasattr(module, name):
            setattr(module, name, value)


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing, because there is one device with one stream."""


def _data_parallel() -> None:
    """Make `DataParallel` move its whole inputs to the only device, instead of splitting them."""
    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.cuda()
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, '_fields'):
            return type(value)(*map(moved, value))
        return type(value)(map(moved, value)) if isinstance(value, (list, tuple)) else value

    def scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
        return (moved(tuple(inputs)),), (moved(kwargs or {}),)

    torch.nn.DataParallel.scatter = scatter  # type: ignore[method-assign]


def _impossible() -> None:
    def refuse(what: str, instead: str) -> Any:
        def refused(*args: Any, **kwargs: Any) -> NoReturn:
            raise RuntimeError(f'rrto: {what}; {instead}')
        return refused

    graph = refuse('this device has no CUDA graphs', 'call the model itself: repeated calls are '
                   'recorded and replayed in one round trip')
    cuda: Any = torch.cuda
    for name in ('CUDAGraph', 'graph'):
        setattr(cuda, name, type(name, (), {'__init__': graph}))
        setattr(cuda.graphs, name, getattr(cuda, name))
    cuda.graph_pool_handle = cuda.graphs.graph_pool_handle = graph
    accelerator: Any = getattr(torch, 'accelerator', None)
    if hasattr(accelerator, 'Graph'):
        accelerator.Graph = cuda.CUDAGraph
    cuda.make_graphed_callables = lambda callables, *args, **kwargs: callables
    memory = refuse("the device's memory is not on this machine", 'use tensor.cpu()')
    RemoteTensor.__dlpack__ = memory  # type: ignore[method-assign]
    RemoteTensor.__cuda_array_interface__ = property(memory)  # type: ignore[assignment]
    given = torch.utils.dlpack.to_dlpack

    def to_dlpack(tensor: torch.Tensor) -> Any:
        return memory() if isinstance(tensor, RemoteTensor) else given(tensor)

    places: tuple[Any, ...] = (torch.utils.dlpack, torch)
    for place in places:
        place.to_dlpack = to_dlpack
    for name in ('mark', 'range_push', 'range_pop', 'range_start', 'range_end'):
        if hasattr(cuda.nvtx, name):
            setattr(cuda.nvtx, name, _nothing)
    for name in ('init', 'start', 'stop'):
        setattr(cuda.profiler, name, _nothing)
    cuda.can_device_access_peer = lambda *a, **k: False
    for name in ('caching_allocator_alloc', 'caching_allocator_delete', 'change_current_allocator',
                 'CUDAPluggableAllocator', 'MemPool', 'use_mem_pool', 'current_blas_handle',
                 'current_solver_handle', 'ExternalStream', 'get_stream_from_external',
                 'GreenContext', 'check_error', 'cudart'):
        if hasattr(cuda, name):
            ours = refuse(f"torch.cuda.{name} needs CUDA's libraries on this machine",
                          "the device's memory and its kernels are on the server")
            value = getattr(cuda, name)
            setattr(cuda, name, type(name, (), {'__init__': ours}) if isinstance(value, type)
                    else functools.wraps(value)(ours))   # PyTorch 2.14 reads `__wrapped__`
    history = refuse('the server keeps no history of its memory', 'ask torch.cuda.memory_stats()')
    for name in ('_record_memory_history', '_snapshot', '_dump_snapshot'):
        setattr(cuda.memory, name, history)
    missing = refuse('the server does not report the state of its device', 'query it on the server')
    for name in ('utilization', 'temperature', 'power_draw', 'clock_rate', 'memory_usage'):
        setattr(cuda, name, missing)


def _profiler() -> None:
    """Make the profiler omit the kernels of the device, because these run on the server."""
    profile: Any = torch.autograd.profiler.profile
    begin = profile.__init__

    @functools.wraps(begin)
    def __init__(self: Any, enabled: bool = True, *, use_cuda: bool = False, use_device: Any = None,
                 use_cpu: bool = True, **more: Any) -> None:
        cuda = enabled and (use_cuda or use_device == 'cuda')
        if cuda:
            print('rrto: the profile contains the program but no device kernels: they run on the '
                  'server', file=sys.stderr)
        begin(self, enabled, use_device=None if cuda else use_device, use_cpu=use_cpu or cuda,
              **more)

    profile.__init__ = __init__
