"""Share a model's inference with a server: `with offload(model) as m: y = m(x)`."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import itertools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import fleet_ros  # noqa: F401  # before rclpy: it checks the shared memory
import rclpy
import torch
from fleet_compute.pictures import Undecoded, decoded, picture_of, same
from fleet_env.pictures import Picture
from fleet_models import Follower, FollowOptions
from fleet_models.following import TRACING
from fleet_ros.exposure import team_key
from fleet_ros.refusal import without_traceback
from fleet_ros.services import bound_parameters
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from .errors import ModelError
from .followed import FollowedModel
from .model.precision import Precision
from .model.snapshot import Snapshot
from .model.state import every_hook
from .model.traced import Traced, input_names, trace
from .ros.client_shell import UPDATING, ClientOptions, Replaced
from .ros.servers import LAST_WORDS, Servers
from .runtime.client import Report
from .runtime.planner import TablePlanner

MOST_WARNINGS = 16     # maximum number of warnings about calls that are not shared, one per reason

_names: set[str] = set()     # namespaces of the clients of this process
_names_lock = threading.Lock()


class OffloadedModel:
    """A model whose inferences are shared with a server; programs call it like the model itself.

    The results equal those of the model except for rounding. The original model runs whole on this
    machine if one of these conditions holds; `reason` says which one:

    - The inputs differ from those of the trace, for example in shape, dtype, device or nesting.
    - The model cannot be traced.
    - The model has changed since the trace; `update` shares it again.
    - A mode of PyTorch is active that can change results, such as autocast, or its precision on the
      GPU, such as TF32, is not that of the trace.
    - `close` was called.
    """

    def __init__(self, model: torch.nn.Module, robot: str, options: ClientOptions) -> None:
        self.model = model
        self._ended = ''            # why no call is shared any more
        self._reason = ''           # why the model cannot be traced
        self._whole_reason = ''     # why the last call was not shared
        self._warned: set[str] = set()
        self._name, self._options = robot, options
        self._client: Servers | None = None
        self._given: _Given | None = None
        # example inputs (args, kwargs) of the first trace; None before
        self._example: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._updating = threading.Lock()
        # held while a client is opened, gets another model or is closed; taken after `_updating`
        self._opening = threading.RLock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one inference, shared with the server if possible."""
        kwargs = dict(sorted(kwargs.items()))  # the order of keyword arguments does not matter
        if self._example is None:
            with self._opening:   # other threads wait during the first call
                if self._example is None and not self._ended:
                    self.connect(*args, **kwargs)
        began = time.perf_counter()
        leaves, structure = pytree.tree_flatten((args, kwargs))
        client, given = self._client, self._given
        why = self._unshared()
        if why or client is None or given is None:
            return self._whole(client, why, args, kwargs)
        self._whole_reason = why = given.misfit(leaves, structure)
        if why:
            self._warn(why)
            results = self._whole(client, why, args, kwargs)
            given.snapshot.settle()   # what the model's code has stored is no change
            return results
        try:
            results = client.infer(leaves, time.perf_counter() - began, given.traced)
        except Replaced:
            return self._whole(client, UPDATING, args, kwargs)
        return pytree.tree_unflatten(list(results), given.outputs)

    def _whole(self, client: Servers | None, why: str, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> Any:
        if client is not None:
            client.note_whole(why)
        args, kwargs = decoded((args, kwargs))
        with torch.no_grad():
            return self.model(*args, **kwargs)

    def _unshared(self) -> str:
        """Return why the model as it is now is not shared; '' if it is.

        If the model has changed, store the reason and warn.
        """
        if why := self._ended or (UPDATING if self._updating.locked() else self._reason):
            return why
        given = self._given
        if given is None:
            return ''
        if not given.changed and (changed := given.snapshot.change()):
            given.changed = f'{changed} was changed after the model was traced: call update()'
            self._warn(given.changed)
        return given.changed

    def _warn(self, why: str) -> None:
        """Warn once for each reason, but at most `MOST_WARNINGS` times."""
        if why not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(why)
            warnings.warn(f'{why}; it runs whole on this machine', stacklevel=_level_of_caller())

    def connect(self, *args: Any, **kwargs: Any) -> None:
        """Trace the model with these example inputs; then look for the server in the background."""
        self._own_key()     # refuses before the trace, which takes seconds
        args, kwargs = _sorted(args, kwargs)
        self._take(args, kwargs, apart=False)
        self._example = _copied(args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """Trace the model with these example inputs, but look for no server; `again` does.

        Raises ModelError if the model cannot be traced.
        """
        args, kwargs = _sorted(args, kwargs)
        self._given = _Given(self.model, args, kwargs, apart=False)
        self._example = _copied(args, kwargs)
        return self._given.traced

    def again(self, robot: str, options: ClientOptions) -> OffloadedModel:
        """Share the model as it was traced here for another robot, without a trace of its own."""
        other = OffloadedModel(self.model, robot, options)
        with self._opening:
            other._example, other._given, other._reason = self._example, self._given, self._reason
        if other._given is not None:
            other._client = other._opened(other._given.traced)
        return other

    def update(self) -> None:
        """Trace the model as it is now, and share it again; the server gets it if it lacks it.

        Call this after a change of the model, for example when new weights were loaded. The trace
        uses the example inputs of the first one, and takes as long. Meanwhile, calls of other
        threads run whole on this machine. The model must not be changed meanwhile; a change that
        later calls detect has the effect that it has at any time.

        If the model cannot be traced any more, or cannot be copied by `copy.deepcopy`, it runs
        whole, and `reason` and a warning say why. Before the first call, which traces the model,
        and after `close` this does nothing.
        """
        if self._ended:
            return
        with self._updating:
            with self._opening:   # wait for the end of the first trace
                example = self._example
            if example is not None:
                self._warned.clear()
                self._take(*example, apart=True)

    def _take(self, args: tuple[Any, ...], kwargs: dict[str, Any], apart: bool) -> None:
        """Trace the model; open a client with it, or give it to the client."""
        try:
            given = _Given(self.model, args, kwargs, apart)
        except ModelError as error:
            self._reason = str(error)
            self._warn(self._reason)
            return
        with self._opening:
            if self._ended:
                return
            if self._client is None:
                self._client = self._opened(given.traced)
            else:
                self._client.update(given.traced)
            self._given, self._reason = given, ''

    def _own_key(self) -> Any:
        """Return the key of this program, or None; raise SettingError if it must have one."""
        with without_traceback('lopinfer'):
            return team_key(self._options.access)

    def _opened(self, traced: Traced) -> Servers:
        key = self._own_key()   # before this process joins the network
        self._context = Context()  # a separate context, because the program can use rclpy itself
        rclpy.init(context=self._context)
        self._robot = _claimed(self._name or (key and key.robot) or 'robot')
        self._node = Node('lopinfer', namespace=self._robot, context=self._context,
                          use_global_arguments=False)
        bound_parameters(self._node)
        try:
            client = Servers(self._node, traced, self._options)
        except Exception:
            self._release()
            raise
        self._spinning = Spinning(self._node)
        here = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())
        return client

    def _after_fork(self) -> None:
        """Compute whole in a forked child: its parent has the session and the threads."""
        self._client, self._ended = None, 'this process was forked after the model was shared'

    @property
    def example(self) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return the example inputs of the first trace, (args, kwargs); None before it."""
        return self._example

    @property
    def shared(self) -> bool:
        """Return whether a server is ready."""
        return self._client is not None and self._client.is_open

    @property
    def reason(self) -> str:
        """Return why the last inference was not shared, or why no server is ready.

        The result is '' if there is no such reason. The robot also computes alone where this is
        expected to be faster; `shared` is True then.
        """
        return self._ended or (UPDATING if self._updating.locked() else self._reason) or (
            self._given.changed if self._given else '') or self._whole_reason or (
            '' if self._client is None else self._client.present.reason)

    @property
    def report(self) -> Report | None:
        """Return counters and the times of the last inference; None before the model is traced."""
        return None if self._client is None else self._client.report

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until the server is ready; return whether it is ready."""
        return self._client is not None and self._client.wait_until(
            lambda: self.shared, time.monotonic() + seconds)

    def close(self) -> None:
        """Disconnect from the server; the model runs on this machine from now on."""
        if self._ended:
            return
        with self._opening:
            client, self._client, self._ended = self._client, None, 'closed'
        if client is None:
            return
        client.leave()
        client.wait_until(lambda: client.has_left, time.monotonic() + LAST_WORDS)
        self._spinning.close()
        client.close()
        self._release()

    def _release(self) -> None:
        self._node.destroy_node()
        with _names_lock:
            _names.discard(self._robot)
        self._context.try_shutdown()


class _Given:
    """A model as it was when it was traced, and the inputs with which it can be shared.

    ``apart``: trace a copy of the model with the same weights, because other threads may run the
    model. Raises ModelError if the model cannot be traced or copied.
    """

    def __init__(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any],
                 apart: bool) -> None:
        self.changed = ''    # what has changed since then
        before = Snapshot(model) if apart else None
        source = _twin(model) if apart else model
        leaves, self._inputs = pytree.tree_flatten((args, kwargs))
        self._names = input_names(args, kwargs)

        def run() -> None:
            # copies, because the model may write to its inputs
            own, named = pytree.tree_map(torch.clone, (args, kwargs))
            with torch.no_grad():
                source(*own, **named)
        with TRACING:
            self.traced = trace(source, *args, **kwargs)
            self.traced.example = _varied(leaves)
            self.snapshot = before or Snapshot(model)
            self.snapshot.note_results(source, run)
        self.outputs: Any = self.traced.structure   # how tensors are nested in the results
        self._devices = [leaf.device for leaf in leaves]
        self._default = torch.get_default_dtype()
        self._repeats = len(set(map(id, leaves))) < len(leaves)

    def misfit(self, leaves: list[Any], structure: Any) -> str:
        """Return why these inputs do not fit the traced inputs; '' if they fit."""
        name = self.traced.name
        if structure != self._inputs:
            return f'{name}: the inputs must be nested, named and ordered like the traced ones'
        for place, leaf in zip(self._names, leaves, strict=True):
            if other := _no_plain_tensor(leaf):
                return f'{name}: input {place} is {other}, not a plain tensor'
        try:
            self.traced.check_inputs(leaves)
        except ModelError as error:
            return f'{error}: open a second offload for inputs of this shape and type'
        devices = [leaf.device for leaf in leaves]
        if devices != self._devices:
            return f'the inputs must be on {self._devices} like the traced ones, got {devices}'
        if not self._repeats and len(set(map(id, leaves))) < len(leaves):
            return ('two inputs are the same tensor, which a model can detect: trace it with such '
                    'an example')
        if self.traced.writes and _overlap(leaves):
            return f'{name} writes to its inputs, and two of them share memory: give it copies'
        if self.traced.tape.precision != Precision.of(self._devices[0]):
            return "PyTorch's precision (such as TF32) has changed since the model was traced"
        if torch.get_default_dtype() is not self._default:
            return "PyTorch's default dtype has changed since the model was traced"
        return _modes()


def _sorted(args: tuple[Any, ...], kwargs: dict[str, Any]
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return decoded inputs; the order of keyword arguments does not matter."""
    return decoded((args, dict(sorted(kwargs.items()))))


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return copies of inputs; a tensor that is two inputs is one in the copies, too."""
    copies: dict[int, Any] = {}
    return pytree.tree_map_only(torch.Tensor, lambda leaf: copies.setdefault(
        id(leaf), same(leaf, leaf.detach().clone())), (args, kwargs))


def _varied(leaves: list[Any]) -> list[torch.Tensor] | None:
    """Return copies of the model's inputs if they look like real ones; None if all are constant."""
    tensors = [same(leaf, leaf.detach().clone()) for leaf in leaves]
    return tensors if any(t.numel() and bool((t != t.flatten()[0]).any()) for t in tensors) else \
        None


def _twin(model: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a model whose modules hold the same tensors."""
    memo: dict[int, Any] = {
        id(value): value for m in model.modules() for held in (vars(m), m._parameters, m._buffers)
        for value in held.values() if isinstance(value, torch.Tensor)}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:   # the objects of a model can raise any exception
        raise ModelError(f'{type(model).__name__} cannot be copied: {type(error).__name__}: '
                         f'{error}; open it again') from error


def _level_of_caller() -> int:
    """Return the ``stacklevel`` with which a warning shows the line that called this module.

    Only the function that warns may call this function.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_code.co_filename in (__file__, contextlib.__file__) and frame.f_back:
        level, frame = level + 1, frame.f_back
    return level


@contextlib.contextmanager
def offload(model: torch.nn.Module, server: str = '/lopinfer', example: Any = None,
            robot: str = '', options: ClientOptions | None = None,
            follow: str | FollowOptions = '',
            within: Callable[[torch.nn.Module], torch.nn.Module] = lambda model: model
            ) -> Iterator[OffloadedModel | FollowedModel]:
    """Share the inferences of ``model`` with the server while the context is open.

    :param server: namespace of the server, or of several, separated by commas: the fastest one
        takes an inference, and the others know the model.
    :param example: input, or tuple of inputs, with which the model is traced; by default the
        inputs of the first call.
    :param robot: namespace of this robot, which must be unique; by default the robot of the key,
        without a key `robot`. A second model of the same process gets `robot/model2`.
    :param options: all other options; if they are given, their ``server`` replaces the argument
        ``server``.
    :param follow: namespace of a fleet, such as `/rog`, or `FollowOptions`: the model takes up what
        the fleet learns, between two inferences; then ``model`` stays as it was given, and the
        attribute `model` of the result is the present one.
    :param within: returns the model that is shared, which calls the model that it is given, such as
        one that scales pictures first; the versions of a fleet are those of ``model``.
    """
    options = options or ClientOptions(TablePlanner(), server)
    follow = FollowOptions(follow) if isinstance(follow, str) else follow
    shared: OffloadedModel | FollowedModel
    if follow.server:
        followed = replace(follow, robot=robot, access=options.access)
        shared = FollowedModel(model, lambda m: OffloadedModel(within(m), robot, options),
                               partial(Follower, model, followed))
    else:
        shared = OffloadedModel(within(model), robot, options)
    try:
        if example is not None:
            several = isinstance(example, tuple) and not hasattr(example, '_fields')
            shared.connect(*(example if several else (example,)))
        yield shared
    finally:
        shared.close()


def picture(data: bytes, size: tuple[int, int] | None = None, channels: int = 3) -> torch.Tensor:
    """Return a JPEG or PNG, which crosses the link as it is if a shared model takes it.

    The model takes pixels of one byte, so it scales them itself. The tensor is decoded when its
    elements are used: not at all if the server alone uses them.

    :param size: rows and columns; None: those of the picture.
    :param channels: 3: red, green and blue; 1: grey.
    :returns: uint8 (1, channels, rows, columns).
    :raises PictureError: it is not a JPEG or PNG, is too large, or damaged; a file that is damaged
        within raises it where it is decoded, such as in a call of the model.
    """
    return picture_of(Picture('the picture', data), size, channels)


def offloaded(model: torch.nn.Module, **options: Any) -> Callable[[Callable[..., Any]],
                                                                  Callable[..., Any]]:
    """Return a decorator that passes the shared ``model`` to a function as its first argument.

    ``options`` are the options of `offload`. The first call of the decorated function opens the
    context `offload`. The context stays open until the program ends.
    """
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        opened: list[OffloadedModel | FollowedModel] = []
        opening = threading.Lock()

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with opening:
                if not opened:
                    context = offload(model, **options)
                    opened.append(context.__enter__())
                    atexit.register(context.__exit__, None, None, None)
            return function(opened[0], *args, **kwargs)
        return wrapper
    return decorate


def _claimed(robot: str) -> str:
    """Return an unused namespace for a client of this robot.

    Servers identify clients by namespace.
    """
    with _names_lock:
        others = (f'{robot}/model{k}' for k in itertools.count(2))
        name = next(name for name in itertools.chain([robot], others) if name not in _names)
        _names.add(name)
        return name


def _no_plain_tensor(leaf: Any) -> str:
    """Describe an input that is not a plain tensor, such as 'of class X'; '' if it is one."""
    if type(leaf) not in (torch.Tensor, torch.nn.Parameter, Undecoded):
        return f'of class {type(leaf).__name__}'
    if leaf.layout is not torch.strided:
        return f'of layout {leaf.layout}'
    if torch._C._functorch.is_functorch_wrapped_tensor(leaf):
        return 'of a transform of torch.func'
    return ''


def _overlap(leaves: list[torch.Tensor]) -> bool:
    """Return whether two inputs overlap in memory."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.element_size() * (1 + sum(
        (n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True)))) for t in leaves)
    return any(start < end for (_, end), (start, _) in itertools.pairwise(spans))


def _modes() -> str:
    """Describe the PyTorch mode that makes results differ from the trace; '' if there is none."""
    if torch.is_autocast_enabled('cpu') or torch.is_autocast_enabled('cuda'):
        return 'torch.autocast is on'
    modes = [torch._C._get_function_stack_at(k) for k in range(
        torch._C._len_torch_function_stack())]
    if torch._C._len_torch_dispatch_stack() or any(not isinstance(m, DeviceContext) for m in modes):
        return 'a PyTorch mode is active, such as an operator profiler'
    return 'there is a forward hook of all modules' if any(every_hook()) else ''
