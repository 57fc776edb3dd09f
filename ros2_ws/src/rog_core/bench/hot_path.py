"""Measures the CPU time of one iteration, for the worker and for the server.

A worker machine and a server machine exchange all messages in this process, on one
core. The model has 17.4 M elements in 33,324 rows. The method is rsp:4, and each
transfer sends all rows. The codec is onebit. The bench also measures the ternary codecs, each
with its own partition of the model, and the server's time for one push with few and with many
robots. It prints one JSON line. The line gives the times of an iteration also as multiples of the
time of a memcpy of the gradient. For comparison: the published artifact needs 660 to 875 ms
(worker) and 630 to 1000 ms (server) for one iteration of one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from convmlp import convmlp_m
from rog_core.arrays import Array
from rog_core.model.partition import RowPartition, partition_of
from rog_core.protocol.config import ServerConfig, SgdConfig, TransferConfig
from rog_core.protocol.messages import Ack, Command, Compute, Receipt, RegisterRequest, Send
from rog_core.server.server import Server
from rog_core.shell import handler
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker

SYNC = 'rsp:4'
FAST = 1e9      # rate in bytes per second; such a fast link delays no message
BUDGET = 1e3    # MTA time in seconds, long enough to send every row
SGD = SgdConfig(1e-3, 0.9, 0.0, True)


def model(codec: str) -> RowPartition:
    """Return the partition of ConvMLP-M with a head of 117 x 4294, as published, for a codec.

    The model has 33,324 rows and 17.4 M elements.
    """
    shapes = [(n, (117, 4294) if n == 'head.weight' else (117,) if n == 'head.bias' else s)
              for n, s in convmlp_m()]
    return partition_of(shapes, 'row', codec)


class Clock:
    """Adds up the seconds of all calls that are measured under the same name."""

    def __init__(self):
        self.spent: dict[str, float] = {}

    def measure(self, name, call, *arguments):
        begin = time.perf_counter()
        result = call(*arguments)
        self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - begin
        return result


class Pair:
    """A server and a worker in this process; messages are delivered at once and in order.

    ``robots``: number of robots in the server's tables; only the first has a worker. ``put``:
    function that copies an array to the device of the worker.
    """

    def __init__(self, partition: RowPartition, robots: int, max_chunk: int,
                 codec: str = 'onebit', put: Callable[[np.ndarray], Array] = np.copy) -> None:
        self.partition, self.now, self.clock = partition, 0.0, Clock()
        # Number of times that the server computed its next deadline: once after each message.
        self.questions = 0
        self.noise = np.random.default_rng(1)
        master = self.noise.standard_normal(partition.elements, np.float32)
        transfer = TransferConfig('row', codec, max_chunk)
        self.server = Server(partition, master, 1,
                             ServerConfig(transfer, SYNC, 0.0, 1e9, 1e9, {}))
        # Only the first robot has a worker. All other robots exist only in the server's tables.
        store = Accumulator(partition, put(np.zeros(partition.elements, np.float32)))
        self.worker = Worker('robot0', 2, store, transfer)
        self.gradient = put(self.noise.standard_normal(partition.elements, np.float32))
        self.worker.link.expect(FAST, 1e-3)
        for other in range(1, robots):
            self._admit(f'robot{other}', 100 + other)
        self.deliver(self.worker.start(0.0))
        assert self.worker.state == 'computing', self.worker.state
        for other in self.server.members.values():
            if other.robot != 'robot0':
                other.slowest = 1 << 30  # so high that no robot waits for this robot

    def _admit(self, robot: str, incarnation: int) -> None:
        request = RegisterRequest(robot, incarnation, 0, 0, 'row', self.server.codec.name,
                                  self.partition.digest,
                                  tuple((p.name, p.shape, int(p.role))
                                        for p in self.partition.parameters))
        assert self.server.on_register(request, 0.0)[0].accepted
        member = self.server.members[robot]
        member.mirror.rows[:] = self.server.master
        member.sender, member.state = None, 'training'

    def deliver(self, actions) -> None:
        """Deliver messages in both directions until no message is left."""
        queue = [('robot', action) for action in actions]
        while queue:
            batch, queue = queue, []
            for sender, action in batch:
                self.now += 1e-6
                if not isinstance(action, Send):
                    assert isinstance(action, Compute)
                    continue
                message = action.message
                if isinstance(message, RegisterRequest):
                    response, more = self.server.on_register(message, self.now)
                    self.server.members['robot0'].link.expect(FAST, 1e-3)
                    self.worker.on_register_response(response, self.now)
                    queue += [('server', a) for a in more]
                elif sender == 'robot':
                    call = handler(self.server, message)
                    queue += [('server', a) for a in self.clock.measure(
                        'server', call, 'robot0', message, self.now)]
                    self.clock.measure('deadline', getattr, self.server, 'deadline')
                    self.questions += 1
                else:
                    call = handler(self.worker, message)
                    name = 'worker' if isinstance(message, (Ack, Receipt)) else 'apply'
                    queue += [('robot', a) for a in self.clock.measure(
                        name, call, message, self.now)]

    def iterate(self) -> dict[str, float]:
        """Run one iteration; return the seconds that each part took.

        The parts are ``worker``, ``apply`` (the worker receives and adds the pulled rows),
        ``server``, and ``deadline`` (the server computes its next deadline). The parts do not
        overlap.
        """
        self.clock.spent, self.questions = {}, 0
        self.worker.command = Command(mta_time=BUDGET, sending=self.server.method.sending())
        self.server.members['robot0'].push_mta = BUDGET
        for link in (self.worker.link, self.server.members['robot0'].link):
            link.expect(FAST, 1e-3)
        actions = self.clock.measure('worker', self.worker.on_gradient, self.gradient, SGD,
                                     self.now)
        self.deliver(actions)
        assert self.worker.last_pushed_rows == self.partition.rows
        assert self.worker.last_pulled_rows >= 0.99 * self.partition.rows
        return self.clock.spent


def push_cost(pair: Pair) -> float:
    """Return the seconds that the server needs for the chunks of one push; the pull is left out."""
    chunks, original = [], pair.server.on_chunk

    def record(robot, chunk, now):
        begin = time.perf_counter()
        result = original(robot, chunk, now)
        chunks.append(time.perf_counter() - begin)
        return result

    pair.server.on_chunk = record  # type: ignore[method-assign]
    pair.iterate()
    pair.server.on_chunk = original  # type: ignore[method-assign]
    return sum(chunks)


def copy_time(array: np.ndarray) -> float:
    out = np.empty_like(array)
    begin = time.perf_counter()
    np.copyto(out, array)
    out[0] = 0
    warm = time.perf_counter()
    np.copyto(out, array)
    return min(time.perf_counter() - warm, warm - begin)


def measure(partition: RowPartition, max_chunk: int, repeats: int, codec: str = 'onebit'
            ) -> dict[str, float]:
    pair = Pair(partition, 2, max_chunk, codec)
    pair.iterate()
    runs, copies = [], []
    for _ in range(repeats):
        copies.append(copy_time(pair.gradient))
        runs.append(pair.iterate())
    copy = statistics.median(copies)
    result = {'memcpy_ms': 1e3 * copy}
    for side in ('worker', 'server', 'apply'):
        seconds = statistics.median(r[side] for r in runs)
        result |= {f'{side}_ms': 1e3 * seconds, f'{side}_ratio': seconds / copy}
    return {key: round(value, 2) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--repeats', type=int, default=9)
    parser.add_argument('--members', type=int, default=32, help='0: leave the push cost out')
    options = parser.parse_args()
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})
    partition = model('onebit')
    line: dict = {'bench': 'hot_path', 'elements': partition.elements, 'rows': partition.rows}
    for name, max_chunk in (('chunk_14000', 14000), ('chunk_1200', 1200)):
        line[name] = measure(partition, max_chunk, options.repeats)
    for codec in ('ternary', 'ternary:0.05'):
        line[f'{codec}_chunk_14000'] = measure(model(codec), 14000, options.repeats, codec)
    line['targets'] = {'worker_ratio': 6, 'server_ratio': 8}
    if options.members:
        pairs = {members: Pair(partition, members, 14000) for members in (2, options.members)}
        costs: dict[int, list[float]] = {members: [] for members in pairs}
        for _ in range(options.repeats + 1):
            for members, pair in pairs.items():
                costs[members].append(push_cost(pair))
        for members, found in costs.items():
            line[f'push_ms_{members}_members'] = round(1e3 * statistics.median(found[1:]), 2)
    print(json.dumps(line))


if __name__ == '__main__':
    sys.path.insert(0, str(Path(__file__).parent))
    main()
