"""The client's shell: connects `ClientMachine` to a ROS 2 node, and computes the robot's part.

Three threads share one lock: the executor (messages, time), the caller of `infer` (computes and
sends), and a background thread for long tasks (planning, compiling, sending the model).
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from fleet_compute.graphs import graphs_on
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.power.jetson import open_meter
from fleet_env.settings.fleet import AccessConfig
from fleet_env.settings.power_model import PowerModel
from fleet_link.errors import SealError
from fleet_link.seal import Caller, Session
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.exposure import team_key
from fleet_ros.middleware import other_middleware
from fleet_ros.reminder import Reminder
from fleet_ros.sealing import ServiceClient
from lopinfer_msgs import msg, srv
from rclpy.node import Node

from .. import qos
from ..errors import LopinferError
from ..model.traced import Traced
from ..planning.plan import DEVICE, Plan
from ..runtime.choice import NO_TABLE, PlannedTable
from ..runtime.client import (
    ENDED,
    UPLOADING,
    Action,
    CallOpen,
    CallSetPlans,
    ClientMachine,
    MakePlans,
    Report,
    Settings,
    Upload,
)
from ..runtime.execution import AnyProgram, AnyRun, Execution
from ..runtime.program import Program
from ..runtime.recording import Recording, recorded
from ..runtime.services import (
    MISSING,
    PROTOCOL,
    READY,
    OpenRequest,
    PlansRequest,
    encode_plans,
    number,
)
from ..runtime.slow import slowed
from ..runtime.upload import Sending
from ..runtime.wire import Ack, Piece
from .convert import (
    CLIENT,
    open_to_ros,
    plans_to_ros,
    reply_of,
    value_of,
)
from .upload import ModelStream

UPDATING = 'the model is being updated'
MOST_CALLS = 8        # number of calls of which an answer still counts

Planner = Callable[[Traced, np.ndarray, np.ndarray], Iterable[PlannedTable]]
Tensors = tuple[torch.Tensor, ...]


class Replaced(LopinferError):
    """Another model has replaced the one that was meant."""


@dataclass
class ClientOptions:
    """Options of a client.

    ``planner(traced, fixed, per_share)``: yields plan tables. ``fixed`` and ``per_share``
    are the server's profile, in seconds per operator. The client uses each table until it
    gets the next one. ``server``: namespace of the server, or of several, separated by commas.
    ``settings``: settings of the protocol. ``link``: an emulated link; by default only the real
    link is used. ``power``: watts in each state, used if the robot has no power meter.
    ``recording``: collects the steps of every request. ``slowdown``: emulates a slower robot: this
    factor, at least 1, lengthens the computing time of this machine. ``access``: the robot's key.
    """

    planner: Planner
    server: str = '/lopinfer'
    settings: Settings = field(default_factory=Settings)
    link: ShapedLink = field(default_factory=ShapedLink)
    power: PowerModel = field(default_factory=PowerModel)
    recording: Recording | None = None
    slowdown: float = 1.0
    access: AccessConfig = field(default_factory=AccessConfig)


class Client:
    """Runs inferences of one model; shares them with the server if that is faster.

    ``node``: any node of the robot; its namespace is the robot's name. The caller must spin
    it. ``report``, ``changed``: report and lock that the clients of a model share. The caller
    makes one call of `infer` or `update` at a time.
    """

    def __init__(self, node: Node, traced: Traced, options: ClientOptions,
                 report: Report, changed: threading.Condition) -> None:
        self.node = node
        self.traced = traced
        self._digest = traced.digest  # takes long, so it is computed before the first request
        self.robot = self.node.get_namespace().strip('/')
        self.machine = ClientMachine(secrets.randbits(63), options.settings, report)
        self.options = options
        key = team_key(options.access)
        self._key = key and key.of_client(self.robot)
        caller = self._key and Caller(self._key.secret, self._key.robot, self.machine.incarnation)
        self._changed = changed     # lock of `machine` and `_channel`
        # held while plans are compiled for `traced`, which does not change meanwhile; is taken
        # before `_changed`
        self._compiling = threading.Lock()
        self._channel = Channel(node, CLIENT, 'lopinfer/', self._on_message, self._on_unproved,
                                options.link, self._key is not None)
        self._channel.listen()
        self._meter = open_meter(options.power, time.monotonic())
        self._alone = self._program(traced, Plan.device_only(traced.graph))
        self._jobs = ThreadPoolExecutor(2, 'lopinfer')   # plans, after `update` at once
        # (service client, future) of each service call that has no answer yet; all of these calls
        # concern the plan table `_about`
        self._calls: list[tuple[Any, Any]] = []
        self._about: Any = None
        self._closing = False
        self._upload: ModelStream | None = None      # of the model; only the executor sets it
        self._session = 0                       # the server's number of the latest session
        self._reminder = Reminder()             # repeats the message that there is no server
        self._status = node.create_publisher(msg.InferenceStatus, 'lopinfer/status', qos.STATUS)
        self._open, self._set_plans = (
            ServiceClient(node, kind, f'{options.server}/{name}', caller, self._note_refusal)
            for kind, name in ((srv.Open, 'open'), (srv.SetPlans, 'set_plans')))
        place = node.resolve_service_name(options.server + '/open')
        self.machine.reason = f'not connected yet to {place}'
        self._alarm = Alarm(self._on_time, node)
        self._alarm.set(time.monotonic())
        node.create_timer(1.0, self.report)

    def leave(self) -> None:
        """Tell the server that this client ends, while the node is spun; see `has_left`."""
        self._step(self.machine.leave)

    @property
    def has_left(self) -> bool:
        """Return whether the server knows that this client ends, or knows no such client."""
        return self.machine.state == ENDED

    def close(self) -> None:
        """Stop the threads; call this before the node is destroyed.

        The method does not wait for a running background job, which can take minutes. The result of
        such a job is ignored.
        """
        with self._changed:
            self._closing = True
        self._alarm.close()
        if self._upload is not None:
            self._upload.close()
        self._jobs.shutdown(wait=False, cancel_futures=True)

    def update(self, traced: Traced) -> None:
        """Infer with another traced model from now on; the server gets it if it lacks it.

        The plans stay if they fit the graph of the model.
        """
        digest = traced.digest
        alone = self._program(traced, Plan.device_only(traced.graph))
        with self._compiling:
            table = self.machine.table
            fits = bool(table.plans) and table.plans[0].graph.digest == traced.graph.digest
            table = self._compiled(traced, table) if fits else NO_TABLE
            with self._changed:
                self.traced, self._digest, self._alone = traced, digest, alone
                self._forget_calls()
            self._step(partial(self.machine.on_model, table))

    def _program(self, traced: Traced, plan: Plan) -> Any:
        device = next(iter(traced.parameters.values()), torch.empty(0)).device
        program = recorded(Program(traced, plan, DEVICE, graphs_on(device)), DEVICE,
                           self.options.recording)
        return slowed(program, self.options.slowdown)

    def _compiled(self, traced: Traced, table: PlannedTable) -> PlannedTable:
        compiled = {plan: self._program(traced, plan) for plan in set(table.plans)}
        return replace(table, programs=[compiled[plan] for plan in table.plans])

    # -- one inference ---------------------------------------------------------------------------

    def infer(self, inputs: Sequence[torch.Tensor], check: float = 0.0,
              traced: Traced | None = None) -> Tensors:
        """Return the outputs of the model; do not call this from the executor's thread.

        ``check``: seconds that the request has already spent on detecting changes of the model.
        ``traced``: the model that is meant; raises Replaced if it is not the present one.
        """
        if traced not in (None, self.traced):
            raise Replaced(UPDATING)
        started = time.monotonic() - check
        with self._changed:
            bin_ = self.machine.choose(started + check, check)
            begun, alone = None if bin_ is None else self._begin(bin_, inputs), self.machine.alone
        try:
            if begun is not None:
                return self._shared(*begun)
            self.node.get_logger().info(f'{self.traced.name}: not shared; {alone}',
                                        throttle_duration_sec=10.0)
            return self._run_alone(inputs)
        finally:
            self._step(lambda now: self.machine.end(now, started))
            self._meter.enter('stalled', time.monotonic())

    def note_whole(self, reason: str) -> None:
        """Count a request that the original model computes whole on the robot.

        ``reason``: why the request is not shared.
        """
        with self._changed:
            self.machine.report.requests += 1
            self.machine.alone = reason

    def _run_alone(self, inputs: Sequence[torch.Tensor]) -> Tensors:
        self._meter.enter('computing', time.monotonic())
        program = self._alone
        run, steps = program.start(inputs), range(len(program.steps))
        if not program.compute_together([run], steps):
            run.compute(steps)
        return run.outputs()

    def _begin(self, bin_: int, inputs: Sequence[torch.Tensor]
               ) -> tuple[AnyProgram, AnyRun, Execution]:
        program = self.machine.table.programs[bin_]
        run = program.start(inputs)
        return program, run, self.machine.begin(bin_, program.steps, run, time.monotonic())

    def _shared(self, program: AnyProgram, run: AnyRun, execution: Execution) -> Tensors:
        while True:
            steps = self._next_steps()
            if steps is None:
                self._meter.enter('computing', time.monotonic())
                return run.finish_alone()
            began = time.monotonic()
            self._meter.enter('computing', began)
            pieces = execution.compute(steps, program.compute_together([run], steps))
            self._step(partial(self.machine.on_computed, pieces, time.monotonic() - began))
            if self.machine.finished:
                return run.outputs()

    def _next_steps(self) -> range | None:
        """Wait for the next steps; return them, or None if the robot must finish alone."""
        with self._changed:
            while True:
                now = time.monotonic()
                steps = self.machine.work(now)
                if steps is None:
                    self._set_alarm()
                if steps is None or steps:
                    return steps
                self._meter.enter('communicating', now)
                self._changed.wait(self.machine.limit - now)

    # -- events ----------------------------------------------------------------------------------

    def _on_message(self, message: Any) -> None:
        value = value_of(message)
        on_value: Any = self.machine.on_piece if isinstance(value, Piece) else self.machine.on_ack
        self._step(lambda now: on_value(value, now))

    def _on_unproved(self, error: SealError) -> None:
        self.machine.dropped['unproved'] += 1
        self._note_refusal(f'dropped a message of the server: {error}')

    def _note_refusal(self, reason: str) -> None:
        self.node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _on_time(self) -> None:
        self._step(self.machine.on_time)

    def _step(self, event: Callable[[float], Sequence[Action]]) -> None:
        """Pass an event to the state machine, perform its actions, and wake a waiting request.

        Messages are published outside the lock, because publishing may block.
        """
        with self._changed:
            if self._closing:
                return
            now = time.monotonic()
            self._act(event(now), now)
            if self.machine.changed:
                self.machine.changed = False
                self._changed.notify_all()
        self._channel.flush()

    # -- actions ---------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action], now: float) -> None:
        for action in actions:
            if isinstance(action, (Piece, Ack)):
                self._channel.send(action, now)
            elif isinstance(action, CallOpen):
                self._ask(self._open, self._open_request, self._on_opened, None)
            elif isinstance(action, CallSetPlans):
                self._ask(self._set_plans, self._plans_request, self._on_plans_set,
                          self.machine.table)
            elif isinstance(action, Upload):
                self._send_model(self.traced)
            elif isinstance(action, MakePlans):
                self._jobs.submit(self._make_plans, self.traced, action)
        self._channel.release(now)
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarm.set(min(self.machine.deadline, self._channel.deadline))

    def _ask(self, client: Any, request: Callable[[], Any], answer: Callable[[Any], None],
             about: Any) -> None:
        """Call a service.

        ``about``: the plan table that the call concerns, or None. A call is repeated until there
        is an answer, and the first answer counts, even if it belongs to an earlier call. Otherwise,
        if the server takes longer to answer than the time between two calls, no answer would count.
        """
        ready = client.service_is_ready()
        if not ready or about is not self._about:
            self._forget_calls()
        if not ready:
            self.machine.on_no_service(time.monotonic())
            if strange := other_middleware(self.node, client.srv_name):
                self.node.get_logger().error(strange, throttle_duration_sec=5.0)
            if self._reminder.due(time.monotonic()):
                self.node.get_logger().info(
                    f'{self.traced.name} runs on this robot alone until there is a server at '
                    f'{client.srv_name} in DDS domain {self.node.context.get_domain_id()}: '
                    'lopinfer serve starts one, rog doctor checks the network')
            return
        self._reminder.reset()
        self._about = about
        future = client.call_async(request())
        self._calls.append((client, future))
        while len(self._calls) > MOST_CALLS:
            client, old = self._calls.pop(0)
            client.remove_pending_request(old)
        future.add_done_callback(answer)

    def _forget_calls(self) -> None:
        for client, future in self._calls:
            client.remove_pending_request(future)
        self._calls.clear()

    def _open_request(self) -> Any:
        prints = self.traced.fingerprints
        return open_to_ros(OpenRequest(
            PROTOCOL, self.robot, self.machine.incarnation, self.traced.name, self._digest,
            list(prints), [number(p) for p in prints.values()]))

    def _plans_request(self) -> Any:
        bins, own = encode_plans([p.own for p in self.machine.table.plans])
        return plans_to_ros(PlansRequest(self.robot, self.machine.incarnation, self.traced.digest,
                                         bytes(bins), own))

    def _on_opened(self, future: Any) -> None:
        def opened(reply: Any, now: float) -> list[Action]:
            if reply.status == MISSING and reply.incarnation == self._session:
                return []   # a session of before, whose numbers are used; soon there is another
            self._session = reply.incarnation
            if self._key is not None and reply.status == READY:
                session = Session(self._key.secret, self.machine.incarnation, reply.incarnation)
                self._channel.keep(session.to_server, session.to_robot, self.machine.incarnation,
                                   session.number)
            return self.machine.on_open(reply_of(reply), now)
        self._on_answer(future, opened)
        if self.machine.reason:
            self.node.get_logger().info(f'{self.traced.name}: {self.machine.reason}',
                                        throttle_duration_sec=5.0)

    def _on_plans_set(self, future: Any) -> None:
        self._on_answer(future, lambda reply, now: self.machine.on_plans_set(
            reply.status, reply.reason, now))

    def _on_answer(self, future: Any, event: Callable[[Any, float], list[Action]]) -> None:
        if future.exception() is not None or future.result() is None:
            return

        def take(now: float) -> list[Action]:
            if all(call is not future for _, call in self._calls):
                return []   # the call was forgotten, such as one that concerned a former model
            self._forget_calls()
            return event(future.result(), now)
        self._step(take)

    # -- the model's way to the server -----------------------------------------------------------

    def _send_model(self, traced: Traced) -> None:
        if self._upload is not None:
            self._upload.close()
        seals = None
        if self._key is not None:
            session = Session(self._key.secret, self.machine.incarnation, self._session)
            seals = session.to_server, session.to_robot

        def over(reason: str) -> None:
            self._upload = None
            if reason:
                reason = f'the server has not got the model: {reason}'
            self._step(lambda now: self.machine.on_uploaded(reason, now)
                       if traced is self.traced else [])
        self._upload = ModelStream(self.node, 'lopinfer/model/', self._session, False, seals,
                                   Sending(traced), over)

    @property
    def reason(self) -> str:
        """Return why the server is not used, or why the last inference was not shared, else ''."""
        machine = self.machine
        return self._progress() or machine.reason or machine.alone

    def _progress(self) -> str:
        """Return how much of the model the server has, in words; '' if it is not sent now."""
        upload = self._upload
        if upload is None or self.machine.state != UPLOADING:
            return ''
        sending: Any = upload.talk
        text = f'the model is sent: {sending.sent / 1e6:.1f} of {sending.total / 1e6:.1f} MB'
        self.node.get_logger().info(f'{self.traced.name}: {text}', throttle_duration_sec=10.0)
        return text

    # -- long tasks ------------------------------------------------------------------------------

    def _make_plans(self, traced: Traced, action: MakePlans) -> None:
        graph = traced.graph.digest
        try:
            for table in self.options.planner(traced, action.fixed, action.per_share):
                with self._compiling:
                    if self._closing or self.traced.graph.digest != graph:
                        return
                    self._step(partial(self.machine.on_plans_made,
                                       self._compiled(self.traced, table)))
        # A user's planner may raise any error. The robot then continues alone.
        except Exception as error:
            if self._closing:    # the end of a program ends the planner, which may then fail
                return
            reason = f'no plans: {type(error).__name__}: {error}'
            self.node.get_logger().error(reason)
            with self._changed:
                if self.traced.graph.digest == graph:
                    self.machine.reason = reason

    # -- status ----------------------------------------------------------------------------------

    def report(self) -> None:
        """Publish the status."""
        with self._changed:
            machine, report, now = self.machine, self.machine.report, time.monotonic()
            link = machine.outbox.link
            message = msg.InferenceStatus(
                model=self.traced.name, state=machine.state,
                reason=self.reason,
                precision=self.options.settings.precision,
                requests=report.requests, offloaded=report.offloaded, fallbacks=report.fallbacks,
                dropped=sum(machine.dropped.values()), bin=report.bin,
                bandwidth=link.rate * 8e-6 if link.known else math.nan,
                bandwidth_down=machine.down * 8e-6 or math.nan,
                round_trip=link.round_trip, estimate=report.estimate, latency=report.latency,
                device=report.device, server=report.server, transfer=report.transfer,
                overlap=report.overlap, bytes_up=machine.outbox.bytes_sent,
                bytes_down=report.bytes_down, power=self._meter.power(now),
                energy=self._meter.energy(now))
        message.header.stamp = self.node.get_clock().now().to_msg()
        message.header.frame_id = self.robot
        self._status.publish(message)
