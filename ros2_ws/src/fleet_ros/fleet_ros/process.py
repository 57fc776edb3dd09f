"""Running one node as a process: signals, executor, errors of the user, exit code."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


def run(build: Callable[[], Any], serve: Callable[[Any], int],
        arguments: Sequence[str] | None, packages: Collection[str]) -> int:
    """Build a node, serve it, and return the exit code of the process.

    ``build`` imports what takes long (PyTorch), so that Ctrl+C is as clean before as it is later.
    Errors with which ``packages``, or rclpy, name a fault of the user are one line.
    """
    ours = {'rclpy', 'fleet_ros', 'fleet_env', *packages}
    try:
        # Signals are left to us, so that Ctrl+C can end a run in order.
        rclpy.init(args=None if arguments is None else list(arguments),
                   signal_handler_options=SignalHandlerOptions.NO)
        node = build()
    except KeyboardInterrupt:
        return _end(0)  # before the run has begun: nothing to put in order
    except Exception as error:
        if not _is_users(error, ours):
            traceback.print_exc()
        return _end(fail(_sentence(error, ours)))
    try:
        return serve(node)
    finally:
        node.destroy_node()
        _end(0)


def _is_users(error: Exception, ours: Collection[str]) -> bool:
    # rclpy has no common base for what is wrong with arguments, names, parameters or the domain.
    return type(error).__module__.partition('.')[0] in ours


def _sentence(error: Exception, ours: Collection[str]) -> str:
    if type(error).__module__.startswith('rclpy._rclpy'):
        return (f'ROS 2 does not start: {error}. Check the arguments, ROS_DOMAIN_ID (0 to 232) and '
                'the network interfaces that CYCLONEDDS_URI names')
    return str(error) if _is_users(error, ours) else f'{type(error).__name__}: {error}'


def _end(code: int) -> int:
    rclpy.try_shutdown()
    # At exit Python restores the default handlers, and only then are libraries torn down: a Ctrl+C
    # meanwhile must not turn a clean end into a death by signal.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    return code


def spin_until(node: Node, done: Callable[[], bool], interrupt: Callable[[], None]) -> None:
    """Spin until ``done``; the first SIGINT or SIGTERM calls ``interrupt``, the second ends it."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    seen: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    handled = False
    try:
        while not done() and len(seen) < 2:
            executor.spin_once(timeout_sec=0.1)
            if seen and not handled:
                handled = True
                interrupt()
    except ExternalShutdownException:
        pass
    finally:
        executor.remove_node(node)


def fail(message: str) -> int:
    """Print what went wrong and return the exit code for it."""
    print(f'error: {message}', file=sys.stderr)
    return 1
