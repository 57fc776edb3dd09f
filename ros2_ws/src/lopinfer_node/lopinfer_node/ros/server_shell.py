"""The server's shell: connects `ServerMachine` to a ROS 2 node, and computes the server's part.

Four threads share one lock: the executor (messages, services, time), a thread that computes for all
clients, a thread that runs trials of models and loads them, and a thread that checks and compiles
plans.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import AccessConfig
from fleet_link.errors import SealError
from fleet_link.key import may_be
from fleet_link.seal import Answerer, Call, Session
from fleet_ros.alarm import Alarm
from fleet_ros.exposure import team_key
from fleet_ros.receiving import subscribe
from fleet_ros.sealing import seal, serve, unseal
from lopinfer_msgs import msg, srv
from rclpy.node import Node

from .. import qos
from ..errors import LopinferError, ModelError, ProfileError
from ..model.traced import Traced
from ..planning.plan import SERVER, Plan
from ..runtime.measure import machine
from ..runtime.program import Program
from ..runtime.recording import Recording, recorded
from ..runtime.server import (
    Action,
    Join,
    Leave,
    Limits,
    Prepare,
    Prepared,
    PreparePlans,
    Send,
    ServerMachine,
    Unload,
    Work,
)
from ..runtime.services import READY, PlansRequest, decode_plans, number
from ..runtime.store import Store, UploadRequest
from ..runtime.trial import Trial, Trier
from ..runtime.wire import Ack, Piece
from .convert import ack_of, open_of, piece_of, plans_of, reply_to_ros, to_ros


@dataclass
class ServerOptions:
    """Options of a server.

    ``directory``: folder of the models. ``device``: device that computes. ``link()`` returns an
    emulated link to a client. ``access``: the key, which must be the team's own.
    """

    directory: Path
    device: str = 'cpu'
    limits: Limits = field(default_factory=Limits)
    link: Callable[[], ShapedLink] = ShapedLink
    recording: Recording | None = None
    access: AccessConfig = field(default_factory=AccessConfig)


class _Topics:
    """Topics of one client, the emulated link to it, and the seals of its session."""

    def __init__(self, server: Server, client: str, link: ShapedLink) -> None:
        self.link, self.removed = link, False
        self.session: Session | None = None   # None: there is no key
        node = server.node
        base = f'/{client}/lopinfer/' if client else '/lopinfer/'
        self.down = node.create_publisher(msg.Piece, base + 'down', qos.PIECE)
        self.acks = node.create_publisher(msg.Ack, base + 'up_ack', qos.PIECE)
        self.subscriptions = [
            subscribe(node, msg.Piece, base + 'up', partial(server.on_piece, client), qos.PIECE),
            subscribe(node, msg.Ack, base + 'down_ack', partial(server.on_ack, client), qos.PIECE)]

    def publish(self, value: Piece | Ack) -> None:
        """Publish ``value`` on its topic; do nothing if the topics have been removed."""
        try:
            (self.down if isinstance(value, Piece) else self.acks).publish(
                seal(self.session.to_robot if self.session else None, to_ros(value)))
        except Exception:  # rclpy raises errors of several types if the publisher was destroyed
            if not self.removed:
                raise

    def remove(self, node: Node) -> None:
        """Remove the topics."""
        self.removed = True
        for publisher in (self.down, self.acks):
            node.destroy_publisher(publisher)
        for subscription in self.subscriptions:
            node.destroy_subscription(subscription)


class Server:
    """Serves models to robots; the caller must spin ``node``."""

    def __init__(self, node: Node, options: ServerOptions) -> None:
        self.node = node
        self.options = options
        self.store = Store(options.directory, options.limits.memory << 20)
        self.machine = ServerMachine(secrets.randbits(63), self.store.digests(), options.limits)
        key = team_key(options.access)
        self._answerer = key and Answerer(key.own().secret_of, self.machine.incarnation)
        self._changed = threading.Condition()   # lock of `machine` and `_topics`
        self._models: dict[str, Traced] = {}
        self._topics: dict[str, _Topics] = {}
        # maps a client to its plan table that is not prepared yet
        self._tables: dict[str, PlansRequest] = {}
        # messages that have left the emulated link and must be published
        self._ready: list[tuple[_Topics, Piece | Ack]] = []
        self._closing = False
        self._trier = Trier(options.device, options.limits.memory << 20, options.limits.longest)
        self._models_jobs = ThreadPoolExecutor(1, 'models')
        self._plans_jobs = ThreadPoolExecutor(1, 'plans')
        for kind, name, answer in ((srv.Open, 'open', self._on_open),
                                   (srv.Upload, 'upload', self._on_upload),
                                   (srv.SetPlans, 'set_plans', self._on_set_plans)):
            serve(node, kind, f'/lopinfer/{name}', partial(self._on_call, answer), self._answerer,
                  self._note_refusal)
        self._alarm = Alarm(self._on_time, node)
        self._computing = threading.Thread(target=self._compute, name='computing', daemon=True)
        self._computing.start()

    def close(self) -> None:
        """Stop the threads; call this before the node is destroyed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._computing.join()
        self._alarm.close()
        self._trier.close()
        for jobs in (self._models_jobs, self._plans_jobs):   # do not wait: a job can take minutes
            jobs.shutdown(wait=False, cancel_futures=True)

    def pause(self, paused: bool) -> None:
        """Stop accepting requests if ``paused``, otherwise accept them again."""
        with self._changed:
            self.machine.paused = paused

    @property
    def busy(self) -> bool:
        """Return whether a request is running."""
        with self._changed:
            return self.machine.busy

    def add(self, traced: Traced) -> None:
        """Store and prepare a model that was traced or loaded on this computer."""
        self.store.add(traced)
        prints = traced.fingerprints
        with self._changed:
            self._act(self.machine.add(traced.name, traced.digest, list(prints),
                                       [number(p) for p in prints.values()], kept=True))

    # -- services --------------------------------------------------------------------------------

    def _on_call(self, answer: Callable[[Any, Any, Call | None], Any], request: Any, response: Any,
                 call: Call | None) -> Any:
        if call is not None and (call.life != request.incarnation
                                 or not may_be(call.robot, request.client)):
            response.reason = f"this is the key of '{call.robot}', not of '{request.client[:80]}'"
            return response
        return answer(request, response, call)

    def _note_refusal(self, reason: str) -> None:
        self.node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _on_open(self, request: Any, response: Any, call: Call | None) -> Any:
        with self._changed:
            reply, actions = self.machine.on_open(open_of(request), time.monotonic())
            self._act(actions)
            if call is not None and self._answerer is not None and reply.status == READY:
                topics = self._topics[request.client]
                session = self._answerer.session(call, reply.incarnation)
                if topics.session is None or topics.session.number != session.number:
                    topics.session = session
        return reply_to_ros(reply, response)

    def _on_upload(self, request: Any, response: Any, _: Call | None) -> Any:
        if not self.options.limits.uploads:
            response.reason = 'this server accepts no models from its clients'
            return response
        with self._changed:
            served = self.machine.models
        reply = self.store.take(UploadRequest(request.digest, request.file, request.sha256,
                                              request.size, request.offset, bytes(request.data)),
                                served)
        # the last part of an upload adds a model; the first part may delete an old model
        if reply.complete or not request.offset:
            with self._changed:
                self.machine.on_stored(self.store.digests())
        response.accepted, response.reason = reply.accepted, reply.reason
        response.received, response.complete = reply.received, reply.complete
        return response

    def _on_set_plans(self, request: Any, response: Any, _: Call | None) -> Any:
        with self._changed:
            response.status, response.reason, actions = self.machine.on_set_plans(
                plans_of(request), time.monotonic())
            self._act(actions)
        return response

    # -- messages and time -----------------------------------------------------------------------

    def on_piece(self, client: str, message: Any) -> None:
        """Handle a piece from a client's topic."""
        if self._opened(client, message):
            self._step(lambda now: self.machine.on_piece(client, piece_of(message), now))

    def on_ack(self, client: str, message: Any) -> None:
        """Handle an acknowledgement from a client's topic."""
        if self._opened(client, message):
            self._step(lambda now: self.machine.on_ack(client, ack_of(message), now))

    def _opened(self, client: str, message: Any) -> bool:
        """Open the seal of a message; return whether it may be used."""
        if self._answerer is None:
            return True
        topics = self._topics.get(client)
        if topics is None or topics.session is None:
            return False
        try:
            unseal(topics.session.to_server, message)
        except SealError as error:
            self.machine.dropped['unproved'] += 1
            self._note_refusal(f'dropped a message of {client}: {error}')
            return False
        return True

    def _on_time(self) -> None:
        self._step(self.machine.on_time)

    def _step(self, event: Callable[[float], Sequence[Action]]) -> None:
        """Pass an event to the state machine, and perform the actions that it returns.

        Then wake the computing thread. Messages are published outside the lock, because publishing
        may block.
        """
        with self._changed:
            self._act(event(time.monotonic()))
            if self.machine.changed:
                self.machine.changed = False
                self._changed.notify_all()
            ready = list(self._ready)
            self._ready.clear()
        for topics, value in ready:
            topics.publish(value)

    # -- actions ---------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        for action in actions:
            if isinstance(action, Send):
                self._send(action, now)
            elif isinstance(action, Join):
                self._topics[action.client] = _Topics(self, action.client, self.options.link())
                self.node.get_logger().info(f'{action.client} joins')
            elif isinstance(action, Leave):
                self._topics.pop(action.client).remove(self.node)
                self._tables.pop(action.client, None)
                self.node.get_logger().info(f'{action.client} has gone')
            elif isinstance(action, Prepare):
                self._models_jobs.submit(self._prepare, action.digest)
            elif isinstance(action, PreparePlans):
                client = action.request.client   # a client has at most one waiting job
                if client not in self._tables:
                    self._plans_jobs.submit(self._prepare_plans, client)
                self._tables[client] = action.request
            elif isinstance(action, Unload):
                self._models.pop(action.digest, None)
        for topics in self._topics.values():
            topics.link.release(now)
        self._alarm.set(min([self.machine.deadline,
                             *(t.link.deadline for t in self._topics.values())]))

    def _send(self, action: Send, now: float) -> None:
        topics, value = self._topics.get(action.client), action.message
        if topics is not None:
            nbytes = len(value.data) if isinstance(value, Piece) else 0
            topics.link.send(nbytes, partial(self._ready.append, (topics, value)), now)

    # -- long tasks ------------------------------------------------------------------------------

    def _prepare(self, digest: str) -> None:
        costs, reason = (np.empty(0), np.empty(0)), ''
        try:
            trial = self._try(digest)
            with self._changed:
                reason, actions = self.machine.admit(digest, trial.loaded, trial.request,
                                                     trial.plan)
                self._act(actions)
            if not reason:
                self._models[digest] = self.store.load(digest, self.options.device)
                costs = trial.profile.fixed, trial.profile.per_share
        except Exception as error:  # an error in one model concerns only the clients of this model
            reason = f'the model cannot be served: {error}'
            # Delete only a model that is itself at fault. All other errors are faults of this
            # machine (no more files or processes), or occur because the server is ending.
            if isinstance(error, ModelError) and not self._closing:
                self.store.remove(digest)
        if reason:
            self.node.get_logger().error(reason)
        with self._changed:
            self.machine.on_model(digest, *costs, reason)

    def _try(self, digest: str) -> Trial:
        """Return the trial of a model on this machine; run it if no valid trial is stored."""
        folder = self.store.use(digest)
        path = folder / 'trial.json'
        try:
            trial = Trial.load(path)
            if trial.profile.machine == machine() \
                    and trial.profile.whole.sum() <= self.options.limits.longest:
                return trial
        except ProfileError:
            pass  # no trial is stored yet, or the stored trial is damaged
        trial = self._trier(folder)
        try:
            trial.save(path)
        except OSError as error:   # the trial is not stored, so it runs again when it is needed
            self.node.get_logger().warning(f'cannot keep the measurements of the model: {error}')
        return trial

    def _prepare_plans(self, client: str) -> None:
        with self._changed:
            request = self._tables.pop(client, None)
        if request is None:
            return   # the client has gone
        table, reason = [], ''
        try:
            table = prepare_plans(self._models[request.digest], request,
                                  self.options.recording)
        except LopinferError as error:
            reason = str(error)
        except Exception as error:  # invalid numbers in a plan table concern only this client
            reason = f'no plan table: {type(error).__name__}: {error}'
        with self._changed:
            self._act(self.machine.on_plans(request, table, reason))

    # -- computing -------------------------------------------------------------------------------

    def _compute(self) -> None:
        while (work := self._next_work()) is not None:
            began = time.monotonic()
            try:
                pieces = work.execution.compute(work.steps)
            except Exception as error:  # an error in one client's model must not end the server
                self.node.get_logger().error(f'{work.client}: {type(error).__name__}: {error}')
                with self._changed:
                    self.machine.on_failed(work)
                continue
            self._step(partial(self.machine.on_computed, work, pieces, time.monotonic() - began))

    def _next_work(self) -> Work | None:
        with self._changed:
            while not self._closing:
                work = self.machine.work()
                if work is not None:
                    return work
                self._changed.wait()
        return None


def prepare_plans(traced: Traced, request: PlansRequest, recording: Recording | None = None
                  ) -> list[Prepared]:
    """Check the plans of a request and return their programs, one for each bin.

    The *bin* of a plan is its position in the client's list of plans (`encode_plans`).

    Raise PlanError for an invalid plan, RemoteError for an invalid table.
    """
    prepared: dict[Plan, Prepared] = {}
    table = []
    for own in decode_plans(request.bins, request.own, len(traced.graph)):
        plan = Plan(traced.graph, own)
        if plan not in prepared:
            program = Program(traced, plan, SERVER)
            prepared[plan] = Prepared(plan, recorded(program, SERVER, recording))
        table.append(prepared[plan])
    return table
