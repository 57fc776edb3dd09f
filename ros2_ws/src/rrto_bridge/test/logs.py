"""Logs of random programs whose repeated passes are known.

A log begins with calls that belong to no pass. Its passes have several transfers, prefetched
inputs, values needed inside a pass, carried state, and inner loops. Some passes are nearly equal.
"""

import random
from dataclasses import dataclass, field

from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Ref

OPS = ('aten.add.Tensor', 'aten.mul.Scalar', 'aten.relu.default', 'aten.cat.default',
       'aten.add_.Tensor', 'aten.convolution.default')
CHANGES = ('scalar', 'type', 'meta', 'input', 'weight', 'missing', 'more', 'op', 'zero')


def meta(size):
    return Meta((1, size), (size, 1), 'float32')


@dataclass
class Item:
    """One call of a unit. A unit is a list of calls, from which a `Writer` writes a pass.

    An element of `inputs` is ('own', i) for the result of call i of the same pass, ('last', i) for
    the result of call i of the previous pass, or ('weight', k) for weight number k.
    """

    op: str
    inputs: list = field(default_factory=list)
    scalar: object = None
    size: int = 4
    wanted: bool = False


@dataclass
class Log:
    """A log of calls, and facts about it, which tests compare with a result of the search.

    `frees[i]`: handles that are freed after call i. `clean[e]`: number of equal passes in a row
    that end at call e. `length`: number of calls in a pass. `carried`: number of results of the
    previous pass that a pass uses.
    """

    calls: list = field(default_factory=list)
    frees: dict = field(default_factory=dict)
    clean: dict = field(default_factory=dict)
    length: int = 0
    carried: int = 0


def unit(chance, size):
    """Return a random unit (see `Item`) of about `size` calls."""
    items, weights = [], 6
    prefetch = chance.random() < 0.25
    state = chance.random() < 0.2

    def tensor():
        own = [k for k, item in enumerate(items) if not item.wanted]
        if own and chance.random() < 0.75:
            return 'own', own[-1] if chance.random() < 0.7 else chance.choice(own)
        return 'weight', chance.randrange(weights)

    def compute(count):
        for _ in range(count):
            op = chance.choice(OPS)
            inputs = [tensor() for _ in range(chance.choice((1, 2, 2)))]
            scalar = chance.choice((None, 0, 1, 2, 0.5, True, (1, 1), 'mean'))
            items.append(Item(op, inputs, scalar, chance.choice((4, 4, 8))))

    items.append(Item(HTOD, size=16))
    if prefetch:
        items.append(Item(OPS[5], [('last', 0), ('weight', 0)], 'first', 8))
    else:
        items += [Item(HTOD, size=chance.choice((16, 32)))
                  for _ in range(chance.choice((0, 0, 1, 2)))]
        items.append(Item(OPS[5], [('own', 0), ('weight', 0)], 'first', 8))
    if state:
        items.append(Item(OPS[0], [('own', len(items) - 1), ('last', len(items))], 'state', 4))
    for _ in range(chance.choice((0, 0, 0, 1, 2))):
        compute(max(1, size // 4))
        loops = chance.choice((1, 1, 2, 3, 4))
        for _ in range(loops):
            items.append(Item('aten.add_.Tensor', [('weight', 1), ('weight', 2)], 'loop', 4))
            items.append(Item('aten._local_scalar_dense.default', [('weight', 1)], wanted=True))
        if chance.random() < 0.3:
            items.append(Item(HTOD, size=64))
    compute(max(1, size // 2))
    # The last result depends on the first result. Therefore a pass cannot be cut into two
    # independent parts.
    items.append(Item(OPS[0], [('own', 0 if not prefetch else 1),
                               next(('own', k) for k in reversed(range(len(items)))
                                    if not items[k].wanted)], 'last', 4))
    result = len(items) - 1
    items += [Item(DTOH, [('own', result)], wanted=True)
              for _ in range(chance.choice((1, 1, 1, 2, 3)))]
    return items


def changed(chance, items):
    """Return two variants of a pass's calls `items` that differ in one place.

    A pass with the first calls and a pass with the second calls are therefore never equal.
    """
    items = [Item(i.op, list(i.inputs), i.scalar, i.size, i.wanted) for i in items]
    at = chance.choice([k for k, i in enumerate(items) if i.op not in (HTOD, DTOH)
                        and not i.wanted])
    item = items[at]
    change = chance.choice(CHANGES)
    if change in ('scalar', 'type', 'zero'):
        before = {'scalar': 3, 'type': 1, 'zero': 0.0}[change]
        after = {'scalar': 4, 'type': chance.choice((1.0, True)), 'zero': -0.0}[change]
        return _with(items, at, Item(item.op, item.inputs, before, item.size)), \
            _with(items, at, Item(item.op, item.inputs, after, item.size))
    if change == 'meta':
        return items, _with(items, at, Item(item.op, item.inputs, item.scalar, item.size + 1))
    if change in ('input', 'weight'):
        # The two variants differ in one input of one call.
        others = [('weight', 4), ('weight', 5)] if change == 'weight' else [('own', 0),
                                                                            ('weight', 5)]
        pair = [_with(items, at, Item(item.op, [*item.inputs, o], item.scalar, item.size))
                for o in others]
        return pair[0], pair[1]
    if change == 'op':
        return items, _with(items, at, Item('aten.tanh.default', item.inputs, item.scalar,
                                            item.size))
    extra = Item('aten.neg.default', [('weight', 3)], None, 4, False)
    more = items[:-1] + [extra, items[-1]] if items[-2].wanted is False else None
    if change == 'missing' or more is None:
        return items, _with(items, at, Item(item.op, item.inputs, 'other', item.size))
    return items, more


def _with(items, at, item):
    return [*items[:at], item, *items[at + 1:]]


class Writer:
    """Writes the calls of passes into a `Log`."""

    def __init__(self, chance):
        self.chance, self.log = chance, Log()
        self.handles = 0
        self.weights = []
        self.last = {}

    def call(self, op, arguments, size, wanted):
        if op.endswith('add_.Tensor'):
            results, metas = (arguments[0].handle,), (meta(size),)
        elif wanted:
            results, metas = (), ()
        else:
            results, metas = (self.handles,), (meta(size),)
            self.handles += 1
        self.log.calls.append(Call(op, arguments, (), results, metas, wanted))
        return results[0] if results else None

    def noise(self, count):
        """Write uploads of weights, and calls that belong to no pass and never repeat."""
        for _ in range(6):
            self.weights.append(self.call(HTOD, (), 4, False))
        for _ in range(count):
            kind = self.chance.random()
            weight = Ref(self.chance.choice(self.weights))
            if kind < 0.2:
                self.call(HTOD, (), 100 + len(self.log.calls), False)
            elif kind < 0.3:
                self.call(DTOH, (weight,), 0, True)
            else:
                self.call(self.chance.choice(OPS[:3]), (weight, len(self.log.calls)), 4, False)

    def write(self, items, start=None):
        """Write one pass."""
        made = {}
        for k, item in enumerate(items):
            arguments = tuple(Ref(self.handle(i, made, start)) for i in item.inputs)
            if item.op == OPS[3]:
                arguments = (arguments,)
            scalars = () if item.scalar is None else (item.scalar,)
            made[k] = self.call(item.op, arguments + scalars, item.size, item.wanted)
        position = len(self.log.calls) - 1
        dead = [h for k, h in self.last.items() if h is not None and h not in self.weights]
        self.log.frees[position] = dead
        self.last = made

    def handle(self, source, made, start):
        kind, index = source
        if kind == 'weight':
            return self.weights[index]
        if kind == 'own':
            return made[index]
        before = self.last.get(index)
        if before is None:
            before = self.weights[3]
        return before


def generate(seed, passes=4, size=12, steady=True):
    """Return a log that ends with `passes` equal passes.

    If not `steady`, return a log in which nothing occurs three times in a row.
    """
    chance = random.Random(seed)
    writer = Writer(chance)
    log = writer.log
    writer.noise(chance.randrange(20))
    items = unit(chance, chance.randint(2, size))
    items, other = changed(chance, items)
    sources = {i for item in items for i in item.inputs if i[0] == 'last'}
    log.length, log.carried = len(items), len(sources)
    plan = [False] * chance.randrange(2) + [True] * passes
    if not steady:                  # Thue-Morse sequence: no part of it occurs three times in a row
        begin = chance.randrange(100)
        plan = [bin(begin + k).count('1') % 2 == 0 for k in range(3 * passes)]
    count = 0
    for equal in plan:
        writer.write(items if equal else other)
        count = count + 1 if equal else 0
        log.clean[len(log.calls) - 1] = count
    return log
