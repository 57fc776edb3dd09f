"""Predict a call's result from the result of the same call for tensors of other sizes.

Detectors select by score, so later shapes differ in every inference; a client that waited for each
of them would wait at every call. A result is predicted only for a kind of call (operator, types of
scalars, ranks and layouts of tensors) whose recorded result the shape rule reproduces. The server
compares the prediction with the real result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..protocol.record import Call, Meta, Ref
from ..protocol.sequence import substitute

WAITS = 16       # waits for known kinds before slow rules are tried: most programs have fewer
KINDS = 4096     # remembered kinds of calls

Rule = Callable[[str, tuple[Any, ...], tuple[tuple[str, Any], ...]], tuple[Meta | None, ...]]


class Predictor:
    """`rules` return the metas of a call's results, or raise; see `infer`.

    The first rule is fast; the others are used only in programs that have waited often.
    """

    def __init__(self, *rules: Rule) -> None:
        self._rules = rules
        self._waits = 0
        self._seen: dict[Any, tuple[Call, tuple[Meta | None, ...], Any]] = {}
        # The rule that reproduces the recorded result, and the number of rules tried.
        self._trusted: dict[Any, tuple[Rule | None, int]] = {}

    def learn(self, call: Call, inputs: tuple[Meta | None, ...], described: Any) -> None:
        """Record the server's answer; `inputs`: metas of `call.inputs()`."""
        kind = _kind(call, inputs)
        self._waits += kind in self._seen
        if len(self._seen) >= KINDS:
            self._seen.clear()
            self._trusted.clear()
        self._seen.setdefault(kind, (call, inputs, described))

    def predict(self, call: Call, inputs: tuple[Meta | None, ...]) -> Any:
        """Predict the server's answer, as `Context.execute` describes it; None if unknown."""
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
    """Return the results that `rule` gives, in the form of `like`; None if it gives none."""
    given = iter(inputs)

    def meta(ref: Ref) -> Meta | None:
        return next(given)

    try:
        metas = rule(call.op, substitute(call.arguments, Ref, meta),
                     substitute(call.keywords, Ref, meta))
    except Exception:   # no rule, or an invalid call, which the server reports better
        return None
    if type(like) is tuple and all(type(item) is Meta for item in like):
        return metas    # a list of tensors may have another length
    return _fill(like, iter(metas))


def _fill(like: Any, metas: Iterator[Meta | None]) -> Any:
    """Return `like` with other metas; None if their number differs."""
    if type(like) is Meta or like is None:
        return next(metas, None)
    if type(like) is tuple:
        return tuple([_fill(item, metas) for item in like])
    return like


def _kind(call: Call, inputs: tuple[Meta | None, ...]) -> Any:
    return call.op, _form(call.arguments), _form(call.keywords), tuple(
        m and (m.dtype, _layout(m)) for m in inputs)


def _form(value: Any) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([_form(item) for item in value])
    if kind in (int, float, complex, Ref):
        return kind
    return (kind, value) if kind is bool else value


def _layout(meta: Meta) -> tuple[tuple[int, ...], bool, bool]:
    """Return the order of dimensions in memory, and whether any has size 0 or 1."""
    order = sorted(range(len(meta.shape)), key=lambda k: (-meta.stride[k], k))
    return tuple(order), 0 in meta.shape, 1 in meta.shape
