"""Selects the PyTorch device that a setting names, copies to and from it, limits its memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fleet_env.errors import SettingError


def torch_device(name: str) -> Any:
    """Return the device called ``name``; 'auto' means a CUDA device if there is one, else the CPU.

    :raises SettingError: this machine has no such device.
    """
    import torch  # imported here, because only nodes that compute have PyTorch installed

    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA raises an AssertionError
        raise SettingError(f'device {name!r} cannot be used here: '
                           f'{str(error).splitlines()[0]}; cpu always works, and auto takes cuda '
                           'where there is one') from None


def own_device(name: str) -> Any:
    """Return the device of this machine called ``name``, as `torch_device` does.

    In `rrto run` this is the CPU: the device 'cuda' of such a process is a server's.

    :raises SettingError: this machine has no such device.
    """
    return torch_device('cpu' if is_cuda_remote() else name)


def is_cuda_remote() -> bool:
    """Return whether the device 'cuda' of this process is a server's, as in `rrto run`."""
    return 'rrto_bridge.program.launcher' in sys.modules


def uploaded(tensor: Any, device: Any) -> Any:
    """Copy a CPU tensor to ``device`` and return the copy; on the CPU, return the tensor itself.

    For a GPU, the tensor is first copied to pinned memory. The GPU copies it from there while this
    thread continues, and while it computes what was queued before; only what is queued later on the
    present stream waits for the copy.
    """
    if device.type != 'cuda':
        return tensor.to(device)
    import torch

    here, copying = torch.cuda.current_stream(device), _copying(device, 'up')
    with torch.cuda.stream(copying):
        copy = tensor.pin_memory().to(device, non_blocking=True)
    here.wait_stream(copying)
    copy.record_stream(here)    # its memory is the other stream's, which may use it again too early
    return copy


def downloading(tensor: Any) -> Callable[[], Any]:
    """Begin to copy a tensor to the host; return a function that waits for the copy and returns it.

    A GPU copies to pinned memory as soon as the present stream has computed what was queued until
    now; what is queued later delays nothing. A tensor on the CPU is returned itself.
    """
    if tensor.device.type != 'cuda':
        return tensor.cpu
    import torch

    here, copying = torch.cuda.current_stream(tensor.device), _copying(tensor.device, 'down')
    copying.wait_stream(here)
    with torch.cuda.stream(copying):
        copy = tensor.to('cpu', non_blocking=True)      # pinned
        done = torch.cuda.Event(blocking=True)
        done.record()
    tensor.record_stream(copying)

    def wait() -> Any:
        done.synchronize()
        return copy
    return wait


@lru_cache(None)
def _copying(device: Any, way: str) -> Any:
    """Return this process's stream for the copies in one direction."""
    import torch

    return torch.cuda.Stream(device)


def warm_up(device: Any) -> None:
    """Make PyTorch start its threads and load its libraries, before `limit_memory` is called."""
    import torch

    image = torch.ones(1, 8, 64, 64, device=device)
    torch.nn.functional.conv2d(image, torch.ones(8, 8, 3, 3, device=device))
    image.view(64, 512) @ image.view(512, 64)
    image * image   # on the device `meta` this multiplication loads 40 MiB of Python modules


def limit_memory(device: Any, nbytes: int) -> None:
    """Limit this process's memory.

    On a GPU the limit is ``nbytes``. On the host the limit is the memory that the process uses now,
    plus ``nbytes``.
    """
    import torch

    if device.type == 'cuda':
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), device)
        return
    now = int(Path('/proc/self/status').read_text().split('VmData:')[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (now + nbytes,) * 2)
