"""Tasks are loaded by name; if a task cannot be loaded, the error says why."""

import math

import pytest
import torch
from rog_tasks import robot_data
from rog_tasks.errors import TaskError
from rog_tasks.robot_data import RobotData, ShardBatches
from rog_tasks.task import Task, load_task, measure, measure_clean, prepare


def test_a_class_with_the_four_methods_is_a_task():
    task = load_task('sample_tasks:Plain', {'size': 3}, seed=1, batch_size=5)
    assert isinstance(task, Task) and task.batch_size == 5
    model = task.model()
    task.pretrain(model)
    batch = next(task.batches(2, 4))
    assert batch.shape == (5, 3)
    assert task.loss(model, batch).ndim == 0
    assert task.evaluate(model) == .5
    assert math.isnan(task.evaluate_clean(model))


def test_one_pass_over_a_shard_is_asked_of_the_class_or_refused():
    task = load_task('sample_tasks:Finite', batch_size=2)
    assert [batch.tolist() for batch in task.shard(1, 3)] == [[1, 4], [7]]
    with pytest.raises(TaskError, match=r'Plain does not implement shard\(rank, world\)'):
        load_task('sample_tasks:Plain').shard(0, 1)
    with pytest.raises(TaskError, match=r'Derived does not implement shard\(rank, world\)'):
        load_task('sample_tasks:Derived').shard(0, 1)


def test_the_task_decides_the_batch_size_where_nobody_else_does():
    assert next(load_task('sample_tasks:Plain').batches(0, 1)).shape == (8, 2)


def test_the_seed_is_passed_to_those_who_take_it():
    task = load_task('sample_tasks:Seeded', {'x': 1}, seed=9)
    assert task.evaluate(None) == (9, {'x': 1})


@pytest.mark.parametrize('spec, options, words', [
    ('cruda', {}, 'package.module:name'),
    ('a.b:', {}, 'package.module:name'),
    ('no_such_module:Task', {}, "no module 'no_such_module'"),
    ('rog_tasks.no_such:Task', {}, "no module 'rog_tasks.no_such'"),
    ('needy_module:Task', {}, "needs the module 'a_package_that_nobody_has'"),
    ('broken_module:Task', {}, 'RuntimeError: half written'),
    ('sample_tasks:Nobody', {}, "has no 'Nobody'"),
    ('rog_tasks.classify:Clasification', {},
     "has no 'Clasification'; did you mean 'Classification'?"),
    ('sample_tasks:function', {}, 'must be a class'),
    ('sample_tasks:NoLoss', {}, 'does not implement loss'),
    ('rog_tasks.task:Task', {}, 'does not implement model, batches, loss, evaluate'),
    ('sample_tasks:Plain', {'sise': 3}, "no option 'sise'; did you mean 'size'"),
    ('sample_tasks:Plain', {'colour': 3}, 'it knows size'),
    ('sample_tasks:Plain', {'seed': 3}, 'seed'),
    ('sample_tasks:Needy', {}, "needs the option 'folder'"),
    ('sample_tasks:Broken', {}, 'OSError: the disk is on fire'),
    ('rog_tasks.cruda:Cruda', {'fog': 2}, 'fog is 2.0'),
    ('rog_tasks.cruda:Cruda', {'fog': 'thick'}, 'fog and brightness'),
    ('rog_tasks.cruda:Cruda', {'brightness': -3}, 'brightness is -3.0'),
    ('rog_tasks.cruda:Cruda', {'split': 'half'}, 'iid, sorted, place, .* or dirichlet'),
    ('rog_tasks.cruda:Cruda', {'data': 'minst'}, 'digits, shapes, mnist'),
    ('rog_tasks.cruda:Cruda', {'data_options': {'roof': 1}}, 'roof'),
    ('rog_tasks.cruda:Cruda', {'data': 'sample_tasks:no_net'}, 'must return ImageData'),
    ('rog_tasks.cruda:Cruda', {'pretrain_epochs': -1}, 'at least 0'),
    ('rog_tasks.cruda:Cruda', {'pretrain_epochs': 1.5}, 'epochs must be a whole number, got 1.5'),
    ('rog_tasks.crimp:Crimp', {'width': 40.5}, 'width must be a whole number, got 40'),
    ('rog_tasks.crimp:Crimp', {'every': float('nan')}, 'every must be a whole number, got nan'),
    ('rog_tasks.classify:Classification', {'fog': 0.3}, "no option 'fog'"),
    ('rog_tasks.classify:Classification', {'test_limit': -1}, 'at least 0'),
    ('rog_tasks.classify:Classification', {'data': 'sample_tasks:no_class_3'},
     '1 of the 5 classes, label 3'),
])
def test_a_task_that_does_not_load_says_why(spec, options, words):
    with pytest.raises(TaskError, match=words):
        load_task(spec, options)


def test_a_batch_has_samples():
    with pytest.raises(TaskError, match='batch_size'):
        load_task('sample_tasks:Plain', batch_size=0)


class Odd(Task):
    """A task whose methods return the values that the test sets."""

    def __init__(self, **returned):
        self.returned = returned

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))

    def batches(self, rank, world):
        return self.returned['batches']

    def loss(self, model, batch):
        return model(batch).sum()

    def evaluate(self, model):
        assert not torch.is_grad_enabled() and not any(m.training for m in model.modules())
        return self.returned['evaluate']

    evaluate_clean = evaluate

    def shard(self, rank, world):
        return self.returned['shard']


@pytest.mark.parametrize('value, metric', [
    (0.25, 0.25), (1, 1.0), (torch.tensor(0.5), 0.5), (torch.tensor([0.5]), 0.5),
    (1.0000001, 1.0000001)])
def test_a_metric_is_a_number_from_0_to_1(value, metric):
    task = Odd(evaluate=value)
    assert measure(task, task.model()) == measure_clean(task, task.model()) == metric


def test_a_metric_may_be_unknown():
    task = Odd(evaluate=math.nan)
    assert math.isnan(measure(task, task.model()))


@pytest.mark.parametrize('value', [92.5, -0.1, math.inf, None, 'good', torch.tensor([.1, .2])])
def test_what_is_no_metric_is_refused(value):
    task = Odd(evaluate=value)
    with pytest.raises(TaskError, match=r'evaluate\(model\) returned .* from 0 to 1'):
        measure(task, task.model())
    with pytest.raises(TaskError, match=r'evaluate_clean\(model\) returned'):
        measure_clean(task, task.model())


def test_layers_that_the_task_holds_in_evaluation_mode_stay_in_it():
    task = Odd(evaluate=0.5)
    model = task.model()
    model[1].eval()
    measure(task, model)
    assert [m.training for m in model.modules()] == [True, True, False]


@pytest.mark.parametrize('batches, words', [
    ([], 'came to an end'), ([1, 2], 'came to an end'), (None, 'returned NoneType'),
    (3, 'returned int')])
def test_batches_go_on_without_end(batches, words):
    task = Odd(batches=batches)
    with pytest.raises(TaskError, match=words):
        data = RobotData(task, 0, 1)
        for _ in range(3):
            data.batch()
    with pytest.raises(TaskError, match=words):
        ShardBatches(task, 1).get(0, 3)


def test_a_shard_has_batches_and_an_end(monkeypatch):
    monkeypatch.setattr(robot_data, 'MOST', 5)
    assert list(RobotData(Odd(batches=[], shard=range(5)), 0, 1).shard()) == [0, 1, 2, 3, 4]
    for shard, words in (((), 'yields nothing'), (iter(int, 1), 'yields more than 5 batches')):
        with pytest.raises(TaskError, match=words):
            list(RobotData(Odd(batches=[], shard=shard), 0, 1).shard())


class Prepared(Odd):
    """A task with ``change`` as its function `pretrain`."""

    def __init__(self, change):
        self.pretrain = change

    def model(self):
        model = super().model()
        model[1].requires_grad_(False)
        return model


def add_one(layer):
    with torch.no_grad():
        layer.weight.add_(1.0)


def test_pretraining_changes_what_robots_get_from_the_server():
    prepare(task := Prepared(lambda model: add_one(model[0])), task.model())
    with pytest.raises(TaskError, match='changed 1.weight, which is frozen'):
        prepare(task := Prepared(lambda model: add_one(model[1])), task.model())
    with pytest.raises(TaskError, match='which parameters are trained'):
        prepare(task := Prepared(lambda model: model.requires_grad_(False)), task.model())
