"""The server's protocol, without I/O.

The server handles models and clients; each client has a plan table and at most one request. The
server does not choose plans: each request contains the number of its plan. A new request of a
client replaces the client's previous request. A client's messages never change the session of
another client.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from fleet_compute.inlets import KEPT, Frames, Inlets
from fleet_compute.schedule import USUAL, Ready, Schedule
from fleet_compute.weights import StoreSettings
from fleet_env.settings.base import setting
from fleet_link.arrivals import Arrivals

from ..errors import RemoteError
from ..planning.plan import DEVICE, SERVER, Plan
from .choice import LATER
from .execution import AnyProgram, Execution
from .outbox import Outbox, Route
from .services import (
    MISSING,
    PREPARING,
    PROTOCOL,
    READY,
    REFUSED,
    OpenReply,
    OpenRequest,
    PlansRequest,
    first_difference,
)
from .wire import (
    FAILED,
    LEAVING,
    MAX_PIECE,
    MAX_PROBE,
    NO_PLAN,
    NOT_OPEN,
    OK,
    PIXELS,
    PROBE,
    PROBE_PIECES,
    Ack,
    Buffer,
    Piece,
    acknowledge,
    plan_number,
)

NAME = re.compile(r'([A-Za-z]\w*(/[A-Za-z]\w*)*)?', re.ASCII)
MAX_NAME = 200   # maximum characters of a client's name; ROS refuses longer topics
MAX_NAMES = 1 << 20   # maximum bytes of a model's name, parameter names and hashes together
REFUSALS = 64    # number of refused models for which the server remembers the reason
# seconds of a client's silence after which another process may use the client's name
TAKE_OVER = 2.0
FAREWELL = 1.0   # seconds for which a client that has ended is still answered
# Seconds after which a client that was told that the server ends sends it no more requests. What it
# sends meanwhile is computed: the news may still wait on a busy robot.
KNOWN = 0.25
LOADING = OpenReply(PREPARING, 'the server loads and measures the model')


@dataclass(frozen=True)
class Join:
    """Create the topics of a client."""

    client: str


@dataclass(frozen=True)
class Leave:
    """Remove the topics of a client."""

    client: str


@dataclass(frozen=True)
class Prepare:
    """Prepare a stored model in the background.

    Try the model (`trial.py`), ask `admit` for memory, load the model, then call `on_model`.
    """

    digest: str


@dataclass(frozen=True)
class PreparePlans:
    """Check and compile a plan table for a lane in the background, then call `on_plans`.

    Load the model on the device of the lane if it is not there.
    """

    request: PlansRequest
    lane: int = 0


@dataclass(frozen=True)
class Unload:
    """Unload a model that no client uses from a device; keep its files."""

    digest: str
    device: str = 'cpu'


@dataclass(frozen=True)
class Send:
    """Send a piece or an acknowledgement to a client."""

    client: str
    message: Piece | Ack


Action = Join | Leave | Prepare | PreparePlans | Unload | Send


@dataclass(frozen=True, eq=False)
class Prepared:
    """A checked plan and its program for a lane; all robots with this plan there share it."""

    plan: Plan
    program: AnyProgram
    lane: int = 0

    @cached_property
    def number(self) -> int:
        """Return the number of the plan; every piece carries this number."""
        return plan_number(self.plan.digest)

    @cached_property
    def pictures(self) -> int:
        """Return the bytes of each request that `Frames` keep."""
        return sum(t.bytes for t, form in zip(self.plan.transfers, self.program.forms, strict=True)
                   if t.source == DEVICE and form.item == 1)


class Limits(StoreSettings):
    """Settings that limit the clients, requests, models and memory of one server."""

    clients: int = setting(16, 'most robots at a time', ge=1, le=1024)
    request_bytes: int = 1 << 28   # maximum bytes of the incoming transfers of one request
    lease: float = setting(30.0, 'silence after which a robot is dropped', 's', ge=3.0, le=3600.0)
    uploads: bool = setting(True, 'whether robots may send models')
    memory: int = setting(4096, 'most memory for models and open requests, on each device', 'MiB',
                          ge=64, le=1 << 24)
    longest: float = setting(30.0, 'longest duration of one inference; slower models are refused',
                             's', ge=0.1, le=3600.0)
    piece_bytes: int = MAX_PIECE   # maximum bytes of one piece


@dataclass
class _Model:
    """The server's state of one model; ``status`` is READY, PREPARING or REFUSED."""

    name: str
    names: Sequence[str]
    hashes: Sequence[int]
    status: int = PREPARING
    reason: str = ''
    kept: bool = False       # whether the model stays in memory even if no client uses it
    loaded: int = 0          # bytes that the loaded model occupies
    request: int = 0         # additional bytes for each request
    plan: int = 0            # additional bytes for each plan
    devices: set[str] = field(default_factory=set)      # where the model is loaded, or will be
    fixed: np.ndarray = field(default_factory=lambda: np.empty(0))
    per_share: np.ndarray = field(default_factory=lambda: np.empty(0))

    @property
    def seconds(self) -> float:
        """Return the expected duration of one inference."""
        return float(self.fixed.sum() + self.per_share.sum())


@dataclass
class _Session:
    """The server's state of one client."""

    client: str
    incarnation: int
    server: int             # this side's number of the session, never the same for two sessions
    digest: str
    heard: float
    outbox: Outbox
    inlets: Inlets
    frames: Frames = field(default_factory=Frames)
    pixels: bool = False                # whether the robot's pictures must come as pixels
    arrivals: Arrivals = field(default_factory=Arrivals)
    lane: int | None = None             # where the latest table is computed
    plans: Sequence[Prepared] = ()
    asked: PlansRequest | None = None   # the latest table that the client has sent
    refusal: str = ''                   # why the latest table was refused; '' if it was not refused
    plans_bytes: int = 0                # bytes reserved for the plans
    reserved: int = 0                   # bytes reserved for a request
    number: int = 0                     # number of the newest request
    request: _Request | None = None     # the newest request, until it is computed
    failed: bool = False                # whether the newest request has failed
    acked: Ack | None = None            # the latest acknowledgement
    ended: bool = False                 # whether the client has said that it ends

    def drop_at(self, lease: float) -> float:
        """Return the time at which the client is dropped if nothing more is heard of it."""
        return self.heard + (FAREWELL if self.ended else lease)


@dataclass(eq=False)
class _Request:
    """A request that is being computed.

    ``arrived``: time at which its first piece arrived. ``within``: seconds from then for which the
    robot waits, if the device has nothing to do for others. ``deadline``: time at which it stops
    waiting. ``spent``: seconds for which the device has computed it, with its share of batches.
    """

    client: str
    prepared: Prepared
    execution: Execution
    arrived: float
    within: float
    deadline: float
    spent: float = 0.0

    def ready(self, steps: range) -> Ready[_Request]:
        """Return the request for the schedule, with the steps that can be computed."""
        return Ready(self, self.prepared, steps, self.arrived, self.deadline)


@dataclass(frozen=True, eq=False)
class Work:
    """The steps that the shell must compute now, as one batch for the requests `members`."""

    members: Sequence[_Request]
    prepared: Prepared
    steps: range


def _malformed(request: OpenRequest) -> str:
    """Return what is wrong with the request itself, in any state of the server; '' if nothing."""
    if not NAME.fullmatch(request.client) or '__' in request.client \
            or len(request.client) > MAX_NAME:
        return (f"'{request.client[:MAX_NAME]}' can't be the name of a client: its namespace "
                f'must have at most {MAX_NAME} letters, digits and single underscores and '
                'begin with a letter, such as robot1')
    if request.protocol != PROTOCOL:
        return (f'the server uses protocol {PROTOCOL}, the client {request.protocol}; '
                'install the same release on both')
    if len(request.names) != len(request.hashes):
        return f'{len(request.names)} parameters come with {len(request.hashes)} hashes'
    if len(request.model) + sum(len(name) + 8 for name in request.names) > MAX_NAMES:
        return f'the names of the parameters must take at most {MAX_NAMES} bytes'
    return ''


class ServerMachine:
    """State machine of the server.

    The `on_...` methods handle events and return actions; `work` returns steps to compute.
    ``stored``: digests of the models whose files are on the disk. ``devices``: the device of each
    lane; a lane computes one thing at a time. Each plan table is computed by the lane that has the
    least to do.
    """

    def __init__(self, incarnation: int, stored: Collection[str] = (),
                 limits: Limits | None = None, devices: Sequence[str] = ('cpu',)) -> None:
        self.incarnation = incarnation
        self.devices = tuple(devices)
        self.limits = limits or Limits()
        self.dropped: Counter[str] = Counter()
        self.requests = 0
        # if True, new requests are refused, but requests in progress run to their end
        self.paused = False
        # If True, the server ends: it tells each client so with the answer to the client's next
        # message, and refuses the requests after that one.
        self.leaving = False
        self._told: dict[str, float] = {}   # when each client was told that the server ends
        self.changed = False        # set when `work` may return new steps; the shell resets it
        self._stored = set(stored)
        self._joins = 0                     # number of sessions until now
        self._models: dict[str, _Model] = {}
        self._sessions: dict[str, _Session] = {}
        self._schedule: Schedule[_Request] = Schedule()

    @property
    def clients(self) -> list[str]:
        """Return the names of the clients."""
        return list(self._sessions)

    def busy(self, now: float) -> bool:
        """Return whether a request is running, or a client does not know that the server ends."""
        return any(s.request is not None or not s.outbox.idle
                   or self.leaving and not self._knows(s.client, now)
                   for s in self._sessions.values())

    def _knows(self, client: str, now: float) -> bool:
        """Return whether a client sends no more requests, because it was told some time ago."""
        return now >= self._told.get(client, math.inf) + KNOWN

    # -- models and clients ----------------------------------------------------------------------

    def on_open(self, request: OpenRequest, now: float) -> tuple[OpenReply, list[Action]]:
        """Handle a client's request to open a model; return the reply and the actions."""
        refusal = self._refusal(request, now)
        if refusal:
            return OpenReply(REFUSED, refusal), []
        model = self._models.get(request.digest)
        if model is None:
            if request.digest not in self._stored:
                return self._missing(request), []
            return LOADING, self.add(request.model, request.digest, request.names,
                                               request.hashes)
        if model.status == PREPARING:
            return LOADING, []
        if model.status == REFUSED:
            del self._models[request.digest]  # so the next call of `Open` tries the model again
            return OpenReply(REFUSED, model.reason), []
        session, actions = self._join(request, now)
        return OpenReply(READY, '', session.server, bool(session.plans), model.fixed,
                         model.per_share), actions

    @property
    def models(self) -> list[str]:
        """Return the digests of the models that are ready, being prepared or refused."""
        return list(self._models)

    def free(self, device: str) -> int:
        """Return the bytes of a device that are not reserved for models, plans and requests."""
        used = sum(m.loaded for m in self._models.values() if device in m.devices) + \
            sum(s.plans_bytes + s.reserved for s in self._sessions.values()
                if s.lane is not None and self.devices[s.lane] == device)
        return (self.limits.memory << 20) - used

    def place(self, digest: str) -> set[str]:
        """Return the devices on which a model is loaded, or being loaded."""
        model = self._models.get(digest)
        return set() if model is None else model.devices

    def _by_work(self, digest: str, but: _Session | None = None) -> list[int]:
        """Return the lanes, first the one whose robots use the least time for their models.

        Among equals, ``but`` stays where it is (it does not count), and a model where it is.
        """
        work = dict.fromkeys(range(len(self.devices)), 0.0)
        for session in self._sessions.values():
            if session is not but and session.lane is not None:
                work[session.lane] += max(self._models[session.digest].seconds, 1e-6)
        here, there = but and but.lane, self._models[digest].devices
        return sorted(work, key=lambda lane: (
            work[lane], lane != here, self.devices[lane] not in there, lane))

    def add(self, name: str, digest: str, names: Sequence[str], hashes: Sequence[int],
            kept: bool = False) -> list[Action]:
        """Prepare a stored model; ``kept``: keep it in memory even if no client uses it."""
        self._stored.add(digest)
        refused = [d for d, m in self._models.items() if m.status == REFUSED]
        for old in refused[:len(refused) - REFUSALS + 1]:
            del self._models[old]
        self._models[digest] = _Model(name, names, hashes, kept=kept)
        return [Prepare(digest)]

    def admit(self, digest: str, loaded: int, request: int, plan: int = 0
              ) -> tuple[str, list[Action]]:
        """Reserve memory for a model on a device; `place` says on which.

        ``loaded``, ``request`` and ``plan``: bytes of the model, of each request and of each plan.
        Returns (reason, actions). The reason says why the memory is not enough, or is '' if it is
        enough. The actions unload other models, which makes room for this model.
        """
        model = self._models[digest]
        lane, reason, actions = self._find_room(
            self._by_work(digest), f'{model.name} and one request of it', loaded + request)
        if not reason:
            model.loaded, model.request, model.plan = loaded, request, plan
            model.devices = {self.devices[lane]}
        return reason, actions

    def _find_room(self, lanes: Sequence[int], what: str, nbytes: int,
                   model: _Model | None = None) -> tuple[int, str, list[Action]]:
        """Return the first lane whose device has room, a reason and actions as `_make_room` does.

        ``model`` needs room, too, on a device where it is not loaded.
        """
        why, actions = '', []
        for lane in lanes:
            device = self.devices[lane]
            more = 0 if model is None or device in model.devices else model.loaded
            reason, unloaded = self._make_room(device, what, nbytes + more)
            actions += unloaded
            if not reason:
                return lane, '', actions
            why = why or reason
        return lanes[0], why, actions

    def _make_room(self, device: str, what: str, nbytes: int) -> tuple[str, list[Action]]:
        """Unload unused models, the oldest first, until ``nbytes`` bytes of a device are free.

        Returns (reason, actions). The reason says why there is not enough room, or is '' if there
        is enough; it contains ``what``, the use of the bytes. The actions unload models.
        """
        actions: list[Action] = []
        in_use = {s.digest for s in self._sessions.values()
                  if s.lane is None or self.devices[s.lane] == device}
        for digest, model in list(self._models.items()):
            if self.free(device) >= nbytes:
                break
            if model.status == READY and device in model.devices and digest not in in_use \
                    and not (model.kept and len(model.devices) == 1):
                model.devices.remove(device)
                if not model.devices:
                    del self._models[digest]
                actions.append(Unload(digest, device))
        free, memory = self.free(device), self.limits.memory << 20
        reason = '' if free >= nbytes else (
            f'{what} take {nbytes >> 20} MiB; of the {memory >> 20} MiB that the server has for '
            f'models and requests (its parameter memory), {memory - free >> 20} are in use')
        return reason, actions

    def _refusal(self, request: OpenRequest, now: float) -> str:
        session = self._sessions.get(request.client)
        if self.paused or self.leaving:
            return 'the server is paused (its node is not active) or ends; robots continue alone'
        if reason := _malformed(request):
            return reason
        if session is None and len(self._sessions) >= self.limits.clients:
            return f'the server has reached its limit of {self.limits.clients} clients'
        if session is not None and session.incarnation != request.incarnation \
                and not session.ended and now < session.heard + TAKE_OVER:
            return (f"the name '{request.client}' is in use by another client; give each robot "
                    'its own namespace')
        return ''

    def _missing(self, request: OpenRequest) -> OpenReply:
        reason = 'the server does not have this model'
        for other in self._models.values():
            if other.name == request.model and other.status == READY:
                difference = first_difference(request.names, request.hashes, other.names,
                                              other.hashes) or 'the graphs differ'
                reason = f"the server's {other.name} differs: {difference}"
        return OpenReply(MISSING if self.limits.uploads else REFUSED, reason)

    def _join(self, request: OpenRequest, now: float) -> tuple[_Session, list[Action]]:
        session = self._sessions.get(request.client)
        same = session is not None and (session.incarnation, session.digest) == (
            request.incarnation, request.digest)
        if session is not None and same:
            session.heard = now
            return session, []
        self._joins += 1
        outbox = Outbox(request.incarnation, self.limits.piece_bytes)
        fresh = _Session(request.client, request.incarnation,
                         (self.incarnation + self._joins) % 2**64, request.digest, now, outbox,
                         Inlets(lambda: outbox.link.rate))
        self._sessions[request.client] = fresh
        self._told.pop(request.client, None)
        return fresh, [] if session is not None else [Join(request.client)]

    def on_stored(self, digests: Collection[str]) -> None:
        """Update the set of stored models after a model has arrived or was deleted."""
        self._stored = set(digests)

    def on_lost(self, digest: str) -> None:
        """Forget a stored model of which weights had to go."""
        self._stored.discard(digest)

    def on_model(self, digest: str, fixed: np.ndarray, per_share: np.ndarray, reason: str = ''
                 ) -> None:
        """Handle the end of a model's preparation.

        ``fixed``, ``per_share``: the model's profile. ``reason``: why the model is refused, or ''
        if it is ready.
        """
        model = self._models[digest]
        model.status, model.reason = (REFUSED if reason else READY), reason
        model.fixed, model.per_share = fixed, per_share
        if reason:
            model.loaded, model.devices = 0, set()
            model.names, model.hashes = (), ()
            self._stored.discard(digest)

    def on_set_plans(self, request: PlansRequest, now: float) -> tuple[int, str, list[Action]]:
        """Handle a client's plan table; return status, reason and actions."""
        session = self._sessions.get(request.client)
        if session is None or (session.incarnation, session.digest) != (
                request.incarnation, request.digest):
            return REFUSED, 'open the model first', []
        session.heard = now
        busy = session.asked is not None and not session.plans and not session.refusal
        if not busy and (session.asked is None or session.asked.bins != request.bins
                or not np.array_equal(session.asked.own, request.own)):
            return self._prepare_plans(session, request)
        if session.refusal:
            session.asked = None
            return REFUSED, session.refusal, []
        if not session.plans:
            return PREPARING, 'the plans are being checked and compiled', []
        return READY, '', []

    def _prepare_plans(self, session: _Session, request: PlansRequest
                       ) -> tuple[int, str, list[Action]]:
        """Start to check and compile a table for the lane that has the least to do.

        Its device must have memory for the plans and for a request.
        """
        model = self._models[request.digest]
        numbers = 4 * max(1, len(model.fixed))   # number of integers that encode one plan
        nbytes = request.own.nbytes + model.plan * -(-len(request.own) // numbers)
        session.asked, session.plans, session.refusal = request, (), ''
        session.plans_bytes = session.reserved = 0
        lane, reason, actions = self._find_room(
            self._by_work(session.digest, session), 'the plans and a request',
            nbytes + model.request, model)
        if reason:
            session.asked = None
            return REFUSED, reason, actions
        session.lane, session.plans_bytes = lane, nbytes
        model.devices.add(self.devices[lane])
        return (PREPARING, 'the plans are being checked and compiled',
                [*actions, PreparePlans(request, lane)])

    def on_plans(self, request: PlansRequest, table: Sequence[Prepared], reason: str = ''
                 ) -> list[Action]:
        """Handle the end of `PreparePlans`.

        ``table``: one checked plan for each bin of ``request``. ``reason``: why the plans are
        refused, or '' if they are valid.
        """
        session = self._sessions.get(request.client)
        if session is None or session.asked is not request or session.lane is None:
            return []  # meanwhile the client has gone or sent another table
        crossing = 0
        for prepared in table:
            sizes = {side: sum(t.bytes for t in prepared.plan.transfers if t.source == side)
                     for side in (DEVICE, SERVER)}
            crossing = max(crossing, sum(sizes.values()) + KEPT * prepared.pictures)
            if sizes[DEVICE] > self.limits.request_bytes:
                reason = (f'a plan sends {sizes[DEVICE]} bytes to the server, which accepts at '
                          f'most {self.limits.request_bytes}')
        session.reserved = 0
        needed = self._models[request.digest].request + crossing
        lack, actions = self._make_room(self.devices[session.lane], 'a request', needed)
        session.refusal = reason = reason or lack
        session.plans = () if reason else tuple(table)
        session.reserved = 0 if reason else needed
        if reason:
            session.plans_bytes = 0
        return actions

    # -- requests --------------------------------------------------------------------------------

    def on_piece(self, client: str, piece: Piece, now: float) -> list[Action]:
        """Handle a piece from a client."""
        session = self._sessions.get(client)
        try:
            piece.verify()
        except RemoteError:
            self.dropped['corrupt'] += 1
            return []
        if session is None or piece.incarnation != session.incarnation:
            self.dropped['foreign'] += 1
            return [Send(client, Ack(piece.packet, 0, now, piece.incarnation, NOT_OPEN))]
        session.heard = now
        try:
            status, wait = self._take(session, piece, now)
        except RemoteError:
            self.dropped['corrupt'] += 1
            return []
        if self.leaving and status == LEAVING:
            self._told.setdefault(client, now)
        link = session.outbox.link
        link.on_heard(now)
        ack = session.acked = acknowledge(session.arrivals, piece, now, status,
                                          link.rate if link.known else 0.0, wait)
        return [Send(client, ack), *self._send(session, now)]

    def _take(self, session: _Session, piece: Piece, now: float) -> tuple[int, float]:
        """Take a piece; return status and wait of its acknowledgement."""
        if (self.paused or self.leaving and self._knows(session.client, now)) and (
                piece.transfer == PROBE or piece.request > session.number):
            return NOT_OPEN, 0.0  # the client then calls `Open` and gets the reason
        if piece.transfer == PROBE:
            # after the last piece of an uplink probe, probe the downlink too
            if piece.part == piece.parts - 1 and session.outbox.idle:
                session.outbox.probe(min(len(piece.data) * piece.parts, MAX_PROBE), PROBE_PIECES)
            return LEAVING if self.leaving else NO_PLAN if not session.plans else \
                PIXELS if session.pixels else OK, 0.0
        if piece.request < session.number:
            self.dropped['late'] += 1
            return LEAVING if self.leaving else OK, 0.0
        if piece.bin >= len(session.plans) or piece.plan != session.plans[piece.bin].number:
            self.dropped['plan'] += 1
            return NO_PLAN, 0.0
        if piece.request > session.number:
            self._begin(session, piece, now)
        request = session.request
        status = LEAVING if self.leaving or self.paused else PIXELS if session.pixels else OK
        if request is None:
            return FAILED if session.failed else status, 0.0
        if not request.execution.take(piece):
            return status, 0.0
        self.changed = True
        wait = sum(max(0.0, self._schedule.expected(other.prepared) - other.spent)
                   for s in self._sessions.values()
                   if (other := s.request) is not None and other is not request
                   and other.prepared.lane == request.prepared.lane)
        # the robot waits longer, too (`ClientMachine.on_ack`)
        request.deadline = max(request.deadline, request.arrived + request.within + LATER * wait)
        return status, wait

    def _begin(self, session: _Session, piece: Piece, now: float) -> None:
        """Begin the request of its first piece; it replaces the former request of the client."""
        prepared = session.plans[piece.bin]
        session.number, session.failed = piece.request, False
        session.outbox.clear()
        session.outbox.busy = 0.0
        execution = Execution(
            SERVER, Route(piece.request, piece.plan, piece.bin), prepared.program.steps,
            prepared.plan.transfers, prepared.program.start(None), session.inlets,
            session.frames)
        within = piece.within if 0 < piece.within < math.inf else USUAL
        session.request = _Request(session.client, prepared, execution, now, within, now + within)
        self.requests += 1

    def on_ack(self, client: str, ack: Ack, now: float) -> list[Action]:
        """Handle an acknowledgement from a client."""
        session = self._sessions.get(client)
        if session is None or ack.incarnation != session.incarnation:
            self.dropped['foreign'] += 1
            return []
        if ack.status == LEAVING:
            session.heard = now
            self._told[client] = -math.inf      # it ends, too
            session.ended, session.request = True, None
            session.outbox.clear()
            return [Send(client, Ack(ack.packet, 0, now, ack.incarnation, NOT_OPEN))]
        try:
            session.outbox.on_ack(ack, now)
        except RemoteError:
            self.dropped['corrupt'] += 1
            return []
        session.heard = now
        return self._send(session, now)

    def work(self, now: float, lane: int = 0) -> Work | None:
        """Return what a lane computes next, or None if there is nothing; see `Schedule.choose`."""
        ready = [session.request.ready(steps) for session in self._sessions.values()
                 if session.request and session.request.prepared.lane == lane
                 and (steps := session.request.execution.runnable())]
        chosen = self._schedule.choose(ready, now)
        if not chosen:
            return None
        members = [r.request for r in chosen]
        return Work(members, members[0].prepared, members[0].execution.runnable())

    def on_computed(self, work: Work, results: Sequence[Sequence[tuple[int, Buffer]] | None],
                    seconds: float, now: float, batched: bool = True) -> list[Action]:
        """Send the results of ``work``; those of one lane come in the order of its work.

        ``results``: for each member, the pieces of its transfers, or None after an error in its
        steps. Such a request is dropped: its robot gets no result and finishes alone.
        ``seconds``: time that all steps took. ``batched``: whether they were computed as a batch;
        True for a single member.
        """
        if batched:
            self._schedule.note(work.prepared, work.steps, len(results), seconds)
        elif None not in results:
            self._schedule.never_together(work.prepared)
        actions: list[Action] = []
        for request, pieces in zip(work.members, results, strict=True):
            session = self._sessions.get(request.client)
            if session is None or session.request is not request:
                continue  # the client has begun another request, or has gone
            request.spent += seconds / len(results)
            if pieces is None:
                session.request, session.failed = None, True
                session.pixels |= request.execution.other_pixels
                self.dropped['failed'] += 1
                if session.acked is not None:   # of a piece of this request, or of a later probe
                    actions.append(Send(session.client, replace(session.acked, status=FAILED)))
                continue
            session.outbox.busy += seconds
            for transfer, data in pieces:
                session.outbox.offer(request.execution.route, transfer, data)
            # later steps of the request may be under way
            if work.steps.stop == len(request.prepared.program.steps):
                session.request = None
                self._schedule.note_whole(request.prepared, request.spent)
            actions += self._send(session, now)
        return actions

    # -- time ------------------------------------------------------------------------------------

    def on_time(self, now: float) -> list[Action]:
        """Drop silent clients, and return all due actions; call this at `deadline`."""
        actions: list[Action] = []
        for session in list(self._sessions.values()):
            if now >= session.drop_at(self.limits.lease):
                del self._sessions[session.client]
                actions.append(Leave(session.client))
            else:
                actions += self._send(session, now)
        return actions

    def _send(self, session: _Session, now: float) -> list[Action]:
        return [Send(session.client, piece) for piece in session.outbox.poll(now)]

    @property
    def deadline(self) -> float:
        """Return the time at which `on_time` must run if no event comes before this time."""
        return min((min(s.outbox.deadline, s.drop_at(self.limits.lease))
                    for s in self._sessions.values()), default=math.inf)
