"""What the parts of the device ask of it: to run other operators, and to move values."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .lifetimes import Lifetimes
from .remote import RemoteTensor


class Runner(Protocol):
    """The device, as `handlers`, `placement` and `cpu_fallback` see it; see `device.Device`."""

    lifetimes: Lifetimes

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run any operator on the server, or on this machine if the server cannot."""
    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """Copy host to device."""
    def download(self, tensor: RemoteTensor) -> torch.Tensor:
        """Copy device to host."""
    def downloads(self, tensors: list[RemoteTensor]) -> list[torch.Tensor]:
        """Copy several tensors from device to host in one round trip."""
    def resize(self, tensor: RemoteTensor, size: Any, *, memory_format: Any = None
               ) -> RemoteTensor:
        """Resize to a view of the same memory, or to a copy if nothing else uses the old memory."""
    def overwrite(self, tensor: RemoteTensor, values: torch.Tensor) -> None:
        """Copy values that were computed on this machine into a tensor."""
