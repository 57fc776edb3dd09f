"""What the tests know by themselves of gradients and of what the server has made of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from rog_core.codecs import RAW
from rog_core.messages import Kind
from rog_core.rules import Rules
from rog_core.update import Contribute, Decode, EndRound

RATE = 0.01  # learning rate of every robot


def decode(partition, codec, ids, data):
    decoded = np.zeros(partition.elements, np.float32)
    codec.add(partition, decoded, ids, data)
    return decoded


@lru_cache(maxsize=20_000)
def shard_gradient(elements, shard, iteration):
    """G: fixed random gradient of a shard in a round, float32 (elements,)."""
    return np.random.default_rng((shard, iteration)).standard_normal(elements, np.float32)


def full_gradient(elements, shards, iteration):
    """Mean of G over all shards, float64."""
    return sum(shard_gradient(elements, shard, iteration).astype(np.float64)
               for shard in range(shards)) / shards


class Gradients:
    """Noise; where it is asked for, a weighted sum of `shard_gradient`."""

    def __init__(self, elements, seed):
        self.elements, self.noise = elements, np.random.default_rng(seed)

    def of(self, robot, order):
        if order.work is None:
            gradient = self.noise.standard_normal(self.elements).astype(np.float32)
            gradient[self.noise.random(gradient.size) < 0.2] = 0
            return gradient
        parts = [np.float32(weight) * shard_gradient(self.elements, shard, order.iteration)
                 for shard, weight in zip(order.work.ids, order.work.weights, strict=True)]
        return sum(parts)


class SummingRules(Rules):
    """Adds up in double precision what the server has taken, and checks what it does with it.

    ``rounds``: of coded gradients, those decoded by this life of the server, in order;
    ``contributed``: of a white list, the robots of every round, in order.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.applied = np.zeros(self.partition.elements)
        self.last_ids = None
        self.pushed_of = {}  # robot -> iterations of the coded chunks that are held of it
        self.rounds: list = []
        self.contributed: list = [[]]

    def take(self, member, transfer, ids, codec, data, workers):
        before = self.master.copy()
        super().take(member, transfer, ids, codec, data, workers)
        self.last_ids = ids
        if transfer.kind == Kind.PUSH:
            self.applied += decode(self.partition, codec, ids, data)
            if self.update.coded and member.work is not None:
                self.pushed_of.setdefault(member.robot, set()).add(transfer.iteration)
        if self.update.coded or (member.work is not None):
            assert (self.master == before).all(), 'a push counts that is not of this method'

    def change(self, sync, robots, iteration):
        super().change(sync, robots, iteration)
        self.pushed_of.clear()
        self.contributed.append([])

    def load(self, state):
        super().load(state)
        self.pushed_of.clear()

    def carry_out(self, steps, workers):
        for step in steps:
            before = self.master.astype(np.float64)
            super().carry_out([step], workers)
            if isinstance(step, Decode):
                self.check_decoded(step, before)
            elif isinstance(step, Contribute):
                assert step.robot not in self.contributed[-1], 'it contributes twice'
                self.contributed[-1].append(step.robot)
            elif isinstance(step, EndRound):
                self.contributed.append([])
            for robot in set(self.pushed_of) - set(self.update.held):
                del self.pushed_of[robot]

    def check_decoded(self, step, before):
        """All parts are of one round, a later one than before; master falls by its gradient."""
        iterations = set().union(*(self.pushed_of[robot] for robot in step.coefficients))
        assert len(iterations) == 1, iterations
        iteration, = iterations
        assert not self.rounds or iteration > self.rounds[-1], 'a round is decoded twice'
        self.rounds.append(iteration)
        if self.momentum == 0 and self.codec is RAW:
            fall = before - self.master
            mean = RATE * full_gradient(self.partition.elements, step.shards, iteration)
            assert np.abs(fall - mean).max() <= 1e-4 * np.abs(mean).max(), iteration
