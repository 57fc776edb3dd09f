"""The five gradient coding schemes: exact gradients despite stragglers, and regrouping."""

import itertools

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.methods.coded.schemes import BY_CAPACITY, SCHEMES, Scheme, number_of_shards
from rog_core.protocol.steps import MAX_SHARDS

FEW = examples(25)

ELEMENTS = 64  # elements of a gradient
EXHAUSTIVE = 20  # up to this many members in a group, every set of stragglers is tried
SAMPLED = 500

GROUP_A = [0.6] * 5 + [1.8] * 3 + [2.4] * 2 + [3.0] * 2

capacities_5_to_1 = (st.lists(st.integers(1, 5), min_size=4, max_size=40)
                     | st.lists(st.floats(1, 5), min_size=4, max_size=40))


def fitting(name, capacities, stragglers):
    """Return a scheme that tolerates ``stragglers`` stragglers, or as many of them as possible."""
    try:
        return Scheme(name, capacities, stragglers)
    except ConfigError:
        assert stragglers > 0
        return fitting(name, capacities, stragglers - 1)


def members(scheme):
    return [list(group.members) for group in scheme.code.groups]


def ranks(scheme):
    return sorted(itertools.chain(*members(scheme)))


def gradients(shards, seed):
    """Return the gradient of each shard, float32, and the sum of these gradients, float64."""
    parts = np.random.default_rng(seed).standard_normal((shards, ELEMENTS)).astype(np.float32)
    return parts, parts.sum(axis=0, dtype=np.float64)


def pushed(code, parts):
    """Return the coded gradient that each robot sends, float32; the index is the robot's rank."""
    out = {}
    for rank in (rank for group in code.groups for rank in group.members):
        shards, weights = code.assignment(rank)
        out[rank] = weights.astype(np.float32) @ parts[shards]
    return out


def recovered(code, sent, received):
    total = np.zeros(ELEMENTS, np.float32)
    for rank, coefficient in code.decode(received).items():
        assert rank in received
        total += np.float32(coefficient) * sent[rank]
    return total


def error(found, truth):
    return np.linalg.norm(found - truth) / np.linalg.norm(truth)


def straggler_sets(group, random):
    """Return all sets of stragglers that the group tolerates.

    For a large group, return `SAMPLED` random sets of the largest tolerated size.
    """
    if len(group.members) <= EXHAUSTIVE:
        return [lost for count in range(group.stragglers + 1)
                for lost in itertools.combinations(group.members, count)]
    return [tuple(random.choice(group.members, group.stragglers, replace=False).tolist())
            for _ in range(SAMPLED)]


# -- the gradient


@pytest.mark.parametrize('name', SCHEMES)
@FEW
@given(capacities_5_to_1, st.integers(1, 3), st.integers(0, 2 ** 32))
def test_every_promised_set_of_stragglers_leaves_the_full_gradient(
        name, capacities, stragglers, seed):
    code = fitting(name, capacities, stragglers).code
    random = np.random.default_rng(seed)
    parts, full = gradients(code.shards, seed)
    sent = pushed(code, parts)
    everybody = set(sent)
    assert everybody == set(range(len(capacities)))
    tried = [straggler_sets(group, random) for group in code.groups]
    for group, sets in zip(code.groups, tried, strict=True):
        truth = parts[group.partitions].sum(axis=0, dtype=np.float64)
        matrix = np.array([group.decode(everybody.difference(lost)) for lost in sets], np.float32)
        found = matrix @ np.array([sent[rank] for rank in group.members])
        assert np.linalg.norm(found - truth, axis=1).max() <= 1e-5 * np.linalg.norm(truth)
    for _ in range(20):  # draw stragglers in all groups at the same time
        lost = set(itertools.chain(*(sets[random.integers(len(sets))] for sets in tried)))
        assert error(recovered(code, sent, everybody - lost), full) <= 1e-5


@pytest.mark.parametrize('name', SCHEMES)
@FEW
@given(capacities_5_to_1, st.integers(1, 3), st.integers(0, 2 ** 32))
def test_one_straggler_more_than_promised_is_refused(name, capacities, stragglers, seed):
    code = fitting(name, capacities, stragglers).code
    random = np.random.default_rng(seed)
    group = code.groups[random.integers(len(code.groups))]
    lost = set(random.choice(group.members, group.stragglers + 1, replace=False).tolist())
    received = set(range(len(capacities))) - lost
    assert code.decode(received) is None
    assert code.missing(received) == sorted(lost)
    assert code.decode(received | {min(lost)}) is not None


@pytest.mark.parametrize('name', SCHEMES)
@FEW
@given(capacities_5_to_1, st.integers(1, 3))
def test_shards_amounts_and_groups(name, capacities, stragglers):
    scheme = fitting(name, capacities, stragglers)
    code = scheme.code
    assert code.shards == number_of_shards(capacities) >= len(capacities)
    assert ranks(scheme) == list(range(len(capacities)))
    held = np.concatenate([code.assignment(rank)[0] for rank in ranks(scheme)])
    assert np.bincount(held).tolist() == [code.stragglers + 1] * code.shards
    assert (len(code.groups) > 1) <= (name not in ('gc', 'hgc'))
    if name not in BY_CAPACITY:
        sizes = [len(group.members) for group in code.groups]
        assert max(sizes) - min(sizes) <= 1
        for group in code.groups:
            assert np.ptp(group.amounts) <= 1


def test_by_capacity_each_computes_in_proportion_to_its_own():
    for name in BY_CAPACITY:
        code = Scheme(name, GROUP_A).code
        for rank, capacity in enumerate(GROUP_A):
            assert len(code.assignment(rank)[0]) == round(2 * capacity / 0.6)


def test_the_number_of_groups_is_that_of_equation_13_or_the_one_asked_for():
    assert [len(members(Scheme(name, GROUP_A))) for name in SCHEMES] == [1, 1, 3, 3, 3]
    assert [len(members(Scheme(n, GROUP_A, groups=2))) for n in SCHEMES] == [1, 1, 2, 2, 2]
    # Equation 13 of the DGH-GC paper has no solution for this fleet.
    assert members(Scheme('gcc', [1, 1, 1, 5])) == [[0, 1], [2, 3]]


def test_the_number_of_shards():
    assert number_of_shards([1, 1, 1]) == 3
    assert number_of_shards([0.6, 3.0, 1.2]) == 8
    assert number_of_shards([1] * 5000) == 5000
    assert Scheme('gc', [1, 1e9, 1e9], 1).code.shards == MAX_SHARDS


# -- bad input


@pytest.mark.parametrize(('arguments', 'text'), [
    (('gx', [1, 1]), "'gx' is unknown; choose one of gc, hgc, gcc, dcgc, dgh-gc"),
    (('gc', [1, 1], 2), 'takes 3 robots that hold the same data; there are 2'),
    (('gc', [1, 1], -1), 'stragglers must be at least 0, got -1'),
    (('gcc', [1, 1], 2), 'takes 3 robots that hold the same data; there are 2'),
    (('gcc', [1] * 6, 1, 4), '6 robots do not make 4 groups of at least 2'),
    (('dcgc', [1] * 6, 1, -1), '6 robots do not make -1 groups of at least 2'),
    (('hgc', [1, 1, 1, 5], 1), r'rank 3\) has 62% of the capacity, more than its share of 1/2'),
    (('dgh-gc', [1, 1, 1, 5], 1), r'rank 3\) has 62% of the capacity, more than its share of 1/2'),
    (('dgh-gc', [1, 1, 1], 1), 'no number of groups fits 1 stragglers'),
    (('dgh-gc', [1] * 12, 1, 7), 'there may be 2 to 6'),
    (('dgh-gc', [1] * 12, 1, 2, 0), 'regroupings must be at least 1, got 0'),
    (('gc', [1] * 40, 10), '10 stragglers among 40 robots would multiply rounding errors'),
    (('gc', []), 'there are no robots'),
    (('gc', [1, -1]), 'capacity of robot 1 is -1.0'),
])
def test_what_cannot_work_is_refused_before_training(arguments, text):
    with pytest.raises(ConfigError, match=text):
        Scheme(*arguments)


# -- regrouping from round to round


def in_time(scheme, *late):
    return set(ranks(scheme)) - set(late)


@pytest.mark.parametrize('name', ['gc', 'hgc', 'gcc'])
def test_static_schemes_never_change(name):
    scheme = Scheme(name, GROUP_A, every=1)
    code = scheme.code
    assert not any(scheme.round_over(in_time(scheme, 0, 1, 2)) for _ in range(5))
    assert scheme.code is code


def test_dcgc_spreads_the_stragglers_of_the_round_before():
    scheme = Scheme('dcgc', GROUP_A)
    late = members(scheme)[0][:3]
    assert scheme.code.decode(in_time(scheme, *late)) is None
    assert scheme.round_over(in_time(scheme, *late))
    assert sorted(len(set(late) & set(group)) for group in members(scheme)) == [1, 1, 1]
    assert scheme.code.decode(in_time(scheme, *late)) is not None
    assert not scheme.round_over(in_time(scheme, *late))
    assert not scheme.round_over(in_time(scheme))
    late = members(scheme)[1][:2]
    assert scheme.round_over(in_time(scheme, *late))
    assert scheme.code.decode(in_time(scheme, *late)) is not None


def test_dgh_gc_looks_every_so_many_rounds_and_keeps_capacities_in_place():
    scheme = Scheme('dgh-gc', GROUP_A, groups=2, every=10)
    before = members(scheme)
    slow = max(([rank for rank in group if rank < 5] for group in before), key=len)[:2]
    for _ in range(9):
        assert not scheme.round_over(in_time(scheme, *slow))
    assert scheme.round_over(in_time(scheme, *slow))
    after = members(scheme)
    assert [len(set(slow) & set(group)) for group in after] == [1, 1]
    assert [[GROUP_A[r] for r in g] for g in after] == [[GROUP_A[r] for r in g] for g in before]
    for _ in range(30):  # the grouping is already the best, so it does not change
        assert not scheme.round_over(in_time(scheme, *slow))


def test_dgh_gc_parts_stragglers_that_would_do_as_expected_together():
    scheme = Scheme('dgh-gc', [1] * 12, groups=2, every=10)
    first, second = members(scheme)[0][:2]
    # E_real (see `Scheme.round_over`) is now 0.92, and 1.1 with the two robots in different groups.
    # The scheme must regroup, although the paper's condition does not hold: E_real is not below
    # E_start, which is 0.88.
    for k in range(9):
        assert not scheme.round_over(in_time(scheme, *[first] * (k < 9), *[second] * (k > 7)))
    assert scheme.round_over(in_time(scheme, second))
    assert [len({first, second} & set(group)) for group in members(scheme)] == [1, 1]


def test_dgh_gc_judges_by_the_rounds_since_it_last_looked():
    scheme = Scheme('dgh-gc', [1] * 12, groups=2, every=2)
    # Robots straggle one after the other; two at once would cause a regrouping.
    for rank in members(scheme)[0]:
        assert not scheme.round_over(in_time(scheme, rank))
        assert not scheme.round_over(in_time(scheme, rank))


def test_robots_of_nearly_the_same_capacity_stand_in_for_each_other():
    scheme = Scheme('dgh-gc', 1 + 0.08 * np.random.default_rng(0).random(12), groups=2, every=1)
    assert {len(scheme.code.assignment(rank)[0]) for rank in range(12)} == {2}
    assert scheme.holds(0).tolist() == list(range(12))
    late = members(scheme)[0][:2]
    assert scheme.round_over(in_time(scheme, *late))
    assert scheme.code.decode(in_time(scheme, *late)) is not None


@pytest.mark.parametrize('name', SCHEMES)
@FEW
@given(capacities_5_to_1, st.integers(0, 2 ** 32))
def test_any_rounds_leave_a_code_of_the_same_shards_that_robots_hold(name, capacities, seed):
    scheme = fitting(name, capacities, 1)
    shards, random = scheme.code.shards, np.random.default_rng(seed)
    holds = {rank: set(scheme.holds(rank)) for rank in ranks(scheme)}
    often = random.random(len(capacities)) ** 3
    for _ in range(12):
        before, present = scheme.code, set(np.flatnonzero(random.random(len(often)) >= often))
        changed = scheme.round_over(present)
        assert changed == (scheme.code is not before)
        assert scheme.code.shards == shards
        assert scheme.code.stragglers == before.stragglers
        for rank, own in holds.items():
            assert own >= set(scheme.code.assignment(rank)[0])
            assert own == set(scheme.holds(rank))


def test_alternative_data_is_that_of_the_robots_one_may_stand_in_for():
    for name in ('gc', 'hgc', 'gcc'):
        scheme = Scheme(name, GROUP_A)
        assert all(scheme.holds(rank).tolist() == sorted(scheme.code.assignment(rank)[0])
                   for rank in ranks(scheme))
    assert Scheme('dcgc', GROUP_A).holds(0).tolist() == list(range(32))
    scheme = Scheme('dgh-gc', GROUP_A)
    both = [set(scheme.code.assignment(rank)[0]) for rank in (10, 11)]
    assert set(scheme.holds(10)) == set(scheme.holds(11)) == both[0] | both[1]


# -- robots die and return


@pytest.mark.parametrize('name', SCHEMES)
@FEW
@given(capacities_5_to_1, st.integers(1, 3), st.data())
def test_whoever_is_left_computes_all_shards(name, capacities, stragglers, data):
    scheme = fitting(name, capacities, stragglers)
    whole = members(scheme)
    asked, shards = scheme.code.stragglers, scheme.code.shards
    left = data.draw(st.sets(st.integers(0, len(capacities) - 1), min_size=1,
                             max_size=len(capacities) - 1))
    assert scheme.restrict(left)
    assert ranks(scheme) == sorted(left)
    assert scheme.code.shards == shards
    assert 0 <= scheme.code.stragglers <= asked
    parts, full = gradients(shards, 1)
    sent = pushed(scheme.code, parts)
    lost = {rank for group in scheme.code.groups
            for rank in group.members[:scheme.code.stragglers]}
    assert error(recovered(scheme.code, sent, left - lost), full) <= 1e-5
    assert not scheme.restrict(left)
    scheme.round_over(left - lost)
    assert not scheme.holds(min(set(range(len(capacities))) - left)).size
    assert scheme.restrict(range(len(capacities)))
    assert members(scheme) == whole
    assert scheme.code.stragglers == asked


@pytest.mark.parametrize('name', SCHEMES)
def test_as_many_stragglers_as_fit_are_tolerated_by_those_left(name):
    scheme = Scheme(name, [1] * 12, 2)
    assert scheme.restrict(range(8)) and scheme.code.stragglers == (1 if name == 'dgh-gc' else 2)
    assert scheme.restrict({3, 7}) and scheme.code.stragglers == (0 if name == 'dgh-gc' else 1)
    assert scheme.restrict({3}) and scheme.code.stragglers == 0
    assert scheme.code.decode({3}) == {3: 1.0}
    assert not scheme.restrict(set()) and ranks(scheme) == [3]


@pytest.mark.parametrize('name', ['gcc', 'dcgc', 'dgh-gc'])
def test_fewer_groups_are_made_of_those_left_before_fewer_stragglers_are_tolerated(name):
    scheme = Scheme(name, [1] * 12, 1, groups=5)
    assert scheme.restrict(range(8))
    assert len(members(scheme)) == 4 and scheme.code.stragglers == 1
    assert scheme.restrict(range(11))
    assert len(members(scheme)) == 5
