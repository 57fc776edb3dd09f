"""Run one node as a process: signals, executor, errors of the user, exit code."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from typing import Any

import rclpy
from fleet_env.fleet import ReachConfig
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from .ending import Interruption, end_with_launcher, ignore_signals, leave_at_exit
from .environment import domain_of
from .spinning import until_shut_down


def run(build: Callable[[], Any], serve: Callable[[Any, Interruption], int],
        arguments: Sequence[str] | None, packages: Collection[str],
        before: Callable[[Sequence[str] | None], None] = lambda arguments: None) -> int:
    """Build a node, serve it, and return the exit code of the process.

    ``before`` is called with the arguments before the process joins DDS, and may raise an error.

    ``build`` imports slow packages (PyTorch), so that Ctrl+C works cleanly during the imports. An
    error of ``packages`` or rclpy is a fault of the user and is printed as one line. Without
    ``arguments`` the process ends when this function returns.
    """
    code = _run(build, serve, arguments, packages, before)
    if arguments is None:
        leave_at_exit(code)
    return code


def _run(build: Callable[[], Any], serve: Callable[[Any, Interruption], int],
         arguments: Sequence[str] | None, packages: Collection[str],
         before: Callable[[Sequence[str] | None], None]) -> int:
    end_with_launcher()
    interruption = Interruption()
    try:
        with interruption.raised():
            domain_of(ReachConfig())  # refuses one that does not exist
            before(arguments)
        # Signals are left to us, so that Ctrl+C can end a run in order.
        rclpy.init(args=None if arguments is None else list(arguments),
                   signal_handler_options=SignalHandlerOptions.NO)
        with interruption.raised():
            node = build()
    except KeyboardInterrupt:
        return _end(0)  # before the run: nothing to clean up
    except SystemExit as error:  # of a task or model: it would look like success
        return _end(fail(f'the task or model called sys.exit({error.code}) while it was loaded; it '
                         'must not end the process'))
    except Exception as error:
        if not is_users(error, packages):
            traceback.print_exc()
        return _end(fail(_sentence(error, packages)))
    try:
        code = serve(node, interruption)
        until = getattr(node, 'stays_until', 0.0)
        spin_until(node, lambda: bool(interruption) or time.monotonic() >= until, interruption)
        return code
    finally:
        node.destroy_node()
        _end(0)


def is_users(error: Exception, packages: Collection[str]) -> bool:
    """Return whether an error is a fault of the user: of rclpy, fleet_* or ``packages``."""
    # rclpy has no common base for what is wrong with arguments, names, parameters or the domain.
    return type(error).__module__.partition('.')[0] in {'rclpy', 'fleet_ros', 'fleet_env',
                                                        *packages}


def _sentence(error: Exception, packages: Collection[str]) -> str:
    if type(error).__module__.startswith('rclpy._rclpy'):
        return (f'ROS 2 does not start: {error}. Check the arguments, ROS_DOMAIN_ID (0 to 232) and '
                'the network interfaces that the profile of DDS names')
    return str(error) if is_users(error, packages) else f'{type(error).__name__}: {error}'


def _end(code: int) -> int:
    rclpy.try_shutdown()
    ignore_signals()
    return code


def spin_until(node: Node, done: Callable[[], bool], interruption: Interruption,
               interrupt: Callable[[], None] = lambda: None) -> None:
    """Spin until ``done``; the first signal calls ``interrupt``, the second ends the loop."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    handled = False
    try:
        with until_shut_down(node.context):
            while not done() and not interruption.at_once:
                executor.spin_once(timeout_sec=0.1)
                if interruption and not handled:
                    handled = True
                    interrupt()
    finally:
        executor.remove_node(node)


def fail(message: str) -> int:
    """Print an error message and return its exit code."""
    print(f'error: {message}', file=sys.stderr)
    return 1
