"""Measure the computing time of one chunk on the shared channel.

The time includes one acknowledgement per four chunks. Every robot keeps a window of 8
chunks in flight, as a sender does. For comparison, the same run measures one push and
one pop of a heap, which any discrete-event loop needs for a chunk.
"""

import heapq
import json
import time

from fleet_env.links.channel import Channel
from fleet_env.links.generate import generate

CHUNKS = 50_000
trace = generate('outdoor_fades')


def chunk_us(robots: int, shared: bool) -> float:
    fleet = {f'robot{i}': trace.shifted(7.3 * i) for i in range(robots)}
    channel, left = Channel(fleet, shared), 0
    begin = time.perf_counter()
    for robot in fleet:
        for _ in range(8):
            channel.offer(robot, True, 14_000, None, 0.0)
    while left < CHUNKS:
        now = channel.deadline
        for robot, uplink, _ in channel.pop(now):
            if uplink:
                left += 1
                channel.offer(robot, True, 14_000, None, now)
                if left % 4 == 0:
                    channel.offer(robot, False, 40, None, now)
    return (time.perf_counter() - begin) / CHUNKS * 1e6


def heap_us() -> float:
    heap = [(float(i), i) for i in range(64)]
    begin = time.perf_counter()
    for i in range(CHUNKS):
        heapq.heappush(heap, (heapq.heappop(heap)[0] + 64.5, i))
    return (time.perf_counter() - begin) / CHUNKS * 1e6


print(json.dumps({'bench': 'radio_channel', 'heap_us': round(heap_us(), 3),
                  'shared_us': {f'{n} robots': round(chunk_us(n, True), 2) for n in (1, 4, 16, 64)},
                  'own_us': {f'{n} robots': round(chunk_us(n, False), 2) for n in (4, 64)}}))
