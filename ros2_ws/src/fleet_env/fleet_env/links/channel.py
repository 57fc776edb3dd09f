"""The radio channel of a fleet in virtual time: robots share the air time. Sans-I/O.

Every robot has two first-in first-out flows: the uplink to the server and the downlink from it. A
flow is active when it has data and its link has a rate above 0. Active flows get equal shares of
the air time: with k active flows, each carries data at 1/k of its robot's present rate. A flow with
a dead link (rate 0) uses no air time. The channel is never idle while a flow is active.

Between two events only one number changes: the air time that each active flow has received. While a
robot's rate is constant, its next item leaves when this number reaches a known value, independent
of the other robots. So an event costs a few operations. The search for the robot whose item leaves
first is a `min` of a list, which runs in C.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from typing import Any

from fleet_env.links.trace import LinkTrace

_MBIT_PER_BYTE = 8e-6
_LOOK_AHEAD = 10_000
_NEVER = math.inf


class Channel:
    """Compute which items have left the links of a fleet, and when the next item leaves.

    :param traces: robot -> rate of its link; a rate of 0 lets nothing through.
    :param shared: True: all robots share one channel. False: each robot has its own channel, which
        only its two directions share.
    :param start: time, on the caller's clock in seconds, at which the traces begin. A channel's
        time never goes back: an item that is offered before ``start``, or before the last event
        of its channel, counts as offered at that time.
    :param max_items: if this number of items waits in one direction of a robot's link, further
        items in this direction are dropped.
    """

    def __init__(self, traces: Mapping[str, LinkTrace], shared: bool = True, start: float = 0.0,
                 max_items: float = math.inf):
        self.traces, self.start, self.max_items = dict(traces), start, max_items
        groups = [self.traces] if shared else [{name: self.traces[name]} for name in self.traces]
        self._airs = [_Air(group, start) for group in groups]
        self._flows = {(flow.robot, flow.uplink): (flow, index)
                       for index, air in enumerate(self._airs)
                       for pair in air.flows for flow in pair}
        self._then = list(self._airs)            # state of each channel at its time in `_due`
        self._due = [_NEVER for _ in self._airs]  # time at which the next item leaves each channel
        self._soonest = _NEVER
        self._left: list[tuple[str, bool, Any]] = []
        self._left_at = _NEVER

    def offer(self, robot: str, uplink: bool, nbytes: float, item: Any, now: float) -> bool:
        """Queue ``item`` at time ``now`` in one direction of a robot's link.

        Return False, and drop the item, if ``max_items`` items already wait in this direction.

        :param uplink: True: from the robot to the server. False: from the server to the robot.
        :param nbytes: size of the item in bytes; may be a fraction.
        :raises ValueError: ``nbytes`` is negative, or the robot is unknown.
        """
        if (robot, uplink) not in self._flows:
            raise ValueError(f'no link to {robot!r}; there are {", ".join(self.traces)}')
        if not nbytes >= 0:
            raise ValueError(f'nbytes is {nbytes}; it must be at least 0')
        if self._soonest <= now:
            self._run(now)
        flow, index = self._flows[robot, uplink]
        if len(flow.queue) >= self.max_items:
            return False
        flow.waiting += nbytes
        flow.queue.append((nbytes, item))
        if len(flow.queue) == 1:
            self._airs[index].begin(flow, now)
            self._look(index)
        return True

    @property
    def deadline(self) -> float:
        """Return the time at which `pop` returns the next item; infinite if no item ever leaves.

        The search for this time stops after 10,000 changes of rate. In that case the returned time
        is too early: `pop` then returns nothing, and the search continues.
        """
        return self._left_at if self._left else self._soonest

    def pop(self, now: float) -> list[tuple[str, bool, Any]]:
        """Return (robot, uplink, item) of each item that left by ``now``, in departure order."""
        if self._soonest <= now:
            self._run(now)
        left, self._left = self._left, []
        return left

    def rate_at(self, robot: str, now: float) -> float:
        """Return the rate of the robot's own trace at time ``now``, Mbit/s; 0 means no link."""
        return self.traces[robot].rate(now - self.start)

    def backlog_bytes(self, robot: str, uplink: bool) -> float:
        """Return the bytes of all items that wait on a flow, including the item under way."""
        return self._flows[robot, uplink][0].waiting

    def _run(self, now: float) -> None:
        while self._soonest <= now and self._soonest != _NEVER:
            index = self._due.index(self._soonest)
            air = self._airs[index] = self._then[index]
            flow = air.depart(self._soonest)
            if flow is not None:
                if not self._left:
                    self._left_at = self._soonest
                self._left.append((flow.robot, flow.uplink, flow.sent))
            self._look(index)

    def _look(self, index: int) -> None:
        self._due[index], self._then[index] = self._airs[index].next()
        self._soonest = min(self._due)


class _Flow:
    """One direction of a robot's link."""

    __slots__ = ('goal', 'index', 'queue', 'robot', 'sent', 'uplink', 'waiting')

    def __init__(self, robot: str, uplink: bool, index: int):
        self.robot, self.uplink, self.index = robot, uplink, index
        self.queue: deque[tuple[float, Any]] = deque()
        self.waiting = 0.0      # number of bytes in the queue
        self.goal = _NEVER      # value of `_Air.served` at which the first item leaves
        self.sent: Any = None   # the last item that has left


class _Air:
    """One channel. Each list contains one value per robot; air time and clock are in seconds.

    The two flows of a robot have the same rate and the same share of the air time, so one value of
    `served` applies to both flows.
    """

    def __init__(self, traces: Mapping[str, LinkTrace], start: float):
        n = len(traces)
        self.time = start
        # air time received so far by a flow that has been active since the start
        self.used = 0.0
        self.active = 0               # number of flows that have data and a rate above 0
        self.flows = [tuple(_Flow(name, uplink, index) for uplink in (True, False))
                      for index, name in enumerate(traces)]
        self.paths = [_Path(trace, start) for trace in traces.values()]
        # number of flows of the robot that have data; a robot with at least one such flow is busy
        self.busy = [0] * n
        self.rate = [0.0] * n         # rate in Mbit/s; valid only while the robot is busy
        # Mbit that each flow has carried from the time at which the robot became busy to the moment
        # at which `used` was equal to `since`.
        self.served = [0.0] * n
        self.since = [0.0] * n
        self.finish = [_NEVER] * n    # value of `used` at which the robot's next item leaves
        self.change = [_NEVER] * n    # time at which the rate of a busy robot changes
        self.place = [(0, -1, -_NEVER)] * n  # latest place in the robot's trace, see `_Path`

    def copy(self) -> '_Air':
        """Return a copy that shares the flows and their queues."""
        other = object.__new__(_Air)
        other.__dict__.update(self.__dict__)
        for name in ('busy', 'rate', 'served', 'since', 'finish', 'change', 'place'):
            setattr(other, name, getattr(self, name)[:])
        return other

    def next(self) -> 'tuple[float, _Air]':
        """Return the time at which the next item leaves, and this channel's state at that time."""
        air = self
        for _ in range(_LOOK_AHEAD):
            leaves, change = air.leaves(), min(air.change)
            if leaves <= change:
                return leaves, air
            if air is self:
                air = self.copy()
            air.step(change)
        return air.time, air

    def leaves(self) -> float:
        """Return the time at which the next item leaves if no rate changes before then."""
        soonest = min(self.finish)
        if soonest == _NEVER:
            return _NEVER
        return max(self.time + (soonest - self.used) * self.active, self.time)

    def begin(self, flow: _Flow, now: float) -> None:
        """Start to send the first item of a flow that was empty.

        Before this call, remove all items that are due to leave before ``now``.
        """
        while (change := min(self.change)) <= now:
            self.step(change)
        self._advance(max(now, self.time))
        i = flow.index
        if self.busy[i]:
            self._serve(i)
        else:
            self.place[i] = self.paths[i].find(self.time, self.place[i])
            self.rate[i], self.change[i] = self.paths[i].rates[self.place[i][0]], self.place[i][2]
            self.served[i], self.since[i] = 0.0, self.used
        self.busy[i] += 1
        self.active += self.rate[i] > 0
        flow.goal = self.served[i] + flow.queue[0][0] * _MBIT_PER_BYTE
        self._aim(i)

    def depart(self, now: float) -> _Flow | None:
        """Remove the item that leaves at ``now`` from its flow; return the flow.

        Return None if no item leaves by then.
        """
        if self.leaves() > now:
            return None
        soonest = min(self.finish)
        i = self.finish.index(soonest)
        self.time, self.used = now, max(self.used, soonest)
        flow, other = self.flows[i]
        if other.goal < flow.goal:
            flow = other
        self.served[i], self.since[i] = flow.goal, self.used
        nbytes, flow.sent = flow.queue.popleft()
        if flow.queue:
            flow.waiting -= nbytes
            flow.goal += flow.queue[0][0] * _MBIT_PER_BYTE
        else:
            flow.waiting, flow.goal = 0.0, _NEVER
            self.active -= 1
            self.busy[i] -= 1
            if not self.busy[i]:
                self.finish[i] = self.change[i] = _NEVER
                return flow
        self._aim(i)
        return flow

    def step(self, change: float) -> None:
        """Advance to ``change``, the time at which the rate of a busy robot changes."""
        i = self.change.index(change)
        self._advance(change)
        self._serve(i)
        self.place[i] = self.paths[i].after(self.place[i])
        rate, self.change[i] = self.paths[i].rates[self.place[i][0]], self.place[i][2]
        self.active += self.busy[i] * ((rate > 0) - (self.rate[i] > 0))
        self.rate[i] = rate
        self._aim(i)

    def _advance(self, now: float) -> None:
        if self.active:
            self.used += (now - self.time) / self.active
        self.time = now

    def _serve(self, i: int) -> None:
        self.served[i] += self.rate[i] * (self.used - self.since[i])
        self.since[i] = self.used

    def _aim(self, i: int) -> None:
        up, down = self.flows[i]
        left = min(up.goal, down.goal) - self.served[i]
        rate = self.rate[i]
        self.finish[i] = self.since[i] + left / rate if rate > 0 else _NEVER


class _Path:
    """The samples of a trace; successive samples with equal rates are joined.

    A place in the trace is (index of the sample, number of complete repetitions of the trace before
    it, time at which the sample ends).
    """

    def __init__(self, trace: LinkTrace, start: float):
        rates, times = trace.rates.tolist(), trace.times.tolist()
        keep = [i for i, rate in enumerate(rates) if not i or rate != rates[i - 1]]
        self.rates = [rates[i] for i in keep]
        self.times = [times[i] for i in keep]
        self.ends = [*self.times[1:], trace.period]
        self.start, self.period = start, trace.period

    def find(self, now: float, hint: tuple[int, int, float]) -> tuple[int, int, float]:
        """Return the place at time ``now``; ``hint``: the place at an earlier time."""
        if hint[1] >= 0 and now < hint[2]:
            return hint
        cycles, phase = divmod(now - self.start, self.period)
        place = self._place(bisect_right(self.times, phase) - 1, int(cycles))
        while place[2] <= now:  # because of rounding, a place may end before `now`
            place = self.after(place)
        return place

    def after(self, place: tuple[int, int, float]) -> tuple[int, int, float]:
        """Return the place of the next sample."""
        sample, cycle, _ = place
        if sample + 1 < len(self.rates):
            return self._place(sample + 1, cycle)
        return self._place(0, cycle + 1)

    def _place(self, sample: int, cycle: int) -> tuple[int, int, float]:
        end = self.start + cycle * self.period + self.ends[sample]
        return sample, cycle, end if len(self.rates) > 1 else _NEVER
