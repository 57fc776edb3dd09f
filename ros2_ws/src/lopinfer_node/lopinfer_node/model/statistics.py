"""Divides global operators; the two sides then exchange sufficient statistics.

The thesis names this division as future work (4.7). An operator that aggregates over the
divided axis needs the whole axis on one side. This module replaces such an operator by new
operators. Some of the new operators aggregate parts of the axis, and the others combine
the results. So each side aggregates its own parts, and only the statistics cross the link.
The statistics of a mean are sums. The statistics of a softmax are the maximum and the sum
of exponentials. Attention needs the same two statistics and the attention of each part (as
in FlashAttention). The new calls are ordinary operators, so planner, checker and runtime
need no change. The results differ from the results of the model by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from .calls import Call, Value, Weight
from .tape import Record, Ref, Tape
from .traced import Traced

aten = torch.ops.aten


def exchange_statistics(traced: Traced, parts: int = 4) -> Traced:
    """Return a model that computes softmax, mean and attention over the divided axis in parts.

    ``parts``: number of parts of the axis. With more parts the planner can cut at more places, but
    the graph has more operators.
    """
    if parts < 2:
        raise ValueError('at least two parts are needed for something to exchange')
    return Traced(traced.name, _Rewriter(traced, parts).run(), traced.axes)


class _Rewriter:
    def __init__(self, traced: Traced, parts: int) -> None:
        self.traced, self.parts = traced, parts
        self.out = Tape(weights=dict(traced.parameters),
                        precision=traced.tape.precision)
        self.shadows: list[torch.Tensor] = []
        self.moved: dict[int, Ref] = {}
        self.place = ''

    def run(self) -> Tape:
        for index, made in enumerate(self.traced.tape.records):
            self.place = made.place
            if made.overload is None:
                self.moved[index] = self._append(made, torch.empty(made.shape, dtype=made.dtype,
                                                                   device='meta'))
                continue
            call, node = self.traced.calls[index], self.traced.graph.nodes[index]
            rewrite = REWRITES.get(call.op)
            found = rewrite(self, call) if rewrite and node.is_global and call.pick is None \
                else None
            self.moved[index] = found or self._copy(made)
        self.out.outputs = [self.moved[o.index] if isinstance(o, Ref) else o
                            for o in self.traced.tape.outputs]
        return self.out

    def _copy(self, made: Record) -> Ref:
        def moved(a: Any) -> Any:
            if isinstance(a, list):
                return [moved(i) for i in a]
            return self.moved[a.index] if isinstance(a, Ref) else a
        copy = replace(made, arguments={k: moved(a) for k, a in made.arguments.items()})
        return self._append(copy, torch.empty(made.shape, dtype=made.dtype, device='meta'))

    def _append(self, made: Record, shadow: torch.Tensor) -> Ref:
        self.out.records.append(made)
        self.shadows.append(shadow)
        return Ref(len(self.shadows) - 1)

    def emit(self, overload: torch._ops.OpOverload, *arguments: Any, **keywords: Any) -> Ref:
        """Append a call and return its result.

        A run of the call on `meta` tensors gives the shape and type of the result.
        """
        def shadow(a: Any) -> Any:
            if isinstance(a, Ref):
                return self.shadows[a.index]
            return a.tensor.to('meta') if isinstance(a, Weight) else a
        names = [a.name for a in overload._schema.arguments]
        result = overload(*(shadow(a) for a in arguments),
                          **{k: shadow(a) for k, a in keywords.items()})
        bound = {**dict(zip(names, arguments, strict=False)), **keywords}
        return self._append(Record(overload, bound, tuple(result.shape), result.dtype, self.place),
                            result)

    def stretches(self, value: Ref, axis: int) -> list[Ref]:
        """Divide `value` along `axis` into `self.parts` parts; return the parts."""
        extent = self.shadows[value.index].shape[axis]
        ends = [extent * (i + 1) // self.parts for i in range(self.parts)]
        return [self.emit(aten.slice.Tensor, value, axis, a, b)
                for a, b in zip([0, *ends], ends, strict=False) if a < b]

    def joined(self, parts: Sequence[Ref], overload: torch._ops.OpOverload) -> Ref:
        total = parts[0]
        for part in parts[1:]:
            total = self.emit(overload, total, part)
        return total

    def of(self, value: Any) -> Ref:
        return self.moved[value.index]


def _mean(w: _Rewriter, call: Call) -> Ref | None:
    """Rewrite a mean: add the sums of all parts, and divide by the number of elements.

    Return the new result. Return None if the mean is not over the divided axis, or if this axis
    has too few indices.
    """
    value = call.values[0]
    rank = len(value.shape)
    dims = [d % rank for d in call.arguments.get('dim') or range(rank)]
    kept = bool(call.arguments.get('keepdim', False))
    return _averaged(w, value, dims, kept)


def _pool(w: _Rewriter, call: Call) -> Ref | None:
    """Rewrite adaptive average pooling as a mean if its output is one pixel; else return None."""
    value = call.values[0]
    rank, spatial = len(value.shape), len(call.arguments['output_size'])
    if any(n != 1 for n in call.arguments['output_size']):
        return None
    return _averaged(w, value, list(range(rank - spatial, rank)), True)


def _averaged(w: _Rewriter, value: Value, dims: list[int], kept: bool) -> Ref | None:
    if value.axis not in dims or value.extent < w.parts:
        return None
    count = 1
    for d in dims:
        count *= value.shape[d]
    sums = [w.emit(aten.sum.dim_IntList, part, dims, kept)
            for part in w.stretches(w.of(value), value.axis)]
    return w.emit(aten.div.Scalar, w.joined(sums, aten.add.Tensor), count)


def _softmax(w: _Rewriter, call: Call) -> Ref | None:
    """Rewrite a softmax: compute the maximum over all parts, the exponentials, and their sum.

    Return the new result. Return None if the softmax is not along the divided axis, or if this
    axis has too few indices.
    """
    value = call.values[0]
    axis = value.axis
    if axis is None or call.arguments['dim'] % len(value.shape) != axis or value.extent < w.parts:
        return None
    x = w.of(value)
    largest = w.joined([w.emit(aten.amax.default, part, [axis], True)
                        for part in w.stretches(x, axis)], aten.maximum.default)
    e = w.emit(aten.exp.default, w.emit(aten.sub.Tensor, x, largest))
    total = w.joined([w.emit(aten.sum.dim_IntList, part, [axis], True)
                      for part in w.stretches(e, axis)], aten.add.Tensor)
    return w.emit(aten.div.Tensor, e, total)


def _attention(w: _Rewriter, call: Call) -> Ref | None:
    """Rewrite attention: attend to each part of the keys, then combine the results.

    Return the new result. Return None for attention with a mask, with grouped heads, with too few
    keys, or with a constant query, key or value. Also return None if keys and values are not
    divided along their positions.
    """
    names = ('query', 'key', 'value')
    if any(not isinstance(call.arguments[n], Value) for n in names) \
            or call.arguments.get('attn_mask') is not None or call.arguments.get('is_causal') \
            or call.arguments.get('enable_gqa') or call.arguments['key'].extent < w.parts:
        return None
    query, key, value = (call.arguments[n] for n in names)
    axis = len(key.shape) - 2
    if key.axis != axis or value.axis != axis:
        return None
    scale = call.arguments.get('scale') or query.shape[-1] ** -0.5
    q = w.emit(aten.mul.Scalar, w.of(query), scale)
    partial = []
    for k, v in zip(w.stretches(w.of(key), axis), w.stretches(w.of(value), axis), strict=True):
        scores = w.emit(aten.matmul.default, q, w.emit(aten.transpose.int, k, -2, -1))
        largest = w.emit(aten.amax.default, scores, [-1], True)
        e = w.emit(aten.exp.default, w.emit(aten.sub.Tensor, scores, largest))
        partial.append((largest, w.emit(aten.sum.dim_IntList, e, [-1], True),
                        w.emit(aten.matmul.default, e, v)))
    top = w.joined([m for m, _, _ in partial], aten.maximum.default)
    sums, results = [], []
    for largest, total, result in partial:
        factor = w.emit(aten.exp.default, w.emit(aten.sub.Tensor, largest, top))
        sums.append(w.emit(aten.mul.Tensor, total, factor))
        results.append(w.emit(aten.mul.Tensor, result, factor))
    return w.emit(aten.div.Tensor, w.joined(results, aten.add.Tensor),
                  w.joined(sums, aten.add.Tensor))


REWRITES: dict[str, Callable[[_Rewriter, Call], Ref | None]] = {
    'mean': _mean, 'adaptive_avg_pool1d': _pool, 'adaptive_avg_pool2d': _pool,
    'adaptive_avg_pool3d': _pool, 'softmax': _softmax, '_softmax': _softmax,
    'scaled_dot_product_attention': _attention}
