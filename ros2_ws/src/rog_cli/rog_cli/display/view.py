"""Show a fleet on the terminal: a live table during training, the outcome at the end."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import fleet_ros  # noqa: F401  # before rclpy: it checks the shared memory
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from fleet_env.records.summary import Summary
from fleet_env.settings.fleet import FleetConfig
from fleet_env.versions import LATEST, MODEL_FILE, MODELS, Versions
from fleet_link.key import Key
from fleet_ros.ending import Interruption
from fleet_ros.reminder import Reminder
from fleet_ros.spinning import Executor
from rclpy.signals import SignalHandlerOptions
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from rog_core.patience import Silence
from rog_msgs.msg import FleetStatus, TrainingStatus
from rog_ros import qos
from rog_ros.parameters import SERVER
from rog_ros.servers import Order
from rog_ros.signature import Signature

from ..launching.processes import FleetProcesses
from .fleet_state import COLUMNS, SILENT, Fleet, FleetState, number

COLORS = {'computing': 'green', 'pushing': 'cyan', 'pulling': 'cyan', 'waiting': 'yellow',
          'retired': 'magenta', 'away': 'red', 'stopped': 'dim'}

# With the option --once, the table waits at most this number of seconds for the statuses of all
# robots.
COMPLETE = 3.0
POLICY = ': policy'   # the end of the names of policies in `/diagnostics`
POLICIES = 64         # most of them that are shown
BETTER = 0.01  # an earlier version is named if its accuracy is higher by more than this


class Monitor:
    """A node that receives the statuses of a fleet's server and robots.

    :param key: key of the fleet or of a robot. With a key, a server status counts only if it is
        signed with the key and newer than the last status. The second condition is needed because
        anybody can send an old status again.
    :param robots: robots of this machine, whose statuses come from themselves. None: the statuses
        of all robots come from the server, so that each passes the robot's link only once.
    :param above, minutes, starting: see `FleetState`.
    :param policies: whether to listen to `/diagnostics`, which pass the robots' links for it.
    """

    def __init__(self, namespace: str = '', key: Key | None = None,
                 robots: Collection[str] | None = None, above: str = '',
                 minutes: float = 0.0, starting: bool = False, policies: bool = False) -> None:
        self.namespace = namespace
        self._proves = None if key is None else Signature(key).proves
        self._order = Order(SILENT)
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(f'rog_status_{os.getpid()}')
        self._executor = Executor()
        self._executor.add_node(self.node)
        self.state = FleetState(above, minutes, starting)
        self._policies: dict[str, tuple[Any, float]] = {}   # last status of each, and its time
        self.unproved = False  # whether the last server status had no valid signature
        server = f'{namespace}/{SERVER}'
        self.node.create_subscription(FleetStatus, f'{server}/fleet_status', self._on_fleet,
                                      qos.STATUS)
        for topic, profile in [(f'{server}/{qos.ROBOTS}', qos.RELAY)] if robots is None else [
                (f'{namespace}/{robot}/training_status', qos.HEARTBEAT) for robot in robots]:
            self.node.create_subscription(TrainingStatus, topic, self._on_robot, profile)
        if robots is None:
            self.node.create_subscription(TrainingStatus, f'{server}/{qos.PAST}',
                                          lambda message: self.state.on_past(message), qos.ONCE)
            self.node.create_subscription(FleetStatus, f'{server}/{qos.PAST_FLEET}',
                                          self._on_past_fleet, qos.ONCE)
        if policies:
            self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)

    @property
    def fleet(self) -> Any:
        """Return the last `FleetStatus`, or None if none has arrived."""
        return self.state.fleet

    @property
    def robots(self) -> dict[str, Any]:
        """Return the last `TrainingStatus` of each robot, by the robot's name."""
        return self.state.robots

    def heard(self, name: str) -> float:
        """Return when the last status of `SERVER` or of a robot arrived.

        The time is in seconds of the monotonic clock, -inf if no status has arrived.
        """
        if name == SERVER:
            return self.state.heard_fleet
        return self.state.heard.get(name, -math.inf)

    def _on_robot(self, message: Any) -> None:
        self.state.on_robot(message, time.monotonic())

    def _on_fleet(self, message: Any) -> None:
        self.unproved = self._proves is not None and not self._proves(message)
        now = time.monotonic()
        if self.unproved or (self._proves is not None and not self._order.is_new(message, now)):
            return
        self.state.on_fleet(message, now)

    def _on_past_fleet(self, message: Any) -> None:
        if self._proves is None or self._proves(message):
            self.state.on_past_fleet(message)

    def _on_diagnostics(self, message: Any) -> None:
        now = time.monotonic()
        for status in message.status:
            room = status.name in self._policies or len(self._policies) < POLICIES
            if status.name.endswith(POLICY) and room:
                self._policies[status.name] = status, now

    def policies(self) -> list[str]:
        """Return a line about each node of a policy in this domain, of any fleet."""
        known, now = self._policies, time.monotonic()
        return [_of_policy(known[name][0]) for name in sorted(known)
                if not Silence(SILENT, known[name][1]).is_silent(now)]

    def spin(self, seconds: float) -> None:
        """Receive messages for ``seconds`` seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def shown(self) -> Fleet:
        """Return the state of the fleet to display now."""
        return self.state.shown(time.monotonic())

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._executor.remove_node(self.node)
        self.node.destroy_node()
        rclpy.try_shutdown()


def _of_policy(status: Any) -> str:
    """Return what a policy's node says in `/diagnostics`, as a line."""
    values = {value.key: value.value for value in status.values}
    said = [f'policy {status.message}', f"actions by {values.get('computed by') or 'nobody yet'}"]
    with suppress(KeyError, ValueError):
        kilobytes = float(values['sent for an inference (B)']) / 1e3
        said.append(f'{kilobytes:.1f} kB sent for an inference')
    line = f'{status.name.removesuffix(POLICY)}: {", ".join(said)}'
    return ''.join(c if c.isprintable() else '?' for c in line[:200])


def live_table(fleet: Fleet, policies: Sequence[str] = ()) -> Table:
    """Return the live table of a fleet, and lines about policies."""
    below = [*(Text(f'server: {fault}', 'red') for fault in fleet.faults),
             *map(Text, [*fleet.causes(), *policies])]
    made = Table(title=Text(fleet.headline()), title_justify='left', box=box.SIMPLE_HEAD,
                 padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
                 caption=Text('\n').join(below), caption_justify='left')
    made.add_column('robot', no_wrap=True)
    made.add_column('state', overflow='ellipsis')  # a narrow terminal cuts only this column
    # leave out the power: with it the table would be wider than 80 characters
    columns = [column for column in COLUMNS if column != 'power']
    for column in columns:
        made.add_column('\n'.join(filter(None, (column, COLUMNS[column]))), justify='right',
                        no_wrap=True)
    for robot in fleet.robots:
        cells = robot.cells()
        made.add_row(Text(robot.name), Text(robot.doing, COLORS.get(robot.state, 'white')),
                     *(cells[column] for column in columns))
    return made


def show(monitor: Monitor, once: bool, timeout: float, policies: bool = False) -> int:
    """Show the fleet once or until it stops, and return the exit code; once if it has stopped.

    The code is 1 if no fleet is found within ``timeout`` seconds. On a terminal the function shows
    a live table; elsewhere it prints one line per robot every 5 s.

    :param policies: whether the user asks for policies, too: then one of them is enough to show.
    """
    until, reminder = time.monotonic() + timeout, Reminder()
    sought = 'parameter server and no policy' if policies else 'parameter server'
    while monitor.fleet is None and not monitor.policies():
        monitor.spin(0.2)
        now = time.monotonic()
        if now >= until:
            print(f'rog: no {sought} in {place(monitor.namespace)} within {timeout:g} s; '
                  'is ROS_DOMAIN_ID the same as the fleet\'s? rog doctor looks for the reason; '
                  'rog view DIR shows a run that is over', file=sys.stderr)
            return 1
        if reminder.due(now):
            print(f'rog: waiting for a {sought.replace("and no", "or a")} in '
                  f'{place(monitor.namespace)}', file=sys.stderr)
    if once or (monitor.fleet is not None and monitor.fleet.state == 'stopped'):
        monitor.spin(0.5)
        until = time.monotonic() + COMPLETE
        while not (monitor.fleet and monitor.shown().complete()) and time.monotonic() < until:
            monitor.spin(0.1)
        if monitor.fleet is None:
            print('\n'.join(_lines(monitor)))
        else:
            Console(width=None if sys.stdout.isatty() else 140).print(
                live_table(monitor.shown(), monitor.policies()))
        return 0
    plain = not sys.stdout.isatty()
    show_until(monitor, lambda: monitor.fleet is not None and monitor.fleet.state == 'stopped',
               plain)
    if plain:
        print('\n'.join(monitor.shown().lines()), flush=True)
    return 0


def _lines(monitor: Monitor) -> list[str]:
    """Return a line about each robot and each policy; without a fleet about policies alone."""
    policies = monitor.policies()
    return policies if policies and monitor.fleet is None else [*monitor.shown().lines(), *policies]


def place(namespace: str) -> str:
    """Return as text the DDS domain and the namespace in which this process looks for a fleet."""
    return f"DDS domain {os.environ.get('ROS_DOMAIN_ID') or '0'}" + \
        (f', namespace {namespace}' if namespace else '')


def watch(processes: FleetProcesses, fleet: FleetConfig, interruption: Interruption,
          plain: bool) -> None:
    """Show a fleet on this machine; return when its run ends or when a signal comes.

    The function also returns when a robot fails before it joins.
    """
    upstream = fleet.upstream
    above = f'robot {upstream.namespace}/{upstream.robot} of the parent fleet' \
        if upstream.robot else ''
    here = 'server' in processes.names
    robots = None if here else [r.name for r in fleet.robots if r.name in processes.names]
    with Monitor(fleet.network.namespace, robots=robots, above=above, minutes=fleet.minutes,
                 starting=here) as monitor:

        def over() -> bool:
            processes.follow(monitor.fleet)
            joined = {robot.robot for robot in monitor.fleet.robots} if monitor.fleet else set()
            return bool(interruption) or not processes.running() \
                or not joined.issuperset(processes.failures())

        show_until(monitor, over, plain)


def show_until(monitor: Monitor, over: Callable[[], bool], plain: bool) -> None:
    """Show the fleet until ``over`` returns true.

    If ``plain`` is true, the function prints lines every 5 s; otherwise it shows a live table.
    """
    if plain:
        due = time.monotonic() + 1.0
        while not over():
            monitor.spin(0.1)
            if time.monotonic() >= due:
                due = time.monotonic() + 5.0
                print('\n'.join(_lines(monitor)), flush=True)
        return
    with Live(live_table(monitor.shown()), refresh_per_second=4) as live:
        while not over():
            monitor.spin(0.25)
            live.update(live_table(monitor.shown(), monitor.policies()))


def say_model(out: Path) -> None:
    """Name the file of the model that a run has made, if there is one, and a better version."""
    if not (latest := out / MODELS / LATEST / MODEL_FILE).exists():
        return
    print(f'The model, for PyTorch, LOPInfer and policies: {latest}')
    versions = Versions(out / MODELS)
    known = {version.number: version for version in versions.listed()}
    best, last = known.get(versions.best()), known.get(versions.latest())
    if best and last and last.measured and best.accuracy > last.accuracy + BETTER:
        print(f'Version {best.number}, of iteration {best.iteration}, had '
              f'{100 * best.accuracy:.1f} %: rog models export {out} --version best --to FILE')


def outcome(summary: Summary, fleet: FleetConfig) -> None:
    """Print the table of results.

    If the data of the fleet's task changes during the run, the table has one more column.
    """
    shift = any(not math.isnan(robot.accuracy.clean) for robot in summary.robots.values())
    accuracies = {'before the\nshift': 'clean', 'after the\nshift': 'before', 'adapted': 'after'} \
        if shift else {'at the\nstart': 'before', 'at the\nend': 'after'}
    table = Table(title=f'{fleet.name}, {summary.sync}, codec {fleet.training.codec}, '
                        f'{summary.duration_s:.0f} s of training',
                  title_justify='left', box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in ('robot', *accuracies, 'iterations', 'compute', 'communicate', 'stall',
                   'energy\nJ', 'rows per\npush'):
        table.add_column(column, justify='left' if column == 'robot' else 'right')
    for name, robot in summary.robots.items():
        total = robot.compute_s + robot.communicate_s + robot.stall_s or math.nan
        table.add_row(name, *(number(100 * getattr(robot.accuracy, key), '.1f', ' %')
                              for key in accuracies.values()),
                      str(robot.iterations),
                      *(f'{t:.1f} s {number(100 * t / total, ".0f", " %")}'
                        for t in (robot.compute_s, robot.communicate_s, robot.stall_s)),
                      f'{robot.energy_j:.0f}', f'{robot.rows_pushed_mean:.0f}')
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(table)
    server = summary.notes.get('server', {})
    if (accuracy := server.get('accuracy')) is not None and not math.isnan(accuracy):
        console.print(f"The server's model at iteration {server['iteration']}: "
                      f'{100 * accuracy:.1f} %', highlight=False)
    if young := server.get('young'):
        console.print(f'note: {100 * young:.1f} % of the statistics of a BatchNorm are still those '
                      'of the start, which may ruin the accuracy: train longer, or set a larger '
                      'momentum in model()', highlight=False, markup=False, soft_wrap=True)
    for name, reason in summary.notes.get('failed', {}).items():
        console.print(f'{name} has left the fleet: {reason}', highlight=False, markup=False,
                      soft_wrap=True)
    if refused := summary.notes.get('faults', {}).get('push_refused'):
        console.print(f'{refused} pushes were refused from the row on at which their norm became '
                      'implausible; run.jsonl says which and why. Is the learning rate, the loss, '
                      'or the scale of the inputs too large?')
