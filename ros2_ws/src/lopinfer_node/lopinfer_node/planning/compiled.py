"""Evaluate plans in microseconds for the search.

In these plans each operator has two cuts: the device computes the indices below the first cut,
and the server computes the indices from the second cut on. `problem` converts a graph and its
costs to flat arrays once for many evaluations. The compiled functions, called kernels, release
the GIL, and their code is cached on disk.

A candidate is a pair of bounds, int64 arrays (nodes,): the device computes only
indices below `most`, and the server only indices from `least` on. `settle` derives the
cuts from the bounds, from the last operator to the first. Each side computes what its
own consumers need (halos included), as far as its bound allows. Needed indices beyond
the bound cross the link. If the bounds exclude an index on both sides, one side computes
it all the same. So bounds decide only what crosses. Both bounds of a global operator are its
number of indices if the device computes it, and 0 if the server computes it.

A candidate is invalid only if the result of a global operator must not cross the link
(`stays`), but the other side needs this result. The bounds of a local operator whose result
must not cross the link have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from fleet_env.settings.power_model import PowerModel

from ..model.graph import Graph, Kind
from .plan import DEVICE, SERVER
from .timeline import Costs, Link

INPUT, OPERATOR, OUTPUT = 0, 1, 2
_KINDS = {Kind.INPUT: INPUT, Kind.OPERATOR: OPERATOR, Kind.OUTPUT: OUTPUT}
_KERNEL: dict[str, Any] = {'cache': True, 'nogil': True, 'error_model': 'numpy'}
_NO_ENTRY: dict[str, Any] = {'no_cpython_wrapper': True, 'no_cfunc_wrapper': True}
_Function = TypeVar('_Function', bound=Callable[..., Any])


def kernel(function: _Function) -> _Function:
    """Compile a function to run without the GIL; cache the compiled code on disk."""
    return cast(_Function, numba.njit(**_KERNEL)(function))


def part(function: _Function) -> _Function:
    """Compile a function that only kernels call; without an entry for Python it takes less time."""
    return cast(_Function, numba.njit(**_KERNEL, **_NO_ENTRY)(function))


class Problem(NamedTuple):
    """Graph, costs, link and objective as arrays and numbers for the kernels.

    The edges of node v are `first[v]:first[v + 1]`. Edge e comes from node `source[e]`. With t =
    table[e] + i, output index i of v needs the indices [starts[t], ends[t]) of `source[e]`; the
    whole output of v needs the indices [lowest[e], highest[e]) of `source[e]`. `last_use[v]`: the
    last consumer of v, -1 if there is none. `stays[v]`: whether the tensor must not cross the link.
    `slope`: seconds of computation per output index. `message`: seconds that each transfer adds.
    `weight` (s/J) and `deadline` (s) belong to the objective.
    """

    kind: np.ndarray
    extent: np.ndarray
    row_bytes: np.ndarray
    whole: np.ndarray
    first: np.ndarray
    source: np.ndarray
    table: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    last_use: np.ndarray
    stays: np.ndarray
    fixed: np.ndarray
    slope: np.ndarray
    rate: np.ndarray
    latency: float
    message: float
    watts: np.ndarray
    weight: float
    deadline: float


class Work(NamedTuple):
    """Working arrays and results of an evaluation.

    All have the shape (2, nodes): [0] device, [1] server. `cut`: the device computes the
    indices below cut[0], and the server computes the indices from cut[1] on. `lo`, `hi`:
    smallest interval [lo, hi) with everything that the consumers on a side need. `crosses`:
    whether a side sends a part of the tensor; `sent_from`, `sent_to`, `arrival`: the times
    of this transfer, in the row of the sending side. `begin`, `end`: times of the
    computation. If a side does not send or compute, its times have no meaning. `cause`:
    the node whose transfer the operator waited for; -1 if the operator waited for the
    processor. `queue`: the node whose transfer had to end before this node's transfer could
    begin; -1 if the transfer waited for its producer. `previous`: the operator that the
    side computed immediately before; -1 if there is none.
    """

    cut: np.ndarray
    lo: np.ndarray
    hi: np.ndarray
    crosses: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    sent_from: np.ndarray
    sent_to: np.ndarray
    arrival: np.ndarray
    cause: np.ndarray
    queue: np.ndarray
    previous: np.ndarray


@lru_cache(maxsize=8)
def _flat(graph: Graph) -> dict[str, np.ndarray]:
    tables, first, source, table, offset = [], [0], [], [], 0
    for node in graph.nodes:
        for producer, footprint in zip(node.inputs, node.footprints, strict=True):
            source.append(producer)
            table.append(offset)
            offset += node.extent
            tables.append((footprint.starts, footprint.ends))
        first.append(len(source))
    return {
        'kind': np.array([_KINDS[n.kind] for n in graph.nodes], np.int64),
        'extent': graph.extents,
        'whole': np.array([n.is_global for n in graph.nodes]),
        'first': np.array(first, np.int64),
        'source': np.array(source, np.int64),
        'table': np.array(table, np.int64),
        'starts': np.concatenate([s for s, _ in tables]).astype(np.int32),
        'ends': np.concatenate([e for _, e in tables]).astype(np.int32),
        'lowest': np.array([s[0] for s, _ in tables], np.int64),
        'highest': np.array([e[-1] for _, e in tables], np.int64),
        'last_use': np.array([max(c, default=-1) for c in graph.consumers], np.int64),
    }


def problem(graph: Graph, costs: Costs, link: Link, power: PowerModel | None = None,
            weight: float = 0.0, deadline: float = np.inf, small_transfers: bool = True) -> Problem:
    """Return graph, costs, link and objective as a `Problem`.

    The arrays that depend only on `graph` are cached.
    """
    power = power or PowerModel()
    large = [small_transfers and n.bytes > graph.input_bytes for n in graph.nodes]
    return Problem(
        **_flat(graph), row_bytes=costs.row_bytes(graph), stays=np.array(large), fixed=costs.fixed,
        slope=costs.per_share / graph.extents, rate=np.array([link.up, link.down], np.float64),
        latency=float(link.latency), message=float(link.message),
        watts=np.array([power.computing, power.communicating, power.stalled]),
        weight=float(weight), deadline=float(deadline))


def work(nodes: int) -> Work:
    """Return working arrays for a graph of `nodes` nodes; each thread needs its own arrays."""
    types = {'crosses': np.bool_, **dict.fromkeys(('begin', 'end', 'sent_from', 'sent_to',
                                                   'arrival'), np.float64)}
    return Work(**{name: np.zeros((2, nodes), types.get(name, np.int64)) for name in Work._fields})


@kernel
def settle(p, w, most, least):
    """Derive cuts and needs from the bounds `most` and `least`, and store them in `w`.

    The needs are the intervals that the consumers on each side need, `w.lo` and `w.hi`.
    Return False if a consumer on the other side needs the result of a global operator in `stays`,
    whose results must not cross the link.
    """
    _no_needs(p, w)
    for v in range(len(p.kind) - 1, -1, -1):
        to, start = most[v], least[v]
        if p.kind[v] != OPERATOR:
            to = start = p.extent[v]
        elif p.whole[v]:
            side = DEVICE if to > 0 else SERVER
            if p.stays[v] and w.lo[1 - side, v] < w.hi[1 - side, v]:
                return False
        else:
            to, start = _cuts(p.extent[v], w.hi[DEVICE, v], w.lo[SERVER, v], to, start, p.stays[v])
        _cut(p, w, v, to, start)
    return True


@part
def _no_needs(p, w):
    for v in range(len(p.kind)):
        w.lo[0, v] = w.lo[1, v] = p.extent[v]
        w.hi[0, v] = w.hi[1, v] = 0


@part
def _cut(p, w, v, to, start):
    """Store the cuts of operator `v`, and what each side then needs of its inputs."""
    w.cut[DEVICE, v], w.cut[SERVER, v] = to, start
    for e in range(p.first[v], p.first[v + 1]):
        u, t = p.source[e], p.table[e]
        if to > 0:
            _widen(w, DEVICE, u, p.lowest[e],
                   p.highest[e] if to == p.extent[v] else p.ends[t + to - 1])
        if start < p.extent[v]:
            _widen(w, SERVER, u, p.lowest[e] if start == 0 else p.starts[t + start], p.highest[e])


@part
def _cuts(n, need_to, need_from, most, least, stays):
    """Return the cuts of one operator: end of the device's and start of the server's interval.

    Each side computes what it needs, within the bounds.
    """
    to, start = need_to, need_from
    if not stays:
        to, start = min(to, most), max(start, least)
    if start <= to:
        return to, start
    # The server computes only from `start` on, but needs lower indices. So it receives the lower
    # indices, and the device must compute them.
    if start > need_from:
        return start, start
    # The device computes only below `to` and receives the other indices that it needs, so the
    # server must compute them.
    if to < need_to:
        return to, to
    # No side needs the indices [to, start), but a plan must cover all indices.
    between = min(start, least) if to == 0 and start < n else min(start, max(to, most))
    return between, between


@part
def _widen(w, side, u, lo, hi):
    if lo < hi:
        w.lo[side, u] = min(w.lo[side, u], lo)
        w.hi[side, u] = max(w.hi[side, u], hi)


@part
def crossing(w, source, v):
    """Return the indices [lo, hi) of node `v` that side `source` sends; none if lo >= hi."""
    if source == DEVICE:
        return w.lo[SERVER, v], min(w.hi[SERVER, v], w.cut[SERVER, v])
    return max(w.lo[DEVICE, v], w.cut[DEVICE, v]), w.hi[DEVICE, v]


@kernel
def schedule(p, w):
    """Compute all times from the cuts and needs in `w`.

    Return (latency in s, bytes that cross, seconds of computing on both sides).
    """
    free = np.zeros(2)
    busy_to = np.zeros(2)
    latest = np.full(2, -1)
    sent = np.full(2, -1)
    latency = 0.0
    crossed = 0
    computing = 0.0
    for v in range(len(p.kind)):
        if p.kind[v] != OPERATOR:
            _pass(p, w, v, latest[DEVICE])
            if p.kind[v] == OUTPUT:
                latency = max(latency, w.end[DEVICE, v])
        for side in range(2):
            length = w.cut[DEVICE, v] if side == DEVICE else p.extent[v] - w.cut[SERVER, v]
            if length == 0 or p.kind[v] != OPERATOR:
                continue
            ready, cause = _ready(p, w, side, v)
            seconds = p.fixed[side, v] + p.slope[side, v] * length
            computing += seconds
            w.begin[side, v] = max(ready, free[side])
            w.cause[side, v] = cause if ready > free[side] else -1
            w.previous[side, v] = latest[side]
            w.end[side, v] = free[side] = w.begin[side, v] + seconds
            latest[side] = v
        for side in range(2):
            lo, hi = crossing(w, side, v)
            w.crosses[side, v] = lo < hi
            if lo >= hi:
                continue
            size = (hi - lo) * p.row_bytes[v]
            crossed += size
            w.queue[side, v] = sent[side] if busy_to[side] > w.end[side, v] else -1
            w.sent_from[side, v] = max(busy_to[side], w.end[side, v])
            w.sent_to[side, v] = busy_to[side] = w.sent_from[side, v] + p.message \
                + size / p.rate[side] if p.rate[side] > 0 else np.inf
            w.arrival[side, v] = busy_to[side] + p.latency
            sent[side] = v
    return latency, crossed, computing


@part
def _ready(p, w, side, v):
    """Return arrival time and node of the last transfer for which node `v` waits on this side.

    Return (0, -1) if node `v` waits for no transfer.
    """
    ready, cause = 0.0, -1
    for e in range(p.first[v], p.first[v + 1]):
        u = p.source[e]
        if not w.crosses[1 - side, u] or w.arrival[1 - side, u] < ready:
            continue
        t, n = p.table[e], p.extent[v]
        if side == DEVICE:
            lo, hi = p.lowest[e], p.ends[t + w.cut[DEVICE, v] - 1]
            remote = hi > w.cut[DEVICE, u]
        else:
            lo, hi = p.starts[t + w.cut[SERVER, v]], p.ends[t + n - 1]
            remote = lo < w.cut[SERVER, u]
        if lo < hi and remote:
            ready, cause = w.arrival[1 - side, u], u
    return ready, cause


@part
def _pass(p, w, v, latest):
    """Set the time of an input or output of the model.

    The input or output waits for tensors, not for the processor.
    """
    ready, cause = _ready(p, w, DEVICE, v)
    local = 0.0
    for e in range(p.first[v], p.first[v + 1]):
        if w.cut[DEVICE, p.source[e]] > 0:
            local = max(local, w.end[DEVICE, p.source[e]])
    w.begin[DEVICE, v] = w.end[DEVICE, v] = max(ready, local)
    w.cause[DEVICE, v] = cause if ready > local else -1
    w.previous[DEVICE, v] = latest if p.kind[v] == OUTPUT else -1


@part
def _next(begin, end, used, i, now):
    """Find the first used span, from span `i` on, that has not ended at time `now`.

    Span k lasts from begin[k] to end[k], and is used if used[k] is true. Return the number of the
    span found, whether this span has begun, and a time. If the span has begun, the time is its
    end, otherwise its beginning. The time is infinite if there is no such span.
    """
    while i < len(begin) and (not used[i] or end[i] <= now):
        i += 1
    if i == len(begin):
        return i, False, np.inf
    if begin[i] <= now:
        return i, True, end[i]
    return i, False, begin[i]


@kernel
def energy(p, w, latency):
    """Return the energy in J that the device uses in the `latency` seconds until the result.

    Call this after `schedule`.
    """
    if not np.isfinite(latency):
        return np.inf
    nodes = len(p.kind)
    ran = np.zeros(nodes, np.bool_)
    for v in range(nodes):
        ran[v] = p.kind[v] == OPERATOR and w.cut[DEVICE, v] > 0
    i = j = k = 0
    now = total = 0.0
    while now < latency:
        i, computing, a = _next(w.begin[DEVICE], w.end[DEVICE], ran, i, now)
        j, up, b = _next(w.sent_from[DEVICE], w.sent_to[DEVICE], w.crosses[DEVICE], j, now)
        k, down, c = _next(w.sent_from[SERVER], w.sent_to[SERVER], w.crosses[SERVER], k, now)
        then = min(min(a, b), min(c, latency))
        state = 0 if computing else 1 if up or down else 2
        total += p.watts[state] * (then - now)
        now = then
    return total


@kernel
def evaluate(p, w, most, least):
    """Return (score, bytes, seconds of computing, latency in seconds) of a candidate.

    A candidate is a plan, given by its bounds `most` and `least`. Lower is better: compare the
    scores, then the bytes, then the computing. The score is latency + weight * energy. With a
    deadline, the score is the energy, or a far larger number if the plan misses the deadline. The
    score of an invalid candidate is infinite.
    """
    if not settle(p, w, most, least):
        return np.inf, 0, 0.0, np.inf
    return _rate(p, w)


@kernel
def evaluate_cuts(p, w, to, start):
    """Return what `evaluate` does, of a plan that is given by its cuts, which are not checked."""
    _no_needs(p, w)
    for v in range(len(p.kind) - 1, -1, -1):
        if p.kind[v] == OPERATOR:
            _cut(p, w, v, to[v], start[v])
        else:
            _cut(p, w, v, p.extent[v], p.extent[v])
    return _rate(p, w)


@part
def _rate(p, w):
    """Return what `evaluate` does, of the cuts and needs in `w`."""
    latency, crossed, computing = schedule(p, w)
    score = latency
    if p.deadline < np.inf:
        score = energy(p, w, latency) if latency <= p.deadline else 1e9 * (1 + latency)
    elif p.weight > 0:
        score += p.weight * energy(p, w, latency)
    return score, crossed, computing, latency


@part
def critical(p, w, on_path):
    """Mark the operators whose computation or transfer the result had to wait for.

    Call this after `schedule`.
    """
    on_path[:] = False
    v, side = -1, DEVICE
    for u in range(len(p.kind)):
        if p.kind[u] == OUTPUT and (v < 0 or w.end[DEVICE, u] > w.end[DEVICE, v]):
            v = u
    while v >= 0:
        on_path[v] = True
        if w.cause[side, v] < 0:
            v = w.previous[side, v]
            continue
        v, side = w.cause[side, v], 1 - side
        while w.queue[side, v] >= 0:
            on_path[v] = True
            v = w.queue[side, v]
        on_path[v] = True
