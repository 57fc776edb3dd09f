"""Copies data between the host and a GPU through a few page-locked buffers.

An asynchronous copy needs page-locked memory, and a process should use little of it. So all data is
copied in parts through a ring of buffers, which are page-locked once. No GPU has run `Cuda` yet;
the tests of `Staging` use another `Copies`.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import cache
from typing import Any, Protocol

BUFFERS = 4
SIZE = 4 << 20   # bytes of each buffer


class Event(Protocol):
    """A moment on the device that the host can wait for."""

    def query(self) -> bool:
        """Return whether the event has happened."""

    def synchronize(self) -> None:
        """Wait for the event."""


class Copies(Protocol):
    """The operations of a device that `Staging` needs. All tensors are flat and hold bytes."""

    def locked(self, size: int) -> Any:
        """Return ``size`` bytes of page-locked memory of the host."""

    def empty(self, size: int) -> Any:
        """Return ``size`` bytes of memory of the device."""

    def copy(self, target: Any, source: Any) -> Event:
        """Queue a copy behind all earlier work of the device; return the event of its end."""


class Staging:
    """Copies data through a ring of buffers. Threads take turns."""

    def __init__(self, copies: Copies, buffers: int = BUFFERS, size: int = SIZE) -> None:
        self._copies, self._size = copies, size
        self._lock = threading.Lock()
        self._free = deque(copies.locked(size) for _ in range(buffers))
        # Uploads that may still run: (buffer, end of the copy), in the order in which they end.
        self._under_way: deque[tuple[Any, Event]] = deque()

    def upload(self, data: Any) -> Any:
        """Return a copy of the bytes on the device; later operations of the device may use it."""
        made = self._copies.empty(len(data))
        with self._lock:
            for at in range(0, len(data), self._size):
                part = data[at:at + self._size]
                buffer = self._buffer()
                buffer[:len(part)].copy_(part)
                self._under_way.append((buffer, self._copies.copy(made[at:at + len(part)],
                                                                  buffer[:len(part)])))
        return made

    def download(self, data: Any, target: Any) -> Any:
        """Copy bytes of the device to ``target``, memory of the host; return ``target``."""
        parts: deque[tuple[int, int, Any, Event]] = deque()
        with self._lock:
            for at in range(0, len(data), self._size):
                if not self._free and not self._under_way:
                    self._arrive(parts.popleft(), target)
                count = min(self._size, len(data) - at)
                buffer = self._buffer()
                parts.append((at, count, buffer, self._copies.copy(buffer[:count],
                                                                   data[at:at + count])))
            while parts:
                self._arrive(parts.popleft(), target)
        return target

    def _arrive(self, part: tuple[int, int, Any, Event], target: Any) -> None:
        at, count, buffer, event = part
        event.synchronize()   # waits only for this copy, not for later work of the device
        target[at:at + count].copy_(buffer[:count])
        self._free.append(buffer)

    def _buffer(self) -> Any:
        """Return a buffer that no copy uses; if there is none, wait for the oldest upload."""
        while self._under_way and (not self._free or self._under_way[0][1].query()):
            buffer, event = self._under_way.popleft()
            event.synchronize()
            self._free.append(buffer)
        return self._free.popleft()


class Cuda:
    """Copies on the current stream of a GPU."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def locked(self, size: int) -> Any:
        """Return ``size`` bytes of page-locked memory of the host."""
        import torch
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def empty(self, size: int) -> Any:
        """Return ``size`` bytes of memory of the device."""
        import torch
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def copy(self, target: Any, source: Any) -> Event:
        """Queue a copy behind all earlier work of the device; return the event of its end."""
        import torch
        target.copy_(source, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


@cache
def _staging(device: Any) -> Staging:
    return Staging(Cuda(device))


def to_device(flat: Any, device: Any) -> Any:
    """Copy a contiguous tensor of one dimension to a device; to a GPU, asynchronously."""
    import torch
    if device.type != 'cuda':
        return flat.to(device)
    return _staging(device).upload(flat.view(torch.uint8)).view(flat.dtype)


def to_host(flat: Any) -> Any:
    """Copy a contiguous tensor of one dimension to the CPU; wait for the GPU's earlier work."""
    import torch
    if flat.device.type != 'cuda':
        return flat.cpu()
    host = torch.empty(len(flat), dtype=flat.dtype)
    _staging(flat.device).download(flat.view(torch.uint8), host.view(torch.uint8))
    return host
