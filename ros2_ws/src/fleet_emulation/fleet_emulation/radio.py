"""The emulated radio: computes when frames of real nodes arrive. Sans-I/O.

:class:`fleet_env.links.channel.Channel` models the air time that robots share; virtual time uses
the same class. This module adds the other impairments of a link: delay, jitter, loss, duplicates,
reordering, and outages.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fleet_env.errors import SettingError
from fleet_env.links.channel import Channel
from fleet_env.links.trace import LinkTrace

AT_BASE = 1000.0  # rate of a link in Mbit/s before its trace begins
QUEUE = 1000  # maximum number of frames that wait in one direction, as in Linux (txqueuelen)


@dataclass(frozen=True)
class Conditions:
    """The impairments of a robot's link, in both directions, besides its rate.

    :raises SettingError: a time is negative or not finite, or a probability is not within 0 to 1.
    """

    linked: bool = True      # False: out of range; all frames are lost, including those that wait
    delay: float = 0.0       # delay of every frame in seconds
    jitter: float = 0.0  # largest random addition to the delay in seconds; frames keep their order
    loss: float = 0.0        # probability that a frame is lost after it has used its air time
    duplicate: float = 0.0   # probability that a frame arrives twice
    reorder: float = 0.0     # probability that a frame is held back, so that later frames pass it
    reorder_time: float = 0.05  # time in seconds for which `reorder` holds a frame back

    def __post_init__(self) -> None:
        for name in ('delay', 'jitter', 'reorder_time'):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise SettingError(f'{name} is {value}; it must be a time of at least 0 s',
                                   path=(name,))
        for name in ('loss', 'duplicate', 'reorder'):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise SettingError(f'{name} is {value}; it must be a probability, 0 to 1',
                                   path=(name,))


@dataclass
class Counters:
    """Counters of one direction of a robot's link since the creation of the radio."""

    frames: int = 0         # frames that arrived
    bytes: int = 0          # bytes that the air has carried
    refused: int = 0        # frames dropped because there was no link or the queue was full
    lost: int = 0           # frames lost after they were on the air
    busy: float = 0.0       # time in seconds during which frames waited for the air or were on it


class Radio:
    """Compute when each frame arrives over a robot's link.

    Until `begin` every link has the rate `AT_BASE`, because robots receive the model before
    they drive out. Virtual time has no such phase, because there robots hold the model from
    the start.

    :param traces: robot -> rate of its link in Mbit/s; a frame sent while the rate is 0 is
        lost.
    :param conditions: robot -> conditions of its link at the start; by default a perfect
        link.
    :param shared: whether all robots share the air time of one channel.
    :param seed: seed of losses, jitter, duplicates and reordering.
    """

    def __init__(self, traces: Mapping[str, LinkTrace],
                 conditions: Mapping[str, Conditions] | None = None, shared: bool = True,
                 seed: int = 0) -> None:
        self.conditions = {name: Conditions() for name in traces} | dict(conditions or {})
        self._traces, self._shared = dict(traces), shared
        self._channel = Channel(dict.fromkeys(traces, LinkTrace([0.0], [AT_BASE])),
                                max_items=QUEUE)
        self._start = math.inf
        self._random = random.Random(seed)
        flows = [(name, uplink) for name in traces for uplink in (True, False)]
        self._counters = {flow: Counters() for flow in flows}
        # maps each flow (robot, whether uplink) to the time at which the flow became busy;
        # infinity if the flow is idle
        self._since = dict.fromkeys(flows, math.inf)
        # maps each flow to the latest arrival time of its frames; frames held back do not count
        self._last = dict.fromkeys(flows, -math.inf)
        self._out: list[tuple[float, int, str, bool, bytes]] = []
        self._order = itertools.count()

    def begin(self, now: float) -> None:
        """Start the traces; each frame that waits or is on the air counts as carried at ``now``."""
        if self._start < math.inf:
            return
        while (left := self._channel.deadline) < math.inf:
            for robot, uplink, frame in self._channel.pop(left):
                self._leave(robot, uplink, frame, now)
        self._start = now
        self._channel = Channel(self._traces, self._shared, now, QUEUE)

    def take(self, robot: str, uplink: bool, frame: bytes, now: float) -> None:
        """Send a frame over a robot's link; ``uplink``: whether the robot is the sender."""
        self._run(now)
        flow = robot, uplink
        linked = self.conditions[robot].linked and self._channel.rate_at(robot, now) > 0
        if not linked or not self._channel.offer(robot, uplink, len(frame), frame, now):
            self._counters[flow].refused += 1
        elif self._since[flow] == math.inf:
            self._since[flow] = now

    def release(self, now: float) -> list[tuple[str, bool, bytes]]:
        """Return (robot, uplink, frame) of each frame that arrived by ``now``, in arrival order."""
        self._run(now)
        out = []
        while self._out and self._out[0][0] <= now:
            _, _, robot, uplink, frame = heapq.heappop(self._out)
            self._counters[robot, uplink].frames += 1
            out.append((robot, uplink, frame))
        return out

    @property
    def deadline(self) -> float:
        """Return the earliest time at which `release` has work to do; infinity if it has none."""
        return min(self._channel.deadline, self._out[0][0] if self._out else math.inf)

    def report(self, now: float) -> dict[str, Any]:
        """Return for each robot the counters of both directions, and the capacity of its own link.

        The counters count from the creation of the radio. `capacity_mbit` is the amount of data
        that the link could have carried since the call of `begin`. Units are Mbit, bytes, frames
        and seconds.
        """
        self._run(now)
        report: dict[str, Any] = {}
        for (robot, uplink), counters in self._counters.items():
            values = asdict(counters)
            values['busy'] += max(now - self._since[robot, uplink], 0.0)
            mbit = self._traces[robot].carried(max(now - self._start, 0.0))
            entry = report.setdefault(robot, {'capacity_mbit': mbit, **asdict(
                self.conditions[robot])})
            entry['uplink' if uplink else 'downlink'] = values
        return report

    def _run(self, now: float) -> None:
        while (left := self._channel.deadline) <= now:
            for robot, uplink, frame in self._channel.pop(left):
                self._leave(robot, uplink, frame, left)

    def _leave(self, robot: str, uplink: bool, frame: bytes, now: float) -> None:
        """Apply the impairments to a frame that leaves the air at ``now``."""
        flow, conditions, draw = (robot, uplink), self.conditions[robot], self._random.random
        counters = self._counters[flow]
        counters.bytes += len(frame)
        if not self._channel.backlog_bytes(robot, uplink):
            counters.busy += now - self._since[flow]
            self._since[flow] = math.inf
        if not conditions.linked or (conditions.loss and draw() < conditions.loss):
            counters.lost += 1
            return
        at = max(now + conditions.delay + conditions.jitter * draw(), self._last[flow])
        if conditions.reorder and draw() < conditions.reorder:
            at += conditions.reorder_time
        else:
            self._last[flow] = at
        for _ in range(1 + (conditions.duplicate > 0 and draw() < conditions.duplicate)):
            heapq.heappush(self._out, (at, next(self._order), robot, uplink, frame))
