"""A batch depends only on its number, not on who requests it or in which order."""

import itertools
from functools import cache

import pytest
import torch
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks import robot_data
from rog_tasks.classify import Classification
from rog_tasks.cruda import Cruda
from rog_tasks.errors import TaskError
from rog_tasks.robot_data import ShardBatches
from rog_tasks.task import load_task

SHARDS = 4
TASKS = {
    'classification': Classification(data_options={'train': 200, 'test': 20}),
    'cruda': Cruda(),
    'plain': load_task('sample_tasks:Finite', batch_size=2),
}


@cache
def expected(name, shard):
    """Return the first 30 batches of a shard."""
    return list(itertools.islice(TASKS[name].batches(shard, SHARDS), 30))


def equal(one, two):
    if isinstance(one, tuple):
        return all(map(equal, one, two))
    return torch.equal(one, two)


class Open:
    """Wraps a task; counts the iterators of batches that are in use."""

    def __init__(self, task):
        self.task, self.count = task, 0

    def batches(self, shard, shards):
        self.count += 1
        try:
            yield from self.task.batches(shard, shards)
        finally:
            self.count -= 1


@pytest.mark.parametrize('name', TASKS)
@examples(25)
@given(st.lists(st.tuples(st.integers(0, SHARDS - 1), st.integers(1, 30)), max_size=12),
       st.integers(1, 5))
def test_any_order_of_asking_gives_the_batches_of_the_task(name, asked, places):
    was, robot_data.OPEN = robot_data.OPEN, places
    try:
        task = Open(TASKS[name])
        batches = ShardBatches(task, SHARDS)
        for shard, iteration in asked:
            assert equal(batches.get(shard, iteration), expected(name, shard)[iteration - 1])
            assert task.count <= places
    finally:
        robot_data.OPEN = was


class Counting:
    """Replaces a task; counts the batches made and the iterators opened."""

    def __init__(self):
        self.made = self.opened = 0

    def batches(self, shard, shards):
        self.opened += 1
        for number in itertools.count(1):
            self.made += 1
            yield shard, number


def test_going_forward_opens_a_shard_once_and_makes_no_batch_twice():
    task = Counting()
    batches = ShardBatches(task, 3)
    for iteration in (1, 2, 5, 6):
        assert batches.get(2, iteration) == (2, iteration)
    assert (task.opened, task.made) == (1, 6)
    assert batches.get(2, 6) == (2, 6)
    assert task.opened == 2


def test_images_that_are_skipped_are_not_made(monkeypatch):
    task = TASKS['cruda']
    made = []
    shift = type(task._shift).__call__
    monkeypatch.setattr(type(task._shift), '__call__',
                        lambda *args: made.append(1) or shift(*args))
    ShardBatches(task, SHARDS).get(0, 40)
    assert len(made) == 1


def test_what_does_not_exist_is_refused():
    batches = ShardBatches(TASKS['classification'], SHARDS)
    with pytest.raises(ValueError, match='the first is 1'):
        batches.get(0, 0)
    with pytest.raises(TaskError, match='rank 4'):
        batches.get(4, 1)
