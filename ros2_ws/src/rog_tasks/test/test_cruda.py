"""CRUDA, the recognition task: a shift of the images spoils the recogniser.

Training on shifted images repairs it.
"""

import copy
import itertools

import pytest
import torch
from rog_tasks.cruda import LEARNING_RATE, Cruda
from rog_tasks.data import digits
from rog_tasks.errors import TaskError
from rog_tasks.recognition import Recognition
from rog_tasks.task import load_task
from sample_images import CLASSES, class_files, write


@pytest.fixture(scope='module', autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope='module')
def trained():
    task = Cruda(seed=0)
    model = task.model()
    task.pretrain(model)
    return task, model


def test_it_knows_clean_images_and_not_spoilt_ones(trained):
    task, model = trained
    assert task.evaluate_clean(model) >= .97
    assert task.evaluate(model) < .7


def test_three_robots_adapt_it_with_averaged_sgd(trained):
    task, before = trained
    model = copy.deepcopy(before)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=.9, nesterov=True)
    robots = [task.batches(rank, 3) for rank in range(3)]
    for _ in range(100):
        optimizer.zero_grad()
        for robot in robots:
            (task.loss(model, next(robot)) / 3).backward()
        optimizer.step()
    assert task.evaluate(model) >= task.evaluate_clean(before) - .03


def test_equal_seeds_give_equal_models_and_batches():
    one, two, other = Cruda(seed=5), Cruda(seed=5), Cruda(seed=6)
    for a, b in zip(one.model().parameters(), two.model().parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(one.model().parameters()), next(other.model().parameters()))
    for a, b in itertools.islice(zip(one.batches(1, 3), two.batches(1, 3), strict=False), 80):
        assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
    assert not torch.equal(next(one.batches(0, 3))[0], next(one.batches(1, 3))[0])


LABELS = [[9, 7, 9, 1, 9, 6, 3, 9], [9, 9, 1, 0, 4, 4, 2, 9]]
MEANS = [0.667396, 0.674805]


def test_batches_are_those_of_earlier_versions():
    """With equal seeds, a run must have the batches that it had in earlier versions.

    The expected batches come from a version in which batches could not be skipped.
    """
    batches = list(itertools.islice(Cruda(seed=2).batches(1, 3), 30))
    assert [batch[1][:8].tolist() for batch in batches[::29]] == LABELS
    assert [float(batch[0].mean()) for batch in batches[::29]] == pytest.approx(MEANS, abs=1e-5)


def test_pretraining_is_deterministic():
    task = Cruda(seed=1, pretrain_epochs=1)
    one, two = task.model(), task.model()
    task.pretrain(one)
    task.pretrain(two)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_the_global_random_state_is_left_alone():
    before = torch.get_rng_state()
    task = Cruda(seed=2, pretrain_epochs=1)
    model = task.model()
    task.pretrain(model)
    next(task.batches(0, 2))
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_go_round_the_shard_for_ever():
    task = Cruda(seed=0, fog=0, brightness=0)
    task.batch_size = 100
    shards = []
    for rank in range(3):
        batches = list(itertools.islice(task.batches(rank, 3), 5))
        assert all(images.shape == (100, 1, 8, 8) and labels.shape == (100,)
                   for images, labels in batches)
        shards.append({images.numpy().tobytes() for batch in batches for images in batch[0]})
    everything = {image.numpy().tobytes() for image in digits(0).train_images}
    assert set.union(*shards) == everything
    assert sum(map(len, shards)) == len(everything)


def test_evaluating_leaves_the_mode_of_the_model():
    task, model = Cruda(), Cruda().model()
    for training in (True, False):
        model.train(training)
        assert 0 <= task.evaluate(model) <= 1
        assert model.training is training


def test_any_model_on_any_data():
    task = load_task('rog_tasks.cruda:Cruda', {
        'data': 'rog_tasks.data:digits', 'model': 'sample_tasks:tiny_net',
        'model_options': {'classes': 12}, 'test_limit': 50, 'split': 'dirichlet:0.3'})
    model = task.model()
    assert task.loss(model, next(task.batches(0, 4))).ndim == 0
    assert (task.evaluate(model) * 50) == pytest.approx(round(task.evaluate(model) * 50))


def test_what_is_no_model_is_refused():
    with pytest.raises(TaskError, match='must return a torch.nn.Module'):
        Cruda(model='sample_tasks:no_net').model()
    with pytest.raises(TaskError, match="has no 'missing'"):
        Cruda(model='sample_tasks:missing').model()
    with pytest.raises(TaskError, match='model_options'):
        Cruda(model_options={'depth': 3}).model()


def test_a_rank_beyond_the_fleet_is_refused():
    with pytest.raises(TaskError, match='rank 3'):
        Cruda().batches(3, 3)


def test_the_model_has_several_hundred_rows_and_no_buffers():
    model = Cruda().model()
    rows = sum(1 if p.ndim < 2 or p.numel() < 1000 else p.shape[0] for p in model.parameters())
    assert rows == 336 and sum(p.numel() for p in model.parameters()) == 159_626
    assert not list(model.buffers())


@pytest.mark.parametrize('made', [
    lambda folder: Cruda(pretrain_epochs=0),
    lambda folder: Recognition(f'folder:{folder}', CLASSES, size=32)])
def test_a_loss_is_computed_where_the_model_is(made, tmp_path):
    """The task moves a batch to the device of the model before it computes the loss.

    The device here is `meta`, which computes only shapes. Like a GPU, it refuses tensors of the
    CPU.
    """
    task = made(write(tmp_path / 'images', class_files()))
    loss = task.loss(task.model().to('meta'), next(iter(task.batches(0, 1))))
    assert loss.shape == () and loss.device.type == 'meta'
    loss.backward()


def test_a_model_is_measured_where_it_is():
    class Constant(torch.nn.Module):
        """A model on the device `meta` that records its inputs."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1, device='meta'))

        def forward(self, images):
            devices.add(images.device.type)
            return torch.zeros(len(images), 10, device='meta')

    devices = set()
    # `evaluate` fails, because a tensor on `meta` has no values.
    with pytest.raises((RuntimeError, NotImplementedError), match='meta'):
        Cruda(pretrain_epochs=0).evaluate(Constant())
    assert devices == {'meta'}
