"""Compute which share of the links' capacity the pushes of an emulated fleet use.

From the start of a push to its receipt, a link *offers* the bytes that it could carry if the push
always had data: the rate of the trace divided by the number of flows that share the air, the push
included. The push *uses* the bytes of the robot's uplink that the air carries in this time. Offered
and used bytes differ only while no frame of the robot waits for the air. The radio records when
each flow is busy, and the robots log start and end of each push; both use the machine's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.fleet import FleetConfig
from fleet_env.trace import Floats, LinkTrace

from .radio import traces_of

PERIODS_FILE = 'air-busy.txt'
PUSH = re.compile(r'push \d+ from (\S+) to (\S+) s')


@dataclass(frozen=True)
class Use:
    """The use of a robot's link by its pushes.

    The shares `used`, `head` and `tail` are shares of the offered bytes. `head`, `tail` and
    `1 - used - head - tail` (in between) are unused.
    """

    pushes: int
    seconds: float         # time of all pushes until their receipts, s
    busy: float            # share of the time with a link in which the uplink had data to carry
    offered_mbit: float
    used: float            # share that was used
    head: float            # share lost before the first byte of a push was on the air
    tail: float            # share lost after the last byte of a push


def pushes_of(lines: Iterable[str]) -> Floats:
    """Return the begin and end times (n, 2) of a robot's pushes, from its log."""
    found = [match.groups() for line in lines if (match := PUSH.search(line))]
    return np.array(found, np.float64).reshape(-1, 2)


def read_periods(lines: Iterable[str]) -> tuple[float, dict[tuple[str, bool], Floats]]:
    """Return when the traces began, and (robot, uplink) -> busy times, begin and end (n, 2)."""
    start = np.inf
    found: dict[tuple[str, bool], Any] = {}
    for line in lines:
        name, *rest = line.split()
        if len(rest) == 1:
            start = float(rest[0])
        else:
            found.setdefault((name, rest[0] == 'up'), []).append((float(rest[1]), float(rest[2])))
    return start, {flow: np.array(times) for flow, times in found.items()}


def link_use(traces: Mapping[str, LinkTrace], shared: bool, start: float,
             periods: Mapping[tuple[str, bool], Floats], pushes: Mapping[str, Floats]
             ) -> dict[str, Use]:
    """Return the link use of each robot by its finished pushes from ``start`` on.

    ``shared``: whether the robots share the air. ``periods``: see `read_periods`; ``pushes``:
    robot -> result of `pushes_of`.
    """
    pushes = {robot: times[times[:, 0] >= start] for robot, times in pushes.items()}
    last = max((times.max() for times in pushes.values() if times.size), default=start)
    grid = np.unique(np.concatenate(
        [*(times.ravel() for times in (*periods.values(), *pushes.values())),
         *(_samples(trace, start, last) for trace in traces.values())]))
    grid = grid[(grid >= start) & (grid <= last)]
    if grid.size < 2:
        return {}
    middle = (grid[1:] + grid[:-1]) / 2
    rates = {robot: trace.rate_at(middle - start) for robot, trace in traces.items()}
    busy = {(robot, uplink): _within(periods.get((robot, uplink)), middle) & (rates[robot] > 0)
            for robot in traces for uplink in (True, False)}
    alone = {robot: busy[robot, True].astype(int) + busy[robot, False] for robot in traces}
    together = np.sum(list(alone.values()), axis=0)
    found = {}
    for robot, times in pushes.items():
        if times.size:
            up, flows = busy[robot, True], together if shared else alone[robot]
            offered = _integral(grid, rates[robot] / (flows + ~up))
            used = _integral(grid, rates[robot] * up / np.maximum(flows, 1))
            linked = _integral(grid, rates[robot] > 0)
            found[robot] = _use(grid, offered, used, _integral(grid, up), linked, times)
    return found


def use_of_run(fleet: FleetConfig, out: Path) -> dict[str, Use]:
    """Return how each robot's pushes used its link, from the files of the run in ``out``."""
    with (out / PERIODS_FILE).open(encoding='ascii') as lines:
        start, periods = read_periods(lines)
    pushes = {}
    for robot in fleet.robots:
        with (out / 'logs' / f'{robot.name}.log').open(errors='replace') as lines:
            pushes[robot.name] = pushes_of(lines)
    return link_use(traces_of(fleet), fleet.channel.shared, start, periods, pushes)


def _use(grid: Floats, offered: Floats, used: Floats, busy: Floats, linked: Floats,
         times: Floats) -> Use:
    def during(amount: Floats, begin: Floats, end: Floats) -> float:
        return float((np.interp(end, grid, amount) - np.interp(begin, grid, amount)).sum())

    begin, over = times.T
    # The first and the last moment of each push at which its robot's uplink is on the air.
    first = np.interp(begin, grid, used)
    last = np.interp(over, grid, used)
    head = np.clip(grid[np.maximum(np.searchsorted(used, first, side='right') - 1, 0)], begin, over)
    tail = np.clip(grid[np.minimum(np.searchsorted(used, last), grid.size - 1)], head, over)
    mbit = during(offered, begin, over) or np.nan  # NaN if there was no link
    return Use(len(times), float((over - begin).sum()),
               during(busy, begin, over) / (during(linked, begin, over) or np.nan), mbit,
               during(used, begin, over) / mbit,
               during(offered, begin, head) / mbit, during(offered, tail, over) / mbit)


def _samples(trace: LinkTrace, start: float, last: float) -> Floats:
    cycles = np.arange(max((last - start) // trace.period, 0) + 1) * trace.period + start
    return (cycles[:, None] + trace.times).ravel()


def _within(periods: Floats | None, times: Floats) -> np.ndarray:
    """Return for each time whether it lies in one of the periods, which do not overlap."""
    if periods is None:
        return np.zeros(times.shape, bool)
    index = np.searchsorted(periods[:, 0], times, side='right') - 1
    return (index >= 0) & (times < periods[index, 1])


def _integral(grid: Floats, rate: Any) -> Floats:
    return np.concatenate(([0.0], np.cumsum(rate * np.diff(grid))))
