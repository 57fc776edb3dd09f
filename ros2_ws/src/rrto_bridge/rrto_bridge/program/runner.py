"""The interface through which other modules let the device run operators and copy values."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from .lifetimes import Lifetimes
from .remote import RemoteTensor


class Runner(Protocol):
    """The interface of `device.Device` that `handlers`, `placement` and `cpu_fallback` use."""

    lifetimes: Lifetimes

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run any operator on the server; if the server refuses it, run it on this machine."""
    def upload(self, tensor: torch.Tensor) -> RemoteTensor:
        """Copy a CPU tensor to the device; return the copy."""
    def download(self, tensor: RemoteTensor) -> torch.Tensor:
        """Copy a remote tensor to the CPU; return the copy."""
    def downloads(self, tensors: list[RemoteTensor]) -> list[torch.Tensor]:
        """Copy remote tensors to the CPU, with one round trip for all if possible."""
    def resize(self, tensor: RemoteTensor, size: Any, *, memory_format: Any = None
               ) -> RemoteTensor:
        """Resize a tensor in place; if its memory is too small, use new memory."""
    def overwrite(self, tensor: RemoteTensor, values: torch.Tensor) -> None:
        """Copy values that were computed on this machine into a remote tensor."""
