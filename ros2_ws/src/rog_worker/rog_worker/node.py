"""Worker node: the ROS 2 shell around `rog_core.Worker`.

One thread runs the ROS executor: messages, timers, heartbeats and the state machine. Another thread
computes gradients (`rog_worker.training`). The two threads exchange gradients and orders in `join`
and `exchange`, and wait for each other only there.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from typing import Any

from fleet_env.emulated.stragglers import Pause
from fleet_env.power.jetson import open_meter
from fleet_link.errors import SealError
from fleet_link.seal import Caller, Session
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.exposure import team_key
from fleet_ros.managed import ManagedNode
from fleet_ros.middleware import other_middleware
from fleet_ros.parameters import declare
from fleet_ros.reminder import Reminder
from fleet_ros.sealing import ServiceClient, unseal
from fleet_ros.services import STEADY, close_parameters
from rog_core.arrays import Array
from rog_core.errors import ConfigError, RogError, shown
from rog_core.patience import Silence
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import (
    Action,
    Compute,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Send,
    Stop,
)
from rog_core.protocol.states import (
    PAUSED,
    STOPPED,
)
from rog_core.shell import Shell
from rog_core.worker.worker import Worker
from rog_msgs.msg import FleetStatus, Heartbeat
from rog_msgs.srv import Register
from rog_ros import qos
from rog_ros.convert import payload_bytes
from rog_ros.parameters import WorkerSettings, fleet_namespace, robot_name
from rog_ros.servers import Loyalty, Order
from rog_ros.signature import Signature, process_of
from rog_ros.transfers import WORKER, checksum_of, receive

from .registration import Registration
from .reports import Present, Reports
from .sources import Watch

LONGEST = 1e9  # seconds (30 years); a status with a longer elapsed time is wrong
LOOK = 0.1     # seconds after which a waiting call checks again whether it must still wait


class NoServerError(RogError, TimeoutError):
    """No parameter server has accepted this robot within the time limit."""


class WorkerNode(ManagedNode):
    """Carries out the actions of the worker machine.

    The class is a `Link` of `rog_core.worker.optimizer`. While the node is not active, the
    robot is not in the fleet and keeps its pending rows.
    """

    packages = ('rog_core', 'rog_tasks', 'rog_ros', 'rog_worker')
    machine: Worker | None = None
    error = ''  # reason of the failure that ended the run; empty: no failure
    patience = math.inf  # seconds for which `join` waits until a server accepts this robot

    def __init__(self, **options: Any) -> None:
        super().__init__('worker', WorkerSettings, **options)

    def configure(self) -> None:
        """Declare parameters and topics."""
        self.settings = settings = declare(self, WorkerSettings)
        self.robot = self._robot_name()
        security = settings.security
        key = team_key(security)
        self._key = key and key.of(self.robot)
        self._signature = self._key and Signature(self._key)
        if self._key is not None:
            close_parameters(self)
        self.incarnation = secrets.randbits(63)
        self.machine, self.error = None, ''
        self.loss = math.nan                  # loss of the last batch
        self.evaluation = 0, math.nan         # last evaluation: iteration and accuracy
        self.dropped = 0                      # number of refused messages
        self._dropped_until = 0.0              # time in seconds at which an emulated drop-out ends
        self.server = Silence(settings.heartbeat.limit, time.monotonic())
        self._loyalty = Loyalty(settings.heartbeat.limit)
        self._order = Order(settings.heartbeat.limit)
        # session and serial number of the server's last heartbeat
        self._beat: tuple[Session | None, int] = (None, 0)
        self.watched: Watch | None = None     # watches the robot's cameras and recordings
        self._is_over = False
        self._turn = threading.Event()  # is set when the training thread is allowed to continue
        self._granted: Compute | None = None
        self.has_begun = False                # whether an iteration was granted
        # gradient that the state machine will get
        self._computed: tuple[Array, SgdConfig] | None = None
        self.link = settings.shaped_link()
        if not settings.link_epoch:
            # until the training begins, ignore the trace; only `latency` delays messages
            self.link.hold()
        self.meter = open_meter(settings.power, time.monotonic())
        self._shell = Shell(self._on_send, self._on_register, self._on_compute, stop=self._on_stop)
        self._open_topics()

    def _open_topics(self) -> None:
        """Make the topics, the timers, and the guard conditions that wake the ROS executor."""
        self.channel = Channel(self, WORKER, '', self._on_message, self._on_unproved, self.link,
                               self._key is not None)
        self.channel.listen()
        self.create_subscription(FleetStatus, self.settings.server_namespace + '/fleet_status',
                                 self._on_fleet, qos.HEARTBEAT)
        self.create_subscription(Heartbeat, 'server_heartbeat', self._on_heartbeat, qos.HEARTBEAT)
        self.registration = self._registration()
        self.reports = Reports(
            self.get_fully_qualified_name(), self.robot, self.incarnation,
            self.settings.heartbeat.limit, self.link, self.create_publisher,
            lambda: self.get_clock().now().to_msg(), self._present, self._set_alarm)
        self._alarm = Alarm(self._on_time, self)
        self.held.callback(self._forget)
        self.held.callback(self._alarm.close)
        self._started = self.create_guard_condition(self._on_start)
        self._ready = self.create_guard_condition(self._on_gradient)
        self.create_timer(self.settings.heartbeat.period, self._heartbeat, clock=STEADY)
        self.create_timer(1.0, self._diagnose, clock=STEADY)

    def _registration(self) -> Registration:
        name, key = self.settings.server_namespace + '/register', self._key
        client = ServiceClient(self, Register, name,
                               key and Caller(key.secret, self.robot, self.incarnation),
                               self._on_unproved_answer)
        self._reminder = Reminder()  # says when to log again that there is no server
        return Registration(
            client, key, self.incarnation, self.settings.heartbeat.limit, awaits=self._awaits,
            follows=self._follows, joined=self._on_session, answered=self._on_answer,
            given_up=self.leave, dropped=self._on_strange_answer, log=self.get_logger())

    def activate(self) -> None:
        """Rejoin the fleet after a pause.

        The first activation does not register the robot: `join` does.
        """
        if self.machine is not None and self.machine.state == PAUSED:
            self.act(self.machine.resume(time.monotonic()))

    def deactivate(self) -> None:
        """Leave the fleet for a pause, so that no other robot waits for this robot.

        Keep the pending rows, which the server has not received yet.
        """
        machine = self.machine
        if machine is not None and machine.state not in (PAUSED, STOPPED):
            machine.pause(time.monotonic())
            self.act([])
            self.report(state=PAUSED)

    def cleanup(self) -> None:
        """Leave the fleet; to join again, the node must be configured and activated again."""
        self.leave()

    def _forget(self) -> None:
        self.machine = self.watched = None

    def shutdown(self) -> None:
        """Leave the fleet permanently, and let the process end."""
        if self.configured:
            self.leave()
        super().shutdown()

    def _robot_name(self) -> str:
        fleet = fleet_namespace(self.settings.server_namespace)
        name = self.get_namespace().removeprefix(fleet + '/').strip('/')
        if not name:
            raise ConfigError("the worker has no namespace, which is its robot's name; give it "
                              'one, for example --ros-args -r __ns:=/robot1')
        return robot_name(name)

    # -- called by the training thread (rog_core.worker.optimizer.Link) ---

    def join(self, machine: Worker) -> Compute | None:
        """Register; return the server's first order to compute, or None if the run has ended.

        :raises NoServerError: no server has accepted the robot within ``patience`` seconds.
        """
        self.machine = machine
        self._started.trigger()
        return self._wait(time.monotonic() + self.patience)

    def exchange(self, gradient: Array, sgd: SgdConfig) -> Compute | None:
        """Push a gradient, pull, and return the next order to compute; None if the run is over."""
        self._computed = gradient, sgd
        self._ready.trigger()
        return self._wait()

    def _wait(self, limit: float = math.inf) -> Compute | None:
        while not self._turn.wait(LOOK):
            if not self.context.ok():  # rclpy was shut down, so no message can arrive
                return None
            if time.monotonic() >= limit and self.machine and not self.machine.server:
                raise NoServerError(f'no parameter server has accepted {self.robot} within '
                                    f'{self.patience:g} s at {self.place}: start it, wait '
                                    'longer, or let rog doctor look for the reason')
        self._turn.clear()
        return self._granted

    @property
    def place(self) -> str:
        """The namespace of the server and the DDS domain, as a text for messages."""
        return f'{self.settings.server_namespace} in DDS domain {self.context.get_domain_id()}'

    def _grant(self, order: Compute | None) -> None:
        self._granted = order
        self._turn.set()
        if order is None:
            self._is_over = True
            self._close_sources()

    def watch(self, watched: Watch) -> None:
        """Report the state of a task's data sources until the run ends."""
        self.watched = watched
        if self._is_over:  # the user has ended the run already
            self._close_sources()

    def _close_sources(self) -> None:
        if self.watched is not None:
            self.watched.close()

    def leave(self, error: str = '') -> None:
        """Leave the fleet now, at the user's request or because of ``error``; tell the server."""
        self.error = self.error or error
        if self.machine is not None:
            self.machine.leave(time.monotonic())
        if self.context.ok():
            self.report(state=STOPPED)
        self._grant(None)

    # -- events ---

    def _on_start(self) -> None:
        assert self.machine is not None
        if self.active:
            self.act(self.machine.start(time.monotonic()))
        elif self.machine.state != PAUSED:
            self.machine.pause(time.monotonic())

    def _on_gradient(self) -> None:
        assert self.machine is not None and self._computed is not None
        if self.machine.state != STOPPED:
            self.act(self.machine.on_gradient(*self._computed, time.monotonic()))

    def _on_time(self) -> None:
        now = time.monotonic()
        self.channel.release(now)
        self.channel.flush()
        if self.machine is not None:
            self.act(self.machine.on_time(now))
        else:
            self._set_alarm()

    def _on_message(self, message: Any) -> None:
        if self.machine is None or self.has_dropped_out:
            return
        actions = receive(self.machine, message, self.get_logger(), 'the server')
        if actions is None:
            self.dropped += 1
        else:
            self._hear(time.monotonic())
            self.act(actions)

    # Each kind of message that is dropped has a line of its own that logs it, because rclpy counts
    # the seconds between two log lines for each line of code.
    def _on_unproved(self, error: SealError) -> None:
        self.dropped += 1
        self.get_logger().warning(f'dropped a message of the server: {error}',
                                  throttle_duration_sec=5.0)

    def _on_fleet(self, message: Any) -> None:
        now = time.monotonic()
        if self.is_cut_off(now):  # a dead emulated link also blocks messages to the robot
            return
        ours = self.machine is not None and message.incarnation == process_of(self.machine.server)
        if self._signature is not None and not self._is_proved(message, ours):
            return
        if not self._listens(ours, now):
            self.get_logger().warning(
                f'there is a second parameter server at {self.settings.server_namespace}: '
                f'{shown(message.host, 80)}; this robot stays with the one that has accepted it',
                throttle_duration_sec=5.0)
            return
        if 0 < message.elapsed < LONGEST:
            self.link.begin(now - message.elapsed)
        self._hear(now)
        if self.machine is None:
            return
        mine = next((r for r in message.robots if r.robot == self.robot), None)
        known = mine is not None and mine.state not in ('away', PAUSED, STOPPED)
        self.act(self.machine.on_server_status(self.machine.server if ours else 0, known, now))

    def _on_heartbeat(self, message: Any) -> None:
        """Handle a heartbeat of the server that has accepted this robot; ignore any other."""
        now, machine, session = time.monotonic(), self.machine, self.registration.session
        if machine is None or self.is_cut_off(now) \
                or message.incarnation != process_of(machine.server):
            return
        if self._key is not None:
            of, last = self._beat
            if session is None or message.count <= (last if of is session else 0):
                return
            try:
                unseal(session.to_robot, message)
            except SealError:
                self.dropped += 1
                return
            self._beat = session, message.count
        self._loyalty.listens(True, now)
        self._hear(now)
        self.act(machine.on_server_status(machine.server, True, now))

    def _hear(self, now: float) -> None:
        """Note a message of the server; the first one after a silence shows that the link is back.

        Then tell the server so at once.
        """
        was_silent = self.server.is_silent(now)
        self.server.hear(now)
        if self.machine is not None and was_silent:
            self.report(urgent=True)
            self.act(self.machine.on_contact(now))

    def _is_proved(self, message: Any, ours: bool) -> bool:
        """Return whether a status is from a server with the fleet key, and is new.

        In a fleet with a key, the robot ignores all other statuses. They do not help it to find a
        server, or to decide whether the server is alive and knows this robot.

        :param ours: whether the status names the server that has accepted this robot.
        """
        assert self._signature is not None
        if ours and message.count <= self.registration.count:
            return False  # a repetition of an old status
        if not self._signature.proves(message):
            self.dropped += 1
            self.get_logger().warning('dropped a status of the parameter server: it is not signed '
                                      'with the key of this fleet', throttle_duration_sec=5.0)
            return False
        if not ours and not self._order.is_new(message, time.monotonic()):
            return False
        if ours:
            self.registration.count = message.count
        self._loyalty.note(ours, message)
        return True

    def _listens(self, ours: bool, now: float) -> bool:
        """Return whether the robot uses a message from a server.

        ``ours``: whether this server has accepted the robot. The robot uses messages of other
        servers only before a server has accepted it, or after its server was silent for the
        heartbeat limit.
        """
        machine = self.machine
        return machine is None or not machine.server or self._loyalty.listens(ours, now)

    # -- registration ---

    def _on_register(self, request: RegisterRequest) -> None:
        """Call the server over the emulated link; do nothing during an emulated drop-out."""
        if not self.has_dropped_out:
            self.link.send(payload_bytes(request), lambda: self._register(request),
                           time.monotonic(), lossy=True)

    def _register(self, request: RegisterRequest) -> None:
        if self.registration.call(request):
            self._reminder.reset()
            return
        if strange := other_middleware(self, f'{self.settings.server_namespace}/register'):
            self.get_logger().error(strange, throttle_duration_sec=5.0)
        if self._reminder.due(time.monotonic()):
            self.get_logger().info(f'{self.robot} waits for the parameter server at {self.place}; '
                                   'rog doctor looks for the reason')

    def _awaits(self, request: RegisterRequest) -> bool:
        return self.machine is not None and self.machine.awaits(request) \
            and not self.is_cut_off(time.monotonic())

    def _follows(self, server: int) -> bool:
        assert self.machine is not None
        return self._listens(server == self.machine.server, time.monotonic())

    def _on_session(self, session: Session) -> None:
        self.channel.keep(session.to_server, session.to_robot, session.number)

    def _on_answer(self, response: RegisterResponse) -> None:
        assert self.machine is not None
        self.act(self.machine.on_register_response(response, time.monotonic()))

    def _on_unproved_answer(self, reason: str) -> None:
        self.dropped += 1
        self.get_logger().warning(
            f'{reason}. Server and robot must have keys that belong together; here it is '
            f'{self.settings.security.key}', throttle_duration_sec=5.0)

    def _on_strange_answer(self, reason: str) -> None:
        self.dropped += 1
        self.get_logger().warning(reason, throttle_duration_sec=5.0)

    # -- actions ---

    def act(self, actions: list[Action]) -> None:
        """Carry out actions of the state machine."""
        assert self.machine is not None
        self._shell.carry_out(actions)
        self.channel.flush()
        self.meter.enter(self.machine.activity, time.monotonic())
        self._set_alarm()

    def _on_send(self, send: Send) -> None:
        if not self.has_dropped_out:
            self.reports.spoke = now = time.monotonic()
            self.channel.send(send.message, now, lossy=True)
            if self.channel.is_full:
                self.channel.flush()
        if self.settings.training.checksums and isinstance(send.message, Receipt):
            assert self.machine is not None
            self.get_logger().info(checksum_of(send.message.transfer,
                                               self.machine.accumulator.weights))

    def _on_compute(self, order: Compute) -> None:
        self.channel.flush()  # rows go before the status
        if not self.has_begun:  # measure energy and times from the first grant on
            self.has_begun = True
            self.meter.restart(time.monotonic())
        self._grant(order)
        self.report()

    def _on_stop(self, stop: Stop) -> None:
        self.error = stop.error
        self._grant(None)

    # -- status ---

    def _heartbeat(self) -> None:
        if not self.has_dropped_out:
            self.report()

    def pause(self, pause: Pause) -> None:
        """Send and receive nothing until ``pause`` ends, if it is an emulated drop-out."""
        if pause.drops_out:
            self._dropped_until = time.monotonic() + pause.seconds

    @property
    def has_dropped_out(self) -> bool:
        """Whether an emulated drop-out keeps the robot from sending and receiving."""
        return time.monotonic() < self._dropped_until

    def is_cut_off(self, now: float) -> bool:
        """Return whether an emulated drop-out or a dead emulated link blocks all messages."""
        return self.has_dropped_out or self.link.is_dead(now)

    def report(self, state: str = '', urgent: bool = False) -> None:
        """Publish the status; see `Reports.report`."""
        self.reports.report(state, urgent)

    def _present(self) -> Present:
        now, watched = time.monotonic(), self.watched
        return Present(self.machine, self.registration.session, self.loss, self.evaluation,
                       self.meter.power(now), self.meter.energy(now) if self.has_begun else 0.0,
                       watched is not None and watched.starved)

    def _diagnose(self) -> None:
        now = time.monotonic()
        self.reports.diagnose([] if self.watched is None else self.watched.look(),
                              now - self.server.heard if self.server.is_silent(now) else 0.0,
                              self.dropped)

    def _set_alarm(self) -> None:
        """Set the alarm to the next deadline of the link or the state machine."""
        self._alarm.set(min(self.link.deadline,
                            math.inf if self.machine is None else self.machine.deadline))
