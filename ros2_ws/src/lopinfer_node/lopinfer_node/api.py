"""Share a model's inference with a server: `with offload(model) as m: y = m(x)`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import rclpy
import torch
from fleet_ros.exposure import team_key
from fleet_ros.services import bound_parameters
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext

from .errors import ModelError
from .model.precision import Precision
from .model.snapshot import Snapshot
from .model.state import every_hook
from .model.traced import trace
from .ros.client_shell import Client, ClientOptions
from .runtime.client import OPEN, Report
from .runtime.planner import TablePlanner

# seconds between background checks of the model, for changes that a call does not detect
LOOK_PERIOD = 0.25
MOST_WARNINGS = 16     # maximum number of warnings about calls that are not shared, one per reason

# only one trace at a time, because torch patches itself during a trace
_tracing = threading.Lock()
_names: set[str] = set()     # namespaces of the clients of this process
_names_lock = threading.Lock()


class OffloadedModel:
    """A model whose inferences are shared with a server; programs call it like the model itself.

    The results equal those of the model except for rounding. The original model runs whole on this
    machine if one of these conditions holds; `reason` says which one:

    - The inputs differ from those of the trace, for example in shape, dtype, device or nesting.
    - The model cannot be traced, or has changed since the trace.
    - A mode of PyTorch is active that can change results, such as autocast, or its precision on the
      GPU, such as TF32, is not that of the trace.
    - `close` was called.
    """

    def __init__(self, model: torch.nn.Module, robot: str, options: ClientOptions) -> None:
        self.model = model
        self._reason = ''           # why no call is shared any more
        self._whole_reason = ''     # why the last call was not shared
        self._warned: set[str] = set()
        self._name, self._options = robot, options
        self._client: Client | None = None
        self._opening = threading.Lock()   # makes other threads wait during the first call
        self._closed = threading.Event()
        self._traced: Snapshot      # state of the model when it was traced
        # how tensors are nested in the arguments; `_outputs`: how they are nested in the results
        self._inputs: Any = None
        self._outputs: Any = None
        self._devices: list[torch.device] = []   # devices of the inputs
        self._default = torch.get_default_dtype()
        self._repeats = False       # whether the inputs of the trace contain the same tensor twice

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one inference, shared with the server if possible."""
        kwargs = dict(sorted(kwargs.items()))  # the order of keyword arguments does not matter
        with self._opening:
            if self._client is None and not self._reason:
                self.connect(*args, **kwargs)
        began = time.perf_counter()
        leaves, structure = pytree.tree_flatten((args, kwargs))
        client = self._client
        if client is None or not self._current():
            return self._whole(client, self._reason, args, kwargs)
        self._whole_reason = why = self._misfit(client, leaves, structure)
        if why:
            self._warn(why)
            return self._whole(client, why, args, kwargs)
        results = client.infer(leaves, time.perf_counter() - began)
        return pytree.tree_unflatten(list(results), self._outputs)

    def _whole(self, client: Client | None, why: str, args: tuple[Any, ...],
               kwargs: dict[str, Any]) -> Any:
        if client is not None:
            client.note_whole(why)
        current = client is not None and not self._reason
        with torch.no_grad(), self._traced.running() if current else contextlib.nullcontext():
            return self.model(*args, **kwargs)

    def _current(self) -> bool:
        """Return whether the model is unchanged since the trace.

        If the model has changed, store the reason and warn.
        """
        if self._reason:
            return False
        changed = self._traced.change()
        if changed:
            self._reason = f'{changed} was changed after the model was traced: open it again'
            self._warn(self._reason)
        return not changed

    def _warn(self, why: str) -> None:
        """Warn once for each reason, but at most `MOST_WARNINGS` times."""
        if why not in self._warned and len(self._warned) < MOST_WARNINGS:
            self._warned.add(why)
            warnings.warn(f'{why}; it runs whole on this machine', stacklevel=_level_of_caller())

    def _misfit(self, client: Client, leaves: list[Any], structure: Any) -> str:
        """Return why these inputs do not fit the traced inputs; '' if they fit."""
        if structure != self._inputs:
            return (f'{type(self.model).__name__}: the inputs must be nested, named and ordered '
                    'like the traced ones')
        if other := _no_plain_tensor(leaves):
            return f'{type(self.model).__name__}: an input is {other}, not a plain tensor'
        try:
            client.traced.check_inputs(leaves)
        except ModelError as error:
            return str(error)
        devices = [leaf.device for leaf in leaves]
        if devices != self._devices:
            return f'the inputs must be on {self._devices} like the traced ones, got {devices}'
        if not self._repeats and len(set(map(id, leaves))) < len(leaves):
            return ('two inputs are the same tensor, which a model can detect: trace it with such '
                    'an example')
        if client.traced.writes and _overlap(leaves):
            return (f'{type(self.model).__name__} writes to its inputs, and two of them share '
                    'memory: give it copies')
        if client.traced.tape.precision != Precision.of(self._devices[0]):
            return "PyTorch's precision (such as TF32) has changed since the model was traced"
        if torch.get_default_dtype() is not self._default:
            return "PyTorch's default dtype has changed since the model was traced"
        return _modes()

    def connect(self, *args: Any, **kwargs: Any) -> None:
        """Trace the model with these example inputs; then look for the server in the background."""
        kwargs = dict(sorted(kwargs.items()))
        try:
            with _tracing:
                traced = trace(self.model, *args, **kwargs)
                self._traced = Snapshot(self.model, partial(self._run_once, args, kwargs))
        except ModelError as error:
            self._reason = str(error)
            self._warn(self._reason)
            return
        leaves, self._inputs = pytree.tree_flatten((args, kwargs))
        self._outputs = traced.structure
        self._devices = [leaf.device for leaf in leaves]
        self._default = torch.get_default_dtype()
        self._repeats = len(set(map(id, leaves))) < len(leaves)
        key = team_key(self._options.access)  # refuses the network before this process joins it
        self._context = Context()  # a separate context, because the program can use rclpy itself
        rclpy.init(context=self._context)
        self._robot = _claimed(self._name or (key and key.robot) or 'robot')
        self._node = Node('lopinfer', namespace=self._robot, context=self._context)
        bound_parameters(self._node, writable=False)
        self._client = Client(self._node, traced, self._options)
        self._spinning = Spinning(self._node)
        threading.Thread(target=self._watch, name='weights', daemon=True).start()
        here = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())

    def _after_fork(self) -> None:
        """Compute whole in a forked child: its parent has the session and the threads."""
        self._client, self._reason = None, 'this process was forked after the model was shared'

    def _run_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # copies, because the model may write to its inputs
        args, kwargs = pytree.tree_map(torch.clone, (args, kwargs))
        with torch.no_grad():
            self.model(*args, **kwargs)

    def _watch(self) -> None:
        """Check the model repeatedly, for changes that `__call__` does not detect."""
        while not self._closed.wait(LOOK_PERIOD) and not self._traced.look():
            pass

    @property
    def shared(self) -> bool:
        """Return whether the server is ready."""
        return self._client is not None and self._client.machine.state == OPEN

    @property
    def reason(self) -> str:
        """Return why inferences are not shared, or why the server refused the model.

        The result is '' if there is no such reason.
        """
        return self._reason or self._whole_reason or (
            '' if self._client is None else self._client.machine.reason)

    @property
    def report(self) -> Report | None:
        """Return counters and the times of the last inference; None before the model is traced."""
        return None if self._client is None else self._client.machine.report

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds`` until the server is ready; return whether it is ready."""
        return self._client is not None and self._client.wait_until(
            lambda: self.shared, time.monotonic() + seconds)

    def close(self) -> None:
        """Disconnect from the server; the model runs on this machine from now on."""
        if self._client is None:
            return
        self._closed.set()
        self._spinning.close()
        self._client.close()
        self._node.destroy_node()
        self._client, self._reason = None, 'closed'
        with _names_lock:
            _names.discard(self._robot)
        self._context.try_shutdown()


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
            robot: str = '', options: ClientOptions | None = None
            ) -> Iterator[OffloadedModel]:
    """Share the inferences of ``model`` with the server while the context is open.

    :param server: namespace of the server.
    :param example: input, or tuple of inputs, with which the model is traced; by default the
        inputs of the first call.
    :param robot: namespace of this robot, which must be unique; by default the robot of the key,
        without a key `robot`. A second model of the same process gets `robot/model2`.
    :param options: all other options; if they are given, their ``server`` replaces the argument
        ``server``.
    """
    shared = OffloadedModel(model, robot, options or ClientOptions(TablePlanner(), server))
    try:
        if example is not None:
            several = isinstance(example, tuple) and not hasattr(example, '_fields')
            shared.connect(*(example if several else (example,)))
        yield shared
    finally:
        shared.close()


def offloaded(model: torch.nn.Module, **options: Any) -> Callable[[Callable[..., Any]],
                                                                  Callable[..., Any]]:
    """Return a decorator that passes the shared ``model`` to a function as its first argument.

    ``options`` are the options of `offload`. The first call of the decorated function opens the
    context `offload`. The context stays open until the program ends.
    """
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        opened: list[OffloadedModel] = []
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


def _no_plain_tensor(leaves: list[Any]) -> str:
    """Describe the first input that is not a plain tensor, such as 'of class X'; '' if none is."""
    for leaf in leaves:
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
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
