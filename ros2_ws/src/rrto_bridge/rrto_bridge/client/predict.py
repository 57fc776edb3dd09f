"""Predict a call's result from the result of the same call for tensors of other sizes.

A detector selects objects by score, so the shapes of all later tensors differ in every inference.
Without predictions, the client would wait for the result of every later call.

A shape rule is a function that computes the metas of results from the metas of arguments. The
*kind* of a call consists of its operator, the types of its scalars, and the dtypes, ranks and
layouts of its tensors. The kind also says which arguments are the same tensor. A shape rule may
predict the results of a kind only if it reproduces the recorded result of one call of this kind.
The server compares every prediction with the real result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..protocol.record import Call, Meta, Ref
from ..protocol.sequence import substitute

WAITS = 16  # after this many waits for calls of known kinds, `predict` also uses the slow rules
KINDS = 4096     # maximum number of kinds in `_seen`; when it is reached, `learn` forgets all kinds

Rule = Callable[[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], tuple[Meta | None, ...]]


class Predictor:
    """Predicts results with shape rules, which return metas or raise an error.

    The module `client.infer` contains such rules. `predict` always uses the first rule, which must
    be fast. It uses the other rules only after the program has waited `WAITS` times for results of
    kinds that were already known.
    """

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules
        self._waits = 0
        self._seen: dict[Any, tuple[Call, tuple[Meta | None, ...], Any]] = {}
        # Maps a kind to (rule, number of rules tried so far). `rule` is the rule that reproduces
        # the recorded result, or None if no tried rule reproduces it.
        self._trusted: dict[Any, tuple[Rule | None, int]] = {}

    def learn(self, call: Call, inputs: tuple[Meta | None, ...], described: Any) -> None:
        """Record `described`, the server's answer to a call.

        `inputs`: the metas of `call.inputs()`.
        """
        kind = _kind(call, inputs)
        self._waits += kind in self._seen
        if len(self._seen) >= KINDS:
            self._seen.clear()
            self._trusted.clear()
        self._seen.setdefault(kind, (call, inputs, described))

    def predict(self, call: Call, inputs: tuple[Meta | None, ...]) -> Any:
        """Return the predicted result of a call, or None if no rule can predict it.

        The result has the form that `execution.context.Context.execute` returns.
        """
        kind = _kind(call, inputs)
        if kind not in self._seen:
            return None
        rule, tried = self._trusted.get(kind, (None, 0))
        allowed = len(self._rules) if self._waits >= WAITS else 1
        if rule is None and tried < allowed:
            example, its_inputs, answer = self._seen[kind]
            rule = next((rule for rule in self._rules[tried:allowed] if _answer(
                rule, example, its_inputs, answer) == answer), None)
            self._trusted[kind] = rule, allowed
        return _answer(rule, call, inputs, self._seen[kind][2]) if rule else None


def _answer(rule: Rule, call: Call, inputs: tuple[Meta | None, ...], like: Any) -> Any:
    """Return the results that `rule` computes, structured like `like`; None if the rule fails."""
    given = iter(inputs)

    def meta(ref: Ref) -> Meta | None:
        return next(given)

    try:
        metas = rule(call.op, substitute(call.arguments, Ref, meta),
                     substitute(call.keywords, Ref, meta))
    except Exception:
        # PyTorch has no shape rule, or the call is invalid. Without a prediction the call goes to
        # the server, which raises a clearer error.
        return None
    if type(like) is tuple and all(type(item) is Meta for item in like):
        return metas    # `rule` may return more or fewer results than `like`, so do not use `_fill`
    return _fill(like, iter(metas))


def _fill(like: Any, metas: Iterator[Meta | None]) -> Any:
    """Replace each Meta and each None in `like` by the next item of `metas`.

    If no item is left, the replacement is None.
    """
    if type(like) is Meta or like is None:
        return next(metas, None)
    if type(like) is tuple:
        return tuple([_fill(item, metas) for item in like])
    return like


def _kind(call: Call, inputs: tuple[Meta | None, ...]) -> Any:
    # Key: handle. Value: index of the first argument with this handle. So the kind shows which
    # arguments are the same tensor. If an operator returns an argument, the answer depends on this.
    first: dict[int, int] = {}
    same = tuple([first.setdefault(handle, k) for k, handle in enumerate(call.inputs())])
    return call.op, _form(call.arguments), _form(call.keywords), same, tuple(
        m and (m.dtype, _layout(m)) for m in inputs)


def _form(value: Any) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([_form(item) for item in value])
    if kind in (int, float, complex, Ref):
        return kind
    return (kind, value) if kind is bool else value


def _layout(meta: Meta) -> tuple[tuple[int, ...], bool, bool, tuple[int, ...]]:
    """Return (order of dimensions in memory, whether a size is 0, whether a size is 1, odd ones).

    Odd are the dimensions of size 1 whose stride is not that of a dense tensor. It addresses
    nothing, but shape rules keep it where an operator does not.
    """
    shape, stride = meta.shape, meta.stride
    order = sorted(range(len(shape)), key=lambda k: (-stride[k], k))
    inner = [*(shape[k] * stride[k] for k in order[1:]), 1]
    odd = [k for k, step in zip(order, inner, strict=False) if shape[k] == 1 and stride[k] != step]
    return tuple(order), 0 in shape, 1 in shape, tuple(odd)
