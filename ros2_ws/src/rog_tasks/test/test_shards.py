"""Shards divide the samples: each sample belongs to exactly one shard."""

import numpy as np
import pytest
import torch
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks.errors import DataError
from rog_tasks.shards import partition, require_labels

labels_of = st.lists(st.integers(0, 9), min_size=1, max_size=200).map(np.array)


def images_of(labels):
    """Return a random image for each label.

    From image to image, the left side becomes brighter.
    """
    images = torch.rand(len(labels), 1, 9, 9, generator=torch.Generator().manual_seed(0))
    images[:, :, :, :4] += torch.linspace(0, 20, len(labels)).view(-1, 1, 1, 1)
    return images


@examples(60)
@given(labels_of, st.integers(1, 12), st.sampled_from(
    ['iid', 'sorted', 'place', 'place:0.5', 'dirichlet:0.05', 'dirichlet:10']), st.integers(0, 5))
def test_every_sample_has_one_owner_and_every_robot_a_sample(labels, world, split, seed):
    if world > len(labels):
        with pytest.raises(DataError, match='cannot be cut'):
            partition(labels, world, split, seed)
        return
    shards = partition(labels, world, split, seed, images_of(labels))
    assert len(shards) == world
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    assert min(len(shard) for shard in shards) >= 1
    again = partition(labels, world, split, seed, images_of(labels))
    assert all(np.array_equal(a, b) for a, b in zip(shards, again, strict=True))
    if not split.startswith('dirichlet'):
        sizes = [len(shard) for shard in shards]
        assert max(sizes) - min(sizes) <= 1


def spread(shards, labels):
    """Return the share of a robot's most frequent class, averaged over the robots."""
    return np.mean([np.bincount(labels[shard]).max() / len(shard) for shard in shards])


def test_a_small_alpha_gives_each_robot_few_classes():
    labels = np.arange(2000) % 10
    kinds = [spread(partition(labels, 4, split, 1), labels)
             for split in ('iid', 'dirichlet:1', 'dirichlet:0.05')]
    assert kinds == sorted(kinds) and kinds[0] < .2 < .3 < kinds[2]


@given(labels_of, st.integers(1, 12))
def test_sorted_deals_out_label_by_label_in_the_order_of_the_data(labels, world):
    world = min(world, len(labels))
    shards = partition(labels, world, 'sorted')
    for one, two in zip(shards, shards[1:], strict=False):
        assert labels[one].max() <= labels[two].min()
        if labels[one].max() == labels[two].min():
            assert one[labels[one] == labels[one].max()].max() \
                < two[labels[two] == labels[two].min()].min()


def test_ten_robots_see_one_class_each_of_ten_equal_ones():
    labels = np.random.default_rng(0).permutation(np.arange(600) % 10)
    shards = partition(labels, 10, 'sorted')
    assert [np.unique(labels[shard]).tolist() for shard in shards] == [[n] for n in range(10)]


def test_by_place_each_robot_has_its_corner_and_spread_mixes_them():
    labels = np.arange(400) % 10
    images = images_of(labels)  # the first principal component grows with the image's number
    means = [[shard.mean() for shard in partition(labels, 4, split, 0, images)]
             for split in ('place', 'place:0.5', 'place:1000')]
    # The sign of a principal component is arbitrary, so either end may come first.
    assert sorted(means[0]) == pytest.approx([49.5, 149.5, 249.5, 349.5], abs=2)
    assert means[0] in (sorted(means[0]), sorted(means[0], reverse=True))
    spreads = [np.ptp(mean) for mean in means]
    assert spreads[0] > spreads[1] + 10 > spreads[2] + 10 and spreads[2] < 100


def test_images_that_are_all_alike_are_one_place():
    shards = partition(np.zeros(9, int), 3, 'place', 0, torch.ones(9, 1, 8, 8))
    assert [shard.tolist() for shard in shards] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_places_need_images():
    with pytest.raises(DataError, match='needs images'):
        partition(np.zeros(10, int), 2, 'place')


def test_robots_without_samples_and_labels_that_nobody_has_are_refused():
    labels = np.array([0, 2, 2, 4])
    require_labels([np.array([0, 1]), np.array([2, 3])], labels[[0, 1, 1, 0]] // 2, 2)
    with pytest.raises(DataError, match='no samples for robot 1 of 2'):
        require_labels([np.arange(4), np.arange(0)], labels, 5)
    with pytest.raises(DataError, match='2 of the 5 classes, label 1, 3;'):
        require_labels([np.arange(2), np.arange(2, 4)], labels, 5)
    with pytest.raises(DataError, match=r'97 of the 100 classes, label 1, 3, .*\.\.\.;'):
        require_labels([np.arange(4)], labels, 100)


@pytest.mark.parametrize('split', ['', 'half', 'sorted:1', 'place:', 'place:x', 'place:-1',
                                   'place:nan', 'places', 'dirichlet', 'dirichlet:x', 'dirichlet:0',
                                   'dirichlet:-1', 'dirichlet:nan', 'dirichlet:inf', 'iid:3'])
def test_an_unknown_split_is_refused(split):
    with pytest.raises(DataError, match='split'):
        partition(np.zeros(10, int), 2, split, images=torch.zeros(10, 1, 8, 8))


def test_no_robots_is_refused():
    with pytest.raises(DataError, match='0 shards'):
        partition(np.zeros(10, int), 0)
