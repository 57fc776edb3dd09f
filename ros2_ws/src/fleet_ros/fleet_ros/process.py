"""Runs nodes as a process: signals, executor, errors that are the user's fault, exit code."""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from itertools import takewhile
from pathlib import Path
from typing import Any

import rclpy
from fleet_env.command import begin_process, never_collect_what_is_loaded
from fleet_env.settings.fleet import ReachConfig
from fleet_env.vision import other_build
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from .ending import Interruption, end_with_launcher, ignore_signals, leave, limit_leaving
from .environment import domain_of, refuse_false_security
from .parameters import declared
from .spinning import Executor, until_shut_down


def run(build: Callable[[], Any], serve: Callable[[Any, Interruption], int],
        arguments: Sequence[str] | None, packages: Collection[str],
        before: Callable[[Sequence[str] | None], None] = lambda arguments: None,
        settings: str = '', ends: bool = False) -> int:
    """Build a node or a list of nodes, serve it, and return the exit code of the process.

    With the argument `--help`, print the node's parameters instead.

    An error whose class is from ``packages``, rclpy, fleet_ros or fleet_env is the user's
    fault. Such an error is printed as one line, without a traceback.

    :param build: function that makes the node or nodes. Import slow packages (PyTorch) in this
        function, so that Ctrl+C works during the imports.
    :param serve: function that gets what ``build`` has returned, serves it until its end, and
        returns the exit code.
    :param arguments: arguments of the process. None: sys.argv; in this case, `run` also
        ends the process. It does not tear down libraries or wait for threads that still
        compute (`leave`).
    :param before: function that is called with ``arguments`` before the process joins DDS.
        It may raise an error.
    :param settings: class of the node's settings, as ``package.module:Class``.
    :param ends: whether this function also ends the process if ``arguments`` are given.
    """
    if arguments is None:
        begin_process()
    given = sys.argv[1:] if arguments is None else arguments
    if {'-h', '--help'} & set(takewhile('--ros-args'.__ne__, given)):
        print(_help(settings))
        return 0
    ends = ends or arguments is None
    code = _run(build, serve, arguments, packages, before, ends)
    if ends:
        leave(code)
    return code


def _help(settings: str) -> str:
    module, _, name = settings.partition(':')
    model = getattr(importlib.import_module(module), name)
    return '\n'.join([
        f'usage: {Path(sys.argv[0]).name} --ros-args -r __ns:=/NAMESPACE -p PARAMETER:=VALUE ...',
        '', (model.__doc__ or '').strip().splitlines()[0], '',
        *(f'  {knob.name}: {knob.help}' for knob in declared(model))])


def _run(build: Callable[[], Any], serve: Callable[[Any, Interruption], int],
         arguments: Sequence[str] | None, packages: Collection[str],
         before: Callable[[Sequence[str] | None], None], ends: bool) -> int:
    end_with_launcher()
    interruption = Interruption()
    try:
        with interruption.raised():
            domain_of(ReachConfig())  # raises an error if ROS_DOMAIN_ID is not a domain
            refuse_false_security()
            before(arguments)
        # rclpy must not handle signals, so that the node can end in an orderly way after Ctrl+C.
        rclpy.init(args=None if arguments is None else list(arguments),
                   signal_handler_options=SignalHandlerOptions.NO)
        with interruption.raised():
            node = build()
    except KeyboardInterrupt:
        return _end(0)  # the node has not begun to work, so there is nothing to clean up
    # a task or model has called sys.exit; the exit code 0 would look like success
    except SystemExit as error:
        return _end(fail(f'the task or model called sys.exit({error.code}) while it was loaded; it '
                         'must not end the process'))
    except Exception as error:
        if not is_users(error, packages):
            traceback.print_exc()
        return _end(fail(explained(error, packages)))
    if ends:
        never_collect_what_is_loaded()
    nodes = _listed(node)
    with ExitStack() as released:
        released.callback(_end, 0)
        for each in reversed(nodes):
            released.callback(each.destroy_node)
        if ends:
            released.callback(limit_leaving)
        code = serve(node, interruption)
        until = max(getattr(each, 'stays_until', 0.0) for each in nodes)
        spin_until(nodes, lambda: bool(interruption) or time.monotonic() >= until, interruption)
        return code


def _listed(nodes: Node | Sequence[Node]) -> Sequence[Node]:
    return [nodes] if isinstance(nodes, Node) else nodes


def is_users(error: Exception, packages: Collection[str]) -> bool:
    """Return whether an error is the user's fault.

    An error is the user's fault if its class is from rclpy, fleet_ros, fleet_env, fleet_link or
    one of ``packages``.
    """
    # Compare the package of the error's class, because rclpy's errors about arguments, names,
    # parameters and the domain have no common base class.
    return type(error).__module__.partition('.')[0] in {'rclpy', 'fleet_ros', 'fleet_env',
                                                        'fleet_link', *packages}


def explained(error: Exception, packages: Collection[str]) -> str:
    """Describe an error in one line, without a traceback; ``packages``: see `is_users`."""
    if type(error).__module__.startswith('rclpy._rclpy'):
        return f'ROS 2 does not start: {error}. {_advice(str(error))}'
    said = str(error) if is_users(error, packages) else f'{type(error).__name__}: {error}'
    advice = other_build(error)
    return said if not advice or advice in said else f'{said}. {advice}'


def _advice(error: str) -> str:
    if 'logging' in error:
        return 'Set ROS_LOG_DIR to a folder that can be written'
    if 'namespace' in error or '__ns:=' in error:
        return ('A namespace has at most 64 characters: letters, digits and single underscores '
                'after each slash, first a letter')
    return ('Check the arguments, ROS_DOMAIN_ID (0 to 232), the network interfaces that the '
            'profile of DDS names, and whether file descriptors are left (ulimit -n)')


def _end(code: int) -> int:
    rclpy.try_shutdown()
    ignore_signals()
    return code


def spin_until(nodes: Node | Sequence[Node], done: Callable[[], bool], interruption: Interruption,
               interrupt: Callable[[], None] = lambda: None) -> None:
    """Spin until ``done()`` is true; call ``interrupt`` at the first signal, stop at the second."""
    executor = Executor()
    nodes = _listed(nodes)
    for node in nodes:
        executor.add_node(node)
    handled = False
    try:
        with until_shut_down(nodes[0].context):
            while not done() and not interruption.at_once:
                executor.spin_once(timeout_sec=0.1)
                if interruption and not handled:
                    handled = True
                    interrupt()
    finally:
        for node in nodes:
            executor.remove_node(node)


def fail(message: str) -> int:
    """Print an error message and return its exit code."""
    print(f'error: {message}', file=sys.stderr)
    return 1
