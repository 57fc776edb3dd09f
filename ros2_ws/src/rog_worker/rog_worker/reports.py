"""Publishes the robot's status, heartbeats and diagnostics."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from fleet_env.command import version
from fleet_env.emulated.shaped import ShapedLink
from fleet_link.seal import Session
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

ON_AIR = 450  # bytes of a status with all headers, for each subscriber
HEARTBEAT_BYTES = 210  # of a heartbeat with all headers
AGAIN = 0.1   # seconds between two repetitions of the last status


class Present(NamedTuple):
    """What a status tells.

    ``session``: None without a key, and before a server has accepted the robot. ``evaluation``:
    iteration and accuracy. ``power`` in W, ``energy`` in J. ``is_starved``: whether a data source
    has no data.
    """

    machine: Worker | None
    session: Session | None
    loss: float
    evaluation: tuple[int, float]
    power: float
    energy: float
    is_starved: bool


class Reports:
    """Publishes `training_status`, `heartbeat` and /diagnostics (REP-107).

    ``spoke``: time at which the server was sent anything that shows that the robot is alive.

    :param name: full name of the node.
    :param incarnation: identity of this process.
    :param limit: the heartbeat limit in seconds.
    :param link: the emulated link.
    :param create_publisher: makes a publisher of the node for a type, a topic and a profile.
    :param stamp: returns the present ROS time for a header.
    :param present: returns what a status tells.
    :param offered: called after the link was given something that may leave it later.
    """

    def __init__(self, name: str, robot: str, incarnation: int, limit: float, link: ShapedLink,
                 create_publisher: Callable[..., Any], stamp: Callable[[], Any],
                 present: Callable[[], Present], offered: Callable[[], None]) -> None:
        self._name, self._robot, self._process = name, robot, process_of(incarnation)
        self._limit, self._link, self._stamp = limit, link, stamp
        self._present, self._offered = present, offered
        self.spoke = -math.inf
        self._count = 0                # number of published statuses
        self._beats = 0                # number of published heartbeats
        self._waits = False            # whether a status or heartbeat waits for the emulated link
        self._last = -math.inf         # time of the last status
        self._said: tuple[Any, ...] = ()  # what the last status said, see `_news`
        self._has_ended = False        # whether `report` was called with `STOPPED`
        self._status = create_publisher(TrainingStatus, 'training_status', qos.STATUS)
        self._heartbeat = create_publisher(Heartbeat, 'heartbeat', qos.HEARTBEAT)
        self._diagnostics = create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)

    def report(self, state: str = '', urgent: bool = False) -> None:
        """Publish the status, or else a heartbeat if the server may take the robot for dead.

        The emulated link delays both like data. But a status with a given ``state`` is sent at
        once. A status that is not ``urgent`` is omitted if it has no news, or on a slow link soon
        after another.

        :param state: `PAUSED` in the last status before a pause; `STOPPED` in the last status
            before the end; empty in every other status, which contains the robot's present state.
        """
        now = time.monotonic()
        self._has_ended = self._has_ended or state == STOPPED
        if state:  # send at once, because the process may end soon
            if not self._link.is_dead(now):
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
        self._waits = not self._link.is_dead(now)
        self._link.send(nbytes, publish, now, lossy=True)
        self._offered()

    def wait_until_heard(self) -> None:
        """Send the last status again, and wait at most `LAST_WORDS` for reliable subscribers.

        The server takes statuses best effort, and nothing follows the last one.
        """
        for _ in range(2):
            time.sleep(AGAIN)
            self.report(STOPPED)
        self._status.wait_for_all_acked(Duration(seconds=LAST_WORDS))

    def _is_due(self, now: float) -> bool:
        present, since = self._present(), now - self._last
        machine = present.machine
        if machine is None or self._news(present, machine) == self._said:
            return is_due(since, math.inf, 1.0)
        nbytes = ON_AIR * self._status.get_subscription_count()
        return is_due(since, nbytes, machine.link.speed.careful)

    def _news(self, present: Present, machine: Worker) -> tuple[Any, ...]:
        """Return what makes a status worth sending; else only sums such as the energy grow."""
        return (self._state_of(present, machine), machine.finished, present.evaluation,
                present.loss)

    def _beats_now(self, now: float) -> bool:
        present = self._present()
        return present.machine is not None and beats_after(now - self.spoke, self._limit) \
            and self._state_of(present, present.machine) not in (PAUSED, STOPPED)

    def _beat(self) -> None:
        self._waits = False
        self.spoke = time.monotonic()
        self._beats += 1
        present = self._present()
        machine, session = present.machine, present.session
        if machine is not None:
            self._heartbeat.publish(seal(session.to_server if session else None, Heartbeat(
                incarnation=self._process, count=self._beats,
                state=self._state_of(present, machine), loss=present.loss)))

    def _publish(self, state: str = '') -> None:
        self._waits = False
        self._last = self.spoke = now = time.monotonic()
        present = self._present()
        machine, session = present.machine, present.session
        self._count += 1
        evaluated_at, accuracy = present.evaluation
        message = TrainingStatus(robot=self._robot, incarnation=self._process,
                                 count=self._count, host=this_process(), version=version(),
                                 state=state or (STARVED if present.is_starved else REGISTERING),
                                 loss=present.loss,
                                 accuracy=accuracy, evaluated_at=evaluated_at,
                                 link_rate=self._link.rate(now), power=present.power,
                                 energy=present.energy)
        message.header.stamp = self._stamp()
        message.header.frame_id = self._robot
        if machine is not None:
            self._said = self._news(present, machine)
            for name, value in asdict(machine.report(now)).items():
                setattr(message, name, value)
            message.state = state or self._state_of(present, machine)
            if message.state in (PAUSED, STOPPED) and machine.server:
                message.session = machine.session
        self._status.publish(seal(session.to_server if session else None, message))

    def _state_of(self, present: Present, machine: Worker) -> str:
        if machine.state == COMPUTING and present.is_starved:
            return STARVED
        if machine.state == STOPPED and not self._has_ended:
            return EVALUATING
        return machine.state

    def diagnose(self, sources: list[Any], silence: float, dropped: int) -> None:
        """Publish diagnostics about link, staleness, power and cameras.

        :param sources: statuses of the data sources.
        :param silence: seconds since the server was heard, if it counts as silent; else 0.
        :param dropped: number of refused messages.
        """
        present = self._present()
        if present.machine is not None:
            sources = [*sources, self._training_health(present, present.machine, silence, dropped)]
        if not sources:
            return
        message = DiagnosticArray(status=sources)
        message.header.stamp = self._stamp()
        self._diagnostics.publish(message)

    def _training_health(self, present: Present, machine: Worker, silence: float, dropped: int
                         ) -> Any:
        status = DiagnosticStatus(name=f'{self._name}: training', hardware_id=self._robot,
                                  level=DiagnosticStatus.OK, message=machine.state)
        if silence:
            status.level = DiagnosticStatus.ERROR
            status.message = f'no word from the server for {silence:.1f} s'
        elif machine.state == REGISTERING:
            status.level, status.message = DiagnosticStatus.WARN, 'not registered'
        values = {'staleness (iterations)': machine.command.staleness,
                  'bandwidth (Mbit/s)': round(machine.link.rate * 8e-6, 3),
                  'round trip (ms)': round(machine.link.round_trip * 1e3, 1),
                  'power (W)': round(present.power, 2),
                  'messages refused': dropped,
                  'pushes refused': machine.statistics.refused}
        status.values = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
        return status
