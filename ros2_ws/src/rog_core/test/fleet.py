"""Simulates a fleet in virtual time: the real state machines on an unreliable network."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter

import hostile
import numpy as np
from configs import server_config, transfer_config
from invariants import Staleness, Versions
from ledger import (
    RATE,
    Gradients,
    SummingAccumulator,
    SummingAggregation,
    decode,
    method_named,
    padded,
)
from rog_core.codecs import SMALLER, codec_on_wire, decode_ids
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.method_check import check_named
from rog_core.methods import Team
from rog_core.model.partition import Parameter, Role, partition_of
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import (
    Ack,
    Chunk,
    Compute,
    End,
    Kind,
    Notice,
    Receipt,
    RegisterRequest,
    Send,
    Stop,
)
from rog_core.protocol.states import BUSY, COMPUTING, OPEN, PAUSED, PUSHING, STARVED, STOPPED
from rog_core.server.server import Server
from rog_core.shell import handler
from rog_core.worker.worker import Worker

# Parameters: short rows that fill several windows, a small parameter, a scalar, and a row that is
# cut into several segments.
SHAPES = {
    'lossy': [('conv', (60, 34)), ('bias', (8,)), ('long', (1, 9001)), ('scale', ()),
              ('linear', (40, 26))],
    'raw': [('conv', (60, 17)), ('bias', (8,)), ('long', (1, 601 + 400)), ('scale', ()),
            ('linear', (40, 26))]}

# Tensors of a whole model besides its trained parameters. The first buffer has several segments,
# and the last one never changes.
BUFFERS = [Parameter('mean', (300,), Role.AVERAGE), Parameter('variance', (9,), Role.AVERAGE),
           Parameter('batches', (), Role.MAXIMUM), Parameter('constant', (40,), Role.AVERAGE)]
FROZEN = [Parameter('base', (40, 34), Role.FROZEN), Parameter('offset', (7,), Role.FROZEN)]

CHUNK = 2000  # maximum bytes of a chunk, so that every transfer has several chunks
DEADLINES = 10  # check the server's deadline after every 10th of its acts; this takes long
BUFFER = 2.0  # seconds of data that a link queues before it drops messages


class Robot:
    def __init__(self, name, fleet, incarnation):
        # These initial values are wrong on purpose: the server's snapshot must replace them.
        weights = np.full(fleet.partition.elements, 7.0, np.float32)
        self.name = name
        self.store = SummingAccumulator(fleet.partition, weights, frozen=lambda: fleet.frozen)
        self.switched = ()  # parameters that the robot's program has frozen or unfrozen
        self.machine = Worker(name, incarnation, self.store,
                              transfer_config(fleet.codec, chunk_bytes=CHUNK))
        self.compute_time = fleet.rng.choice([0.03, 0.1, 0.3, 1.4])
        # Whether the robot's data source gives no data. If so, the robot's heartbeats report
        # `STARVED` instead of `COMPUTING`.
        self.starved = False
        self.alive = True
        self.granted = 0  # last iteration for which `check_start` was called
        self.pushing = None  # transfer of the robot's last push


class Fleet:
    """A simulated fleet: event queue, network and faults; ``seed`` determines every random choice.

    ``rate``: bytes per second of every link in each direction; messages on a link queue up.
    ``counts``: how often each kind of event has happened. A test uses ``counts`` to check that its
    faults really happened. ``capacities``: relative speed of each robot, for coded gradients.
    """

    def __init__(self, seed, robots=3, sync='rsp:3', codec='onebit', loss=0.0, duplicate=0.0,
                 delay=0.02, rate=1e6, heartbeat_limit=1.0, momentum=0.5, capacities=(),
                 patience=math.inf, clip=0.0, whole=False):
        self.rng = random.Random(seed)
        self.whole = whole  # whether the model has buffers and frozen parameters, too
        shapes = SHAPES['raw' if codec == 'raw' else 'lossy']
        self.partition = partition_of(shapes + (BUFFERS + FROZEN if whole else []), 'row', codec)
        self.elements = self.partition.grown.elements
        self.variance = slice(300, 309)  # elements of the buffer 'variance' among the buffers
        self.ever_switched = set()  # parameters that any robot has frozen or unfrozen
        self.codec, self.loss, self.duplicate, self.delay = codec, loss, duplicate, delay
        self.sync, self.heartbeat_limit, self.rate = sync, heartbeat_limit, rate
        # Patience of the server in seconds, and the limit ``clip`` of
        # `rog_core.server.push_filter`.
        self.patience, self.clip = patience, clip
        self.momentum = momentum         # momentum on the server
        self.capacities = {f'robot{k}': value for k, value in enumerate(capacities)}
        self.team = Team(self.capacities, codec, momentum)
        self.sgd = SgdConfig(RATE, 0.9, 0.0, True)  # optimizer settings of every robot
        self.gradients = Gradients(self.partition.elements, seed)
        self.compute_time = 0.0          # minimum time to compute a gradient, in seconds
        self.now = 0.0
        self.queue: list = []
        self.count, self.acts = itertools.count(), itertools.count()
        # Incarnations are random, as on real robots. A session is the XOR of two incarnations; with
        # small numbers, the same XOR would occur for several pairs.
        self.lives = (self.rng.getrandbits(64) for _ in itertools.count())
        self.counts: Counter = Counter()
        self.dead_links: set[str] = set()
        # robots whose next gradient is multiplied by the large factor `blast`
        self.exploding: set[str] = set()
        self.blast = 100
        self.deaf_links: set[str] = set()  # links that carry only heartbeats
        self.unheard: set[str] = set()     # robots whose link was dead at the last heartbeat
        # Maps (robot, whether the direction is towards the server) to the time at which the link is
        # free.
        self.free_at: dict = {}
        # Messages that the network has carried; `replay` delivers them again.
        self.history: list = []
        # Sum of the gradients that were lost because the server crashed, or refused their chunks.
        self.lost = np.zeros(self.elements)
        initial = self.gradients.noise.standard_normal(self.elements).astype(np.float32)
        initial, self.frozen = np.split(initial, [self.partition.elements])
        if whole:
            initial[self.partition.buffers] = 1.0
        self.robots: dict[str, Robot] = {}
        self.lives_of_robots: list[Robot] = []
        self.applied_chunks: set = set()
        self.errors: list = []
        # Deadlines of the robots and of the server, which an event at one of them may change; None:
        # not known. To compute them anew for each event takes long.
        self.wakes: dict[str, float | None] = {}
        self.due: float | None = None
        self.staleness = Staleness(lambda sync: method_named(sync, self.team))
        self.versions = Versions(self.partition.grown)
        self.stopped = False
        self.start_server(initial)
        for k in range(robots):
            self.start_robot(f'robot{k}')
        self.at(0.1, self.heartbeat)

    # -- faults

    def start_server(self, master, state=None):
        for sync in {self.sync, self.sync if state is None else state.sync}:
            check_named(sync, self.team)
        self.server = Server(
            self.partition, master[:self.partition.elements], next(self.lives),
            server_config(self.sync, self.codec, CHUNK, heartbeat_limit=self.heartbeat_limit,
                          momentum=self.momentum, capacities=self.capacities,
                          patience=self.patience, clip=self.clip), self.frozen)
        self.server.aggregation = self.update = SummingAggregation(
            self.sync, self.server.model, self.team)
        if len(master) > self.partition.elements:
            self.server.grow()
            self.server.master[:] = master
        if state is not None:
            self.server.load_state(state)
        take, server = self.server.on_chunk, self.server

        # Record each chunk that the server applies. To do so, replace the server's `on_chunk`:
        # the network does not see all calls of it, because the server itself calls it for chunks
        # that arrived before their transfer began.
        def on_chunk(name, chunk, now):
            actions = take(name, chunk, now)
            ids, server.aggregation.last_ids = server.aggregation.last_ids, None
            if ids is not None:
                life = chunk.transfer.incarnation ^ server.incarnation
                self.applied_chunks.add((life, chunk.transfer, chunk.sequence))
                self.versions.applied(server.members[name], chunk, ids)
            return actions
        self.server.on_chunk = on_chunk

    def checkpoint(self):
        """Return the server's checkpoint, its master rows, and the sum of all applied values."""
        return self.server.checkpoint(), self.server.master.copy(), self.update.applied.copy()

    def restart_server(self, checkpoint):
        """Crash the server and restart it from the checkpoint.

        Pushes that are not in the checkpoint are lost or sent again.
        """
        state, master, applied = checkpoint
        self.counts['crash'] += 1
        self.counts['crash that lost updates'] += bool((self.update.applied != applied).any())
        self.lost += self.update.applied - applied
        for robot in self.lives_of_robots:
            for sent in self.open_chunks(robot):
                key = (robot.machine.incarnation, sent.transfer, sent.sequence)
                if key in self.applied_chunks and not self.in_checkpoint(state, robot, sent):
                    self.applied_chunks.discard(key)
                    self.lost -= self.decoded(sent)
        self.start_server(master.copy(), state)
        self.update.applied += applied

    @staticmethod
    def in_checkpoint(state, robot, chunk):
        incarnation, receipt = state.pushes.get(robot.name, (0, None))
        if incarnation != robot.machine.incarnation or receipt.transfer != chunk.transfer:
            return False
        bits = np.unpackbits(np.frombuffer(receipt.taken, np.uint8), bitorder='little')
        return chunk.sequence < bits.size and bool(bits[chunk.sequence])

    def start_robot(self, name):
        if name in self.robots:
            self.kill_robot(name)
        robot = self.robots[name] = Robot(name, self, next(self.lives))
        self.lives_of_robots.append(robot)
        self.act(name, robot.machine.start(self.now), robot)

    def kill_robot(self, name):
        self.counts['kill'] += self.robots[name].alive
        self.robots[name].alive = False

    def pause(self, name):
        """Pause the robot; the server learns of the pause at the next heartbeat."""
        robot = self.robots[name]
        if robot.alive and robot.machine.state not in (STOPPED, PAUSED):
            self.counts[f'paused while {robot.machine.state}'] += 1
            robot.machine.pause(self.now)

    def resume(self, name):
        robot = self.robots[name]
        if robot.alive and robot.machine.state == PAUSED:
            self.counts['robot came back'] += 1
            self.act(name, robot.machine.resume(self.now), robot)

    def hold(self):
        """Pause the server: it grants no iteration, but continues transfers."""
        self.counts['server paused'] += 1
        self.act(None, self.server.pause(self.now))

    def go_on(self):
        self.counts['server went on'] += self.server.paused
        self.act(None, self.server.resume(self.now))

    def fall_deaf(self, name, seconds):
        """Let the link carry only heartbeats for ``seconds``, then all messages again."""
        self.counts['deaf'] += 1
        self.deaf_links.add(name)
        self.at(seconds, lambda: self.deaf_links.discard(name))

    def fade(self, name, seconds):
        """Cut the link for longer than the heartbeat limit, then restore it."""
        self.counts['fade'] += 1
        self.dead_links.add(name)
        self.at(seconds, lambda: self.dead_links.discard(name))

    def black_out(self, names, seconds):
        """Cut the links for ``seconds``.

        Meanwhile each gradient takes at least 2 s, so that the simulation has few events.
        """
        self.counts['blackout'] += 1
        self.dead_links |= set(names)
        self.compute_time = 2.0
        self.run(seconds)
        self.compute_time = 0.0
        self.dead_links -= set(names)

    def set_sync(self, text):
        self.counts['set_sync'] += 1
        check_named(text, self.team)
        self.act(None, self.server.set_sync(text, self.now))

    def replay(self, count):
        """Deliver earlier messages again, about one in four under the name of a random robot."""
        for _ in range(count if self.history else 0):
            name, message, towards_server, server = self.rng.choice(self.history)
            if isinstance(message, Receipt) and server is not self.server:
                continue  # do not deliver a receipt of a crashed server, see `deliver_to_robot`
            if self.rng.random() < 0.25:
                name = self.rng.choice(sorted(self.robots))
            self.counts['replayed'] += 1
            if towards_server:
                self.deliver_to_server(name, message)
            elif self.robots[name].alive:
                self.deliver_to_robot(self.robots[name], message, self.server)

    def corrupt(self, count):
        """Deliver messages that the protocol forbids.

        Check that each message is refused and changes nothing.
        """
        for _ in range(count if self.history else 0):
            name, message, towards_server, server = self.rng.choice(self.history[-200:])
            robot = self.robots[name]
            if server is not self.server or not robot.alive:
                continue
            machine = self.server if towards_server else robot.machine
            arguments = (name,) if towards_server else ()
            bad = hostile.corrupted(self.rng, message)
            self.check_twin(machine, name, message)
            before = hostile.fingerprint(self.server, robot.machine)
            try:
                handler(machine, bad)(*arguments, bad, self.now)
                # The receiver ignored the message, because its transfer is over. But the handler
                # of an Ack or a receipt may let the present transfer continue. So compare the
                # state only after a Chunk or an End.
                self.counts['corrupt ignored'] += 1
                if isinstance(bad, (Chunk, End)):
                    assert hostile.fingerprint(self.server, robot.machine) == before, bad
            except RemoteProtocolError:
                self.counts['corrupt refused'] += 1
                assert hostile.fingerprint(self.server, robot.machine) == before, bad

    def check_twin(self, machine, name, message):
        """Check that the receiver accepts the valid chunk from which `corrupt` makes a bad one.

        Otherwise the receiver could refuse the bad chunk for another reason than its fault.
        """
        member = self.server.members.get(name)
        receiver = (member and member.push) if machine is self.server else machine.pull
        if isinstance(message, Chunk) and receiver is not None and receiver.state == OPEN \
                and message.transfer == receiver.transfer:
            receiver.examine(hostile.twin(message))
            self.counts['twin fit'] += 1

    # -- where the gradients are

    @staticmethod
    def open_chunks(robot):
        push = robot.machine.push
        return [] if push is None or push.transfer.kind == Kind.ANCHOR else push._chunks

    def decoded(self, sent):
        codec = codec_on_wire(sent.codec, self.server.codec)
        return decode(self.partition, codec, sent.segments, sent.values)

    @property
    def produced(self):
        """Return the sum of all gradients that all processes of all robots have accumulated."""
        return sum(robot.store.produced for robot in self.lives_of_robots)

    def held(self, robot):
        """Return the sum of the robot's gradients that the server has not applied yet."""
        held = robot.store.unsent
        for sent in self.open_chunks(robot):
            key = (robot.machine.incarnation, sent.transfer, sent.sequence)
            # the changes of buffers stay in `pending` until the receipt has arrived
            in_pending = self.partition.are_buffers(sent.segments)
            if (key in self.applied_chunks) == in_pending:
                held += -self.decoded(sent) if in_pending else self.decoded(sent)
        return held

    # -- time and network

    def at(self, delay, call):
        heapq.heappush(self.queue, (self.now + delay, next(self.count), call))

    def heartbeat(self):
        known = {name: at for name, at in self.wakes.items() if at is not None}
        assert known == {name: self.deadline(name) for name in known}, 'an event was overlooked'
        assert self.due in (None, self.server.deadline), 'an event was overlooked'
        for name, robot in self.robots.items():
            if not robot.alive or name in self.dead_links:
                self.unheard.add(name)
                continue
            machine, server = robot.machine, self.server
            if name in self.unheard and self.patience < math.inf:
                self.unheard.discard(name)
                self.act(name, machine.on_contact(self.now), robot)
            leaves = machine.state in (STOPPED, PAUSED)
            if leaves:
                self.act(None, server.on_leave(name, machine.incarnation, self.now))
            else:
                self.act(None, server.on_heartbeat(
                    name, machine.incarnation, self.now, self.rng.random(),
                    STARVED if robot.starved and machine.state == COMPUTING else machine.state))
            known = server.is_member(name, machine.incarnation)
            self.act(name, machine.on_server_status(server.incarnation, known, self.now), robot)
        self.at(0.1, self.heartbeat)

    def carry(self, robot, towards_server, nbytes, deliver):
        """Send a message over a network that may queue, lose, delay, duplicate or reorder it."""
        if robot in self.dead_links or robot in self.deaf_links \
                or self.rng.random() < self.loss:
            self.counts['lost'] += 1
            return
        key = (robot, towards_server)
        free = self.free_at.get(key, 0.0)
        if free - self.now > BUFFER:
            self.counts['dropped'] += 1
            return
        self.free_at[key] = free = max(free, self.now) + nbytes / self.rate
        twice = self.rng.random() < self.duplicate
        self.counts['duplicated'] += twice
        for _ in range(1 + twice):
            self.at(free - self.now + self.rng.random() * self.delay, deliver)

    def guard(self, call):
        try:
            return call()
        except StaleMessageError:
            self.counts['stale'] += 1
            return []
        except RemoteProtocolError as error:
            self.errors.append(error)
            return []

    def act(self, side, actions, robot=None):
        """Carry out a machine's actions.

        ``side``: name of the machine's robot; None for the server.
        """
        if side is None:
            self.due = None
            self.staleness.grants(self.server)
            if next(self.acts) % DEADLINES == 0:
                self.check_deadline()
        else:
            self.wakes[side] = None
        push = robot and robot.machine.push
        if push and push.transfer != robot.pushing:
            robot.pushing = push.transfer
            self.staleness.pushes(robot.machine)
        for action in actions:
            if isinstance(action, Send):
                self.send(side, action, robot)
            elif isinstance(action, Compute):
                self.counts['computed ahead'] += robot.machine.state == PUSHING
                self.compute(robot, action)
            elif isinstance(action, Notice) and side is not None:
                self.counts[action.what] += 1
            elif isinstance(action, Notice):
                self.notice(action)
            elif isinstance(action, Stop):
                assert not action.error, action.error
                self.stopped = self.stopped or side is None

    def notice(self, notice):
        self.counts[notice.what] += 1
        member = self.server.members[notice.robot]
        if notice.what == 'retired':
            self.counts[f'retired while {member.state}'] += 1
        elif notice.what == 'returned':  # treat the member like one that has just joined
            self.versions.forget(member)
            self.staleness.forget(member)

    def send(self, side, action, robot):
        message, server = action.message, self.server
        if isinstance(message, RegisterRequest):
            self.register(message, robot)
            return
        if len(self.history) > 400:
            del self.history[:200]
        name = action.robot
        self.history.append((name, message, side is not None, server))
        nbytes = message.ids.size + message.values.size + 50 if isinstance(message, Chunk) else 50
        if isinstance(message, Chunk):
            self.counts[Kind(message.transfer.kind).name] += 1
            self.counts['ternary'] += message.codec == SMALLER.number and self.codec != 'ternary'
        self.counts['partial'] += isinstance(message, End) and self.is_partial(side, name)
        if side is None:
            target = self.robots[name]
            self.carry(name, False, nbytes,
                       lambda: self.deliver_to_robot(target, message, server))
        else:
            self.carry(name, True, nbytes, lambda: self.deliver_to_server(name, message))

    def is_partial(self, side, name):
        """Return whether the sender ends its transfer before it has sent all windows."""
        machine = self.robots[name].machine
        sender = self.server.members[name].sender if side is None else machine.push
        return sender is not None and sender._window < len(sender.plan.windows)

    def deliver_to_robot(self, robot, message, server):
        # Drop a receipt of a crashed server, because the robot would discard the chunks that the
        # receipt names. Some of these chunks may not be in the checkpoint. `restart_server` has
        # assumed that the robot keeps such chunks.
        stale = self.server is not server
        if not robot.alive or stale and (isinstance(message, Receipt) or self.rng.random() < .5):
            return
        handle = handler(robot.machine, message)
        self.act(robot.name, self.guard(lambda: handle(message, self.now)), robot)
        # If a worker already computes the gradient when its grant arrives, it returns no `Compute`,
        # so `compute` does not check the granted iteration. Therefore check here that the worker
        # may compute it.
        machine = robot.machine
        if machine.state == COMPUTING and machine.iteration != robot.granted:
            self.check_start(robot, machine.iteration)

    def deliver_to_server(self, name, message):
        handle = handler(self.server, message)
        refused = self.refused_chunks(name)
        self.act(None, self.guard(lambda: handle(name, message, self.now)))
        now_refused = self.refused_chunks(name)
        if isinstance(message, Chunk) and now_refused and now_refused != refused \
                and message.transfer.kind == Kind.PUSH:
            self.drop(name, message)
        self.counts['rejected ack'] += isinstance(message, Ack) and bool(self.errors)

    def refused_chunks(self, name):
        """Return (transfer, number of refused chunks) of a robot's present push.

        The result is 0 if the push has no refused chunk, and None if the server does not list the
        robot.
        """
        member = self.server.members.get(name)
        return member and member.push.refused and (member.push.transfer, member.push.refused)

    def drop(self, name, chunk):
        """Record that the server has received this chunk but will not use it."""
        self.counts['refused'] += 1
        ids = decode_ids(chunk.ids, chunk.segments, self.partition)
        self.lost += decode(self.partition, codec_on_wire(chunk.codec, self.server.codec), ids,
                            chunk.values)
        self.applied_chunks.add((chunk.transfer.incarnation ^ self.server.incarnation,
                                 chunk.transfer, chunk.sequence))
        self.versions.applied(self.server.members[name], chunk, ids)

    def register(self, message, robot):
        def deliver():
            server, former = self.server, self.server.members.get(robot.name)
            response, actions = self.server.on_register(message, self.now)
            member = self.server.members.get(robot.name)
            if member is not former and member.state != 'joining':
                self.counts['resumed'] += 1
            self.act(None, actions)

            def answer():
                if server is not self.server and response.push is not None:
                    return  # drop a receipt of a crashed server; see `deliver_to_robot`
                if robot.alive and robot.machine.awaits(message):
                    self.act(robot.name,
                             robot.machine.on_register_response(response, self.now), robot)
            self.carry(robot.name, False, 100, answer)
        self.carry(robot.name, True, 1000, deliver)

    def compute(self, robot, order):
        self.counts['compute'] += 1
        self.check_start(robot, order.iteration)
        assert robot.machine.gradient == BUSY, 'a gradient before this one has not been taken yet'
        model, own = robot.store.model.copy(), robot.store.own.copy()
        gradient = self.gradients.of(robot, order)
        if self.whole:
            gradient = self.of_whole_model(robot, order, gradient, own)
        if robot.name in self.exploding:
            self.exploding.discard(robot.name)
            gradient = gradient * np.float32(self.blast)

        def done():
            if not robot.alive or robot.machine.state == STOPPED:
                return
            assert (robot.store.model == model).all(), 'the model changed under the gradient'
            assert (robot.store.own == own).all(), 'the buffers changed under the gradient'
            robot.machine.switched = robot.switched
            self.counts['model checked'] += 1
            self.act(robot.name, robot.machine.on_gradient(gradient, self.sgd, self.now), robot)
        seconds = max(robot.compute_time, self.compute_time)
        self.at(seconds * self.rng.uniform(0.5, 1.5), done)

    def of_whole_model(self, robot, order, gradient, own):
        """Return ``gradient`` with the change of the buffers, and of unfrozen parameters.

        ``own``: the robot's buffers before the computation.
        """
        grown = self.partition.grown
        noise = self.gradients.noise
        is_grown = any(grown.parameters[k].role == Role.FROZEN for k in robot.switched)
        if is_grown or len(robot.store.model) > self.partition.elements:
            more = noise.standard_normal(self.elements - len(gradient)) * np.float32(RATE)
            gradient = np.append(gradient, more.astype(np.float32))
        seen = noise.standard_normal(own.size).astype(np.float32) + 3
        seen[self.variance] = 0.01
        change = np.float32(0.3) * (own - seen)
        change[self.partition.are_integers] = -np.float32(order.step.batches)
        change[-BUFFERS[-1].size:] = 0
        gradient[self.partition.buffers] = change
        rows = ~grown.trained(robot.switched)
        rows[grown.buffer_rows] = False
        for row in np.flatnonzero(rows):
            gradient[grown.row_offsets[row]:grown.row_offsets[row + 1]] = 0
        return gradient

    def switch(self, name, number):
        """Let the robot's program freeze or unfreeze a parameter."""
        robot, parameters = self.robots[name], self.partition.grown.parameters
        may = [k for k, p in enumerate(parameters) if p.role in (Role.TRAINED, Role.FROZEN)]
        changed = may[number % len(may)]
        kept = set(robot.switched) ^ {changed}
        if all((parameters[k].role == Role.TRAINED) == (k in kept) for k in may):
            return  # something must be trained
        robot.switched = tuple(sorted(kept))
        self.ever_switched.add(changed)
        self.counts['frozen' if parameters[changed].role == Role.TRAINED else 'unfrozen'] += 1

    def run(self, seconds):
        until = self.now + seconds
        # a test may have changed anything since the last run
        self.wakes, self.due = dict.fromkeys(self.robots), None
        while not self.stopped:
            wake, who = math.inf, ''
            for name, at in self.wakes.items():
                if at is None:
                    at = self.wakes[name] = self.deadline(name)
                if at < wake:
                    wake, who = at, name
            if self.due is None:
                self.due = self.server.deadline
            due = min(wake, self.due)
            event = self.queue[0][0] if self.queue else math.inf
            if min(due, event) > until:
                self.now = until
                return
            if event <= due:
                self.now, _, call = heapq.heappop(self.queue)
                call()
            else:
                self.now = max(due, self.now)
                if self.due <= self.now:
                    self.act(None, self.server.on_time(self.now))
                if wake <= self.now:
                    robot = self.robots[who]
                    self.act(who, robot.machine.on_time(self.now), robot)

    def deadline(self, name):
        """Return the time by which the robot must be called."""
        robot = self.robots[name]
        return robot.machine.deadline if robot.alive else math.inf

    # -- invariants

    def check_deadline(self):
        """Check that the server's deadline is not later than the deadline of any member."""
        due = map(self.server.deadline_of, self.server.members)
        assert self.server.deadline <= min(due, default=math.inf)

    def check_start(self, robot, iteration):
        """Check invariant 3 when a worker may begin to compute ``iteration``.

        Invariant 3: no worker computes further ahead than the staleness bound allows.
        """
        robot.granted = iteration
        if robot.machine.server != self.server.incarnation:
            # A server granted this iteration and has crashed since then. The robot has not noticed
            # the crash yet.
            return
        self.staleness.starts(robot.machine)
        self.counts['staleness checked'] += self.staleness.check(robot, iteration, self)

    def check_mirrors(self):
        """Check invariant 1: the mirror of a robot equals the robot's rows in every bit.

        This holds while no transfer to the robot is open.
        """
        for name, member in self.server.members.items():
            robot = self.robots[name]
            if not robot.alive or member.incarnation != robot.machine.incarnation:
                continue
            if member.state in ('training', 'waiting') and member.sender is None:
                assert (self.rows(member.mirror.rows) == self.rows(robot.store.weights)).all(), (
                    name, member.state)
                self.counts['mirror checked'] += 1
                self.counts['mirror checked behind'] += bool(
                    (member.mirror.rows != self.server.master).any())

    def check_variances(self):
        """Check that no variance is negative, at the server and on the robots."""
        if self.whole:
            alive = [robot for robot in self.robots.values() if robot.alive]
            for own in (self.server.master[self.partition.buffers],
                        *(robot.store.own for robot in alive)):
                assert (own[self.variance] >= 0).all(), own[self.variance]

    def rows(self, values):
        """Return rows with those of the frozen parameters, which may not have been needed yet."""
        return padded(values, self.elements, self.frozen)

    def check_conservation(self):
        """Check invariant 2: produced = applied + held + lost in crashes + dropped.

        So no gradient is forgotten or counts twice.
        """
        held = sum(self.held(r) for r in self.lives_of_robots)
        dropped = sum(robot.store.dropped for robot in self.lives_of_robots)
        total = self.update.applied + held + self.lost + dropped
        # The rounding error of float32 grows with the gradient, and a refused gradient is ``blast``
        # times larger.
        atol = 2e-5 * self.blast if self.counts['refused'] else 2e-5
        summed = np.ones(self.elements, bool)  # integers are not summed
        summed[self.partition.buffers] = ~self.partition.are_integers
        assert np.allclose(total[summed], self.produced[summed], rtol=1e-4, atol=atol), \
            np.abs(total - self.produced).max()
        self.counts['conservation checked'] += bool(self.produced.any())

    def check(self):
        if not self.capacities:  # with gradient coding, only a sum of several pushes is a gradient
            self.check_conservation()
        self.check_mirrors()
        self.check_variances()
        for member in self.server.active():
            self.versions.check(member, self.ever_switched)
            self.counts['versions checked'] += 1
