"""A fleet in virtual time on a hostile network, for the tests: a thin shell around the machines."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import numpy as np

from rog_core.accumulator import Accumulator
from rog_core.backend import NumpyBackend
from rog_core.codec import Codec, get_codec
from rog_core.errors import RemoteProtocolError, StaleMessageError
from rog_core.messages import (Ack, Chunk, Compute, End, Receipt, RegisterRequest, Send, Stop)
from rog_core.partition import partition_of
from rog_core.server import ServerMachine
from rog_core.update import AveragedUpdate
from rog_core.worker import STOPPED, WorkerMachine

# A small row, rows of one segment, and a row of several segments; the scalar is a row as well.
SHAPES = {'onebit': [('conv', (8, 130)), ('bias', (8,)), ('long', (1, 9001)), ('scale', ())],
          'raw': [('conv', (8, 130)), ('bias', (8,)), ('long', (1, 601)), ('scale', ())]}


class SummingUpdate(AveragedUpdate):
    """Applies pushes with factor 1 and adds them up in double precision."""

    def __init__(self, partition):
        self.applied = np.zeros(partition.elements)
        self.count = 0

    def apply(self, partition, backend, master, ids, codec: Codec, data, workers):
        codec.add(backend, partition, master, ids, data, -1.0)
        self.applied += decode(partition, codec, ids, data)
        self.count += 1


def decode(partition, codec, ids, data):
    decoded = np.zeros(partition.elements, np.float32)
    codec.add(NumpyBackend(), partition, decoded, ids, data)
    return decoded


class Robot:
    def __init__(self, name, fleet, incarnation):
        weights = np.full(fleet.partition.elements, 7.0, np.float32)  # wrong until the snapshot
        self.store = Accumulator(fleet.partition, NumpyBackend(), weights)
        self.machine = WorkerMachine(name, incarnation, self.store, fleet.codec, max_chunk=2000)
        self.produced = np.zeros(fleet.partition.elements)
        self.compute_time = fleet.rng.choice([0.05, 0.1, 0.3])
        self.alive = True


class Fleet:
    """Event queue, network and faults; every random choice comes from ``rng``."""

    def __init__(self, seed, robots=3, sync='rsp:3', codec='onebit', loss=0.0, duplicate=0.0,
                 delay=0.02, heartbeat_limit=1.0):
        self.rng = random.Random(seed)
        self.noise = np.random.default_rng(seed)
        self.partition = partition_of(SHAPES[codec], 'row', codec)
        self.codec, self.loss, self.duplicate, self.delay = codec, loss, duplicate, delay
        self.sync, self.heartbeat_limit = sync, heartbeat_limit
        self.now = 0.0
        self.queue: list = []
        self.count = itertools.count()
        self.lives = itertools.count(1000)
        self.dead_links: set[str] = set()
        self.server = None
        self.update = None
        self.lost = np.zeros(self.partition.elements)   # gradients that died with a robot or server
        self.produced = np.zeros(self.partition.elements)
        self.initial = self.noise.standard_normal(self.partition.elements).astype(np.float32)
        self.robots: dict[str, Robot] = {}
        self.lives_of_robots: list[Robot] = []
        self.applied_chunks: set = set()
        self.errors: list = []
        self.computed: list[tuple[str, int]] = []
        self.stopped = False
        self.start_server(self.initial.copy())
        for k in range(robots):
            self.start_robot(f'robot{k}')
        self.at(0.1, self.heartbeat)

    # -- faults

    def start_server(self, master, state=None):
        self.update = SummingUpdate(self.partition)
        self.server = ServerMachine(self.partition, NumpyBackend(), master, next(self.lives), self.sync,
                                    self.codec, self.heartbeat_limit, max_chunk=2000,
                                    update=self.update)
        if state is not None:
            self.server.load_state(state)

    def checkpoint(self):
        """What a server writes to disk, and what had been applied by then."""
        return self.server.state(), self.server.master.copy(), self.update.applied.copy()

    def restart_server(self, checkpoint):
        """Crash now, come back with what the checkpoint holds; the rest is lost, or comes again."""
        state, master, applied = checkpoint
        self.lost += self.update.applied - applied
        for robot in self.lives_of_robots:
            for sent in self.open_chunks(robot):
                key = (robot.machine.incarnation, sent.chunk.transfer, sent.chunk.sequence)
                if key in self.applied_chunks and not self.in_checkpoint(state, robot, sent.chunk):
                    self.applied_chunks.discard(key)
                    self.lost -= self.decoded(sent)
        self.start_server(master.copy(), state)
        self.update.applied += applied

    @staticmethod
    def in_checkpoint(state, robot, chunk):
        incarnation, receipt = state.pushes.get(robot.machine.robot, (0, None))
        if incarnation != robot.machine.incarnation or receipt.transfer != chunk.transfer:
            return False
        bits = np.unpackbits(np.frombuffer(receipt.taken, np.uint8), bitorder='little')
        return chunk.sequence < bits.size and bool(bits[chunk.sequence])

    def start_robot(self, name):
        if name in self.robots:
            self.robots[name].alive = False
        robot = self.robots[name] = Robot(name, self, next(self.lives))
        self.lives_of_robots.append(robot)
        self.act(name, robot.machine.start(self.now), robot)

    def kill_robot(self, name):
        self.robots[name].alive = False

    @staticmethod
    def open_chunks(robot):
        return [] if robot.machine.push is None else robot.machine.push._chunks

    def decoded(self, sent):
        return decode(self.partition, get_codec(self.codec), sent.segments, sent.chunk.values)

    def held(self, robot):
        """What the robot has produced and the server has not applied."""
        held = robot.store.pending.astype(np.float64)
        for sent in self.open_chunks(robot):
            key = (robot.machine.incarnation, sent.chunk.transfer, sent.chunk.sequence)
            if key not in self.applied_chunks:
                held += self.decoded(sent)
        return held

    # -- time and network

    def at(self, delay, call):
        heapq.heappush(self.queue, (self.now + delay, next(self.count), call))

    def heartbeat(self):
        for name, robot in self.robots.items():
            if not robot.alive:
                continue
            if name not in self.dead_links:
                state = robot.machine.state
                if state == STOPPED:
                    self.act(None, self.server.on_leave(name, robot.machine.incarnation, self.now))
                else:
                    self.act(None, self.server.on_heartbeat(name, robot.machine.incarnation, self.now))
                known = self.server.is_member(name, robot.machine.incarnation)
                self.act(name, robot.machine.on_server_status(self.server.incarnation, known, self.now),
                         robot)
        self.at(0.1, self.heartbeat)

    def carry(self, robot, deliver, reliable=False):
        """Move a message: lost, late, doubled, out of order."""
        if robot in self.dead_links or (not reliable and self.rng.random() < self.loss):
            return
        for _ in range(2 if self.rng.random() < self.duplicate else 1):
            self.at(self.rng.random() * self.delay, deliver)

    def guard(self, call):
        try:
            return call()
        except StaleMessageError:
            return []
        except RemoteProtocolError as error:
            self.errors.append(error)
            return []

    def act(self, side, actions, robot=None):
        """``side``: the robot whose machine acts, None for the server."""
        for action in actions:
            if isinstance(action, Send):
                self.send(side, action, robot)
            elif isinstance(action, Compute):
                self.compute(robot, action.iteration)
            elif isinstance(action, Stop):
                assert not action.error, action.error
                self.stopped = self.stopped or side is None

    def send(self, side, action, robot):
        message, server = action.message, self.server
        name = action.robot
        if side is None:
            target = self.robots[name]

            def deliver():
                # A receipt of a server that has crashed is as if it had come before the crash or never.
                stale = self.server is not server
                if not target.alive or stale and (isinstance(message, Receipt) or self.rng.random() < .5):
                    return
                call = {Chunk: target.machine.on_chunk, End: target.machine.on_end,
                        Ack: target.machine.on_ack, Receipt: target.machine.on_receipt}[type(message)]
                self.act(name, self.guard(lambda: call(message, self.now)), target)
            self.carry(name, deliver)
        elif isinstance(message, RegisterRequest):
            robot.requests = getattr(robot, 'requests', 0) + 1
            number = robot.requests

            def deliver():
                response, actions = self.server.on_register(message, self.now)
                self.act(None, actions)

                def answer():
                    if robot.alive and number == robot.requests:
                        self.act(name, robot.machine.on_register_response(response, self.now), robot)
                self.carry(name, answer)
            self.carry(name, deliver)
        else:
            def deliver():
                call = {Chunk: self.server.on_chunk, End: self.server.on_end, Ack: self.server.on_ack,
                        Receipt: self.server.on_receipt}[type(message)]
                count = self.update.count
                self.act(None, self.guard(lambda: call(name, message, self.now)))
                if self.update.count > count:
                    self.applied_chunks.add((robot.machine.incarnation, message.transfer,
                                             message.sequence))
            self.carry(name, deliver)

    def compute(self, robot, iteration):
        self.computed.append((robot.machine.robot, iteration))
        self.check_staleness(robot, iteration)

        def done():
            if not robot.alive or robot.machine.state == STOPPED:
                return
            before = robot.store.pending.astype(np.float64)
            gradient = self.noise.standard_normal(self.partition.elements).astype(np.float32)
            gradient[self.noise.random(gradient.size) < 0.2] = 0
            robot.store.accumulate(gradient, 0.01)
            self.produced += robot.store.pending - before
            self.act(robot.machine.robot, robot.machine.on_gradient(self.now), robot)
        self.at(robot.compute_time, done)

    def run(self, seconds):
        until = self.now + seconds
        while not self.stopped:
            wake, who = min(((r.machine.deadline, n) for n, r in self.robots.items() if r.alive),
                            default=(math.inf, ''))
            due = min(wake, self.server.deadline)
            event = self.queue[0][0] if self.queue else math.inf
            if min(due, event) > until:
                self.now = until
                return
            if event <= due:
                self.now, _, call = heapq.heappop(self.queue)
                call()
            else:
                self.now = max(due, self.now)
                if self.server.deadline <= self.now:
                    self.act(None, self.server.on_time(self.now))
                if wake <= self.now:
                    robot = self.robots[who]
                    self.act(who, robot.machine.on_time(self.now), robot)

    # -- invariants

    def check_staleness(self, robot, iteration):
        """Invariant 3, at the moment a worker begins to compute ``iteration``."""
        bound = self.server.method.bound
        for member in self.server.active():
            ahead = (iteration - 1) - member.versions.min()
            assert ahead < bound, (robot.machine.robot, iteration, member.robot, member.versions.min())

    def check_mirrors(self):
        """Invariant 1: L_r is bit for bit what r holds, whenever no transfer to r is open."""
        checked = 0
        for name, member in self.server.members.items():
            robot = self.robots[name]
            if not robot.alive or member.incarnation != robot.machine.incarnation:
                continue
            if member.state in ('training', 'waiting') and member.sender is None:
                assert (member.mirror.rows == robot.store.weights).all(), (name, member.state)
                checked += 1
        return checked

    def check_conservation(self):
        """Invariant 2: produced = applied + held + what died with a crash; nothing counts twice."""
        held = sum(self.held(r) for r in self.lives_of_robots)
        total = self.update.applied + held + self.lost
        assert np.allclose(total, self.produced, rtol=1e-4, atol=2e-5), \
            np.abs(total - self.produced).max()

    def check(self):
        self.check_conservation()
        return self.check_mirrors()
