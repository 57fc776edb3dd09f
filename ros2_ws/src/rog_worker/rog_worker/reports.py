"""Publishes the robot's status, heartbeats and diagnostics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from fleet_env.command import version
from fleet_ros.ending import LAST_WORDS
from fleet_ros.sealing import seal
from rclpy.duration import Duration
from rog_core.protocol.states import (
    COMPUTING,
    EVALUATING,
    PAUSED,
    REGISTERING,
    STARVED,
    STOPPED,
)
from rog_core.worker.worker import Worker
from rog_msgs.msg import Heartbeat, TrainingStatus
from rog_ros import qos
from rog_ros.convert import STATUS_BYTES
from rog_ros.heartbeat import beats_after, is_due
from rog_ros.servers import this_process
from rog_ros.signature import process_of

if TYPE_CHECKING:
    from .node import WorkerNode


ON_AIR = 450  # bytes of a status with all headers, for each subscriber
HEARTBEAT_BYTES = 210  # of a heartbeat with all headers
AGAIN = 0.1   # seconds between two repetitions of the last status


class Reports:
    """Publishes `training_status`, `heartbeat` and /diagnostics (REP-107).

    ``spoke``: time at which the server was sent anything that shows that the robot is alive.
    """

    def __init__(self, node: WorkerNode) -> None:
        self._node = node
        self.spoke = -math.inf
        self._count = 0                # number of published statuses
        self._beats = 0                # number of published heartbeats
        self._waits = False            # whether a status or heartbeat waits for the emulated link
        self._last = -math.inf         # time of the last status
        self._said: tuple[Any, ...] = ()  # what the last status said, see `_news`
        self._has_ended = False        # whether `report` was called with `STOPPED`
        self._status = node.create_publisher(TrainingStatus, 'training_status', qos.STATUS)
        self._heartbeat = node.create_publisher(Heartbeat, 'heartbeat', qos.HEARTBEAT)
        self._diagnostics = node.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)

    def report(self, state: str = '', urgent: bool = False) -> None:
        """Publish the status, or else a heartbeat if the server may take the robot for dead.

        The emulated link delays both like data. But a status with a given ``state`` is sent at
        once. A status that is not ``urgent`` is omitted if it has no news, or on a slow link soon
        after another.

        :param state: `PAUSED` in the last status before a pause; `STOPPED` in the last status
            before the end; empty in every other status, which contains the robot's present state.
        """
        now, link = time.monotonic(), self._node.link
        self._has_ended = self._has_ended or state == STOPPED
        if state:  # send at once, because the process may end soon
            if not link.is_dead(now):
                self._publish(state)
        # A waiting status gets its values only when it is sent, so a second waiting status is not
        # needed.
        elif not self._waits:
            if urgent or self._is_due(now):
                self._offer(STATUS_BYTES, self._publish, now)
            elif self._beats_now(now):
                self._offer(HEARTBEAT_BYTES, self._beat, now)

    def _offer(self, nbytes: int, publish: Callable[[], None], now: float) -> None:
        """Let the emulated link carry a status or a heartbeat."""
        self._waits = not self._node.link.is_dead(now)
        self._node.link.send(nbytes, publish, now, lossy=True)
        self._node.set_alarm()

    def wait_until_heard(self) -> None:
        """Send the last status again, and wait at most `LAST_WORDS` for reliable subscribers.

        The server takes statuses best effort, and nothing follows the last one.
        """
        for _ in range(2):
            time.sleep(AGAIN)
            self.report(STOPPED)
        self._status.wait_for_all_acked(Duration(seconds=LAST_WORDS))

    def _is_due(self, now: float) -> bool:
        machine, since = self._node.machine, now - self._last
        if machine is None or self._news(machine) == self._said:
            return is_due(since, math.inf, 1.0)
        nbytes = ON_AIR * self._status.get_subscription_count()
        return is_due(since, nbytes, machine.link.speed.careful)

    def _news(self, machine: Worker) -> tuple[Any, ...]:
        """Return what makes a status worth sending; else only sums such as the energy grow."""
        return self._state_of(machine), machine.finished, self._node.evaluation, self._node.loss

    def _beats_now(self, now: float) -> bool:
        machine, limit = self._node.machine, self._node.settings.heartbeat.limit
        return machine is not None and beats_after(now - self.spoke, limit) \
            and self._state_of(machine) not in (PAUSED, STOPPED)

    def _beat(self) -> None:
        self._waits = False
        self.spoke = time.monotonic()
        self._beats += 1
        node = self._node
        machine, session = node.machine, node.registration.session
        if machine is not None:
            self._heartbeat.publish(seal(session.to_server if session else None, Heartbeat(
                incarnation=process_of(node.incarnation), count=self._beats,
                state=self._state_of(machine), loss=node.loss)))

    def _publish(self, state: str = '') -> None:
        self._waits = False
        self._last = self.spoke = now = time.monotonic()
        node = self._node
        machine, session = node.machine, node.registration.session
        self._count += 1
        evaluated_at, accuracy = node.evaluation
        message = TrainingStatus(robot=node.robot, incarnation=process_of(node.incarnation),
                                 count=self._count, host=this_process(), version=version(),
                                 state=state or REGISTERING, loss=node.loss,
                                 accuracy=accuracy, evaluated_at=evaluated_at,
                                 link_rate=node.link.rate(now), power=node.meter.power(now),
                                 energy=node.meter.energy(now) if node.has_begun else 0.0)
        message.header.stamp = node.get_clock().now().to_msg()
        message.header.frame_id = node.robot
        if machine is not None:
            self._said = self._news(machine)
            for name, value in asdict(machine.report(now)).items():
                setattr(message, name, value)
            message.state = state or self._state_of(machine)
            if message.state in (PAUSED, STOPPED) and machine.server:
                message.session = machine.session
        self._status.publish(seal(session.to_server if session else None, message))

    def _state_of(self, machine: Worker) -> str:
        watch = self._node.watched
        if machine.state == COMPUTING and watch is not None and watch.starved:
            return STARVED
        if machine.state == STOPPED and not self._has_ended:
            return EVALUATING
        return machine.state

    def diagnose(self) -> None:
        """Publish diagnostics about link, staleness, power and cameras."""
        node = self._node
        found = [] if node.watched is None else node.watched.look()
        if node.machine is not None:
            found.append(self._training_health(node.machine))
        if not found:
            return
        message = DiagnosticArray(status=found)
        message.header.stamp = node.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _training_health(self, machine: Worker) -> Any:
        now, node = time.monotonic(), self._node
        status = DiagnosticStatus(name=f'{node.get_fully_qualified_name()}: training',
                                  hardware_id=node.robot, level=DiagnosticStatus.OK,
                                  message=machine.state)
        if node.server.is_silent(now):
            status.level = DiagnosticStatus.ERROR
            status.message = f'no word from the server for {now - node.server.heard:.1f} s'
        elif machine.state == REGISTERING:
            status.level, status.message = DiagnosticStatus.WARN, 'not registered'
        values = {'staleness (iterations)': machine.command.staleness,
                  'bandwidth (Mbit/s)': round(machine.link.rate * 8e-6, 3),
                  'round trip (ms)': round(machine.link.round_trip * 1e3, 1),
                  'power (W)': round(node.meter.power(now), 2),
                  'messages refused': node.dropped,
                  'pushes refused': machine.statistics.refused}
        status.values = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
        return status
