"""Detect whether a model has changed since it was traced.

Each check compares flat lists of the items that `follow` finds. Of containers with more than
`LARGE` items it compares only the number of items. The comparison runs in C, in less than a
millisecond for a thousand modules. A background check looks, part by part, for changes in the large
containers, and for changes that PyTorch's version counter misses, such as writes of another
process.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from ..errors import ModelError
from .contents import Contents
from .follow import COMPUTED, ITEMS, MISSING, MODULE, Followed, Picked, join
from .state import CONTAINERS, hooks_of, untouched

LOOK = 8 << 20     # bytes of weights that one background check reads
TURNS = 16         # each background check compares 1/TURNS of the items in full
LARGE = 4096       # a container with more items is compared only by background checks
_NOT_ATTRIBUTES = frozenset(vars(torch.nn.Module())) - {'training'}
_VALUES = (type(None), bool, int, str, bytes, range, slice, torch.Size, torch.dtype, torch.device,
           FunctionType, BuiltinFunctionType, MethodType)
_address = torch.Tensor.data_ptr


class Snapshot:
    """The modules, weights, mode and hooks of a model, and all that the code of the model reads.

    ``run()`` runs the model once. This run may change items that are not attributes of
    modules, such as the cache of a library. Such items are results: their changes do not
    count. Raise ModelError if a write to a weight cannot be detected.
    """

    def __init__(self, model: torch.nn.Module, run: Callable[[], Any] | None = None) -> None:
        self._model = model
        try:
            self._taken = _Taken(model)
            if run is not None:
                with untouched(model):
                    run()
                    kept = self._taken.kept()
                self._taken = _Taken(model, kept)
        except Exception as error:   # such as an unexpected kind of object
            raise ModelError(f'{type(model).__name__}: cannot watch what its code reads: '
                             f'{type(error).__name__}: {error}') from error
        self._lock = threading.Lock()
        # number of calls of the model in progress; each of these calls may still store results
        self._running = 0
        self._turn = 0
        self._seen = ''      # description of the change that a background check has found
        found = self._taken.followed
        for path, tensor in found.tensors.items():
            if tensor.is_inference() and tensor.device.type != 'cpu':
                raise ModelError(f'{path} was created in torch.inference_mode, where PyTorch does '
                                 'not count writes; create the model outside')
        self._contents = Contents({**found.tensors, **found.arrays})

    @contextmanager
    def running(self) -> Iterator[None]:
        """Open a context for a run of the model.

        Items that the code of the model stores in this context do not count as a change.
        """
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            self.settle()
            with self._lock:
                self._running -= 1

    def settle(self) -> None:
        """Record the present state of the model; later checks compare with this state."""
        if not self._taken.unchanged():
            self._taken = _Taken(self._model, self._taken.ignored)

    def change(self) -> str:
        """Return a description of a change; '' if there is none."""
        if self._seen or self._taken.unchanged():
            return self._seen
        found = self._taken.change(self._model)
        if not found:   # equal objects have replaced the old objects, which is not a change
            self._taken = _Taken(self._model, self._taken.ignored)
        return found

    def look(self) -> str:
        """Check a part of the items for changes that `change` alone cannot detect.

        A background thread calls this method repeatedly. Return a description of a change; '' if
        there is none. After a change, `change` returns the same description.
        """
        with self._lock:
            if not self._running and not self._seen:
                self._turn = (self._turn + 1) % TURNS
                held = self._taken.held[self._turn::TURNS]
                self._seen = self._contents.look(LOOK) or next(
                    (path for h in held if (path := h.change(self._taken.followed))), '')
        return self._seen


@dataclass(frozen=True)
class _Held:
    """A container, and the items that it had when the state of the model was last recorded."""

    path: str
    live: Any
    kind: str
    before: dict[Any, Any]

    def change(self, followed: Followed) -> str:
        """Return the path of an item that has changed; '' if there is none."""
        try:
            return next((self._words(key) for key in self.changes(followed)), '')
        except RuntimeError:   # another thread writes to the container
            return self.path

    def changes(self, followed: Followed) -> Iterator[Any]:
        """Yield the keys of items that have changed."""
        now = _contents(self.live)
        for key in {**self.before, **now}:
            old, new = self.before.get(key, MISSING), now.get(key, MISSING)
            if old is new or self.kind == MODULE and key in _NOT_ATTRIBUTES or _same(old, new):
                continue
            if self.kind == MODULE and type(old) is type(new) and _keeps(new) \
                    and not followed.reads(key):
                # a result that the model has stored and that the model's code does not read
                continue
            yield key

    def _words(self, key: Any) -> str:
        if self.kind == MODULE and key == 'training':
            return f'the mode of {self.path or "the model"}'
        return f'{self.path}[{key!r}]' if self.kind == ITEMS else join(self.path, key)


class _Taken:
    """The items that `follow` finds, without ``ignored`` items; lists make comparisons fast.

    ``ignored`` maps the path of a container to the keys of its ignored items.
    """

    def __init__(self, model: torch.nn.Module,
                 ignored: Mapping[str, Collection[Any]] | None = None) -> None:
        self.ignored = ignored or {}
        self.followed = Followed(model)
        self.held = [_Held(path, live, kind, _contents(live))
                     for path, found, kind in self.followed.held
                     if (live := self._not_ignored(path, found, kind)) is not None]
        self._hooks = _hooks(model)
        self._tensors = [(path, t, _mark(t)) for path, t in self.followed.tensors.items()]
        hooks = [of for m in model.modules() for of in (m._forward_hooks, m._forward_pre_hooks)]
        self._empty = [of for of in (*hooks, *(h.live for h in self.held)) if not len(of)]
        self._large = [(h.live, len(h.live)) for h in self.held if len(h.live) > LARGE]
        # Attributes of modules are mostly numbers. These attributes, and values that are computed
        # for each check, are compared by equality. All other items are compared by identity.
        small = [h for h in self.held if 0 < len(h.live) <= LARGE]
        self._equal, self._same = ([_views(h.live) for h in small if of(h)] for of in (
            lambda h: h.kind in (MODULE, COMPUTED), lambda h: h.kind not in (MODULE, COMPUTED)))
        self._same += [Picked(h.live.get, names) for h in small if h.kind == MODULE and (names := [
            name for name, value in h.before.items() if name not in _NOT_ATTRIBUTES
            and not _plain(value) and (not _keeps(value) or self.followed.reads(name))])]
        self._same += [_views(of) for of in hooks if of]
        self._equals, self._sames = (list(chain.from_iterable(views))
                                     for views in (self._equal, self._same))
        self._addressed = [t for _, t, _ in self._tensors if t.layout is torch.strided]
        self._counted = [t for _, t, _ in self._tensors if not t.is_inference()]
        self._marks = self._mark()

    def _not_ignored(self, path: str, live: Any, kind: str) -> Any:
        if isinstance(live, Picked):
            return live.without(self.ignored.get(path, ()))
        return None if kind == ITEMS and path in self.ignored else live

    def kept(self) -> dict[str, Collection[Any]]:
        """Return the changed items that are not attributes of modules.

        The result maps the path of each container to the keys of its changed items.
        """
        found = {h.path: list(h.changes(self.followed)) for h in self.held
                 if h.kind == ITEMS or isinstance(h.live, Picked)}
        return {path: keys for path, keys in found.items() if keys}

    def _mark(self) -> tuple[list[int], list[int]]:
        return list(map(_address, self._addressed)), [t._version for t in self._counted]

    def unchanged(self) -> bool:
        """Return True if it is certain that nothing has changed.

        If this returns False, `change` must check.
        """
        try:
            if any(self._empty) or self._mark() != self._marks \
                    or any(len(live) != size for live, size in self._large) \
                    or list(chain.from_iterable(self._equal)) != self._equals:
                return False
            now = list(chain.from_iterable(self._same))
        except Exception:   # items cannot be compared, or another thread writes to them
            return False
        return len(now) == len(self._sames) and all(map(operator.is_, now, self._sames))

    def change(self, model: torch.nn.Module) -> str:
        """Return a description of a change; '' if there is none."""
        hooks = _hooks(model)
        return next(chain(
            (path for held in self.held if (path := held.change(self.followed))),
            (path for path, tensor, mark in self._tensors if _mark(tensor) != mark),
            (path for path in {**self._hooks, **hooks}
             if self._hooks.get(path) != hooks.get(path))), '')


def _hooks(model: torch.nn.Module) -> dict[str, Any]:
    return {f'the hooks of {path or "the model"}': tuple(hooks_of(module))
            for path, module in model.named_modules()}


def _views(container: Any) -> Iterable[Any]:
    """Return a view of a container's values, which always shows the present values."""
    return container.values() if isinstance(container, Mapping) else container


def _contents(container: Any) -> dict[Any, Any]:
    """Return a container's items by key or index; for a set, its members are the keys."""
    if isinstance(container, (set, frozenset)):
        return dict.fromkeys(container, True)
    return dict(container.items() if hasattr(container, 'items') else enumerate(container))


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    """Return address and version of a tensor; PyTorch changes the version with each write."""
    return (tensor.data_ptr() if tensor.layout is torch.strided else 0,
            0 if tensor.is_inference() else tensor._version)


def _same(old: Any, new: Any) -> bool:
    """Return whether the code of a model computes the same with ``new`` as with ``old``."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, _VALUES):
        return bool(old == new)
    if isinstance(old, (float, complex)):
        return str(old) == str(new)   # as text, a NaN equals itself, and 0.0 differs from -0.0
    if isinstance(old, tuple):
        return len(old) == len(new) and all(map(_same, old, new))
    if type(old) in CONTAINERS and len(old) == len(new):
        before, now = _contents(old), _contents(new)
        return before.keys() == now.keys() and all(
            before[k] is now[k] or type(now[k]) not in CONTAINERS and _same(before[k], now[k])
            for k in now)
    return False


def _plain(value: Any) -> bool:
    """Return whether the model computes the same if an equal value replaces this value."""
    return isinstance(value, (float, complex, torch.nn.Module, type, *_VALUES)) \
        or isinstance(value, tuple) and all(map(_plain, value))


def _keeps(value: Any) -> bool:
    """Return whether a value counts as a stored result if the model's code does not read it."""
    return not isinstance(value, (torch.Tensor, np.ndarray, torch.nn.Module, type, tuple, float,
                                  complex, *_VALUES))
