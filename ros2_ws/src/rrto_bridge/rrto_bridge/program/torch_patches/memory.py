"""The patches for questions about the memory of the device: `torch.cuda.memory`.

PyTorch's own functions answer from the statistics that its allocator keeps. Here the server's
number of bytes takes the place of these statistics.
"""

from __future__ import annotations

from typing import Any

import torch

from ...protocol.tensors import check_device
from .. import remote
from ..device import Device

_BYTES = ('allocated_bytes', 'reserved_bytes', 'active_bytes', 'requested_bytes')
_BLOCKS = ('allocation', 'segment', 'active', 'inactive_split', 'inactive_split_bytes')
_OTHERS = ('num_alloc_retries', 'num_sync_all_streams', 'num_device_alloc', 'num_device_free')
_NOTHING = {'current': 0, 'peak': 0, 'allocated': 0, 'freed': 0}


class Memory:
    """The bytes of the program's tensors on the server, as they were at each question.

    So the peak is the highest number at a question, including the tensors that the program has
    dropped since the question before.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self.fraction = 1.0
        self._figures = dict(_NOTHING)

    def ask(self, name: str) -> int:
        """Return the server's `used` or `free` bytes, after all dropped tensors are freed."""
        connection = self._device.connection
        with connection.lock:
            if remote.released or connection.engine.dropping:
                self._note(connection.ask('query', 'used'))
                self._device.lifetimes.collect(at_once=True)
                connection.ask('release')
            bytes_: int = connection.ask('query', name)
        if name == 'used':
            self._note(bytes_)
        return bytes_

    def _note(self, used: int) -> None:
        figures = self._figures
        change = used - figures['current']
        figures['allocated' if change > 0 else 'freed'] += abs(change)
        figures['current'], figures['peak'] = used, max(used, figures['peak'])

    def stats(self, index: int) -> dict[str, Any]:
        """Return what PyTorch's allocator returns; numbers of blocks, unknown here, are 0."""
        check_device(torch.device('cuda', index))
        self.ask('used')

        def pools(figures: dict[str, int]) -> dict[str, dict[str, int]]:
            return {'all': dict(figures), 'large_pool': dict(figures), 'small_pool': _NOTHING}

        return {**{name: pools(self._figures) for name in _BYTES},
                **{name: pools(_NOTHING) for name in _BLOCKS}, **dict.fromkeys(_OTHERS, 0),
                'oversize_allocations': _NOTHING, 'oversize_segments': _NOTHING,
                'max_split_size': -1, 'num_ooms': self._device.connection.refusals}

    def reset_peak(self, index: int) -> None:
        """Make the present number of bytes the peak; before the first use of the device, 0."""
        check_device(torch.device('cuda', index))
        if self._device.connection.connected:
            self.ask('used')
        self._figures['peak'] = self._figures['current']

    def reset_accumulated(self, index: int) -> None:
        """Begin the sums of allocated and freed bytes at 0."""
        check_device(torch.device('cuda', index))
        self._figures |= {'allocated': 0, 'freed': 0}

    def set_fraction(self, fraction: float, index: int) -> None:
        """Store the fraction; the server alone limits the memory of a program."""
        check_device(torch.device('cuda', index))
        self.fraction = fraction


def install(device: Device) -> None:
    """Patch what `torch.cuda.memory` calls of PyTorch's C++ code."""
    memory = Memory(device)
    # The memory of this machine that PyTorch has pinned: none, see `cuda_api`.
    pinned = {**dict.fromkeys(('allocations', 'allocated_bytes', 'active_requests', 'active_bytes'),
                              _NOTHING), 'num_host_alloc': 0, 'num_host_free': 0,
              **{name: dict.fromkeys(('total', 'max', 'min', 'count', 'avg'), 0)
                 for name in ('host_alloc_time', 'host_free_time')}}
    answers: dict[str, Any] = {
        'memoryStats': memory.stats, 'resetPeakMemoryStats': memory.reset_peak,
        'resetAccumulatedMemoryStats': memory.reset_accumulated,
        'hostMemoryStats': lambda: pinned, 'resetPeakHostMemoryStats': lambda: None,
        'resetAccumulatedHostMemoryStats': lambda: None,
        'getAllocatorBackend': lambda: 'native', 'getMemoryFraction': lambda index: memory.fraction,
        'setMemoryFraction': memory.set_fraction, 'emptyCache': lambda: None,
        'cudaCachingAllocator_enable': lambda value: None,
        'cudaCachingAllocator_is_enabled': lambda: True}
    for name, answer in answers.items():
        setattr(torch._C, f'_cuda_{name}', answer)

    def free_and_total(of: Any = None) -> tuple[int, int]:
        index = torch.cuda._utils._get_device_index(of, optional=True)
        check_device(torch.device('cuda', index))
        return memory.ask('free'), device.connection.query('total')

    def used(of: Any = None) -> int:
        free, total = free_and_total(of)
        return total - free

    patched: dict[str, Any] = {'mem_get_info': free_and_total, 'device_memory_used': used,
                               'memory_snapshot': lambda *args, **kwargs: []}
    for name, value in patched.items():
        for module in (torch.cuda, torch.cuda.memory):
            setattr(module, name, value)
