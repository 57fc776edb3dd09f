"""What one batch shows about a task, before a fleet starts."""

import math
import os
import random

import numpy as np
import pytest
import torch
from rog_tasks.apart import Ended, NoAnswer, call_apart
from rog_tasks.errors import TaskError, TaskFailed
from rog_tasks.task_check import live_topic, try_out
from torch import nn


class Toy:
    """A task with the layers ``layers``; its batches have ``batch_size`` rows of 6 numbers."""

    sources = ()

    def __init__(self, *layers, batch_size=4, metric=0.5):
        self.layers, self.batch_size, self.metric = layers, batch_size, metric

    def model(self):
        return nn.Sequential(*self.layers)

    def batches(self, rank, world):
        while True:
            yield torch.randn(self.batch_size, 6)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model):
        return self.metric


def found(task, model=None):
    return try_out(task, model or task.model())


def test_an_ordinary_model_is_counted_and_nothing_about_it_is_odd():
    frozen = nn.Linear(6, 6).requires_grad_(False)
    check = found(Toy(frozen, nn.BatchNorm1d(6), nn.Linear(6, 2)))
    assert (check.model, check.parameters, check.frozen, check.buffers) == (
        'Sequential', 42 + 12 + 14, 42, 3)
    assert check.odd == () and check.momentum == 0.1
    assert check.seconds > 0 and math.isfinite(check.loss)
    assert check.memory > 4 * (check.parameters + 26)  # at least the parameters and gradients


def test_a_process_that_was_forked_after_cuda_was_used_can_check_a_task(monkeypatch):
    def refuses(*arguments):
        raise RuntimeError('Cannot re-initialize CUDA in forked subprocess')

    monkeypatch.setattr(torch.cuda, '_is_in_bad_fork', lambda: True)
    for name in ('get_rng_state', 'device_count'):
        monkeypatch.setattr(torch.cuda, name, refuses)
    assert found(Toy(nn.Linear(6, 2))).parameters == 14


def test_random_states_stay_as_they_are():
    class Dice(Toy):
        def loss(self, model, batch):
            return super().loss(model, batch) * random.random() * np.random.rand()  # noqa: NPY002

    task = Dice(nn.Linear(6, 2))
    model = task.model()

    def states():
        return (random.getstate(), str(np.random.get_state()),  # noqa: NPY002
                torch.get_rng_state().tolist())

    before = states()
    found(task, model)
    assert states() == before


def test_a_batchnorm_with_one_sample_is_named_with_what_to_do():
    with pytest.raises(TaskError, match=r'BatchNorm 1 gets one value per channel.*two samples'):
        found(Toy(nn.Linear(6, 6), nn.BatchNorm1d(6), batch_size=1))


def test_layers_in_eval_mode_are_named():
    (odd,) = found(Toy(nn.BatchNorm1d(6).eval(), nn.Linear(6, 2), nn.Dropout().eval())).odd
    assert odd.startswith('in eval mode while it is trained: 0, 2;') and 'model.train()' in odd


def test_parameters_without_a_gradient_are_named():
    class Half(Toy):
        def loss(self, model, batch):
            return model[0](batch).square().mean()

    (odd,) = found(Half(nn.Linear(6, 2), nn.Linear(2, 2))).odd
    assert odd == ('the first batch gives no gradient to 1.weight, 1.bias: does the loss use them?')


class Cache(nn.Module):
    """Has a cache that grows, and a mask."""

    def __init__(self):
        super().__init__()
        self.register_buffer('seen', torch.zeros(0, 6), persistent=False)
        self.register_buffer('mask', torch.ones(6, dtype=torch.bool))

    def forward(self, values):
        self.seen = torch.cat([self.seen, values.detach()])
        return values * self.mask


def test_buffers_that_grow_are_named():
    (grown,) = found(Toy(Cache(), nn.Linear(6, 2))).odd
    assert grown == 'buffers whose shape changes stay on each robot: 0.seen'


def test_a_metric_that_is_nan_is_odd():
    (odd,) = found(Toy(nn.Linear(6, 2), metric=math.nan)).odd
    assert odd.startswith('evaluate(model) returns NaN')


@pytest.mark.parametrize(('loss', 'says'), [
    (lambda model, batch: model(batch).mean() * math.nan, 'the loss of the first batch is nan'),
    (lambda model, batch: model(batch).mean().detach(), 'does not depend on a parameter'),
    (lambda model, batch: model(batch), r'returned a tensor of shape \(4, 2\)'),
    (lambda model, batch: 0.5, 'returned float; it must return a scalar tensor')])
def test_a_loss_that_cannot_be_trained_is_an_error(loss, says):
    task = Toy(nn.Linear(6, 2))
    task.loss = loss
    with pytest.raises(TaskError, match=says):
        found(task)


def test_a_mistake_of_the_task_is_named_with_its_place():
    task = Toy(nn.Linear(5, 2))
    with pytest.raises(TaskFailed, match=r'the task failed: RuntimeError.*test_task_check\.py'):
        found(task)


def test_without_a_live_source_there_is_no_topic():
    assert live_topic(Toy(nn.Linear(6, 2))) == ''


# -- in a process of its own

def test_a_call_apart_changes_nothing_here_and_returns_what_it_finds():
    kept = []
    assert call_apart(lambda: kept.append(1) or os.getpid(), 60) != os.getpid()
    assert kept == []


def raises(error):
    raise error


@pytest.mark.parametrize('error', [TaskError('no'), SystemExit(3)])
def test_an_error_comes_back_with_its_traceback(error):
    with pytest.raises(type(error), match=str(error)) as caught:
        call_apart(lambda: raises(error), 60)
    assert 'in raises' in str(caught.value.__cause__)


def test_a_process_that_ends_or_does_not_answer_is_an_error():
    with pytest.raises(Ended):
        call_apart(lambda: os._exit(9), 60)
    with pytest.raises(NoAnswer):
        call_apart(lambda: os.read(os.pipe()[0], 1), 0.1)


def test_a_sparse_embedding_is_measured():
    class Sparse(Toy):
        def model(self):
            return nn.Sequential(nn.EmbeddingBag(10, 3, sparse=True), nn.Linear(3, 1))

        def batches(self, rank, world):
            while True:
                yield torch.randint(10, (4, 2))

        def loss(self, model, batch):
            return model(batch).square().mean()
    assert found(Sparse()).parameters == 34
