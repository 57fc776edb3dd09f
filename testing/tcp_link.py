"""Runs the programs of other projects for benches, and emulates a link for their TCP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet_env.links.bucket import TokenBucket
from fleet_env.links.trace import LinkTrace

# (time at which the link fails, duration of the outage), in seconds
OUTAGES = ((8.0, 1.0), (17.0, 5.0), (34.0, 30.0))
SECONDS = 80.0           # duration in seconds of a run with outages
# The forwarder reads the next data this many seconds before the previous data leaves. Otherwise
# the link would be unused whenever a timer is late.
AHEAD = 0.02
UP, DOWN = 0, 1


def with_outages(trace: LinkTrace, lead: float = 0.0) -> LinkTrace:
    """Return the trace of a run with outages, after ``lead`` seconds without a limit."""
    edges = [edge for at, last in OUTAGES for edge in (at, at + last)]
    times = sorted({0.0, *(t for t in trace.times.tolist() if t < SECONDS), *edges})
    rates = [0.0 if any(at <= t < at + last for at, last in OUTAGES) else trace.rate(t)
             for t in times]
    before = ([0.0], [1e4]) if lead else ([], [])
    return LinkTrace(before[0] + [lead + t for t in times], before[1] + rates,
                     lead + SECONDS + 60)


class Forwarder:
    """Forwards TCP connections to a port; after `begin`, limits both directions by a trace.

    ``bytes``: bytes that have crossed the link up and down since `begin`. ``turns``: how often
    data went up after data had come down; the first data and each new connection also count. For a
    client that waits for each answer, ``turns`` is the number of round trips.
    """

    def __init__(self, target: int, delay: float) -> None:
        self.bytes, self.turns, self.port = [0, 0], 0, 0
        self._target, self._delay = target, delay
        self._last = DOWN
        self._trace: tuple[LinkTrace, float] | None = None
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        if not self._ready.wait(10.0):
            raise SystemExit('the forwarder does not start')

    def begin(self, trace: LinkTrace, now: float) -> None:
        """Follow the trace from monotonic time ``now`` on; reset the counters."""
        self.bytes, self.turns, self._trace = [0, 0], 0, (trace, now)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, '127.0.0.1', 0, limit=1 << 16)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await server.serve_forever()

    async def _connect(self, reader: Any, writer: Any) -> None:
        self.turns += 1
        there, back = await asyncio.open_connection('127.0.0.1', self._target, limit=1 << 16)
        await asyncio.gather(self._pass(reader, back, UP), self._pass(there, writer, DOWN),
                             return_exceptions=True)

    async def _pass(self, reader: Any, writer: Any, way: int) -> None:
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        arriving = asyncio.create_task(self._arrive(on_the_way, writer))
        bucket: TokenBucket | None = None
        try:
            while data := await reader.read(16384):
                now = leaves = time.monotonic()
                if self._trace is not None:
                    bucket = bucket or TokenBucket(*self._trace)
                    leaves = bucket.offer(len(data), now)
                self.turns += way < self._last
                self._last = way
                self.bytes[way] += len(data)
                on_the_way.put_nowait((leaves + self._delay, data))
                await asyncio.sleep(max(0.0, leaves - now - AHEAD))
        finally:
            on_the_way.put_nowait((0.0, b''))
            await arriving

    async def _arrive(self, on_the_way: asyncio.Queue[tuple[float, bytes]], writer: Any) -> None:
        while True:
            at, data = await on_the_way.get()
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()


class Output:
    """The lines that a process prints; ``over`` becomes true when the process ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.lines: list[str] = []
        self.over = False
        self._came = threading.Condition()
        self._stream = process.stdout
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._stream is not None
        for line in self._stream:
            with self._came:
                self.lines.append(line.strip())
                self._came.notify_all()
        with self._came:
            self.over = True
            self._came.notify_all()

    def until(self, done: Callable[[list[str]], Any], limit: float, what: str) -> None:
        """Wait until ``done(lines)`` is true.

        :param limit: maximum time to wait, in seconds.
        :raises SystemExit: ``done(lines)`` is still false when the process ends or ``limit`` is
            over.
        """
        with self._came:
            self._came.wait_for(lambda: done(self.lines) or self.over, limit)
            if not done(self.lines):
                raise SystemExit(f'{what} ' + ('has ended' if self.over else
                                               f'is not there after {limit:g} s')
                                 + ''.join(f'\n  {line}' for line in self.lines[-5:]))


def after_the_robot() -> None:
    """Lower this process's priority, because a server must not take CPU time from the robots."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        os.sched_setparam(0, os.sched_param(os.sched_getparam(0).sched_priority - 1))
    else:
        os.nice(5)


@contextmanager
def process(*command: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a process during the block; then end it with SIGTERM, and with SIGKILL if that fails."""
    started = subprocess.Popen(command, text=True, **options)
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def its_own(threads: int) -> dict[str, str]:
    """Return environment variables for a program that must not find the packages of this suite.

    :param threads: number of threads that the program may use for computing.
    """
    kept = {name: value for name, value in os.environ.items() if name != 'PYTHONPATH'}
    return {**kept, 'OMP_NUM_THREADS': str(threads)}
