"""Clients, a server and a bad channel in virtual time."""

import heapq
import itertools
import math
import random
from dataclasses import dataclass, replace

import numpy as np
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime.client import (
    CallOpen,
    CallSetPlans,
    ClientMachine,
    MakePlans,
    Settings,
    Upload,
)
from lopinfer_node.runtime.server import (
    Join,
    Leave,
    Limits,
    Prepare,
    Prepared,
    PreparePlans,
    Send,
    ServerMachine,
)
from lopinfer_node.runtime.services import (
    PROTOCOL,
    OpenRequest,
    PlansRequest,
    decode_plans,
    encode_plans,
)
from lopinfer_node.runtime.wire import Ack, Piece
from numpy_program import Program, alike, expected, random_plan

DIGEST = 'd' * 64
PIECE = 24  # maximum bytes of a piece; small, so that most transfers have several pieces


@dataclass(frozen=True)
class Channel:
    """Properties of a channel: probabilities of faults, delays in seconds, rates in bytes/s."""

    loss: float = 0.0
    double: float = 0.0
    corrupt: float = 0.0
    jitter: float = 0.0
    latency: float = 0.002
    rate: float = 10e6
    down: float | None = None   # rate of the downlink; None: the same as `rate`


class World:
    """An event loop in virtual time; one seed decides all random choices."""

    def __init__(self, graph, seed, channel=None, clients=1, stored=(DIGEST,)):
        self.graph, self.channel = graph, channel or Channel()
        self.random = random.Random(seed)
        self.now, self._count, self._events = 0.0, itertools.count(), []
        self.stored = set(stored)
        self.server = None
        self.lives = itertools.count(100)
        self.start_server()
        self.clients = [Client(self, f'robot{i}', 1000 + i) for i in range(clients)]
        # (client's name, direction) -> time at which the client's link is free in this direction
        self._free = {}

    def at(self, when, what):
        heapq.heappush(self._events, (when, next(self._count), what))

    def run(self, until, limit):
        """Run until ``until()`` is true; fail after ``limit`` seconds, or if no event is left."""
        turns = 0
        while not until():
            turns += 1
            assert turns < 200_000, 'the machines keep themselves busy'
            assert self._events, 'nothing is left to happen'
            when, _, what = heapq.heappop(self._events)
            self.now = max(self.now, when)
            assert self.now <= limit, f'not done at {limit} s'
            what()

    # -- the server's shell ---

    def start_server(self):
        self.server = ServerMachine(next(self.lives), self.stored, Limits(piece_bytes=PIECE))
        self.computing = False
        self.wake_server()

    def kill_server(self):
        self.server = None

    def act(self, server, actions):
        for action in actions:
            if isinstance(action, Send):
                client = next(c for c in self.clients if c.name == action.client)
                self.transmit((client.name, 'down'), action.message,
                              lambda m, c=client: c.receive(m))
            elif isinstance(action, Prepare):
                costs = np.full(len(self.graph), 1e-3)
                self.later(0.3, server, lambda a=action: server.on_model(a.digest, costs, costs))
            elif isinstance(action, PreparePlans):
                self.later(0.1, server, lambda a=action: self.prepare(server, a.request))
            else:
                assert isinstance(action, (Join, Leave))
        self.wake_server()

    def later(self, delay, server, what):
        self.at(self.now + delay, lambda: what() if self.server is server else None)

    def prepare(self, server, request):
        table = [Prepared(plan, Program(plan, SERVER)) for plan in (
            Plan(self.graph, own) for own in decode_plans(request.bins, request.own,
                                                          len(self.graph)))]
        server.on_plans(request, table)

    def wake_server(self):
        server = self.server
        if server is None:
            return
        if server.deadline < math.inf:
            self.later(max(server.deadline - self.now, 0), server,
                       lambda: server.deadline <= self.now
                       and self.act(server, server.on_time(self.now)))
        if self.computing:
            return
        work = server.work(self.now)
        if work is not None:
            self.computing = True
            seconds = self.random.uniform(0, 0.01)

            def done():
                results = [r.execution.compute(work.steps) for r in work.members]
                self.computing = False
                self.act(server, server.on_computed(work, results, seconds, self.now))
            self.later(seconds, server, done)

    def receive(self, client, message):
        server = self.server
        if server is None:
            return
        take = server.on_piece if isinstance(message, Piece) else server.on_ack
        self.act(server, take(client, message, self.now))

    # -- the channel ---

    def transmit(self, direction, message, receive):
        """Carry a message; it may be lost, duplicated, delayed, reordered or damaged."""
        channel, draw = self.channel, self.random.random
        size = 100 + (len(message.data) if isinstance(message, Piece) else 0)
        free = max(self._free.get(direction, 0.0), self.now)
        rate = channel.down or channel.rate if direction[1] == 'down' else channel.rate
        self._free[direction] = free = free + size / rate
        for _ in range(1 + (draw() < channel.double)):
            if draw() < channel.loss:
                continue
            arriving = message
            if isinstance(message, Piece):
                arriving = replace(message, data=bytes(message.data))
                if draw() < channel.corrupt:
                    arriving = damaged(arriving, self.random)
            delay = channel.latency + draw() * channel.jitter
            self.at(free + delay, lambda m=arriving: receive(m))


def damaged(piece, draw):
    """Return a copy of the piece with a part of its data cut off, or with one bit changed.

    The changed bit is in the data or in a field.
    """
    kind = draw.randrange(4)
    if kind == 0 and len(piece.data):
        return replace(piece, data=piece.data[:draw.randrange(len(piece.data))])
    if kind == 1 and len(piece.data):
        data = bytearray(piece.data)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return replace(piece, data=bytes(data))
    name = draw.choice(['plan', 'packet', 'request', 'transfer', 'part', 'parts', 'bin'])
    return replace(piece, **{name: getattr(piece, name) ^ 1 << draw.randrange(8)})


class Client:
    """The shell of a client: makes one request after another, each with different inputs."""

    def __init__(self, world, name, incarnation):
        self.world, self.name = world, name
        self.machine = ClientMachine(incarnation, Settings(piece_bytes=PIECE))
        self.results, self.wanted = [], []
        shared = (random_plan(world.graph, world.random) for _ in itertools.count())
        self.plans = [Plan.device_only(world.graph), *itertools.islice(
            (p for p in shared if any(t.source == DEVICE for t in p.transfers)), 5)]
        self.run = None
        self.computing = False
        self._began = 0.0
        world.at(0.0, self.wake)

    @property
    def idle(self):
        return self.run is None

    def request(self):
        assert self.idle
        world, machine, graph = self.world, self.machine, self.world.graph
        inputs = [np.array([world.random.randrange(1000) for _ in range(graph.nodes[i].extent)])
                  for i in graph.inputs]
        self.wanted.append(expected(graph, inputs))
        self._began = world.now
        bin_ = machine.choose(world.now)
        if bin_ is None:
            self.finish(expected(graph, inputs))
            return
        program = Program(machine.table.plans[bin_], DEVICE)
        self.run = program.start(inputs)
        self.execution = machine.begin(bin_, program.steps, self.run, world.now)
        self.wake()

    def finish(self, outputs):
        self.results.append(outputs)
        self.run = None
        self.act(self.machine.end(self.world.now, self._began))

    def receive(self, message):
        take = self.machine.on_piece if isinstance(message, Piece) else self.machine.on_ack
        self.act(take(message, self.world.now))

    def act(self, actions):
        world, machine = self.world, self.machine
        for action in actions:
            if isinstance(action, (Piece, Ack)):
                world.transmit((self.name, 'up'), action,
                               lambda m: world.receive(self.name, m))
            elif isinstance(action, CallOpen):
                self.call(lambda s: s.on_open(OpenRequest(
                    PROTOCOL, self.name, machine.incarnation, 'small', DIGEST, ['w'], [7]),
                    world.now), lambda reply: machine.on_open(reply, world.now))
            elif isinstance(action, CallSetPlans):
                bins, own = encode_plans([p.own for p in machine.table.plans])
                self.call(lambda s: on_plans(s, PlansRequest(
                    self.name, machine.incarnation, DIGEST, bytes(bins), own), world.now),
                    lambda reply: machine.on_plans_set(*reply, world.now))
            elif isinstance(action, MakePlans):
                bins, swapped = [0.0, 1e6, 2e6, 4e6, 8e6, 16e6], [self.plans[0], *self.plans[:0:-1]]
                for delay, plans in (0.2, self.plans), (world.random.uniform(0.2, 3.0), swapped):
                    table = alike(bins, plans, [0.05] * 6)
                    world.at(world.now + delay, lambda table=table: self.act(
                        machine.on_plans_made(table, world.now)))
            else:
                assert isinstance(action, Upload)
                world.at(world.now + 0.5, self.uploaded)
        self.wake()

    def uploaded(self):
        if self.world.server is not None:
            self.world.stored.add(DIGEST)
            self.world.server.on_stored({DIGEST})
        reason = '' if self.world.server else 'no server'
        self.act(self.machine.on_uploaded(reason, self.world.now))

    def call(self, request, answer):
        """Send a service call to the server; if no server runs, the client gets no answer."""
        world = self.world

        def ask():
            if world.server is not None:
                server = world.server
                reply, actions = request(server)
                world.act(server, actions)
                world.at(world.now + 0.003, lambda: self.act(answer(reply)))
        world.at(world.now + 0.003, ask)

    def wake(self):
        world, machine = self.world, self.machine
        if machine.deadline < math.inf:
            world.at(max(machine.deadline, world.now), lambda: machine.deadline <= world.now
                     and self.act(machine.on_time(world.now)))
        if self.run is None or self.computing:
            return
        steps = machine.work(world.now)
        if steps is None:
            run = self.run
            self.computing = True

            def alone():
                self.computing = False
                self.finish(run.finish_alone())
                self.wake()
            world.at(world.now + 0.02, alone)
        elif steps:
            self.computing = True
            execution = self.execution
            seconds = world.random.uniform(0, 0.01)

            def done():
                pieces = execution.compute(steps)
                self.computing = False
                actions = machine.on_computed(pieces, seconds, world.now)
                if machine.finished:
                    self.finish(self.run.outputs())
                self.act(actions)
            world.at(world.now + seconds, done)
        else:
            world.at(max(machine.limit, world.now + 1e-9), lambda: self.wake()
                     if self.run is not None and not self.computing else None)


def on_plans(server, request, now):
    status, reason, actions = server.on_set_plans(request, now)
    return (status, reason), actions
