"""Running one node as a process: signals, executor, exit code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions


def init(arguments: Sequence[str] | None) -> None:
    """Start ROS 2 with signals left to us, so that Ctrl+C can end a run in order."""
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)


def spin_until(node: Node, done: Callable[[], bool], interrupt: Callable[[], None]) -> None:
    """Spin until ``done``; the first SIGINT or SIGTERM calls ``interrupt``, the second ends at once."""
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
