"""Run an operator that the server does not execute on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .remote import RemoteTensor
from .runner import Runner


class CpuFallback:
    """Arguments of an operator that runs on this machine, and the way back for its results."""

    def __init__(self, device: Runner, arguments: Any) -> None:
        self._device = device
        given: dict[int, RemoteTensor] = {}
        for tensor in device.lifetimes.existing(arguments):
            given.setdefault(tensor.handle, tensor)
        values = device.downloads([*given.values()]) if given else []
        self._values = dict(zip(given, values, strict=True))   # handle -> value
        self._given: dict[int, torch.Tensor] = {id(t): t for t in _tensors(arguments)}
        self._given.update(zip(map(id, values), given.values(), strict=True))

    def fetched(self, value: Any) -> Any:
        """Return an argument with tensors and devices of this machine."""
        if isinstance(value, RemoteTensor):
            return self._values[value.handle]
        if isinstance(value, (list, tuple)):
            return [self.fetched(item) for item in value]
        return torch.device('cpu') if isinstance(value, torch.device) else value

    def sent(self, value: Any) -> Any:
        """Return a result with tensors of the server."""
        if isinstance(value, torch.Tensor):
            given = self._given.get(id(value))
            return self._device.upload(value) if given is None else given
        if isinstance(value, (list, tuple)):
            return type(value)([self.sent(item) for item in value])
        return value

    def write(self, value: Any) -> None:
        """Copy what the operator wrote back to the server."""
        if isinstance(value, RemoteTensor):
            self._device.overwrite(value, self._values[value.handle])
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.write(item)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
