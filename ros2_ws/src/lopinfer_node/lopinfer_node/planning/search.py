"""The two searches of LOSS as kernels: beam search and large-neighbourhood search.

Both searches change bounds (`compiled.py`). A tensor is alive at position i if it is made at
or before i and used after i. A *boundary* at position i sets a bound for each operator whose
tensor is alive there, except for global operators. The bound is at the share `fraction` of the
tensor's indices. There are two directions:

- Upward: the server computes only indices from the bound on. The robot sends the lower
  indices that the server needs.
- Downward: the robot computes only indices below the bound. The server sends the higher
  indices that the robot needs.

Without bounds, each side computes all that it needs, so both sides compute the halos. The
searches can also *hold* the operators between two boundaries: a bound at the same fraction
then applies to these operators too. The receiving side then does not compute its halos, but
receives them over the link.
"""

from __future__ import annotations

import numpy as np

from . import compiled
from .compiled import OPERATOR, kernel, part
from .plan import DEVICE, SERVER

STEPS = 8                  # the beam search tries fractions that are multiples of 1 / STEPS
UP, DOWN = DEVICE, SERVER
APART, ON_DEVICE, ON_SERVER = 0, 1, 2
# Kinds of boundaries. A boundary divides its operator at a fraction of the indices. A kind is the
# direction of the boundary, and 1 if the operators since the previous boundary are divided at the
# same fraction, otherwise 0.
_KINDS = ((UP, 0), (UP, 1), (DOWN, 0))


@part
def better(a, b):
    """Return whether evaluation a is better than b by more than rounding.

    An evaluation is (score, bytes, seconds of computing). Lower is better, and a later value counts
    only if the earlier values are equal.
    """
    for i in range(3):
        margin = 1e-12 * abs(b[i]) if np.isfinite(b[i]) else 0.0
        if a[i] < b[i] - margin:
            return True
        if a[i] > b[i] + margin or not np.isfinite(a[i]):
            return False
    return False


@part
def place(p, most, least, begin, end, where):
    """Place operators begin..end - 1 on one side, or let each side compute what it needs."""
    for v in range(begin, end):
        n = p.extent[v]
        if where == APART:
            if not p.whole[v]:
                most[v], least[v] = n, 0
        else:
            most[v] = least[v] = n if where == ON_DEVICE else 0


@part
def place_globals(p, most, least, begin, end, side):
    """Place the global operators among begin..end - 1 on one side; return their number."""
    count = 0
    for v in range(begin, end):
        if p.whole[v]:
            most[v] = least[v] = p.extent[v] if side == DEVICE else 0
            count += 1
    return count


@part
def bound(p, most, least, position, direction, fraction):
    """Put a boundary after operator `position`, at the share `fraction` of each tensor's indices.

    A negative `fraction` removes the boundary.
    """
    for v in range(position + 1):
        if p.last_use[v] > position:
            _bound_one(p, most, least, v, direction, fraction)


@part
def hold(p, most, least, begin, end, direction, fraction):
    """Set a bound at the share `fraction` of the indices of each operator of begin..end - 1.

    A negative `fraction` removes the bounds.
    """
    for v in range(begin, end):
        _bound_one(p, most, least, v, direction, fraction)


@part
def _bound_one(p, most, least, v, direction, fraction):
    if p.kind[v] != OPERATOR or p.whole[v]:
        return
    at = int(np.rint(fraction * p.extent[v]))
    if direction == UP:
        least[v] = at if fraction >= 0 else 0
    else:
        most[v] = at if fraction >= 0 else p.extent[v]


@kernel
def beam_search(p, w, positions, width, most, least):
    """Run phase I, the beam search of Algorithm 5.

    Each beam is a complete plan, given by its bounds. `most`, `least`: int64 (beams, nodes), bounds
    of the plans from which the search starts. The search goes over the operators in topological
    order. At every position each beam gives several plans: the beam itself, and plans with a
    boundary at this position and all later operators on one side. The search keeps the best of
    these plans. A new boundary can shorten the critical path of a beam only if the path contains an
    operator between the beam's last boundary and this position. If the path contains none, the
    search tries no boundary at this position. Return the bounds of the best `width` plans, best
    first.
    """
    beams, nodes = most.shape
    last = np.full(beams, -1)
    before = np.full((beams, 5), -1)
    value = np.zeros((beams, 3))
    on_path = np.zeros((beams, nodes + 1), np.int64)
    for k in range(beams):
        value[k] = _value(p, w, most[k], least[k])
        _path(p, w, value[k], on_path[k])
    for position in positions:
        # Each row of `ways` is one way to extend a beam. A row has five numbers: the beam; the
        # direction of the new boundary (-1: no new boundary); the side of the global operators
        # since the previous boundary; 1 if the other operators since the previous boundary are
        # divided at the same fraction as the new boundary's operator, otherwise 0; the index of
        # this fraction, from 0 to STEPS - 1.
        ways = np.zeros((beams * (1 + 6 * STEPS), 5), np.int64)
        values = np.full((len(ways), 3), np.inf)
        made = 0
        for k in range(beams):
            ways[made, 0], ways[made, 1] = k, -1
            values[made] = value[k]
            made += 1
            if last[k] >= position or on_path[k, position + 1] == on_path[k, last[k] + 1]:
                continue
            made += _expand(p, w, most[k], least[k], last[k], position, k, before[k],
                            ways[made:], values[made:])
        kept = _select(values[:made], ways[:made], width)
        new_most, new_least = most[ways[kept, 0]], least[ways[kept, 0]]
        new_last, new_before = last[ways[kept, 0]], before[ways[kept, 0]]
        on_path = on_path[ways[kept, 0]]
        for k in range(len(kept)):
            parent, direction = ways[kept[k], :2]
            if direction >= 0:
                _extend(p, new_most[k], new_least[k], last[parent], position, ways[kept[k]])
                new_last[k], new_before[k] = position, ways[kept[k]]
                _path(p, w, _value(p, w, new_most[k], new_least[k]), on_path[k])
        most, least, value = new_most, new_least, values[kept]
        last, before = new_last, new_before
        beams = len(kept)
    order = np.argsort(value[:, 0], kind='mergesort')[:width]
    return most[order], least[order]


@part
def _value(p, w, most, least):
    score, crossed, computing, _ = compiled.evaluate(p, w, most, least)
    return np.array([score, float(crossed), computing])


@part
def _path(p, w, value, sums):
    """Store in `sums` how many operators up to each position are on the critical path.

    All operators count if the objective contains energy or if the plan is invalid.
    """
    on_path = np.ones(len(p.kind), np.bool_)
    if p.weight == 0:
        _mark(p, w, value, on_path)
    sums[1:] = np.cumsum(on_path)


@part
def _mark(p, w, value, on_path):
    """Mark the critical path of the last evaluation in `on_path`.

    Leave `on_path` unchanged if the plan is invalid, or if there is a deadline: with a deadline,
    the objective is the energy.
    """
    if p.deadline == np.inf and np.isfinite(value[0]):
        compiled.critical(p, w, on_path)


@part
def _extend(p, most, least, last, position, way):
    """Extend a plan by the boundary that `way` describes, a row of `ways` (see `beam_search`).

    Return how many global operators the extension places on one side.
    """
    _, direction, side, held, step = way
    place(p, most, least, last + 1, position + 1, APART)
    several = place_globals(p, most, least, last + 1, position + 1, side)
    place(p, most, least, position + 1, len(p.kind), ON_SERVER if direction == UP else ON_DEVICE)
    fraction = (step + 1) / STEPS if direction == UP else step / STEPS
    bound(p, most, least, position, direction, fraction)
    if held:
        hold(p, most, least, last + 1, position + 1, direction, fraction)
    return several


@part
def _expand(p, w, most, least, last, position, parent, before, ways, values):
    """Extend a plan in all possible ways by a boundary at `position`; return the number of ways.

    Write each way to a row of `ways`, and its evaluation to `values`; `beam_search` explains the
    rows. `before`: the row that describes the plan's last boundary. If the last boundary and the
    new boundary are both upward, the fraction of the new one must not be the larger one.
    """
    made = 0
    for choice in range(6 * STEPS):
        way = ways[made]
        way[0], way[2], way[4] = parent, choice // (3 * STEPS), choice % STEPS
        way[1], way[3] = _KINDS[choice // STEPS % 3]
        if way[1] == UP and before[1] == UP and way[4] > before[4]:
            continue
        new_most, new_least = most.copy(), least.copy()
        several = _extend(p, new_most, new_least, last, position, way)
        if way[2] == SERVER and several == 0:
            break
        values[made] = _value(p, w, new_most, new_least)
        made += 1
    return made


@part
def _select(values, ways, width):
    """Select rows of `ways`, each of which is one way to extend a beam.

    For each direction and fraction of a new boundary, select the best row. Of the rows without a
    new boundary, select the best `width` rows. Of rows with equal values select only one. Do not
    select an invalid plan. Return the numbers of the selected rows, best first.
    """
    kept = np.zeros(len(values), np.int64)
    used = np.zeros(len(values), np.bool_)
    here = np.zeros((2, STEPS), np.bool_)
    count = others = 0
    while True:
        best = -1
        for i in range(len(values)):
            if not used[i] and (best < 0 or better(values[i], values[best])):
                best = i
        if best < 0 or not np.isfinite(values[best, 0]):
            return kept[:count]
        used[best] = True
        direction, step = ways[best, 1], ways[best, 4]
        if count > 0 and not better(values[kept[count - 1]], values[best]):
            continue
        if direction < 0 and others < width:
            others += 1
        elif direction >= 0 and not here[direction, step]:
            here[direction, step] = True
        else:
            continue
        kept[count] = best
        count += 1


@kernel
def improve(p, w, positions, most, least, rng, evaluations, heat):
    """Run phase II, a large-neighbourhood search; improve `most` and `least` in place.

    Return the value of the best plan: (score, bytes, seconds of computing).

    Every step changes the bounds in a window, mostly around an operator on the critical
    path. A strictly better plan replaces the best plan. Plans are compared by score, then
    by bytes, then by computing; lower is better. The search can also continue from a plan
    that is worse than the present plan. At first such a plan may be worse by a share of
    about `heat`; later this share falls to 0. In a measurement on 100 small graphs, 99 plans
    had a score within 1 % of the optimum. With `heat` = 0, 97 plans had such a score.
    """
    on_path = np.ones(len(p.kind), np.bool_)
    best = now = _value(p, w, most, least)
    _mark(p, w, now, on_path)
    cut = w.cut.copy()
    now_most, now_least = most.copy(), least.copy()
    new_most, new_least = most.copy(), least.copy()
    for i in range(evaluations):
        new_most[:] = now_most
        new_least[:] = now_least
        _move(p, positions, cut, new_most, new_least, on_path, rng)
        while rng.random() < 0.3:
            _move(p, positions, cut, new_most, new_least, on_path, rng)
        value = _value(p, w, new_most, new_least)
        worse = heat * (1 - i / evaluations) ** 2 * -np.log(1 - rng.random())
        if better(value, now) or value[0] < now[0] * (1 + worse):
            now = value
            now_most, new_most = new_most, now_most
            now_least, new_least = new_least, now_least
            cut[:] = w.cut
            _mark(p, w, now, on_path)
            if better(now, best):
                best = now
                most[:] = now_most
                least[:] = now_least
    return best


@part
def _centre(on_path, rng):
    """Choose a random operator, usually one that is on the critical path."""
    v = 0
    for _ in range(8):
        v = rng.integers(0, len(on_path))
        if on_path[v] or rng.random() < 0.1:
            break
    return v


@part
def _window(nodes, positions, centre, rng):
    """Choose a random range of operators near `centre`.

    In half of the cases, both ends of the range are in `positions`.
    """
    if len(positions) > 1 and rng.random() < 0.5:
        before = np.searchsorted(positions, centre)
        size = int((len(positions) + 1) ** rng.random())
        first = max(-1, before - rng.integers(1, size + 1))
        after = min(len(positions) - 1, first + size)
        return (positions[first] + 1 if first >= 0 else 0), positions[after] + 1
    size = int(nodes ** rng.random())
    begin = max(0, centre - rng.integers(0, size + 1))
    return begin, min(nodes, begin + size)


@part
def _move(p, positions, cut, most, least, on_path, rng):
    centre = _centre(on_path, rng)
    begin, end = _window(len(p.kind), positions, centre, rng)
    fraction = rng.integers(0, p.extent[centre] + 1) / p.extent[centre]
    direction = rng.integers(0, 2)
    kind = rng.integers(0, 8)
    if kind <= 2:
        _shift(p, cut, most, least, begin, end, rng)
    elif kind == 3:
        place(p, most, least, begin, end, rng.integers(0, 3))
    elif kind == 4:
        bound(p, most, least, centre, direction, fraction if rng.random() < 0.8 else -1.0)
    elif kind == 5:
        place(p, most, least, begin, end, APART)
        bound(p, most, least, end - 1, direction, fraction)
        if rng.random() < 0.5:
            hold(p, most, least, begin, end, direction, fraction)
        place_globals(p, most, least, begin, end, rng.integers(0, 2))
    elif kind == 6:
        _single(p, most, least, centre, direction, fraction)
    else:
        _relocate(p, cut, most, least, centre, direction, rng)


@part
def _single(p, most, least, v, direction, fraction):
    """Move operator `v` to the other side if it is global; otherwise change one of its bounds."""
    if p.whole[v]:
        most[v] = least[v] = p.extent[v] - most[v]
    else:
        _bound_one(p, most, least, v, direction, fraction)


@part
def _shift(p, cut, most, least, begin, end, rng):
    """Shift the bounds of operators begin..end - 1 by a random share of each operator's indices.

    Each bound moves by at least one index.
    """
    share = 0.25 * rng.random() ** 3
    sign = 1 if rng.random() < 0.5 else -1
    which = rng.integers(0, 3)
    for v in range(begin, end):
        if p.whole[v] or p.kind[v] != OPERATOR:
            continue
        n = p.extent[v]
        delta = sign * max(1, int(np.rint(share * n)))
        if which != DOWN and least[v] > 0 and least[v] >= cut[SERVER, v]:
            least[v] = min(n, max(0, cut[SERVER, v] + delta))
        if which != UP and most[v] < n and most[v] <= cut[DEVICE, v]:
            most[v] = min(n, max(0, cut[DEVICE, v] + delta))


@part
def _relocate(p, cut, most, least, position, direction, rng):
    """Move a boundary near `position` forwards or backwards by some operators."""
    nodes = len(p.kind)
    v = position
    while v >= 0 and (p.whole[v] or p.kind[v] != OPERATOR
                      or (least[v] == 0 if direction == UP else most[v] == p.extent[v])):
        v -= 1
    if v < 0:
        return
    fraction = (cut[SERVER, v] if direction == UP else cut[DEVICE, v]) / p.extent[v]
    far = int(nodes ** (0.8 * rng.random()))
    to = v + far if rng.random() < 0.5 else v - far
    bound(p, most, least, v, direction, -1.0)
    bound(p, most, least, min(nodes - 1, max(0, to)), direction, fraction)
