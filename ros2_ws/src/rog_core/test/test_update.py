"""How pushes change the master rows, for each way in which a method applies them."""

import numpy as np
import pytest
from rog_core.codecs import RAW, get_codec
from rog_core.errors import ConfigError
from rog_core.methods import Team, create
from rog_core.methods.base import Model
from rog_core.model.partition import partition_of

SHAPES = [('w', (30, 40)), ('b', (8,))]
ROBOTS = ('a', 'b', 'c')


class Rule:
    """A method and its model; `push` creates pushes and passes them to the method."""

    def __init__(self, sync, codec=RAW, momentum=0.0):
        self.partition = partition_of(SHAPES, 'row', codec.name)
        self.method = create(sync, Team(dict.fromkeys(ROBOTS, 1.0), codec.name, momentum))
        self.noise = np.random.default_rng(3)
        self.master = self.noise.standard_normal(self.partition.elements).astype(np.float32)
        self.method.begin(Model(self.partition, self.master, codec), 0)

    def push(self, robot, rows=None):
        """Push all rows, or the segments ``rows``, with codec raw.

        Returns the values, float32 (elements,).
        """
        gradient = self.noise.standard_normal(self.partition.elements).astype(np.float32)
        ids = np.arange(self.partition.segments) if rows is None else np.array(rows)
        taken = np.zeros_like(gradient)
        data = RAW.take(self.partition, gradient, ids, None)
        RAW.add(self.partition, taken, ids, data)
        self.method.take(robot, ids, RAW, data, 3)
        return taken

    def fall(self, *changes):
        """Make the ``changes``, (name, arguments), of the method; return the fall of the rows."""
        before = self.master.copy()
        for name, *arguments in changes:
            getattr(self.method, name)(*arguments)
        return before - self.master


END = ('end_round',)


def contribute(robot):
    return 'contribute', robot, 3


def decode(coefficients, shards):
    return 'decode', coefficients, shards


def close(one, other):
    return np.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_an_averaged_push_counts_at_once():
    rule = Rule('rsp:4')
    before = rule.master.copy()
    pushed = rule.push('a')
    assert close(before - rule.master, pushed / 3)
    assert not rule.fall(('settle', {}, frozenset(), 3), ('flush', 3)).any()


@pytest.mark.parametrize('sync', ['gsgm', 'gc'])
def test_a_held_push_counts_when_it_is_told_to(sync):
    rule = Rule(sync)
    before = rule.master.copy()
    pushed = rule.push('a')
    assert (rule.master == before).all()
    due = contribute('a') if sync == 'gsgm' else decode({'a': 1.0}, 3)
    assert close(rule.fall(due), pushed / 3)
    assert rule.method.held == {}


def test_a_push_of_some_rows_contributes_momentum_to_the_others():
    rule = Rule('gsgm', momentum=0.5)
    for robot in ROBOTS:
        rule.push(robot)
    rule.fall(*map(contribute, ROBOTS), END)
    velocity = rule.method.velocity.copy()
    some = rule.push('a', [0, 7])
    assert close(rule.fall(contribute('a')), (some + 0.5 * velocity) / 3)


def test_who_has_pushed_nothing_contributes_nothing():
    rule = Rule('gsgm', momentum=0.5)
    rule.push('a')
    rule.fall(contribute('a'), END)
    assert not rule.fall(contribute('b')).any()


def test_what_gsgm_holds_counts_at_the_end():
    rule = Rule('gsgm')
    pushed = [rule.push(robot) for robot in ROBOTS]
    before = rule.master.copy()
    rule.method.flush(3)
    assert close(before - rule.master, sum(pushed) / 3)
    assert rule.method.held == {}


def test_coded_pushes_count_only_together_and_with_their_coefficients():
    rule = Rule('gc')
    one, _, three = (rule.push(robot) for robot in ROBOTS)
    rule.fall(('discard', 'b'))
    assert close(rule.fall(decode({'a': 2.0, 'c': -0.5}, 7)), (2 * one - 0.5 * three) / 7)
    rule.push('a')
    before = rule.master.copy()
    rule.method.flush(3)
    assert (rule.master == before).all()


def test_momentum_of_decoded_gradients_is_the_server_s():
    rule, velocity = Rule('gc', momentum=0.5), 0.0
    for _ in range(4):
        velocity = 0.5 * velocity + rule.push('a') / 5
        assert close(rule.fall(decode({'a': 1.0}, 5)), velocity)


@pytest.mark.parametrize('text', ['ternary:0.1', 'onebit'])
def test_without_feedback_a_lossy_codec_codes_every_step_once(text):
    codec = get_codec(text)
    rule = Rule('gc-feedback', codec, momentum=0.5)
    exact = Rule('gc', codec, momentum=0.5)
    for _ in range(3):
        assert (rule.push('a') == exact.push('a')).all()
        coded, step = rule.fall(decode({'a': 1.0}, 5)), exact.fall(decode({'a': 1.0}, 5))
        # The error of the codec does not change the momentum.
        assert (rule.method.velocity == exact.method.velocity).all()
        assert not close(coded, step)
        sent = np.abs(coded) > 1e-6
        if text == 'ternary:0.1':
            assert 0.05 < sent.mean() < 0.2
        assert (np.sign(coded[sent]) == np.sign(exact.method.velocity[sent])).all()


@pytest.mark.parametrize('sync', ['gsgm', 'gc'])
def test_the_state_brings_back_what_is_held(sync):
    rule, other = (Rule(sync, momentum=0.5) for _ in range(2))
    rule.push('a')
    rule.push('b')
    if sync == 'gsgm':
        rule.push('c')
        rule.fall(contribute('a'), END, contribute('c'))
        rest = [contribute('b'), END]
    else:
        rule.fall(decode({'a': 1.0}, 3))
        rest = [decode({'b': 1.0}, 3)]
    other.method.load_arrays({name: value.copy() for name, value in rule.method.arrays().items()})
    other.master[:] = rule.master
    assert rule.fall(*rest).any()
    other.fall(*rest)
    assert (rule.master == other.master).all()
    assert rule.method.velocity.any() and (rule.method.velocity == other.method.velocity).all()


@pytest.mark.parametrize(('sync', 'holds'), [
    ('rsp:4', ()), ('asp+svrg', ()), ('rsp:4+local=8', ()),
    ('rsp:4+local=8+momentum=0.5', ('velocity', 'total', 'count')),
    ('gsgm:3', ('velocity', 'held/a', 'partly_averaged')), ('hgc', ('velocity', 'held/a'))])
def test_what_a_restarted_server_needs_is_what_the_method_holds(sync, holds):
    rule = Rule(sync)
    rule.push('a')
    assert sorted(rule.method.arrays()) == sorted(holds)
    assert all(value.shape == rule.master.shape for value in rule.method.arrays().values())


@pytest.mark.parametrize('momentum', [-0.1, 1.0, float('nan')])
def test_a_momentum_that_never_settles_is_refused(momentum):
    with pytest.raises(ConfigError, match='at least 0 and below 1'):
        Rule('gsgm', momentum=momentum)
