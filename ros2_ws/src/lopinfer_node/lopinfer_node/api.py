"""Share a model's inference with a server: `with offload(model) as m: y = m(x)`."""

from __future__ import annotations

import atexit
import functools
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rclpy
import torch
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node
from torch.utils import _pytree as pytree

from .errors import ModelError
from .model.state import Snapshot
from .model.traced import trace
from .ros.client_shell import Client, ClientOptions
from .runtime.client import OPEN, Report
from .runtime.planner import TablePlanner

_tracing = threading.Lock()  # torch patches itself while it traces


class OffloadedModel:
    """Called like the model, with the same result to float tolerance.

    Inputs of other shapes than the first, and a model that can't be traced or was changed since
    (`reason` says why), run whole on this machine.
    """

    def __init__(self, model: torch.nn.Module, robot: str, options: ClientOptions) -> None:
        self.model = model
        self._reason = ''
        self._robot, self._options = robot, options
        self._client: Client | None = None
        self._opening = threading.Lock()   # threads may make the first call at once
        self._traced: Snapshot      # of the model, as it was traced
        self._inputs: Any = None    # how tensors are nested in arguments and results
        self._outputs: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """One inference."""
        kwargs = dict(sorted(kwargs.items()))  # in whichever order they were given
        with self._opening:
            if self._client is None and not self._reason:
                self.connect(*args, **kwargs)
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if not self._current() or structure != self._inputs or not self._fits(leaves):
            return self._whole(args, kwargs)
        assert self._client is not None
        return pytree.tree_unflatten(list(self._client.infer(leaves)), self._outputs)

    def _whole(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.no_grad():
            result = self.model(*args, **kwargs)
        if self._client is not None and not self._reason:
            self._traced.settle()
        return result

    def _current(self) -> bool:
        """Whether what was traced is the model as it is now."""
        if self._client is None or self._reason:
            return False
        changed = self._traced.change()
        if changed:
            self._reason = f'{changed} was changed after the model was traced: open it again'
            warnings.warn(f'{self._reason}; it runs whole on this machine', stacklevel=3)
        return not changed

    def _fits(self, leaves: list[Any]) -> bool:
        assert self._client is not None
        inputs = self._client.traced.inputs
        return not torch.is_autocast_enabled('cpu') and len(leaves) == len(inputs) and all(
            isinstance(given, torch.Tensor) and tuple(given.shape) == wanted.shape
            and given.dtype == wanted.dtype for given, wanted in zip(leaves, inputs, strict=True))

    def connect(self, *args: Any, **kwargs: Any) -> None:
        """Trace the model with these example inputs and look for the server, in the background."""
        kwargs = dict(sorted(kwargs.items()))
        try:
            with _tracing:
                traced = trace(self.model, *args, **kwargs)
                self._traced = Snapshot(self.model)
        except ModelError as error:
            self._reason = str(error)
            warnings.warn(f'{error}; it runs whole on this machine', stacklevel=3)
            return
        self._inputs = pytree.tree_flatten((args, kwargs))[1]
        self._outputs = traced.structure
        self._context = Context()  # our own: the program may use rclpy or not, before and after
        rclpy.init(context=self._context)
        self._node = Node('lopinfer', namespace=self._robot, context=self._context)
        self._client = Client(self._node, traced, self._options)
        self._spinning = Spinning(self._node)

    @property
    def shared(self) -> bool:
        """Whether the server is there and ready."""
        return self._client is not None and self._client.machine.state == OPEN

    @property
    def reason(self) -> str:
        """Why inferences run whole on this machine, or why the server refused; '' if nothing is."""
        return self._reason or ('' if self._client is None else self._client.machine.reason)

    @property
    def report(self) -> Report | None:
        """Counts, and the times of the last inference; None when nothing was traced."""
        return None if self._client is None else self._client.machine.report

    def wait(self, seconds: float) -> bool:
        """Wait until the server is ready; False if it is not in time."""
        return self._client is not None and self._client.wait_until(
            lambda: self.shared, time.monotonic() + seconds)

    def close(self) -> None:
        """Leave the server alone; the model goes on here."""
        if self._client is None:
            return
        self._spinning.close()
        self._client.close()
        self._node.destroy_node()
        self._client, self._reason = None, 'closed'
        self._context.try_shutdown()


@contextmanager
def offload(model: torch.nn.Module, server: str = '/lopinfer', example: Any = None,
            robot: str = 'robot', options: ClientOptions | None = None
            ) -> Iterator[OffloadedModel]:
    """Share the inferences of ``model`` with the server while the context is open.

    :param server: namespace of the server.
    :param example: input, or tuple of inputs, to trace the model with; else the first call's.
    :param robot: namespace of this robot; each one its own.
    :param options: everything else; ``server`` is then that of the options.
    """
    shared = OffloadedModel(model, robot, options or ClientOptions(TablePlanner(), server))
    try:
        if example is not None:
            shared.connect(*(example if isinstance(example, tuple) else (example,)))
        yield shared
    finally:
        shared.close()


def offloaded(model: torch.nn.Module, **options: Any) -> Callable[[Callable[..., Any]],
                                                                  Callable[..., Any]]:
    """Decorate a function whose first argument is to be ``model``, shared with a server.

    ``options`` are those of `offload`. The first call connects it, until the program ends.
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
