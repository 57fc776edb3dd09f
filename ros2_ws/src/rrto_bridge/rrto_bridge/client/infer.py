"""Infer the metas of an operator's results from the metas of its arguments, without values."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch

from ..protocol.operators import DEFAULT, USUAL, overload
from ..protocol.record import SEEDING, Meta, Special
from ..protocol.tensors import DTYPES, from_special, meta_of


def infer(op: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]
          ) -> tuple[Meta | None, ...]:
    """Return the metas of an operator's results; `arguments` contain a Meta instead of each tensor.

    The metas have the layout that the operator's results have on a CPU. `infer` takes up to a
    millisecond. Raises an error if PyTorch has no shape rule or the call is invalid.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # the import takes a second
    # This logger would log each invalid call, so disable it below.
    logger = logging.getLogger('torch._subclasses.fake_tensor')
    before, logger.disabled = logger.disabled, True
    try:   # disable autocast here, because the server does not use autocast
        with FakeTensorMode(), torch.autocast('cpu', enabled=False):
            return _run(op, arguments, keywords, torch.device('cpu'))
    finally:
        logger.disabled = before


def sketch(op: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...]
           ) -> tuple[Meta | None, ...]:
    """Return the metas of an operator's results, several times faster than `infer`.

    For a few operators the layout in these metas may differ from the layout on a CPU. Raises an
    error in the same cases as `infer`.
    """
    made = _run(op, arguments, keywords, torch.device('meta'))
    # `arguments[5]`: whether the model is in training
    if op == 'aten.native_batch_norm.default' and not arguments[5]:
        # A CPU returns empty statistics here, but PyTorch's shape rule returns statistics of full
        # size.
        nothing = Meta((0,), (1,), arguments[0].dtype)
        return made[0], nothing, nothing
    # On a CPU, the result has the same layout as the query.
    if op == 'aten.scaled_dot_product_attention.default' and made[0] \
            and made[0].shape == arguments[0].shape:
        return (made[0]._replace(stride=arguments[0].stride),)
    return made


def _run(op: str, arguments: tuple[Any, ...], keywords: tuple[tuple[str, Any], ...],
         device: torch.device) -> tuple[Meta | None, ...]:
    def empty(value: Any) -> Any:
        if isinstance(value, Meta):
            tensor = torch.empty_strided(value.shape, value.stride, dtype=DTYPES[value.dtype],
                                         device=device)
            return _moved(tensor, value.offset) if value.offset else tensor
        if type(value) is tuple:
            return [empty(item) for item in value]
        return from_special(value, device) if isinstance(value, Special) else value

    if op == SEEDING:
        return ()
    function = overload(op.removeprefix('aten.'))
    given = {k: empty(v) for k, v in keywords}
    if given.pop(DEFAULT, USUAL) is not torch.get_default_dtype():
        raise ValueError('cannot infer a call with another default dtype')
    result = function(*[empty(a) for a in arguments], **given)
    return () if result is None else tuple(_flat(result))


def _moved(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """Return a tensor with the layout of `tensor`.

    The first element of the new tensor is `offset` elements after the start of its memory.
    """
    size = offset + tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.new_empty(size).as_strided(tensor.shape, tensor.stride(), offset)


def _flat(result: Any) -> Iterator[Meta | None]:
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from _flat(item)
    else:
        yield None if result is None else meta_of(result)
