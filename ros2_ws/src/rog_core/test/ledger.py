"""Sums the gradients, and the pushes that the server applies, independently of the tested code."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rog_core.codecs import RAW
from rog_core.methods import Team, create
from rog_core.methods.coded import Coded
from rog_core.methods.gsgm import Gsgm
from rog_core.protocol.messages import Kind
from rog_core.protocol.steps import Local, Shards
from rog_core.server.aggregation import Aggregation
from rog_core.worker.accumulator import Accumulator

RATE = 0.01  # learning rate of every robot


@lru_cache
def _method(text, capacities, codec, momentum):
    return create(text, Team(dict(capacities), codec, momentum))


def method_named(text, team):
    """Return the method with this name, from a cache; tests only read its properties."""
    return _method(text, tuple(team.capacities.items()), team.codec, team.momentum)


def decode(partition, codec, ids, data):
    """Return the decoded values, (elements of the grown partition,)."""
    decoded = np.zeros(partition.grown.elements, np.float32)
    codec.add(partition.grown, decoded, ids, data)
    return decoded


def padded(values, elements, more=0.0):
    """Return float64 ``values`` that ``more`` continues up to ``elements``."""
    out = np.zeros(elements)
    missing = elements - len(values)
    out[len(values):] = more if np.isscalar(more) else more[len(more) - missing:]
    out[:len(values)] = values
    return out


@lru_cache(maxsize=20_000)
def shard_gradient(elements, shard, iteration):
    """Return the gradient of a shard in a round: fixed random values, float32 (elements,)."""
    return np.random.default_rng((shard, iteration)).standard_normal(elements, np.float32)


def full_gradient(elements, shards, iteration):
    """Return the mean of `shard_gradient` over all shards, float64."""
    return sum(shard_gradient(elements, shard, iteration).astype(np.float64)
               for shard in range(shards)) / shards


class Gradients:
    """Source of gradients: noise or, for coded gradients, a weighted sum of `shard_gradient`."""

    def __init__(self, elements, seed):
        self.elements, self.noise = elements, np.random.default_rng(seed)

    def of(self, robot, order):
        step = order.step
        if not isinstance(step, Shards):
            gradient = self.noise.standard_normal(self.elements).astype(np.float32)
            gradient = np.where(self.noise.random(gradient.size) < 0.2, np.float32(0), gradient)
            # With local steps, a worker pushes a change of the model. This change is already
            # multiplied by the learning rate.
            return gradient * np.float32(RATE * step.steps) if isinstance(step, Local) else gradient
        parts = [np.float32(weight) * shard_gradient(self.elements, shard, order.iteration)
                 for shard, weight in zip(step.ids, step.weights, strict=True)]
        return sum(parts)


class SummingAccumulator(Accumulator):
    """An accumulator that also sums the added and the dropped values, in float64.

    The sums are ``produced`` and ``dropped``, (elements of the grown partition,).
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.elements = self.partition.grown.elements
        self.produced = np.zeros(self.elements)
        self.dropped = np.zeros(self.elements)

    @property
    def unsent(self):
        return padded(self.pending, self.elements)

    def accumulate(self, *arguments, **options):
        self._produce(super().accumulate, *arguments, **options)

    def keep_buffers(self, change):
        self._produce(super().keep_buffers, change)

    def _produce(self, call, *arguments, **options):
        self.produced -= self.unsent
        self.produced -= self.dropped
        call(*arguments, **options)
        self.produced += self.unsent
        self.produced += self.dropped

    def _reconcile_buffers(self):
        self._drop(super()._reconcile_buffers)

    def encode(self, codec, ids):
        before = self.unsent if codec.kept < 1 else 0
        data = super().encode(codec, ids)
        # the error feedback of this codec decays, so a part of `pending` is dropped
        if codec.kept < 1 and not self.partition.are_buffers(ids):
            self.dropped += before - self.unsent - decode(self.partition, codec, ids, data)
        return data

    def reset(self):
        self._drop(super().reset)

    def publish_final(self):
        self._drop(super().publish_final)

    def _drop_held(self):
        self._drop(super()._drop_held)

    def _drop(self, call):
        before = self.unsent
        call()
        self.dropped += before - self.unsent


class SummingAggregation(Aggregation):
    """An aggregation that also sums the values that the server applies, and checks the results.

    The sums have double precision.

    ``rounds``: rounds of coded gradients that this process of the server has decoded, in order.
    ``contributed`` has one list for each round of a method with a white list. The list names the
    robots whose push was applied in this round, in the order of these pushes.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.applied = np.zeros(self.model.partition.grown.elements)
        self.last_ids = None
        # Maps a robot to the iterations of its coded chunks that the server has stored.
        self.pushed_of = {}
        self.rounds: list = []
        self.contributed: list = [[]]
        self.flushing = False

    @property
    def coded(self):
        return isinstance(self.method, Coded)

    def take(self, member, rows, robots):
        coded = isinstance(member.step, Shards)
        before = self.model.master.copy() if self.coded or coded else None
        super().take(member, rows, robots)
        self.last_ids = rows.ids
        if rows.transfer.kind == Kind.PUSH:
            self.applied += decode(self.model.partition, rows.codec, rows.ids, rows.data)
            if self.coded and coded:
                self.pushed_of.setdefault(member.robot, set()).add(rows.transfer.iteration)
        if self.coded or coded:
            assert (self.model.master == before).all(), 'a push counts that is not of this method'

    def take_buffers(self, member, rows, active, own):
        buffers = self.model.partition.buffers
        before = self.model.master.copy()
        super().take_buffers(member, rows, active, own)
        self.last_ids = rows.ids
        self.applied += decode(self.model.partition, rows.codec, rows.ids, rows.data)
        before[buffers] = self.model.master[buffers]
        assert (self.model.master == before).all(), 'buffers change a parameter'

    def change(self, sync, robots, iteration):
        super().change(sync, robots, iteration)
        self.pushed_of.clear()
        self.contributed.append([])

    def load(self, state):
        super().load(state)
        self.pushed_of.clear()

    def _created(self, sync):
        method = super()._created(sync)
        if isinstance(method, Gsgm):
            self._watch(method, 'contribute', self._contributes)
            self._watch(method, 'end_round', lambda _: self.contributed.append([]))
        elif isinstance(method, Coded):
            self._watch(method, 'decode', self.check_decoded)
            self._watch(method, 'discard', lambda *_: None)
        return method

    def _watch(self, method, name, check):
        """Let ``check`` look at each change: it gets the former master rows and the arguments."""
        change = getattr(method, name)

        def watched(*arguments):
            before = self.model.master.astype(np.float64)
            change(*arguments)
            check(before, *arguments)
            for robot in set(self.pushed_of) - set(method.held):
                del self.pushed_of[robot]
        setattr(method, name, watched)

    def _contributes(self, _, robot, __):
        if self.flushing:
            return
        assert robot not in self.contributed[-1], 'it contributes twice'
        self.contributed[-1].append(robot)

    def flush(self, robots):
        self.flushing = True  # pushes that wait for the next round count at the end, too
        super().flush(robots)
        self.flushing = False

    def check_decoded(self, before, coefficients, shards):
        """Check that all decoded pushes belong to one new round.

        With raw rows and no momentum, also check that the master rows decrease by the learning rate
        times the round's full gradient.
        """
        iterations = set().union(*(self.pushed_of[robot] for robot in coefficients))
        assert len(iterations) == 1, iterations
        iteration, = iterations
        assert not self.rounds or iteration > self.rounds[-1], 'a round is decoded twice'
        self.rounds.append(iteration)
        if self.team.momentum == 0 and self.model.codec is RAW:
            fall = before - self.model.master
            mean = RATE * full_gradient(self.model.partition.elements, shards, iteration)
            assert np.abs(fall - mean).max() <= 1e-4 * np.abs(mean).max(), iteration
