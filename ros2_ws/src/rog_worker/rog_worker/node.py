"""Worker node: the ROS 2 shell around `rog_core.WorkerMachine`.

One thread runs the ROS executor: messages, timers, heartbeats and the state machine. Another thread
computes gradients (`rog_worker.training`). The two threads exchange gradients and orders in `join`
and `exchange`, and wait for each other only there.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from fleet_env.jetson import open_meter
from fleet_env.stragglers import Pause
from fleet_ros.alarm import Alarm
from fleet_ros.exposure import require_key
from fleet_ros.managed import ManagedNode
from fleet_ros.middleware import other_middleware
from fleet_ros.parameters import declare
from fleet_ros.receiving import subscribe
from fleet_ros.reminder import Reminder
from fleet_ros.services import STEADY, close_parameters
from rog_core.arrays import Array
from rog_core.errors import ConfigError, RemoteProtocolError, RogError, shown
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import (
    Ack,
    Action,
    Chunk,
    Compute,
    End,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Send,
    Stop,
)
from rog_core.protocol.states import (
    COMPUTING,
    EVALUATING,
    PAUSED,
    REGISTERING,
    STARVED,
    STOPPED,
)
from rog_core.worker.machine import WorkerMachine
from rog_msgs.msg import (
    FleetStatus,
    RowAck,
    RowChunk,
    TrainingStatus,
    TransferEnd,
    TransferReceipt,
)
from rog_msgs.srv import Register
from rog_ros import qos
from rog_ros.convert import (
    STATUS_BYTES,
    payload_bytes,
    request_to_ros,
    response_from_ros,
    to_ros,
)
from rog_ros.message_auth import (
    SealError,
    Session,
    Signature,
    check,
    derived,
    only_proved,
    process_of,
    read_key,
    sealed,
)
from rog_ros.parameters import WorkerSettings, fleet_namespace, is_drivable, robot_name
from rog_ros.receive import checksum_of, receive
from rog_ros.servers import Loyalty, Order, this_process, this_version
from rog_tasks.sources import Source

from .sources import Watch

CONTACT = 3   # heartbeat periods of silence after which a link counts as dead
PATIENCE = 3  # heartbeat limits; a robot refused for longer gives up: another robot has its name
LONGEST = 1e9  # seconds; a longer elapsed time in a status is wrong (30 years)
LOOK = 0.1     # seconds between two checks whether a waiting call must still wait


class NoServerError(RogError, TimeoutError):
    """No parameter server has accepted this robot within the time limit."""


class WorkerNode(ManagedNode):
    """Carries out the actions of the worker machine; a `Link` of `rog_core.worker.optimizer`.

    While the node is not active, the robot is not in the fleet and keeps its pending rows.
    """

    packages = ('rog_core', 'rog_tasks', 'rog_ros', 'rog_worker')
    machine: WorkerMachine | None = None
    error = ''  # why the run ended; empty: without error
    patience = math.inf  # seconds for which `join` waits until a server accepts this robot

    def __init__(self, **options: Any) -> None:
        super().__init__('worker', WorkerSettings, **options)

    def is_drivable(self) -> bool:
        """Return whether anyone may change the node's lifecycle state; see `rog_ros.parameters`."""
        return is_drivable(self, WorkerSettings)

    def configure(self) -> None:
        """Declare parameters and topics."""
        self.settings = declare(self, WorkerSettings)
        self.robot = self._robot_name()
        security = self.settings.security
        require_key(security.key, security.open)
        self._key = read_key(security.key).of(self.robot) if security.key else None
        self._signature = self._key and Signature(self._key)
        if self._key is not None:
            close_parameters(self)
        # None: the fleet has no key, or the server has not accepted this robot yet.
        self._session: Session | None = None
        self._counts = 0, 0                   # counts of the last statuses: our own, the server's
        self._process = 0                     # public number of the server's process
        self.incarnation = secrets.randbits(63)
        self.machine, self.error = None, ''
        self.loss = math.nan                  # loss of the last batch
        self.evaluation = 0, math.nan         # iteration, accuracy; set by the training thread
        self._dropped = 0                     # number of refused messages
        self._silent_until = 0.0              # end of an emulated drop-out
        self._server_heard = time.monotonic()
        self._status_waits = False            # whether a status waits for the emulated link
        self._loyalty = Loyalty(self.settings.heartbeat.limit)
        self._order = Order(self.settings.heartbeat.limit)
        self._watch: Watch | None = None      # watches the robot's cameras and recordings
        self._is_over = False
        self._has_ended = False               # whether the last status was sent
        self._asked: RegisterRequest | None = None  # latest registration of the machine
        self._request: Any = None             # future of the latest registration that was sent
        self._refused_since = math.inf
        self._reminder = Reminder()           # says when to log again that there is no server
        self._turn = threading.Event()        # is set when the training thread may continue
        self._granted: Compute | None = None
        self._began = False                   # whether an iteration was granted
        self._computed: tuple[Array, SgdConfig] | None = None  # gradient for the state machine
        self._link = self.settings.shaped_link()
        if not self.settings.link_epoch:
            self._link.hold()                 # no delay until the training begins
        self._meter = open_meter(self.settings.power, time.monotonic())
        server = self.settings.server_namespace
        self._out: dict[type, Any] = {
            Chunk: self.create_publisher(RowChunk, 'push', qos.CHUNK),
            Ack: self.create_publisher(RowAck, 'pull_ack', qos.CHUNK),
            End: self.create_publisher(TransferEnd, 'push_end', qos.CONTROL)}
        self._receipts = self.create_publisher(TransferReceipt, 'pull_receipt', qos.CONTROL)
        self._status = self.create_publisher(TrainingStatus, 'training_status', qos.STATUS)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)
        subscribe(self, RowChunk, 'pull', self._on_message, qos.CHUNK)
        subscribe(self, RowAck, 'push_ack', self._on_message, qos.CHUNK)
        subscribe(self, TransferEnd, 'pull_end', self._on_message, qos.CONTROL)
        subscribe(self, TransferReceipt, 'push_receipt', self._on_message, qos.CONTROL)
        self.create_subscription(FleetStatus, server + '/fleet_status', self._on_fleet,
                                 qos.HEARTBEAT)
        self._register = self.create_client(Register, server + '/register')
        self._alarm = Alarm(self._on_time, self)
        self.held.callback(self._forget)
        self.held.callback(self._alarm.close)
        self._started = self.create_guard_condition(self._on_start)
        self._ready = self.create_guard_condition(self._on_gradient)
        self.create_timer(self.settings.heartbeat.period, self._heartbeat, clock=STEADY)
        self.create_timer(1.0, self._diagnose, clock=STEADY)

    def activate(self) -> None:
        """Rejoin the fleet after a pause; at the first activation, `join` registers the robot."""
        if self.machine is not None and self.machine.state == PAUSED:
            self._act(self.machine.resume(time.monotonic()))

    def deactivate(self) -> None:
        """Leave the fleet for a pause, so that no robot waits; keep the pending rows."""
        machine = self.machine
        if machine is not None and machine.state not in (PAUSED, STOPPED):
            machine.pause(time.monotonic())
            self._act([])
            self.report(state=PAUSED)

    def cleanup(self) -> None:
        """Leave the fleet for good."""
        self.leave()

    def _forget(self) -> None:
        self.machine = self._watch = None

    def shutdown(self) -> None:
        """Leave the fleet for good, and let the process end."""
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

    def join(self, machine: WorkerMachine) -> Compute | None:
        """Register, wait for the first order, and return it; None: the run ended before.

        :raises NoServerError: no server has accepted the robot within ``patience`` seconds.
        """
        self.machine = machine
        self._started.trigger()
        return self._wait(time.monotonic() + self.patience)

    def exchange(self, gradient: Array, sgd: SgdConfig) -> Compute | None:
        """Push a gradient, pull, wait for the next order, and return it; None: the run is over."""
        self._computed = gradient, sgd
        self._ready.trigger()
        return self._wait()

    def _wait(self, limit: float = math.inf) -> Compute | None:
        while not self._turn.wait(LOOK):
            if not self.context.ok():  # rclpy was shut down, so no message can arrive
                return None
            if time.monotonic() >= limit and self.machine and not self.machine.server:
                raise NoServerError(f'no parameter server has accepted {self.robot} within '
                                    f'{self.patience:g} s at {self._whom()}: start it, wait '
                                    'longer, or let rog doctor look for the reason')
        self._turn.clear()
        return self._granted

    def _whom(self) -> str:
        return f'{self.settings.server_namespace} in DDS domain {self.context.get_domain_id()}'

    def _grant(self, order: Compute | None) -> None:
        self._granted = order
        self._turn.set()
        if order is None:
            self._is_over = True
            self._close_sources()

    def watch(self, sources: Sequence[Source]) -> None:
        """Feed data sources from their topics, and report their state, until the run is over."""
        self._watch = Watch(self, sources)
        if self._is_over:  # the user has ended the run already
            self._close_sources()

    def _close_sources(self) -> None:
        if self._watch is not None:
            self._watch.close()

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
            self._act(self.machine.start(time.monotonic()))
        elif self.machine.state != PAUSED:
            self.machine.pause(time.monotonic())

    def _on_gradient(self) -> None:
        assert self.machine is not None and self._computed is not None
        if self.machine.state != STOPPED:
            self._act(self.machine.on_gradient(*self._computed, time.monotonic()))

    def _on_time(self) -> None:
        now = time.monotonic()
        self._link.release(now)
        if self.machine is not None:
            self._act(self.machine.on_time(now))
        else:
            self._alarm.set(self._link.deadline)

    def _on_message(self, message: Any) -> None:
        if self.machine is None or self._silent:
            return
        keys = None
        if self._key is not None:
            if self._session is None:
                return
            keys = self._session.session, self._session.to_robot
        actions = receive(self.machine, message, self.get_logger(), 'the server', keys)
        if actions is None:
            self._dropped += 1
        else:
            self._act(actions)

    def _on_fleet(self, message: Any) -> None:
        now = time.monotonic()
        if self._silent or self._link.is_dead(now):  # an emulated link is dead in both directions
            return
        ours = self.machine is not None and message.incarnation == process_of(self.machine.server)
        if self._signature is not None and not self._is_proved(message, ours):
            return
        if not self._is_of_ours(ours, now):
            self.get_logger().warning(
                f'there is a second parameter server at {self.settings.server_namespace}: '
                f'{shown(message.host, 80)}; this robot stays with the one that has accepted it',
                throttle_duration_sec=5.0)
            return
        self._process = message.incarnation
        if 0 < message.elapsed < LONGEST:
            self._link.begin(now - message.elapsed)
        silent, self._server_heard = now - self._server_heard, now
        if self.machine is None:
            return
        if silent > CONTACT * self.settings.heartbeat.period:
            self.report()  # tells the server at once that the link is back
            self._act(self.machine.on_contact(now))
        mine = next((r for r in message.robots if r.robot == self.robot), None)
        known = mine is not None and mine.state not in ('away', PAUSED, STOPPED)
        self._act(self.machine.on_server_status(self.machine.server if ours else 0, known, now))

    def _is_proved(self, message: Any, ours: bool) -> bool:
        """Return whether a status is from a server with the fleet key, and is new.

        In a fleet with a key, the robot ignores all other statuses: it does not use them to find a
        server, or to decide whether the server is alive and knows this robot.

        :param ours: whether the status names the server that has accepted this robot.
        """
        assert self._signature is not None
        if ours and message.count <= self._counts[1]:
            return False  # the status is a repetition
        if not self._signature.proves(message):
            self._dropped += 1
            self.get_logger().warning('dropped a status of the parameter server: it is not signed '
                                      'with the key of this fleet', throttle_duration_sec=5.0)
            return False
        if not ours and not self._order.is_new(message, time.monotonic()):
            return False
        if ours:
            self._counts = self._counts[0], message.count
        self._loyalty.note(ours, message)
        return True

    def _is_of_ours(self, ours: bool, now: float) -> bool:
        machine = self.machine
        if machine is None or not machine.server:
            return True
        return self._loyalty.listens(ours, now)

    def _on_registered(self, request: RegisterRequest, future: Any) -> None:
        if request is not self._asked or self.machine is None or self._silent \
                or self._link.is_dead(time.monotonic()):
            return  # the answer is to an earlier request, or the emulated link loses it
        if future.exception() is not None:
            self.get_logger().warning(f'registration failed: {future.exception()}; trying again')
            return
        now = time.monotonic()
        try:
            self._on_answer(response_from_ros(future.result()), now)
        except RemoteProtocolError as error:  # the machine will register again
            self._dropped += 1
            self.get_logger().warning(f'dropped an answer to the registration: {error}',
                                      throttle_duration_sec=5.0)

    def _on_answer(self, response: RegisterResponse, now: float) -> None:
        assert self.machine is not None
        if response.accepted and self.machine is not None and not self._is_of_ours(
                response.incarnation == self.machine.server, now):
            return  # another server has answered faster; the machine will register again
        if response.accepted:
            self._refused_since = math.inf
        elif response.incarnation and self._key is not None:
            self._process = response.incarnation  # the request was for a server that is gone
        else:
            self.get_logger().warning(f'the server refuses: {shown(response.reason)}',
                                      throttle_duration_sec=5.0)
            self._refused_since = min(self._refused_since, now)
            # After the heartbeat limit the server drops a former process of this robot. If the
            # server still refuses, another robot has the same name.
            if now - self._refused_since > PATIENCE * self.settings.heartbeat.limit:
                self.leave(shown(response.reason, 600))
                return
        if response.accepted and self._key is not None:
            former, self._session = self._session, Session(self._key, self.incarnation,
                                                           response.incarnation)
            if former is None or former.session != self._session.session:
                self._counts = self._counts[0], 0  # another server process starts its count at 0
        self._act(self.machine.on_register_response(response, now))

    def _is_answer(self, message: Any, asked: bytes) -> bool:
        """Return whether the sender of an answer has our key and answers this request.

        ``asked``: tag of the request.
        """
        assert self._key is not None
        try:
            check(derived(self._key.secret, 'answer'), message, asked)
        except SealError as error:
            self._dropped += 1
            self.get_logger().warning(
                f'dropped an answer to the registration that is not proved: {error}. Server and '
                'robot must have keys that belong together; here it is '
                f'{self.settings.security.key}', throttle_duration_sec=5.0)
            return False
        return True

    # -- actions ---

    def _act(self, actions: list[Action]) -> None:
        assert self.machine is not None
        now = time.monotonic()
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, RegisterRequest):
                self._send_registration(action.message, now)
            elif isinstance(action, Send):
                self._send(action.message, now)
                if self.settings.training.checksums and isinstance(action.message, Receipt):
                    self.get_logger().info(checksum_of(action.message.transfer,
                                                       self.machine.accumulator.weights))
            elif isinstance(action, Compute):
                if not self._began:  # measure energy and times from the first grant on
                    self._began = True
                    self._meter.restart(now)
                self._grant(action)
                self.report()
            elif isinstance(action, Stop):
                self.error = action.error
                self._grant(None)
        self._meter.enter(self.machine.activity, now)
        self._alarm.set(min(self.machine.deadline, self._link.deadline))

    def _send(self, value: Any, now: float) -> None:
        if self._silent:
            return
        publisher = self._out.get(type(value), self._receipts)
        message = to_ros(value, self._session.to_server if self._session else None)
        self._link.send(payload_bytes(value), lambda: publisher.publish(message), now, lossy=True)

    def _send_registration(self, request: RegisterRequest, now: float) -> None:
        self._asked = request  # it may wait in the link until an earlier one is answered
        if not self._silent:
            self._link.send(payload_bytes(request), lambda: self._call(request), now, lossy=True)

    def _call(self, request: RegisterRequest) -> None:
        if not self._register.service_is_ready():
            place = self.settings.server_namespace
            if strange := other_middleware(self, f'{place}/register'):
                self.get_logger().error(strange, throttle_duration_sec=5.0)
            if self._reminder.due(time.monotonic()):
                self.get_logger().info(f'{self.robot} waits for the parameter server at '
                                       f'{self._whom()}; rog doctor looks for the reason')
            return
        self._reminder.reset()
        if self._request is not None:
            self._register.remove_pending_request(self._request)
        message = request_to_ros(request)
        message.server = self._process
        sealed(self._key and derived(self._key.secret, 'ask'), message)
        asked = bytes(message.tag)
        self._request = self._register.call_async(message)
        if self._key is not None:
            only_proved(self._request, lambda answer: self._is_answer(answer, asked))
        self._request.add_done_callback(partial(self._on_registered, request))

    # -- status ---

    def _heartbeat(self) -> None:
        if not self._silent:
            self.report()

    def pause(self, pause: Pause) -> None:
        """If ``pause`` is an emulated drop-out, neither send nor receive until its end."""
        if pause.silent:
            self._silent_until = time.monotonic() + pause.seconds

    @property
    def _silent(self) -> bool:
        return time.monotonic() < self._silent_until

    def report(self, state: str = '') -> None:
        """Publish the status. It is also the heartbeat, so the emulated link delays it like data.

        :param state: state in the last status before a pause or the end, `PAUSED` or `STOPPED`;
            empty: the present state.
        """
        now = time.monotonic()
        self._has_ended = self._has_ended or state == STOPPED
        if state:  # send a last status without delay, because the process may end soon
            if not self._link.is_dead(now):
                self._publish_status(state)
        # A status that already waits takes the present values when it is sent, so one is enough.
        elif not self._status_waits:
            self._status_waits = not self._link.is_dead(now)
            self._link.send(STATUS_BYTES, self._publish_status, now, lossy=True)
            self._alarm.set(min(self._link.deadline,
                                math.inf if self.machine is None else self.machine.deadline))

    def _publish_status(self, state: str = '') -> None:
        self._status_waits = False
        now = time.monotonic()
        machine = self.machine
        self._counts = self._counts[0] + 1, self._counts[1]
        evaluated_at, accuracy = self.evaluation
        message = TrainingStatus(robot=self.robot, incarnation=process_of(self.incarnation),
                                 count=self._counts[0], host=this_process(),
                                 version=this_version(),
                                 state=state or REGISTERING, loss=self.loss,
                                 accuracy=accuracy, evaluated_at=evaluated_at,
                                 link_rate=self._link.rate(now), power=self._meter.power(now),
                                 energy=self._meter.energy(now) if self._began else 0.0)
        message.header.stamp = self.get_clock().now().to_msg()
        message.header.frame_id = self.robot
        if machine is not None:
            for name, value in asdict(machine.report(now)).items():
                setattr(message, name, value)
            message.state = state or self._state_of(machine)
            if message.state in (PAUSED, STOPPED) and machine.server:
                message.session = machine.session
        self._status.publish(sealed(self._session.to_server if self._session else None, message))

    def _state_of(self, machine: WorkerMachine) -> str:
        if machine.state == COMPUTING and self._watch is not None and self._watch.starved:
            return STARVED
        if machine.state == STOPPED and not self._has_ended:
            return EVALUATING
        return machine.state

    def _diagnose(self) -> None:
        """Publish diagnostics (REP-107) about link, staleness, power and cameras."""
        found = [] if self._watch is None else self._watch.look()
        if self.machine is not None:
            found.append(self._training_health(self.machine))
        if not found:
            return
        message = DiagnosticArray(status=found)
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _training_health(self, machine: WorkerMachine) -> Any:
        now = time.monotonic()
        silent = now - self._server_heard
        status = DiagnosticStatus(name=f'{self.get_fully_qualified_name()}: training',
                                  hardware_id=self.robot, level=DiagnosticStatus.OK,
                                  message=machine.state)
        if silent > self.settings.heartbeat.limit:
            status.level = DiagnosticStatus.ERROR
            status.message = f'no word from the server for {silent:.1f} s'
        elif machine.state == REGISTERING:
            status.level, status.message = DiagnosticStatus.WARN, 'not registered'
        values = {'staleness (iterations)': machine.command.staleness,
                  'bandwidth (Mbit/s)': round(machine.link.rate * 8e-6, 3),
                  'round trip (ms)': round(machine.link.round_trip * 1e3, 1),
                  'power (W)': round(self._meter.power(now), 2),
                  'messages refused': self._dropped,
                  'pushes refused': machine.statistics.refused}
        status.values = [KeyValue(key=k, value=str(v)) for k, v in values.items()]
        return status
