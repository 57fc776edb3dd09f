"""`plan.Executor` over a client's `Context`: how a compiled sequence runs on PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from .allow import resolve
from .context import Context
from .errors import RemoteError
from .operators import operator
from .plan import Kernel
from .record import SEEDING, Meta, Special
from .tensors import from_special, meta_of, pack, to_device, to_host, unpack


class ContextExecutor:
    """The tensors of one context, and what plans do with them."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.get = context.tensor
        self.add = context.add
        self.free = context.free
        self.charge = context.charge
        self.reserve = context.reserve
        self.credit = context.credit

    def resolve(self, op: str) -> Kernel:
        """The operator of this name; raises Refused."""
        if op == SEEDING:
            return Kernel(self._call(op), (), False, True, False)
        function = resolve(op)
        facts = operator(function)
        names = [a.name for a in function._schema.arguments]
        writes = tuple([names.index(w) for w in facts.writes] + list(facts.writes))
        views = facts.composite or any(r.alias_info for r in function._schema.returns)
        static = not facts.wanted and torch.Tag.nondeterministic_seeded not in function.tags
        return Kernel(self._call(op), writes, views, not facts.view, static)

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
        """What an operator gets for an argument without tensors."""
        if type(value) is tuple:
            return [self.argument(item) for item in value]
        if type(value) is Special:
            return from_special(value, self.context.device)
        if type(value) in (Meta, memoryview):
            raise RemoteError(f'an argument is a {type(value).__name__}')
        return value

    def upload(self, data: Any, meta: Meta) -> torch.Tensor:
        """A new tensor."""
        return to_device(unpack(meta, data), self.context.device)

    def download(self, tensor: torch.Tensor) -> Any:
        """Meta and bytes."""
        return pack(to_host(tensor))

    def meta(self, tensor: torch.Tensor) -> Meta:
        """Meta of a tensor."""
        return meta_of(tensor)

    def place(self, tensor: torch.Tensor) -> tuple[Meta, int]:
        """Meta, and address."""
        return meta_of(tensor), tensor.data_ptr()

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Values."""
        return tensor.clone()

    def restore(self, tensor: torch.Tensor, saved: torch.Tensor) -> None:
        """Undo changes of the values; views of the tensor see that."""
        tensor.copy_(saved)

    def random(self) -> torch.Tensor:
        """State of the random generator."""
        return self.context.generator.get_state()

    def set_random(self, state: torch.Tensor) -> None:
        """Go back to a state."""
        self.context.generator.set_state(state)


def _flat(result: Any) -> Any:
    for item in result:
        if isinstance(item, (tuple, list)):
            yield from _flat(item)
        else:
            yield item
