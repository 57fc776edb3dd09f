"""The server's model becomes versions of the run: evaluated beside the training, and at its end."""

import math
import os
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fleet_env.records.events import Evaluation, Fault, read_run
from fleet_env.versions import Versions
from fleet_env.weights import load_weights
from kept_log import Log
from rog_core.model.flat import contents_of, flatten, partition_of_model
from rog_ps.model_versions import REST, ModelVersions
from rog_ps.run_log import RunLog
from rog_ros.parameters import ServerSettings


class Task:
    """A task whose evaluation waits until the test lets it go on, and returns what the test says.

    ``seen``: the models that were evaluated, as flat arrays.
    """

    def __init__(self):
        self.seen, self.results = [], []
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def model(self):
        torch.manual_seed(1)
        return torch.nn.Linear(3, 2)

    def evaluate(self, model):
        self.seen.append(flatten(model))
        self.begun.release()
        assert self.go_on.acquire(timeout=30)
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


class Server:
    """What the node does: a machine with a model, the files of a run, and the versions."""

    def __init__(self, out, resumed=False):
        self.task, self.log, self.woken = Task(), Log(), threading.Semaphore(0)
        self.offers = []
        chosen = ServerSettings(
            out=str(out), resume=resumed, fleet='small', training={'task': 'a:B'},
            server={'checkpoint_every': 10.0})
        self.run = RunLog(chosen, self.log)
        model = self.task.model()
        self.machine = SimpleNamespace(
            master=flatten(model), iteration=0, stopping=False,
            partition=partition_of_model(model, 'row', 'onebit'),
            method=SimpleNamespace(spec=SimpleNamespace(text='rsp:4')))
        self.run.begin(self.machine, ['robot1'], None if resumed else (math.nan, .25))
        self.versions = ModelVersions(chosen, self.run, self.machine, self.task,
                                      contents_of(model),
                                      self.woken.release, lambda: self.offers.append(1))
        self.store = Versions(out / 'models')

    def train(self, iteration):
        self.machine.master, self.machine.iteration = self.machine.master + 1, iteration

    def evaluated(self, result, now):
        """Let the present evaluation end with ``result``, and take up what it has found."""
        assert self.task.begun.acquire(timeout=30)
        self.task.results.append(result)
        self.task.go_on.release()
        assert self.woken.acquire(timeout=30)
        self.versions.look(now)

    def model(self, number):
        model = self.task.model()
        load_weights(model, self.store.path(number))
        return flatten(model)

    def events(self, kind):
        return [event for event in read_run(self.run.out) if isinstance(event, kind)]


@pytest.fixture
def server(tmp_path):
    made = Server(tmp_path / 'run')
    made.versions.begin(100.0, .25)
    return made


def test_the_first_version_is_the_prepared_model(server):
    version = server.store.read(1)
    assert (version.number, version.iteration, version.accuracy) == (1, 0, .25)
    assert (version.run, version.fleet, version.method) == ('run', 'small', 'rsp:4')
    assert np.array_equal(server.model(1), server.machine.master)


def test_a_model_is_evaluated_beside_the_training_when_it_is_time(server):
    server.train(3)
    server.versions.look(109.9)
    assert not server.versions.busy
    server.versions.look(110.0)
    before = server.machine.master
    server.train(4)      # the training goes on while the model is evaluated
    server.versions.look(150.0)
    server.evaluated(.75, 150.0)
    assert np.array_equal(server.task.seen[0], before) and len(server.task.seen) == 1
    version = server.store.read(2)
    assert (version.iteration, version.accuracy, version.parent) == (3, .75, 1)
    assert np.array_equal(server.model(2), before)
    assert [(e.robot, e.iteration, e.metric) for e in server.events(Evaluation)
            if e.phase == 'online'] == [('', 3, .75)]


def test_evaluations_take_a_small_part_of_the_time(server, monkeypatch):
    times = iter([0.0, 4.0, 4.0, 5.0])   # evaluations of 4 s and of 1 s
    monkeypatch.setattr('rog_ps.model_versions.time.monotonic', lambda: next(times))
    server.train(1)
    server.versions.look(110.0)
    server.evaluated(.5, 114.0)
    server.train(2)
    server.versions.look(114.0 + 4 * REST - 1)
    assert not server.versions.busy
    server.versions.look(114.0 + 4 * REST)
    assert server.versions.busy
    server.evaluated(.6, 195.0)


def test_a_model_that_has_not_changed_is_not_evaluated_again(server):
    server.versions.look(200.0)
    assert not server.versions.busy and server.store.numbers() == [1]


def test_the_final_model_is_evaluated_once_after_the_one_before_it(server):
    server.train(5)
    server.versions.look(110.0)
    server.train(6)
    server.machine.stopping = True
    server.versions.finish()
    assert server.versions.busy
    server.evaluated(.5, 111.0)
    assert server.versions.busy, 'the final model waited, and is evaluated now'
    server.evaluated(.9, 112.0)
    assert not server.versions.busy
    server.versions.conclude()
    assert server.store.numbers() == [1, 2, 3] and server.store.read(3).accuracy == .9
    assert np.array_equal(server.model(3), server.machine.master)
    server.run.close('finished', 'rsp:4')


def test_a_final_model_that_is_not_evaluated_in_time_is_written_without_an_accuracy(server):
    server.train(7)
    server.versions.finish()
    assert server.task.begun.acquire(timeout=30)
    server.versions.conclude()
    version = server.store.read(2)
    assert (version.iteration, version.measured) == (7, False)
    assert np.array_equal(server.model(2), server.machine.master)
    assert any('not evaluated in time' in text for text in server.log.said)
    server.task.results.append(.9)
    server.task.go_on.release()      # what comes too late changes nothing
    for thread in threading.enumerate():
        if thread.name == 'evaluate':
            thread.join(30)
    assert server.store.numbers() == [1, 2] and not server.store.read(2).measured


def test_a_task_without_an_accuracy_has_versions_all_the_same(server):
    server.train(2)
    server.versions.finish()
    server.evaluated(math.nan, 101.0)
    assert server.store.latest() == 2 and not server.store.read(2).measured
    assert not [e for e in server.events(Evaluation) if e.phase == 'online']


@pytest.mark.parametrize('error, words', [
    (ValueError('no images'), 'the task failed: ValueError: no images'),
    (SystemExit(3), 'the task failed: SystemExit: 3')])
def test_an_evaluation_that_fails_is_named_and_the_training_goes_on(server, error, words):
    for iteration, now in ((2, 110.0), (3, 220.0)):
        server.train(iteration)
        server.versions.look(now)
        server.evaluated(error, now)
    assert [version.measured for version in server.store.listed()] == [True, False, False]
    fault, = server.run.faults
    assert fault.startswith(f'no accuracy: at iteration 3: {words}')
    assert server.log.said[-1] == fault
    assert [event.what for event in server.events(Fault)] == ['no_accuracy']
    server.train(4)
    server.versions.look(330.0)
    server.evaluated(.5, 330.0)
    assert server.run.faults == []


def test_a_diverged_model_is_no_version(server):
    server.machine.master, server.machine.iteration = server.machine.master * np.nan, 4
    server.versions.finish()
    server.evaluated(.1, 101.0)
    assert server.store.numbers() == [1]
    fault, = server.run.faults
    assert fault.startswith('no model version: ') and 'diverged' in fault


def test_what_cannot_be_written_is_said_until_it_can(server):
    models = server.store.folder
    moved = models.with_name('elsewhere')
    os.rename(models, moved)
    models.write_text('a file in the way')
    server.train(2)
    server.versions.look(110.0)
    server.evaluated(.5, 110.0)
    assert server.run.faults[0].startswith('no model version: ')
    assert [event.what for event in server.events(Fault)] == ['no_model_version']
    models.unlink()
    os.rename(moved, models)
    server.train(3)
    server.versions.look(220.0)
    server.evaluated(.6, 220.0)
    assert server.run.faults == [] and server.log.said[-1] == 'mended: no model version'
    assert [version.iteration for version in server.store.listed()] == [0, 3]


def test_a_resumed_run_goes_on_with_its_numbers(server, tmp_path):
    server.run.close('interrupted', 'rsp:4')
    again = Server(tmp_path / 'run', resumed=True)
    again.versions.begin(0.0, None)
    assert again.store.numbers() == [1]
    again.machine.iteration = 9
    again.versions.look(10.0)
    again.evaluated(.5, 10.0)
    assert (again.store.read(2).parent, again.store.read(2).iteration) == (1, 9)


def test_without_a_folder_nothing_is_evaluated_or_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = Task()
    settings = ServerSettings(training={'task': 'a:B'})
    machine = SimpleNamespace(master=np.ones(8, np.float32), iteration=3, stopping=False,
                              method=SimpleNamespace(spec=SimpleNamespace(text='bsp')))
    versions = ModelVersions(settings, RunLog(settings, Log()), machine, task,
                             contents_of(task.model()), lambda: None, lambda: None)
    versions.begin(0.0, .5)
    versions.look(100.0)
    versions.finish()
    versions.conclude()
    assert not versions.busy and not task.seen and not list(tmp_path.iterdir())
