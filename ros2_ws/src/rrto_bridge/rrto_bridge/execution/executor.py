"""Implements `plan.Executor` with PyTorch, for the tensors in a client's `Context`."""

from __future__ import annotations

from typing import Any

import torch

from ..protocol.errors import RemoteError
from ..protocol.operators import operator, resolve
from ..protocol.record import SEEDING, Meta, Special
from ..protocol.tensors import from_special, meta_of
from .context import Context, writes
from .plan import Kernel


class ContextExecutor:
    """Performs the operations of plans on the tensors of one context."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.get = context.tensor
        self.add = context.add
        self.free = context.free
        self.failed = context.failed
        self.charge = context.charge
        self.reserve = context.reserve
        self.credit = context.credit

    def resolve(self, op: str) -> Kernel:
        """Return the `Kernel` of an operator; raises Refused."""
        if op == SEEDING:
            return Kernel(self._call(op))
        function = resolve(op)
        facts = operator(function)
        views = facts.composite or any(r.alias_info for r in function._schema.returns)
        return Kernel(self._call(op), writes(op), views, not facts.view)

    def _call(self, op: str) -> Any:
        run, note = self.context.prepare(op), self.context.note

        def call(arguments: list[Any], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
            note(op)
            result = run(*arguments, **keywords)
            if isinstance(result, torch.Tensor):
                return (result,), None
            if isinstance(result, (tuple, list)):
                return tuple(_flat(result)), None
            return (), result

        return call

    def argument(self, value: Any) -> Any:
        """Convert a value from a message into an operator's argument.

        The value must contain no tensors.
        """
        if type(value) is tuple:
            return [self.argument(item) for item in value]
        if type(value) is Special:
            return from_special(value, self.context.device)
        if type(value) in (Meta, memoryview):
            raise RemoteError(f'an argument must not be a {type(value).__name__}')
        return value

    def upload(self, data: Any, meta: Meta) -> torch.Tensor:
        """Return a new tensor on the device with the bytes `data`."""
        return self.context.received(meta, data)

    def download(self, tensor: torch.Tensor) -> Any:
        """Return the meta and the bytes of a tensor; see `Context.packed`."""
        return self.context.packed(tensor)

    def meta(self, tensor: torch.Tensor) -> Meta:
        """Return the meta of a tensor."""
        return meta_of(tensor)

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of the values of a tensor that is going to be changed."""
        self.context.note_write(tensor)
        return tensor.clone()

    def restore(self, tensor: torch.Tensor, saved: torch.Tensor) -> None:
        """Restore saved values in place, so that the views of the tensor also change."""
        tensor.copy_(saved)

    def random(self) -> torch.Tensor:
        """Return the state of the random generator."""
        return self.context.generator.get_state()

    def set_random(self, state: torch.Tensor) -> None:
        """Restore a state of the random generator."""
        self.context.generator.set_state(state)


def _flat(result: Any) -> Any:
    for item in result:
        if isinstance(item, (tuple, list)):
            yield from _flat(item)
        else:
            yield item
