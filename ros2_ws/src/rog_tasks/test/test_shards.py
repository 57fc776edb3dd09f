"""Shards share out every sample exactly once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks.errors import DataError
from rog_tasks.shards import partition

labels_of = st.lists(st.integers(0, 9), min_size=1, max_size=200).map(np.array)


@given(labels_of, st.integers(1, 12), st.sampled_from(['iid', 'dirichlet:0.05', 'dirichlet:10']),
       st.integers(0, 5))
def test_every_sample_has_one_owner_and_every_robot_a_sample(labels, world, split, seed):
    if world > len(labels):
        with pytest.raises(DataError, match='cannot be cut'):
            partition(labels, world, split, seed)
        return
    shards = partition(labels, world, split, seed)
    assert len(shards) == world
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    assert min(len(shard) for shard in shards) >= 1
    again = partition(labels, world, split, seed)
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    if split == 'iid':
        sizes = [len(shard) for shard in shards]
        assert max(sizes) - min(sizes) <= 1


def spread(shards, labels):
    """Mean over robots of the share that its most frequent class has."""
    return np.mean([np.bincount(labels[shard]).max() / len(shard) for shard in shards])


def test_a_small_alpha_gives_each_robot_few_classes():
    labels = np.arange(2000) % 10
    kinds = [spread(partition(labels, 4, split, 1), labels)
             for split in ('iid', 'dirichlet:1', 'dirichlet:0.05')]
    assert kinds == sorted(kinds) and kinds[0] < .2 < .3 < kinds[2]


@pytest.mark.parametrize('split', ['', 'half', 'dirichlet', 'dirichlet:x', 'dirichlet:0',
                                   'dirichlet:-1', 'dirichlet:nan', 'dirichlet:inf', 'iid:3'])
def test_an_unknown_split_is_refused(split):
    with pytest.raises(DataError, match='split'):
        partition(np.zeros(10, int), 2, split)


def test_no_robots_is_refused():
    with pytest.raises(DataError, match='0 shards'):
        partition(np.zeros(10, int), 0)
