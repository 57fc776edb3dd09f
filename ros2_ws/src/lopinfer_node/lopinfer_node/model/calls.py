"""One call of an ATen operator in a traced model, and how it may be divided.

A rule (package `rules`) returns for a call the axis along which its result may be divided, the
footprints of its inputs, and a function that computes one interval of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from fleet_compute.operators import refusal

from ..errors import ModelError
from .footprint import Footprint, Interval, identity, whole
from .unchecked import check_arguments, quotients

Arithmetic = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Value:
    """The output of node `index`, divided along `axis`; it depends on the model's inputs."""

    index: int
    shape: tuple[int, ...]
    axis: int | None = None

    @property
    def extent(self) -> int:
        """Return the number of indices along `axis`; 1 for a tensor that is not divided."""
        return 1 if self.axis is None else self.shape[self.axis]


@dataclass(frozen=True)
class Weight:
    """A constant tensor of the model, and its name."""

    name: str
    tensor: torch.Tensor = field(compare=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the tensor."""
        return tuple(self.tensor.shape)


@dataclass(frozen=True)
class Division:
    """The division of a call into intervals of its output.

    `axis`: the axis along which the result is divided. With None, the result is not divided: a
    side computes all of it or nothing. `footprints`: one for each of `Call.values`.
    `part(lo, hi, needs)` returns a function that computes the output interval [lo, hi) from inputs
    that are cut to the intervals `needs`. If `part` is None, the call itself computes an interval
    from the cut inputs.
    """

    axis: int | None
    footprints: tuple[Footprint, ...]
    part: Callable[[int, int, Sequence[Interval]], Arithmetic] | None = None
    is_global: bool = False


@dataclass(frozen=True)
class Call:
    """The call `overload(**arguments)`.

    `pick`: if the operator has several results, the index of the result that this object stands
    for; None if the operator has a single result. `arguments` also contains each omitted argument
    with its default, unless the default is None. So a rule does not need the defaults.
    """

    overload: torch._ops.OpOverload
    arguments: dict[str, Any]
    shape: tuple[int, ...]
    dtype: torch.dtype
    pick: int | None = None

    def __post_init__(self) -> None:
        defaults = {a.name: a.default_value for a in self.overload._schema.arguments
                    if a.has_default_value() and a.default_value is not None}
        object.__setattr__(self, 'arguments', defaults | self.arguments)

    @property
    def op(self) -> str:
        """Return the name of the operator without namespace and overload, such as `conv2d`."""
        return self.overload.overloadpacket.__name__

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """Return the inputs of class `Value`, each once, in the order of the operator's schema."""
        return tuple({item.index: item for item in self._items() if isinstance(item, Value)
                      }.values())

    @property
    def weights(self) -> tuple[Weight, ...]:
        """Return the inputs of class `Weight`."""
        return tuple(item for item in self._items() if isinstance(item, Weight))

    def _items(self) -> Iterator[Any]:
        """Yield the arguments in the order of the schema, and the items of those that are lists."""
        for name in (a.name for a in self.overload._schema.arguments):
            argument = self.arguments.get(name)
            yield from argument if isinstance(argument, (list, tuple)) else (argument,)

    def bind(self, /, **changes: Any) -> Arithmetic:
        """Return a function that makes the call with tensors in place of `values`.

        These tensors are whole or sliced. `changes` replace arguments of the call; a
        replacement may contain `Value` and `Weight`.
        """
        position = {value.index: i for i, value in enumerate(self.values)}
        arguments = {**self.arguments, **changes}
        schema = self.overload._schema.arguments
        plain = [arguments.get(a.name, a.default_value)
                 for a in schema if not a.kwarg_only]
        keywords = {a.name: _constant(arguments[a.name]) for a in schema
                    if a.kwarg_only and a.name in arguments}
        holes: list[tuple[int, int]] = []
        lists: list[tuple[int, list[int | Any]]] = []
        for at, argument in enumerate(plain):
            if isinstance(argument, Value):
                holes.append((at, position[argument.index]))
            elif isinstance(argument, (list, tuple)) and any(isinstance(a, Value)
                                                             for a in argument):
                lists.append((at, [position[a.index] if isinstance(a, Value) else _constant(a)
                                   for a in argument]))
            else:
                plain[at] = _constant(argument)
        return self._bound(plain, keywords, holes, lists)

    def _bound(self, plain: list[Any], keywords: dict[str, Any], holes: list[tuple[int, int]],
               lists: list[tuple[int, list[Any]]]) -> Arithmetic:
        target: Callable[..., Any] = self.overload
        pick = self.pick
        if self.op in ('div', 'divide') and self.dtype in (torch.int32, torch.int64):
            target = quotients(target)

        def run(*tensors: torch.Tensor) -> Any:
            arguments = list(plain)
            for at, source in holes:
                arguments[at] = tensors[source]
            for at, items in lists:
                arguments[at] = [tensors[i] if type(i) is int else i for i in items]
            result = target(*arguments, **keywords)
            return result if pick is None else result[pick]

        return run


def _constant(argument: Any) -> Any:
    if isinstance(argument, Weight):
        return argument.tensor
    if isinstance(argument, (list, tuple)):
        return [_constant(a) for a in argument]
    return argument


def indivisible(call: Call, is_global: bool | None = None) -> Division:
    """Return the division of a call that must be computed whole, from whole inputs."""
    if is_global is None:
        is_global = any(v.extent > 1 for v in call.values)
    return Division(None, tuple(whole(1, v.extent) for v in call.values), None, is_global)


def along(call: Call, axis: int, same: Sequence[Value] = ()) -> list[Footprint]:
    """Return footprints for a result divided along `axis`.

    An index of the result needs the same index of each input in `same`, and all indices of the
    other inputs.
    """
    extent = call.shape[axis]
    return [identity(extent) if value in same else whole(extent, value.extent)
            for value in call.values]


Rule = Callable[[Call], Division]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators by name (`conv2d` for every overload of `aten::conv2d`)."""
    def register(function: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise ValueError(f'operator {name} must have one rule, got {function.__name__} in '
                                 'addition')
            RULES[name] = function
        return function
    return register


def divide(call: Call) -> Division:
    """Divide a call by its operator's rule; one side computes an operator without a rule whole.

    Raises ModelError if a server does not compute the operator.
    """
    if why := refusal(call.overload):
        raise ModelError(f'operator {call.overload} {why}')
    if random(call.overload, call.arguments):
        raise ModelError(f'operator {call.overload} is random: robot and server would differ')
    check_arguments(call.op, call.arguments, call.dtype)
    found = RULES.get(call.op)
    if found is None:
        return indivisible(call)
    if all(value.axis is None for value in call.values):
        return indivisible(call, call.op in SINGLE_ROW_GLOBAL)
    return found(call)


def random(overload: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call draws random numbers."""
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    if overload.overloadpacket.__name__ == 'scaled_dot_product_attention':
        return bool(arguments.get('dropout_p'))
    return bool(arguments.get('train', True))


# Table 4.1 of the thesis counts these operators as global if their input cannot be divided.
SINGLE_ROW_GLOBAL = frozenset(('linear', 'addmm', 'flatten', 'mm', 'matmul'))
