"""The data of a trace: a list of ATen calls whose results are single tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from .calls import Weight
from .precision import Precision


@dataclass(frozen=True)
class Ref:
    """A reference to the result of the record with number `index` of a tape."""

    index: int


@dataclass
class Record:
    """One call, or one input of the model (then `overload` is None).

    `arguments` contain a `Ref` or a `Weight` in place of each tensor. If the call has several
    results, `pick` is the index of the result that this record stands for. `format`: the memory
    format of the tensor in the trace, in which it crosses the link.
    """

    overload: torch._ops.OpOverload | None
    arguments: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    place: str = ''
    pick: int | None = None
    format: torch.memory_format = torch.contiguous_format


@dataclass
class Tape:
    """A list of records in topological order, with the outputs and the weights of the model.

    Each of `outputs` refers to a record or holds a constant. `precision`: that of the calls,
    wherever they are computed.
    """

    records: list[Record] = field(default_factory=list)
    outputs: list[Ref | Weight] = field(default_factory=list)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    precision: Precision = Precision()
