"""Gradient codes: which robot computes which shard, and decoding while some robots are missing."""

import itertools

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import ConfigError
from rog_core.methods.coded.coding import (
    MAX_AMPLIFICATION,
    GradientCode,
    GroupCode,
    allocate,
    apportion,
)

MANY = examples(150)


def group(capacities, partitions, stragglers, first=0):
    amounts = allocate(partitions, stragglers, capacities)
    members = range(first, first + len(capacities))
    return GroupCode(members, np.arange(partitions), amounts, stragglers)


def support(code):
    return code.matrix != 0


@st.composite
def groups_of(draw, most=9):
    """Return the code of a group of 1 to ``most`` members that tolerates at most 3 stragglers."""
    capacities = draw(st.lists(st.floats(1, 5), min_size=1, max_size=most))
    stragglers = draw(st.integers(0, min(3, len(capacities) - 1)))
    least = -(-len(capacities) // (stragglers + 1))
    return group(capacities, draw(st.integers(least, least + 30)), stragglers)


def losses(code, most):
    """Return all sets of at most ``most`` members; a test treats the members of one set as lost."""
    return [set(lost) for count in range(most + 1)
            for lost in itertools.combinations(code.members, count)]


# -- allocation


@MANY
@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=40), st.data())
def test_allocation_sums_bounds_and_proportions(capacities, data):
    stragglers = data.draw(st.integers(0, len(capacities) - 1))
    least = -(-len(capacities) // (stragglers + 1))
    partitions = data.draw(st.integers(least, 300))
    amounts = allocate(partitions, stragglers, capacities)
    assert amounts.dtype == np.int64
    assert amounts.sum() == partitions * (stragglers + 1)
    assert 1 <= amounts.min() and amounts.max() <= partitions
    for (a, x), (b, y) in itertools.combinations(zip(amounts, capacities), 2):
        assert (a <= b or x >= y) and (a >= b or x <= y), 'the slower computes more'
    ideal = partitions * (stragglers + 1) * np.array(capacities) / sum(capacities)
    if ideal.min() >= 1 and ideal.max() <= partitions:
        assert np.abs(amounts - ideal).max() < 1 + 1e-6


def test_with_as_many_shards_as_capacity_each_computes_s_plus_1_times_its_own():
    assert allocate(11, 1, [4, 3, 3, 1]).tolist() == [8, 6, 6, 2]
    assert allocate(15, 2, [5, 4, 3, 2, 1]).tolist() == [15, 12, 9, 6, 3]


def test_nobody_holds_a_shard_twice_however_fast():
    assert allocate(10, 1, [100, 1, 1]).tolist() == [10, 5, 5]


@pytest.mark.parametrize(('partitions', 'stragglers', 'members', 'text'), [
    (10, 3, 3, 'group of 3 robots cannot tolerate 3 stragglers; it takes at least 4'),
    (2, 1, 5, '2 shards, each held 2 times, are too few for 5 robots'),
])
def test_impossible_allocations_are_refused(partitions, stragglers, members, text):
    with pytest.raises(ConfigError, match=text):
        allocate(partitions, stragglers, [1] * members)


def test_parts_respect_bounds_of_their_own():
    assert apportion(20, [1, 1, 8], [5, 1, 1], 20).tolist() == [5, 2, 13]
    assert apportion(20, [1, 1, 8], 1, [20, 20, 10]).tolist() == [5, 5, 10]


@MANY
@given(groups_of(20))
def test_every_shard_is_held_by_s_plus_1_members_in_rows_one_after_the_other(code):
    held = support(code)
    assert (held.sum(axis=0) == code.stragglers + 1).all()
    assert held.sum(axis=1).tolist() == code.amounts.tolist()
    start = 0
    for row, amount in zip(held, code.amounts):
        assert row[(start + np.arange(amount)) % len(code.partitions)].all()
        start += amount


# -- decoding


def test_the_papers_0_1_matrix_does_not_decode_but_these_weights_on_it_do():
    code = group([1, 1, 1], 3, 1)
    assert code.amounts.tolist() == [2, 2, 2]
    for lost in range(3):
        rows = np.delete(support(code).astype(float), lost, axis=0)
        residual = rows.T @ np.linalg.lstsq(rows.T, np.ones(3), rcond=None)[0] - 1
        assert np.abs(residual).max() > 0.1
        found = code.decode({0, 1, 2} - {lost})
        assert found @ code.matrix == pytest.approx(np.ones(3))


@pytest.mark.parametrize(('members', 'stragglers'), [(4, 1), (9, 2), (12, 1), (6, 5)])
def test_equal_amounts_that_divide_evenly_have_the_papers_0_1_matrix(members, stragglers):
    code = group([1] * members, members, stragglers)
    assert code.matrix == pytest.approx(support(code).astype(float))


@MANY
@given(groups_of())
def test_any_s_stragglers_are_made_up_for_and_one_more_is_not(code):
    everybody = set(code.members)
    for lost in losses(code, code.stragglers):
        found = code.decode(everybody - lost)
        assert np.abs(found @ code.matrix - 1).max() < 1e-9
        assert all(found[rank] == 0 for rank in lost)
    for lost in itertools.combinations(code.members, code.stragglers + 1):
        assert code.decode(everybody - set(lost)) is None


@MANY
@given(groups_of())
def test_the_more_are_there_the_smaller_the_coefficients(code):
    everybody = set(code.members)
    norms = {frozenset(lost): np.linalg.norm(code.decode(everybody - lost))
             for lost in losses(code, code.stragglers)}
    for lost, norm in norms.items():
        for rank in lost:
            assert norms[lost - {rank}] <= norm * (1 + 1e-9)


@MANY
@given(groups_of())
def test_amplification_is_the_largest_coefficient_of_all_and_weights_are_at_most_1(code):
    everybody = set(code.members)
    largest = max(np.abs(code.decode(everybody - set(lost))).max()
                  for lost in itertools.combinations(code.members, code.stragglers))
    assert code.amplification == pytest.approx(largest)
    assert np.abs(code.matrix).max(axis=1).tolist() == pytest.approx([1] * len(code.members))
    assert code.matrix.max(axis=1).tolist() == pytest.approx([1] * len(code.members))


@pytest.mark.parametrize(('stragglers', 'most'), [(1, 2.6), (2, 7), (3, 18)])
def test_coefficients_of_fleets_of_12_to_40_stay_small(stragglers, most):
    random = np.random.default_rng(stragglers)
    for members in range(12, 41):
        capacities = random.integers(1, 6, members)
        code = group(capacities, capacities.sum(), stragglers)
        assert code.amplification < most


def test_so_many_stragglers_that_rounding_errors_would_grow_too_large_are_refused():
    group([1] * 40, 40, 4)
    with pytest.raises(ConfigError, match='8 stragglers among 41 robots would multiply rounding'):
        group([1] * 41, 41, 8)
    # With 9 robots and 8 stragglers, every robot computes all shards.
    assert group([1] * 9, 9, 8).amplification < MAX_AMPLIFICATION


# -- several groups


def two_groups():
    first = GroupCode((4, 0, 2), [0, 1, 2], allocate(3, 1, [1, 1, 1]), 1)
    second = GroupCode((1, 3), [3, 4], allocate(2, 1, [1, 2]), 1)
    return GradientCode([first, second])


def test_an_assignment_names_the_shards_of_the_fleet():
    code = two_groups()
    assert code.shards == 5
    assert code.stragglers == 1
    held = {rank: code.assignment(rank) for rank in range(5)}
    assert sorted(np.concatenate([ids for ids, _ in held.values()])) == sorted([*range(5)] * 2)
    assert set(held[4][0]) < {0, 1, 2} and set(held[3][0]) == {3, 4}
    assert all(ids.dtype == np.int64 and weights.dtype == np.float64
               for ids, weights in held.values())


def test_the_groups_sums_add_up_to_the_whole():
    code = two_groups()
    for received in ({0, 1, 2, 3, 4}, {0, 2, 1}, {4, 2, 3}, {0, 4, 1, 3, 17}):
        total = np.zeros(5)
        for rank, coefficient in code.decode(received).items():
            ids, weights = code.assignment(rank)
            total[ids] += coefficient * weights
        assert total == pytest.approx(np.ones(5))
        assert set(code.decode(received)) <= received
        assert code.missing(received) == []


def test_groups_that_lack_too_many_say_for_whom_they_wait():
    code = two_groups()
    assert code.decode({0, 1, 3}) is None
    assert code.missing({0, 1, 3}) == [2, 4]
    assert code.missing({1}) == [0, 2, 4]
    assert code.missing(set()) == [0, 1, 2, 3, 4]
    assert code.missing({0, 2}) == [1, 3]
