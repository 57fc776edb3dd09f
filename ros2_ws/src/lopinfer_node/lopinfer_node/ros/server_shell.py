"""The server's shell: connects `ServerMachine` to a ROS 2 node, and computes the server's part.

These threads share one lock: the executor (messages, services, time), a thread for each lane, which
computes on its device for all clients, a thread that runs trials of models and loads them, and a
thread that checks and compiles plans.
"""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch
from fleet_compute.graphs import Graphs, graphs_on
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import AccessConfig
from fleet_link.errors import SealError
from fleet_link.key import may_be
from fleet_link.seal import Answerer, Call
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.exposure import team_key
from fleet_ros.sealing import serve
from lopinfer_msgs import srv
from rclpy.node import Node

from ..errors import LopinferError, ModelError, ProfileError
from ..model.traced import Traced
from ..planning import plan as plans
from ..planning.plan import Plan
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
from ..runtime.services import (
    MISSING,
    READY,
    REFUSED,
    OpenReply,
    PlansRequest,
    decode_plans,
    number,
)
from ..runtime.store import Store
from ..runtime.trial import Trial, Trier
from ..runtime.upload import Partials, Taking
from ..runtime.wire import Piece
from .convert import SERVER, open_of, plans_of, reply_to_ros, value_of
from .upload import ModelStream


@dataclass
class ServerOptions:
    """Options of a server.

    ``directory``: folder of the models. ``device``: device that computes; several of one kind,
    separated by commas, compute at the same time, each for some robots. ``link()`` returns an
    emulated link to a client. ``access``: the key, which must be the team's own.
    """

    directory: Path
    device: str = 'cpu'
    limits: Limits = field(default_factory=Limits)
    link: Callable[[], ShapedLink] = ShapedLink
    recording: Recording | None = None
    access: AccessConfig = field(default_factory=AccessConfig)


# By the type of a device: for how many results it may compute ahead of those that wait for copies.
AHEAD = {'cuda': 1}
TRIAL = 'trial.json'     # file in the folder of a model
# Seconds in which calls of a robot that it has repeated get the same session for its model.
JUST = 5.0


class _Lane:
    """A device, and what has been queued there."""

    def __init__(self, number: int, device: str) -> None:
        self.number, self.name, self.device = number, device, torch.device(device)
        self.graphs = graphs_on(self.device)
        self.ended = 0.0        # when the latest result was there
        self._ahead = AHEAD.get(self.device.type, 0)
        self._leaving = ThreadPoolExecutor(1, f'leaving{number}')
        self._pending: deque[Future[None]] = deque()

    def finish(self, call: Callable[[], None]) -> None:
        """Call a function that waits for the results of queued work, in the order of the work."""
        if not self._ahead:
            call()
            return
        self._pending.append(self._leaving.submit(call))
        while len(self._pending) > self._ahead:
            self._pending.popleft().result()

    def close(self) -> None:
        """Wait for what has been queued."""
        self._leaving.shutdown()


class Server:
    """Serves models to robots; the caller must spin ``node``.

    Robots find the server by the node's namespace; without one, it is `/lopinfer`.
    """

    def __init__(self, node: Node, options: ServerOptions) -> None:
        self.node = node
        self.options = options
        self.store = Store(options.directory, options.limits.memory << 20,
                           disk=options.limits.disk << 20)
        self._lanes = [_Lane(*lane) for lane in enumerate(options.device.split(','))]
        self.machine = ServerMachine(secrets.randbits(63), self.store.digests(), options.limits,
                                     [lane.name for lane in self._lanes])
        key = team_key(options.access)
        self._answerer = key and Answerer(key.own().secret_of, self.machine.incarnation)
        self._changed = threading.Condition()   # lock of `machine` and `_channels`
        self._models: dict[tuple[str, str], Traced] = {}    # by digest and device
        self._channels: dict[str, Channel] = {}
        # By client: (its incarnation and the digest of its model, what brings the model). Only the
        # executor uses these and `_partials`.
        self._uploads: dict[str, tuple[tuple[int, str], ModelStream, Taking]] = {}
        self._partials = Partials(options.limits.memory << 20)
        # maps a client to its plan table that is not prepared yet
        self._tables: dict[str, PreparePlans] = {}
        # the prepared plans that a client uses; only the thread that prepares plans reads it
        self._prepared = WeakValueDictionary[tuple[str, Plan, int], Prepared]()
        self._closing = False
        self._loading = threading.Lock()
        self._trier = Trier(self._lanes[0].name, options.limits.memory << 20,
                            options.limits.longest)
        self.error = ''     # why the server computes nothing any more
        self._models_jobs = ThreadPoolExecutor(1, 'models')
        self._plans_jobs = ThreadPoolExecutor(1, 'plans')
        place = node.get_namespace().rstrip('/') or '/lopinfer'
        for kind, name, answer in ((srv.Open, 'open', self._on_open),
                                   (srv.SetPlans, 'set_plans', self._on_set_plans)):
            serve(node, kind, f'{place}/{name}', partial(self._on_call, answer), self._answerer,
                  self._note_refusal)
        self._alarm = Alarm(self._on_time, node)
        self._computing = [
            threading.Thread(target=self._compute, args=[lane], name='computing', daemon=True)
            for lane in self._lanes]
        for thread in self._computing:
            thread.start()

    def close(self) -> None:
        """Stop the threads; call this before the node is destroyed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._computing:
            thread.join()
        for lane in self._lanes:
            lane.close()
        self._alarm.close()
        self._trier.close()
        for client in list(self._uploads):
            self._end_upload(client)
        for jobs in (self._models_jobs, self._plans_jobs):   # do not wait: a job can take minutes
            jobs.shutdown(wait=False, cancel_futures=True)

    def pause(self, paused: bool) -> None:
        """Stop accepting requests if ``paused``, otherwise accept them again."""
        with self._changed:
            self.machine.paused = paused

    def leave(self) -> None:
        """Tell the robots that the server ends, and take no more requests; see `busy`."""
        with self._changed:
            self.machine.leaving = True

    @property
    def busy(self) -> bool:
        """Return whether a request is running, or a robot does not know that the server ends."""
        with self._changed:
            return self.machine.busy(time.monotonic())

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
            if request.digest not in self.machine.models and not self.store.has(request.digest):
                self.machine.on_lost(request.digest)
            reply, actions = self.machine.on_open(open_of(request), time.monotonic())
            self._act(actions)
            if call is not None and self._answerer is not None and reply.status == READY:
                session = self._answerer.session(call, reply.incarnation)
                self._channels[request.client].keep(session.to_robot, session.to_server,
                                                    request.incarnation, session.number)
        if reply.status == MISSING:
            reply = self._await_model(request, call, reply)
        return reply_to_ros(reply, response)

    def _await_model(self, request: Any, call: Call | None, reply: OpenReply) -> OpenReply:
        """Take the model of a robot; return the reply with the number of the upload's session."""
        client, asked = request.client, (request.incarnation, request.digest)
        present, upload, taking = self._uploads.get(client, (None, None, None))
        # A robot that asks again has lost its session, but if it has just got this answer. The next
        # session has another number, and so other keys.
        if upload is None or taking is None or present != asked or taking.begun or upload.ended \
                or time.monotonic() > upload.since + JUST:
            self._end_upload(client)
            if len(self._uploads) >= self.options.limits.clients:
                return OpenReply(REFUSED, 'too many robots send models')
            number, seals = secrets.randbits(63), None
            if call is not None and self._answerer is not None:
                session = self._answerer.session(call, number)
                seals = session.to_robot, session.to_server
            taking = Taking(
                self.store, self._partials, lambda: self.machine.models, self._on_stored,
                lambda reason: self._note_refusal(f'the model of {client} is refused: {reason}'))
            upload = ModelStream(self.node, f'{_base(client)}model/', number, True, seals, taking,
                                 lambda reason: self._end_upload(client))
            self._uploads[client] = asked, upload, taking
        return replace(reply, incarnation=upload.number)

    def _end_upload(self, client: str) -> None:
        if (found := self._uploads.pop(client, None)) is not None:
            found[1].close()
            found[2].close()

    def _on_stored(self) -> None:
        with self._changed:
            self.machine.on_stored(self.store.digests())

    def _on_set_plans(self, request: Any, response: Any, _: Call | None) -> Any:
        with self._changed:
            response.status, response.reason, actions = self.machine.on_set_plans(
                plans_of(request), time.monotonic())
            self._act(actions)
        return response

    # -- messages and time -----------------------------------------------------------------------

    def _on_message(self, client: str, message: Any) -> None:
        value = value_of(message)
        on_value: Any = self.machine.on_piece if isinstance(value, Piece) else self.machine.on_ack
        self._step(lambda now: on_value(client, value, now))

    def _on_unproved(self, client: str, error: SealError) -> None:
        self.machine.dropped['unproved'] += 1
        self._note_refusal(f'dropped a message of {client}: {error}')

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
            channels = list(self._channels.values())
        for channel in channels:
            channel.flush()

    # -- actions ---------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        now = time.monotonic()
        for action in actions:
            if isinstance(action, Send):
                if action.client in self._channels:
                    self._channels[action.client].send(action.message, now)
            elif isinstance(action, Join):
                client = action.client
                self._channels[client] = Channel(
                    self.node, SERVER, _base(client), partial(self._on_message, client),
                    partial(self._on_unproved, client), self.options.link(),
                    self._answerer is not None)
                self._channels[client].listen()
                self.node.get_logger().info(f'{action.client} joins')
            elif isinstance(action, Leave):
                self._channels.pop(action.client).close()
                self._tables.pop(action.client, None)
                self.node.get_logger().info(f'{action.client} has gone')
            elif isinstance(action, Prepare):
                self._models_jobs.submit(self._prepare, action.digest)
            elif isinstance(action, PreparePlans):
                client = action.request.client   # a client has at most one waiting job
                if client not in self._tables:
                    self._plans_jobs.submit(self._prepare_plans, client)
                self._tables[client] = action
            elif isinstance(action, Unload):
                self._models.pop((action.digest, action.device), None)
        for channel in self._channels.values():
            channel.release(now)
        self._alarm.set(min([self.machine.deadline,
                             *(channel.deadline for channel in self._channels.values())]))

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
                for device in self.machine.place(digest):
                    self._load(digest, device)
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

    def _load(self, digest: str, device: str) -> Traced:
        """Return the model on a device; load it if it is not there."""
        with self._loading:
            if (digest, device) not in self._models:
                traced = self.store.load(digest, device)
                with self._changed:
                    if device not in self.machine.place(digest):
                        return traced       # meanwhile the model was unloaded
                    self._models[digest, device] = traced
            return self._models[digest, device]

    def _try(self, digest: str) -> Trial:
        """Return the trial of a model on this machine; run it if no valid trial is stored.

        The trial of a model that differs only in the values of its weights counts, too.
        """
        folder = self.store.use(digest)
        trial = self._stored_trial(folder)
        if trial is not None:
            return trial
        twins = map(self._stored_trial, self.store.twins(digest))
        trial = next(filter(None, twins), None) or self._trier(folder)
        try:
            trial.save(folder / TRIAL)
        except OSError as error:   # the trial is not stored, so it runs again when it is needed
            self.node.get_logger().warning(f'cannot keep the measurements of the model: {error}')
        return trial

    def _stored_trial(self, folder: Path) -> Trial | None:
        """Return the trial in the folder of a model; None if there is no valid one."""
        try:
            trial = Trial.load(folder / TRIAL)
        except ProfileError:    # no trial is stored yet, or the stored trial is damaged
            return None
        fits = trial.profile.machine == machine() \
            and trial.profile.whole.sum() <= self.options.limits.longest
        return trial if fits else None

    def _prepare_plans(self, client: str) -> None:
        with self._changed:
            action = self._tables.pop(client, None)
        if action is None:
            return   # the client has gone
        request, lane = action.request, self._lanes[action.lane]
        table, reason = [], ''
        try:
            table = prepare_plans(self._load(request.digest, lane.name), request,
                                  self.options.recording, self._prepared, lane.number,
                                  lane.graphs)
        except LopinferError as error:
            reason = str(error)
        except Exception as error:  # invalid numbers in a plan table concern only this client
            reason = f'no plan table: {type(error).__name__}: {error}'
        with self._changed:
            self._act(self.machine.on_plans(request, table, reason))

    # -- computing -------------------------------------------------------------------------------

    def _compute(self, lane: _Lane) -> None:
        try:
            self._compute_all(lane)
        except Exception as error:   # not of a client's model, see `_guarded`
            self.node.get_logger().error(traceback.format_exc())
            self.error = f'the thread that computes has failed: {type(error).__name__}: {error}'

    def _compute_all(self, lane: _Lane) -> None:
        if lane.device.type == 'cuda':
            torch.cuda.set_device(lane.device)
        while (work := self._next_work(lane)) is not None:
            began = time.monotonic()
            whole = [self._guarded(request.client, request.execution.deliver)
                     for request in work.members]
            runs = [request.execution.run for request in work.members]
            computed = all(fine for fine, _ in whole) and \
                work.prepared.program.compute_together(runs, work.steps)
            queued = [self._guarded(request.client, request.execution.queue, work.steps, computed)
                      if delivered[0] else delivered
                      for request, delivered in zip(work.members, whole, strict=True)]
            lane.finish(partial(self._finish, lane, work, began, queued,
                                computed or len(runs) == 1))

    def _finish(self, lane: _Lane, work: Work, began: float,
                queued: Sequence[tuple[bool, None]], batched: bool) -> None:
        """Wait for the results of queued work, and send them."""
        results = [self._guarded(request.client, request.execution.pieces, work.steps)[1]
                   if fine else None
                   for request, (fine, _) in zip(work.members, queued, strict=True)]
        now = time.monotonic()
        seconds, lane.ended = now - max(began, lane.ended), now
        self._step(partial(self.machine.on_computed, work, results, seconds, batched=batched))

    def _guarded(self, client: str, call: Callable[..., Any], *arguments: Any
                 ) -> tuple[bool, Any]:
        """Return (True, result of a call), or (False, None) after an error, which is logged.

        An error in one client's model must not end the server.
        """
        try:
            return True, call(*arguments)
        except Exception as error:
            self.node.get_logger().error(f'{client}: {type(error).__name__}: {error}')
            return False, None

    def _next_work(self, lane: _Lane) -> Work | None:
        with self._changed:
            while not self._closing:
                work = self.machine.work(time.monotonic(), lane.number)
                if work is not None:
                    if lane.graphs is not None:     # they have what nobody else needs
                        lane.graphs.room = self.machine.free(lane.name)
                    return work
                self._changed.wait()
        return None


def _base(client: str) -> str:
    """Return the beginning of the names of a client's topics."""
    return f'/{client}/lopinfer/' if client else '/lopinfer/'


def prepare_plans(traced: Traced, request: PlansRequest, recording: Recording | None = None,
                  prepared: MutableMapping[tuple[str, Plan, int], Prepared] | None = None,
                  lane: int = 0, graphs: Graphs | None = None) -> list[Prepared]:
    """Check the plans of a request and return their programs, one for each bin.

    The *bin* of a plan is its position in the client's list of plans (`encode_plans`).
    ``prepared``: prepared plans by the digest of their model, and their lane; plans that it lacks
    are added. ``lane``: what computes them. ``graphs``: what captures them.

    Raise PlanError for an invalid plan, RemoteError for an invalid table.
    """
    prepared = {} if prepared is None else prepared
    table = []
    for own in decode_plans(request.bins, request.own, len(traced.graph)):
        plan = Plan(traced.graph, own)
        found = prepared.get((request.digest, plan, lane))
        if found is None:
            program = Program(traced, plan, plans.SERVER, graphs)
            found = prepared[request.digest, plan, lane] = Prepared(
                plan, recorded(program, plans.SERVER, recording), lane)
        table.append(found)
    return table
