"""Test what a robot does between two iterations.

The class `Robot` replaces the worker node and the server: it grants iterations one by one.
"""

import itertools
import math
import re
import threading

import pytest
import torch
from fleet_env.settings.base import from_flat
from rog_core.protocol.messages import Compute
from rog_ros.parameters import WorkerSettings
from rog_tasks.errors import SourceClosed
from rog_worker.training import RobotNode, Training


class Line:
    """A task that learns a linear map; each evaluation appends the task's seed to `evaluated`."""

    evaluated = []

    def __init__(self, seed=0):
        self.seed = seed

    def model(self):
        return torch.nn.Linear(2, 1)

    def batches(self, rank, world):
        assert (rank, world) == (1, 3)
        while True:
            yield torch.ones(self.batch_size, 2)

    def loss(self, model, batch):
        assert batch.shape == (5, 2) and model.training
        return model(batch).square().mean()

    def evaluate(self, model):
        assert not model.training and not torch.is_grad_enabled()
        self.evaluated.append(self.seed)
        return 0.5


class Seeing(Line):
    """A task that learns from a camera.

    The camera gives ``given`` batches before the run ends.
    """

    given = 0

    def __init__(self, seed=0):
        super().__init__(seed)
        self.sources = [self]

    def wait(self):
        if not self.given:
            raise SourceClosed('the run ended before /camera gave an image')

    def batches(self, rank, world):
        yield from itertools.islice(super().batches(rank, world), self.given)
        raise SourceClosed('the run ended')


class Wrong(Line):
    """A task whose fourth batch holds NaN."""

    def batches(self, rank, world):
        for count, batch in enumerate(super().batches(rank, world), start=1):
            yield batch * float('nan') if count == 4 else batch


class Exiting(Line):
    """A task that raises SystemExit, as a script that calls sys.exit does."""

    def loss(self, model, batch):
        raise SystemExit(3)


class Robot:
    """Replaces the worker node and the server; ends the run after ``iterations`` iterations."""

    def get_namespace(self):
        return '/a_robot_that_nobody_follows'

    def __init__(self, iterations, evaluate_every=0, task='Line'):
        self.settings = from_flat(WorkerSettings, {
            'task': f'{__name__}:{task}', 'seed': 4, 'batch_size': 5, 'learning_rate': 0.1,
            'codec': 'raw', 'rank': 1, 'world': 3, 'capacity': 2.0,
            'stragglers.drop_probability': 1.0, 'evaluate_every': evaluate_every})
        self.robot, self.incarnation, self.machine = 'robot2', 1, None
        self.error, self.loss, self.evaluation = '', math.nan, (0, math.nan)
        self.iterations, self.now = iterations, 0
        self.pauses, self.stop = [], threading.Event()
        self.pause = self.pauses.append

    def train(self, stop=None):
        Training(self.settings).run(self, stop or threading.Event())

    def join(self, machine):
        self.machine = machine
        return self.exchange(None, None)

    def exchange(self, gradient, sgd):
        if self.now:
            self.machine.iteration = self.now
        self.now += 1
        return Compute(self.now) if self.now <= self.iterations else None


@pytest.mark.parametrize('every, times', [(0, 1), (2, 3), (100, 1)])
def test_it_computes_until_the_run_is_over_and_evaluates_at_the_end(every, times):
    Line.evaluated.clear()
    robot = Robot(6, every)
    robot.train()
    assert robot.now == 7 and math.isfinite(robot.loss)
    assert Line.evaluated == [4] * times
    # every pause is a drop-out, because the robot's settings give drop-outs probability 1
    assert [pause.drops_out for pause in robot.pauses] == [True] * 6
    assert robot.evaluation == (6, 0.5)


def test_a_robot_that_is_refused_computes_nothing():
    Line.evaluated.clear()
    robot = Robot(0)
    robot.error = 'the server refuses'
    robot.train()
    assert math.isnan(robot.loss) and not Line.evaluated


def test_a_robot_that_is_told_to_stop_leaves_at_once():
    stop = threading.Event()
    stop.set()
    robot = Robot(10 ** 9)
    robot.train(stop)
    assert robot.now == 1 and math.isnan(robot.evaluation[1])


@pytest.mark.parametrize('given, joined', [(0, 0), (3, 4)])
def test_a_camera_that_gives_no_more_ends_the_training_in_order(monkeypatch, given, joined):
    monkeypatch.setattr(Seeing, 'given', given)
    robot = Robot(10 ** 9, task='Seeing')
    robot.train()
    assert robot.now == joined and not robot.error
    assert math.isnan(robot.evaluation[1]) == (given == 0)


def test_a_gradient_that_is_not_finite_ends_the_training_and_its_iteration_is_named():
    Line.evaluated.clear()
    robot, finished = Robot(9, task='Wrong'), threading.Event()
    RobotNode._train(robot, Training(robot.settings), finished)
    assert robot.error.startswith('iteration 4: the gradient holds NaN or infinite values')
    assert finished.is_set() and not Line.evaluated


def test_a_task_that_exits_as_a_script_does_has_not_trained():
    robot, finished = Robot(3, task='Exiting'), threading.Event()
    with pytest.raises(SystemExit):
        RobotNode._train(robot, Training(robot.settings), finished)
    assert re.fullmatch(r'the task failed: SystemExit: 3 \(test_training.py line \d+, in loss\)',
                        robot.error), robot.error
    assert finished.is_set()
