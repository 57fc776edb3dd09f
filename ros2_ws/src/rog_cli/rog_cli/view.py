"""Shows a fleet on the terminal: a live table during training, the outcome at the end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import rclpy
from fleet_env.fleet import FleetConfig
from fleet_env.summary import Summary
from fleet_ros.ending import Interruption
from rclpy.executors import SingleThreadedExecutor
from rclpy.signals import SignalHandlerOptions
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rog_msgs.msg import FleetStatus, TrainingStatus
from rog_ros import qos
from rog_ros.parameters import SERVER

from .processes import FleetProcesses

COLORS = {'computing': 'green', 'pushing': 'cyan', 'pulling': 'cyan', 'waiting': 'yellow',
          'retired': 'magenta', 'away': 'red', 'stopped': 'dim'}


class Monitor:
    """A node that listens to the status topics of the fleet."""

    def __init__(self, namespace: str = '') -> None:
        self._namespace = namespace
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(f'rog_status_{os.getpid()}')
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self.fleet: Any = None
        self.robots: dict[str, Any] = {}
        self.heard: dict[str, float] = {}  # SERVER, or robot -> time of its last status
        self._subscribed: set[str] = set()
        self.node.create_subscription(FleetStatus, f'{namespace}/{SERVER}/fleet_status',
                                      self._on_fleet, qos.STATUS)

    def listen(self, robot: str) -> None:
        """Listen to a robot's status."""
        if robot not in self._subscribed:
            self._subscribed.add(robot)
            self.node.create_subscription(
                TrainingStatus, f'{self._namespace}/{robot}/training_status', self._on_robot,
                qos.STATUS)

    def _on_fleet(self, message: Any) -> None:
        self.fleet = message
        self.heard[SERVER] = time.monotonic()
        for robot in message.robots:
            self.listen(robot.robot)

    def _on_robot(self, message: Any) -> None:
        self.robots[message.robot] = message
        self.heard[message.robot] = time.monotonic()

    def spin(self, seconds: float) -> None:
        """Take what arrives for a while."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def table(self) -> Table:
        """Return the live table."""
        fleet = self.fleet
        if fleet is None:
            title = 'waiting for the parameter server'
        else:
            title = (f'{fleet.sync}   {fleet.state}   {fleet.elapsed:.0f} s   minimum '
                     f'{100 * fleet.mta:.0f} % of {fleet.rows_total} rows, MTA time '
                     f'{1e3 * fleet.mta_time:.0f} ms')
        table = Table(title=title, title_justify='left', box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
                      pad_edge=False, show_edge=False)
        table.add_column('robot', no_wrap=True)
        table.add_column('state', overflow='ellipsis')  # gives way on a narrow terminal
        for column in ('iter', 'loss', 'acc %', 'stale', 'rows\npushed', 'link\nMbit/s',
                       'compute\ns', 'comm\ns', 'stall\ns', 'J'):
            table.add_column(column, justify='right', no_wrap=True)
        known = {r.robot: r for r in fleet.robots} if fleet is not None else {}
        table.caption, table.caption_justify = '\n'.join(self._causes()), 'left'
        for name in sorted({*self.robots, *known}):
            table.add_row(*self._row(name, self.robots.get(name), known.get(name)))
        return table

    @staticmethod
    def _row(name: str, robot: Any, seen: Any) -> list[str]:
        state = robot.state if robot is not None else '?'
        if seen is not None and seen.state in ('away', 'retired'):
            state = seen.state
        text = state
        if seen is not None and seen.waiting_for:
            text = f'{state} for {seen.waiting_for} {seen.waiting_time:.0f} s'
        color = COLORS.get(state, 'white')
        if robot is None:
            return [name, f'[{color}]{text}[/]', *[''] * 10]
        measured = f'{robot.bandwidth:.2f}'
        link = measured if math.isnan(robot.link_rate) else f'{robot.link_rate:.2f}'
        return [name, f'[{color}]{text}[/]', str(robot.iteration), _number(robot.loss, '.3f'),
                _number(100 * robot.accuracy, '.1f'), str(robot.staleness),
                f'{robot.rows_pushed}/{robot.rows_total}', link,
                f'{robot.compute_time:.1f}', f'{robot.communicate_time:.1f}',
                f'{robot.stall_time:.1f}', f'{robot.energy:.0f}']

    def _causes(self) -> list[str]:
        """Say of each robot why others wait for it, or do not wait any more."""
        robots = self.fleet.robots if self.fleet is not None else []
        return [f'{r.robot}: {r.state}, {r.why}' if r.state in ('away', 'retired')
                else f'{r.robot}: {r.why}' for r in robots if r.why]

    def line(self) -> str:
        """Return the state of the fleet in one line."""
        if self.fleet is None:
            return 'waiting for the parameter server'
        robots = '   '.join(
            f'{n}: {r.iteration} {r.state} loss {_number(r.loss, ".3f")} accuracy '
            f'{_number(100 * r.accuracy, ".1f", " %")} rows {r.rows_pushed}/{r.rows_total} '
            f'stall {r.stall_time:.1f} s' for n, r in sorted(self.robots.items()))
        return '   '.join([f'{self.fleet.elapsed:5.0f} s {self.fleet.sync}', robots,
                           *self._causes()])

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._executor.remove_node(self.node)
        self.node.destroy_node()
        rclpy.try_shutdown()


def _number(value: float, form: str, unit: str = '') -> str:
    return '-' if math.isnan(value) else format(value, form) + unit


def show(monitor: Monitor, once: bool, timeout: float) -> int:
    """Show the table, once or until Ctrl+C. Exit code 1 when no fleet was found in time."""
    until = time.monotonic() + timeout
    while monitor.fleet is None or not monitor.robots:
        monitor.spin(0.2)
        if time.monotonic() >= until:
            domain = os.environ.get('ROS_DOMAIN_ID') or '0'
            print(f'rog: no parameter server in DDS domain {domain} within {timeout:g} s; is '
                  'ROS_DOMAIN_ID the same as the fleet\'s?', file=sys.stderr)
            return 1
    if once:
        monitor.spin(0.5)
        Console(width=None if sys.stdout.isatty() else 140).print(monitor.table())
        return 0
    show_until(monitor, lambda: monitor.fleet.state == 'stopped', plain=False)
    return 0


def watch(processes: FleetProcesses, fleet: FleetConfig, interruption: Interruption,
          plain: bool) -> None:
    """Show a fleet that runs on this machine until its run is over, or a signal has come.

    It is over, too, when a robot fails before it has joined: whoever starts a fleet wants to know.
    """
    with Monitor(fleet.network.namespace) as monitor:
        for robot in fleet.robots:
            monitor.listen(robot.name)

        def over() -> bool:
            processes.follow(monitor.fleet)
            joined = {robot.robot for robot in monitor.fleet.robots} if monitor.fleet else set()
            return bool(interruption) or not processes.running() \
                or not joined.issuperset(processes.failures())

        show_until(monitor, over, plain)


def show_until(monitor: Monitor, over: Callable[[], bool], plain: bool) -> None:
    """Show what the monitor hears, as a live table or as a line now and then, until it is over."""
    if plain:
        said = time.monotonic()
        while not over():
            monitor.spin(0.1)
            if time.monotonic() - said >= (5.0 if monitor.robots else 1.0):
                said = time.monotonic()
                print(monitor.line(), flush=True)
        return
    with Live(monitor.table(), refresh_per_second=4) as live:
        while not over():
            monitor.spin(0.25)
            live.update(monitor.table())


def outcome(summary: Summary, fleet: FleetConfig) -> None:
    """Print the table of results; only a task whose world changes has columns for that."""
    shift = any(not math.isnan(robot.accuracy.clean) for robot in summary.robots.values())
    accuracies = {'before the shift': 'clean', 'after the shift': 'before', 'adapted': 'after'} \
        if shift else {'at the start': 'before', 'at the end': 'after'}
    table = Table(title=f'{fleet.name}, {summary.sync}, {summary.duration_s:.0f} s of training',
                  title_justify='left')
    for column in ('robot', *accuracies, 'iterations', 'compute', 'communicate', 'stall',
                   'energy J', 'rows per push'):
        table.add_column(column, justify='left' if column == 'robot' else 'right')
    for name, robot in summary.robots.items():
        total = robot.compute_s + robot.communicate_s + robot.stall_s or math.nan
        table.add_row(name, *(_number(100 * getattr(robot.accuracy, key), '.1f', ' %')
                              for key in accuracies.values()),
                      str(robot.iterations),
                      *(f'{t:.1f} s {_number(100 * t / total, ".0f", " %")}'
                        for t in (robot.compute_s, robot.communicate_s, robot.stall_s)),
                      f'{robot.energy_j:.0f}', f'{robot.rows_pushed_mean:.0f}')
    Console(width=None if sys.stdout.isatty() else 140).print(table)
