"""Classification: a model learns without pretraining, and robots may have different classes."""

import itertools

import numpy as np
import pytest
import torch
from rog_tasks.classify import Classification
from rog_tasks.cruda import Cruda
from rog_tasks.errors import DataError, TaskError
from rog_tasks.task import load_task

SMALL = {'train': 600, 'test': 200}


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(task, model, batches):
    optimizer = torch.optim.SGD(model.parameters(), .01, momentum=.9)
    for batch in batches:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()


def test_it_learns_from_nothing():
    task = Classification()
    model = task.model()
    before = task.evaluate(model)
    train(task, model, itertools.islice(task.batches(0, 1), 300))
    assert before < .2 and task.evaluate(model) > .6
    assert np.isnan(task.evaluate_clean(model))


def test_sorted_robots_see_one_class_each_and_alone_learn_only_that():
    task = Classification(split='sorted')
    task.batch_size = 50
    for rank in (0, 9):
        assert next(task.batches(rank, 10))[1].unique().tolist() == [rank]
    model = task.model()
    train(task, model, itertools.islice(task.batches(4, 10), 50))
    assert task.evaluate(model) == pytest.approx(.1, abs=.02)


@pytest.mark.parametrize('task', [
    Classification(data_options=SMALL, split='place:0.3'), Cruda(split='dirichlet:0.5')])
def test_one_pass_is_the_whole_shard_once_and_always_the_same(task):
    task.batch_size = 70
    passes = [list(task.shard(rank, 3)) for rank in range(3)]
    for batches in passes:
        assert all(len(labels) == 70 for _, labels in batches[:-1])
        assert 1 <= len(batches[-1][1]) <= 70
    labels = torch.cat([batch[1] for batches in passes for batch in batches])
    assert torch.equal(labels.bincount(), torch.cat([b[1] for b in task.shard(0, 1)]).bincount())
    for one, two in zip(passes[1], task.shard(1, 3), strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
    with pytest.raises(TaskError, match='rank 3'):
        next(task.shard(3, 3))


def test_a_pass_holds_the_images_that_batches_hold():
    task = Classification(data_options=SMALL)
    task.batch_size = 20
    def images(batches):
        return {image.numpy().tobytes() for batch in batches for image in batch[0]}
    assert images(task.shard(2, 3)) == images(itertools.islice(task.batches(2, 3), 10))


def test_worlds_of_two_sizes_do_not_mix():
    task = Classification(data_options=SMALL)
    expected = [batch[1] for batch in task.shard(1, 4)]
    next(task.batches(5, 7))
    assert torch.equal(torch.cat(expected), torch.cat([batch[1] for batch in task.shard(1, 4)]))


@pytest.mark.parametrize('model, options, size', [
    ('mnistnet', {'classes': 10}, 28), ('lenet5', {'channels': 3, 'classes': 4, 'size': 32}, 32),
    ('convnet', {'classes': 5, 'size': 20}, 20), ('digitnet', {}, 28)])
def test_models_are_chosen_by_short_names_and_fit_the_data(model, options, size):
    task = load_task('rog_tasks.classify:Classification',
                     {'model': model, 'data_options': SMALL | options}, seed=3, batch_size=7)
    batch = next(task.batches(0, 2))
    assert batch[0].shape == (7, options.get('channels', 1), size, size)
    assert task.model()(batch[0]).shape == (7, options.get('classes', 10))


def test_equal_seeds_give_equal_models_and_leave_the_random_state():
    state = torch.get_rng_state()
    one, two = (Classification(5, data_options=SMALL).model() for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_that_takes_no_such_images_is_refused_at_once():
    with pytest.raises(TaskError, match="'mnistnet' does not accept images of 1x8x8"):
        Classification(data='digits').model()


def test_more_robots_than_samples_are_refused():
    with pytest.raises(DataError, match='20 samples cannot be cut into 21 shards'):
        Classification(data_options={'train': 20, 'test': 10}).batches(0, 21)
