"""Run on this machine an operator that the server does not execute."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .remote import RemoteTensor
from .runner import Runner


class CpuFallback:
    """Fetches the arguments of an operator that runs on this machine, and sends its results.

    `device`: the remote device, which copies the values. `arguments`: the operator's arguments.
    """

    def __init__(self, device: Runner, arguments: Any) -> None:
        self._device = device
        given: dict[int, RemoteTensor] = {}
        for tensor in device.lifetimes.existing(arguments):
            given.setdefault(tensor.handle, tensor)
        values = device.downloads([*given.values()]) if given else []
        # maps a handle to the value on the CPU
        self._values = dict(zip(given, values, strict=True))
        self._given: dict[int, torch.Tensor] = {id(t): t for t in _tensors(arguments)}
        self._given.update(zip(map(id, values), given.values(), strict=True))

    def snapshot(self) -> None:
        """Copy the values of the arguments, so that `write_changed` can compare with them."""
        self._before = {handle: _bytes(value).clone() for handle, value in self._values.items()}

    def write_changed(self, result: Any) -> None:
        """Wait for the operator's ``result``; then send every argument that has changed.

        The operators of torch.distributed write to arguments that their schemas do not mark as
        written. They possibly continue to write after their call has returned.
        """
        _wait(result)
        for tensor in self._given.values():
            if isinstance(tensor, RemoteTensor) and not torch.equal(
                    self._before[tensor.handle], _bytes(self._values[tensor.handle])):
                self.write(tensor)

    def fetched(self, value: Any) -> Any:
        """Return an argument for the CPU: replace remote tensors by their values, devices by 'cpu'.

        Lists and tuples become lists of such arguments.
        """
        if isinstance(value, RemoteTensor):
            return self._values[value.handle]
        if isinstance(value, (list, tuple)):
            return [self.fetched(item) for item in value]
        return torch.device('cpu') if isinstance(value, torch.device) else value

    def sent(self, value: Any) -> Any:
        """Return a result of the operator; replace each new CPU tensor in it by a remote tensor.

        An argument that the operator returns becomes the program's own tensor again.
        """
        if isinstance(value, torch.Tensor):
            given = self._given.get(id(value))
            return self._device.upload(value) if given is None else given
        if isinstance(value, (list, tuple)):
            return type(value)([self.sent(item) for item in value])
        return value

    def write(self, value: Any) -> None:
        """Send the new values of an argument to which the operator has written."""
        if isinstance(value, RemoteTensor):
            self._device.overwrite(value, self._values[value.handle])
        elif isinstance(value, (list, tuple)):
            for item in value:
                self.write(item)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def _wait(result: Any) -> None:
    """Wait for the end of an operation that an operator of torch.distributed has begun."""
    if isinstance(result, torch.Tensor):
        torch.ops._c10d_functional.wait_tensor(result)
    elif isinstance(result, torch.ScriptObject):
        torch._C._distributed_c10d.Work.unbox(result).wait()
    elif isinstance(result, (list, tuple)):
        for item in result:
            _wait(item)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
