"""Publishes the fleet's status, and the server's part of /diagnostics."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from fleet_env.command import version
from fleet_ros.ending import LAST_WORDS
from rclpy.duration import Duration
from rog_core.errors import shown
from rog_core.protocol.states import AWAY, PAUSED, RETIRED, STOPPED
from rog_core.server.member import mta_time
from rog_core.server.server import Server
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from rog_ros import qos
from rog_ros.happened import changes
from rog_ros.heartbeat import is_due
from rog_ros.servers import this_process
from rog_ros.signature import Signature, process_of

from .directory import Claim

ON_AIR, ON_AIR_ROBOT = 350, 125  # bytes of a status with all headers, and for each robot in it
MOST_LINE = 300   # characters of a line about a fault, or a process that follows the model
ASK_EVERY = 10.0  # minimum seconds between two queries for the publishers of topics
PAST = 40    # most earlier statuses of a robot that a new listener gets
PAST_FLEET = 200    # most of the fleet, which show that something happened
BURST = 64   # most of them at a time
# member's state -> state in RobotStatus; other states are equal in both
STATES = {'pulling': 'training', 'draining': 'training'}


class _Past:
    """Statuses of a robot from all of the run, and the last one."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._every, self._left, self._last = 1, 0, None

    def add(self, message: Any) -> None:
        self._last = message
        if self._left:
            self._left -= 1
            return
        self._kept.append(message)
        if len(self._kept) > PAST:
            self._kept = self._kept[::2]
            self._every *= 2
        self._left = self._every - 1

    def all(self) -> list[Any]:
        return self._kept if self._last in self._kept[-1:] else [*self._kept, self._last]


class Reports:
    """Publishes `fleet_status`, the robots' statuses again, and diagnostics (REP-107).

    Whoever shows the fleet takes the statuses of all robots from the server, so that each of them
    passes the robot's link only once.

    :param name: full name of the node.
    :param create_publisher: makes a publisher of the node for a type, a topic and a profile.
    :param publishers_of: returns what is known of the publishers of a topic.
    :param stamp: returns the present ROS time for a header.
    """

    def __init__(self, name: str, create_publisher: Callable[..., Any],
                 publishers_of: Callable[[str], list[Any]], stamp: Callable[[], Any],
                 claim: Claim, signature: Signature | None) -> None:
        self._name, self._publishers_of, self._stamp = name, publishers_of, stamp
        self._claim, self._signature = claim, signature
        self._status = create_publisher(FleetStatus, 'fleet_status', qos.STATUS)
        self.relay = create_publisher(TrainingStatus, qos.ROBOTS, qos.RELAY)
        self._before = create_publisher(TrainingStatus, qos.PAST, qos.ONCE)
        self._fleet_before = create_publisher(FleetStatus, qos.PAST_FLEET, qos.ONCE)
        self._past: dict[str, _Past] = {}
        self._past_fleet: deque[Any] = deque(maxlen=PAST_FLEET)
        self._last: Any = None               # the last status
        # number of listeners of the publishers of earlier statuses, and what they still have to get
        self._listeners: Counter[Any] = Counter()
        self._owed: list[tuple[Any, Any]] = []
        self._diagnostics = create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        self.count = 0                       # number of published statuses
        self.last = -math.inf                # time of the last status
        self._said: tuple[Any, ...] = ()     # what the last status said, see `_news`
        # The last query for publishers: the time of the query, the number of messages that had
        # been refused until then, and the answer (topic -> publishers).
        self._asked: tuple[float, int, dict[str, str]] = (-math.inf, 0, {})

    def is_due(self, machine: Server, faults: Sequence[str]) -> bool:
        """Return whether the slowest link can take another status, and it is not yet known.

        :param faults: what the server fails to do now.
        """
        since = time.monotonic() - self.last
        alive = [m for m in machine.members.values() if m.alive]
        if alive and self._news(machine, faults) == self._said:
            return is_due(since, math.inf, 1.0)
        return is_due(since, ON_AIR + ON_AIR_ROBOT * len(machine.members) + sum(map(len, faults)),
                      min((m.link.speed.careful for m in alive), default=math.inf))

    def _news(self, machine: Server, faults: Sequence[str]) -> tuple[Any, ...]:
        """Return what makes a status worth sending; else only times grow."""
        return (machine.iteration, machine.paused, machine.stopping, str(machine.method), *faults,
                [(m.robot, m.state, m.patience.place, m.iteration, m.slowest, list(m.waiting_for))
                 for m in machine.members.values()])

    def status(self, machine: Server, elapsed: float, done: bool, paused: Set[str],
               followers: Sequence[str] = (), faults: Sequence[str] = ()) -> None:
        """Publish the fleet's status.

        :param elapsed: seconds of training until now.
        :param paused: robots that are paused.
        :param followers: a line about each process that follows the model.
        :param faults: a line about each thing that the server fails to do now.
        """
        self.last = now = time.monotonic()
        self._said = self._news(machine, faults)
        active = machine.active()
        self.count += 1
        message = FleetStatus(
            incarnation=process_of(machine.incarnation), count=self.count,
            run=self._claim.run, start=self._claim.start,
            host=this_process(), version=version(), sync=str(machine.method),
            model=machine.partition.digest,
            state='stopped' if done else 'stopping' if machine.stopping else
            PAUSED if machine.paused else 'training',
            rows_total=machine.partition.rows, fastest=machine.iteration,
            slowest=min((m.slowest for m in active), default=0),
            mta=machine.method.sending().minimum, mta_time=float(mta_time(active)),
            patience=float(machine.patience), elapsed=float(elapsed))
        message.robots = [RobotStatus(
            robot=m.robot, iteration=m.iteration,
            state=PAUSED if m.state == STOPPED and m.robot in paused else
            RETIRED if m.alive and m.patience.place == RETIRED else STATES.get(m.state, m.state),
            slowest_row=m.slowest, rows_pushed=m.rows_pushed, rows_pulled=m.rows_pulled,
            heartbeat_age=float(now - m.patience.heard),
            mta_duration=float(max(m.push_mta, m.pull_mta)),
            bandwidth=m.link.rate * 8e-6, waiting_for=', '.join(m.waiting_for),
            waiting_time=float(now - m.since) if m.waiting_for else 0.0,
            idle=float(now - m.patience.progress), refused=machine.refused[m.robot],
            why=m.why(machine.iteration, now))
            for m in machine.members.values()]
        message.followers = [line[:MOST_LINE] for line in followers]
        message.faults = [line[:MOST_LINE] for line in faults]
        message.header.stamp = self._stamp()
        if self._signature is not None:
            self._signature.sign(message)
        self._status.publish(message)
        if self._last is None or changes(self._last, message):
            self._past_fleet.append(message)
        self._last = message

    def remember(self, message: Any) -> None:
        """Keep a status of a robot for those that begin to listen later."""
        # with this process's time, which those of the fleet's statuses fit
        message.header.stamp = self._stamp()
        self._past.setdefault(message.robot, _Past()).add(message)

    def tell_newcomers(self) -> None:
        """Send earlier statuses to who has begun to listen, some in each call."""
        robots = (message for past in self._past.values() for message in past.all())
        for publisher, earlier in ((self._fleet_before, self._past_fleet), (self._before, robots)):
            listeners = publisher.get_subscription_count()
            if listeners > self._listeners[publisher]:
                self._owed = [owed for owed in self._owed if owed[0] is not publisher]
                self._owed += [(publisher, message) for message in earlier]
            self._listeners[publisher] = listeners
        for publisher, message in self._owed[:BURST]:
            publisher.publish(message)
        del self._owed[:BURST]

    def wait_until_heard(self) -> None:
        """Wait until all present subscribers have received the last status.

        The wait ends after `LAST_WORDS` at the latest.
        """
        self._status.wait_for_all_acked(Duration(seconds=LAST_WORDS))

    def diagnose(self, machine: Server, faults: Sequence[str], above: str, dropped: Counter[str],
                 followers: list[str], bases: Mapping[str, str]) -> None:
        """Publish the health of the fleet: robots that are away, and refused messages.

        :param faults: a line about each thing that the server fails to do now.
        :param above: name and state that this fleet has in its parent fleet; empty: there is no
            parent fleet.
        :param followers: a line about each process that follows the model.
        :param dropped: sender -> number of refused messages.
        :param bases: robot -> beginning of its topic names.
        """
        away = [m.robot for m in machine.members.values() if m.state == AWAY]
        status = DiagnosticStatus(
            name=f'{self._name}: fleet', hardware_id='rog',
            level=DiagnosticStatus.WARN if away else DiagnosticStatus.OK,
            message=f'away: {", ".join(away)}' if away else f'{len(machine.active())} robots')
        refused = machine.refused
        if faults:
            status.level = DiagnosticStatus.ERROR
            status.message = '; '.join(faults)
        elif refused:
            status.level = DiagnosticStatus.WARN
            status.message += f'; implausible pushes of {", ".join(refused)}'
        values: dict[str, Any] = {
            'messages refused': dropped.total(), 'sync': str(machine.method),
            'key': 'yes' if self._signature is not None else 'no',
            **({'fleet above': above} if above else {}),
            **{f'model of {name}': text for name, _, text in (
                line.partition(': ') for line in followers)},
            **{f'messages refused of {who}': n for who, n in dropped.items()},
            **{f'pushes refused of {who}': n for who, n in refused.items() if n},
            **{f'pushes clipped of {who}': n for who, n in machine.clipped.items() if n},
            **{f'publishers of {topic}': who
               for topic, who in self._who_publishes(dropped, bases).items()}}
        status.values = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
        message = DiagnosticArray(status=[status])
        message.header.stamp = self._stamp()
        self._diagnostics.publish(message)

    def _who_publishes(self, dropped: Counter[str], bases: Mapping[str, str]) -> dict[str, str]:
        """Return topic -> its publishers, for robots whose messages were refused.

        The result contains only status topics that have several publishers. rclpy does not say
        which publisher has sent a message, so the result names all publishers of the topic. The
        query takes long. Therefore it runs only if more messages were refused since the last query,
        and at most every `ASK_EVERY` seconds. Otherwise the result is that of the last query.
        """
        now, total = time.monotonic(), dropped.total()
        asked, former, found = self._asked
        if total == former or now < asked + ASK_EVERY:
            return found
        found = {}
        for robot in [name for name in dropped if name in bases]:
            topic = bases[robot] + 'training_status'
            known = self._publishers_of(topic)
            if len(known) > 1:
                found[topic] = ', '.join(shown(f'{one.node_namespace}/{one.node_name} ', 80)
                                         + bytes(one.endpoint_gid).hex() for one in known[:8])
        self._asked = now, total, found
        return found
