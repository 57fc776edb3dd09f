"""rclpy's API over DDS, for machines without a ROS 2 installation.

Where ROS 2 is sourced, its own rclpy is found first and nothing of this package is imported. What
is here is the part of the API that our nodes use, with rclpy's names and behaviour (ROS 2 Jazzy),
and the wire format of rmw_cyclonedds_cpp: nodes of both kinds form one graph.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rog_embedded import need_no_other_rclpy

from rclpy.context import Context
from rclpy.parameter import Parameter
from rclpy.signals import (
    SignalHandlerOptions,
    install_signal_handlers,
    uninstall_signal_handlers,
)
from rclpy.task import Future
from rclpy.utilities import get_default_context, get_rmw_implementation_identifier, ok
from rclpy.utilities import shutdown as _shutdown
from rclpy.utilities import try_shutdown as _try_shutdown

if TYPE_CHECKING:
    from rclpy.executors import Executor
    from rclpy.node import Node

__all__ = [
    "Context",
    "Future",
    "Parameter",
    "SignalHandlerOptions",
    "create_node",
    "get_default_context",
    "get_global_executor",
    "get_rmw_implementation_identifier",
    "init",
    "ok",
    "shutdown",
    "spin",
    "spin_once",
    "spin_until_future_complete",
    "try_shutdown",
]

need_no_other_rclpy(__path__[0])
# With rclpy these are there as soon as something has imported them, so programs rely on it.
_MODULES = ("clock", "duration", "executors", "logging", "node", "publisher", "qos", "time")
_lock = threading.Lock()
_global_executor: Any = None


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rclpy' has no attribute {name!r}")
    return import_module(f"rclpy.{name}")


class _InitContextManager:
    """Lets `with rclpy.init():` shut down at the end."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def __enter__(self) -> _InitContextManager:
        return self

    def __exit__(self, *_: object) -> None:
        if self.context is get_default_context():
            try_shutdown()
        else:
            try_shutdown(context=self.context)


def init(
    *,
    args: list[str] | None = None,
    context: Context | None = None,
    domain_id: int | None = None,
    signal_handler_options: SignalHandlerOptions | None = None,
) -> _InitContextManager:
    """Join the ROS graph.

    :param args: command line, by default sys.argv
    :param context: by default the default context
    :param domain_id: by default ROS_DOMAIN_ID
    :param signal_handler_options: by default SIGINT and SIGTERM for the default context, else none
    """
    default = get_default_context()
    context = default if context is None else context
    if signal_handler_options is None:
        chosen = SignalHandlerOptions.ALL if context is default else SignalHandlerOptions.NO
    else:
        chosen = signal_handler_options
    context.init(args, domain_id=domain_id)
    install_signal_handlers(chosen)
    return _InitContextManager(context)


def get_global_executor() -> Executor:
    """Return the executor that the spin functions use when they are given none."""
    global _global_executor
    from rclpy.executors import SingleThreadedExecutor

    with _lock:
        context = get_default_context()
        if _global_executor is None or _global_executor.context is not context:
            _global_executor = SingleThreadedExecutor()
        return _global_executor


def _stop_global_executor(context: Context | None) -> None:
    """A spin() on the default context ends quietly when the program itself shuts down."""
    global _global_executor
    with _lock:
        executor = _global_executor
        if executor is None or (context is not None and executor.context is not context):
            return
        _global_executor = None
    executor.shutdown(timeout_sec=0)


def _uninstall(context: Context | None, wish: bool | None) -> None:
    if wish or (wish is None and context is None):
        uninstall_signal_handlers()


def shutdown(*, context: Context | None = None, uninstall_handlers: bool | None = None) -> None:
    """Leave the ROS graph; an error when that has happened already (also by a signal)."""
    if context is get_default_context():
        context = None
    _stop_global_executor(context)
    try:
        _shutdown(context=context)
    finally:
        _uninstall(context, uninstall_handlers)


def try_shutdown(*, context: Context | None = None, uninstall_handlers: bool | None = None) -> None:
    """Leave the ROS graph if that has not happened yet."""
    if context is get_default_context():
        context = None
    _stop_global_executor(context)
    _try_shutdown(context=context)
    _uninstall(context, uninstall_handlers)


def create_node(node_name: str, **kwargs: Any) -> Node:
    """Create a node; arguments are those of rclpy.node.Node."""
    from rclpy.node import Node

    return Node(node_name, **kwargs)


def spin_once(
    node: Node, *, executor: Executor | None = None, timeout_sec: float | None = None
) -> None:
    """Run one piece of work of the node, or return after the timeout."""
    executor = get_global_executor() if executor is None else executor
    try:
        executor.add_node(node)
        executor.spin_once(timeout_sec=timeout_sec)
    finally:
        executor.remove_node(node)


def spin(node: Node, executor: Executor | None = None) -> None:
    """Run the node's callbacks until the context is shut down."""
    executor = get_global_executor() if executor is None else executor
    try:
        executor.add_node(node)
        while executor.context.ok():
            executor._spin_some()
    finally:
        executor.remove_node(node)


def spin_until_future_complete(
    node: Node,
    future: Future,
    executor: Executor | None = None,
    timeout_sec: float | None = None,
) -> None:
    """Run the node's callbacks until the future is done, or the timeout is over."""
    executor = get_global_executor() if executor is None else executor
    added = False
    try:
        added = executor.add_node(node)
        executor.spin_until_future_complete(future, timeout_sec)
    finally:
        if added:
            executor.remove_node(node)
