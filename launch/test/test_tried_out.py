"""What a user reads about the task of a fleet before its processes start."""

import math
import os

import pytest
import torch
from fleet_env.settings.fleet import FleetConfig, RobotConfig, TrainingConfig
from rog_bringup.task_check import checked, loaded, rounded, with_pace
from rog_tasks.errors import TaskError
from torch import nn


class Slow:
    """A model whose BatchNorm learns slowly; each robot gets its rank as data."""

    batch_size = 4

    def __init__(self, most=9):
        self.most, self.served = most, 0

    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 2000), nn.BatchNorm1d(2000, momentum=0.01))

    def batches(self, rank, world):
        if rank > self.most:
            raise ValueError(f'no data of robot {rank} here')
        while True:
            self.served += 1
            yield torch.randn(self.batch_size, 8)

    def loss(self, model, batch):
        return model(batch).square().mean()

    def evaluate(self, model):
        return 0.5


def fleet_of(pace=0.0, minutes=1.0, robots=2, **training):
    settings = {'task': f'{__name__}:Slow', 'pace': pace, **training}
    return FleetConfig(name='toy', minutes=minutes, training=TrainingConfig(**settings),
                       robots=tuple(RobotConfig(name=f'robot{k}', pace=pace)
                                    for k in range(robots)))


def test_it_says_the_rows_and_the_bytes_of_a_push_by_granularity_and_codec():
    row, = checked(fleet_of(minutes=1000.0)).lines
    assert row.startswith('Sequential: 22.0 k parameters in 2,003 rows, 3 buffers, ')
    raw, = checked(fleet_of(minutes=1000.0, codec='raw', granularity='layer')).lines
    assert '22.0 k parameters in 4 rows' in raw and '88.' in raw and 'kB a push' in raw


def test_the_task_of_the_run_stays_as_it_is():
    fleet = fleet_of()
    task = loaded(fleet)
    assert checked(fleet, task).seconds > 0
    assert task._inner.served == 0


def test_a_machine_whose_pytorch_cannot_compute_gradients_in_a_forked_process_checks_in_its_own(
        monkeypatch):
    here, gradient = os.getpid(), Slow.loss

    def loss(task, model, batch):
        if os.getpid() != here:
            raise RuntimeError("Unable to handle autograd's threading in combination with "
                               'fork-based multiprocessing.')
        return gradient(task, model, batch)

    monkeypatch.setattr(Slow, 'loss', loss)
    assert checked(fleet_of()).seconds > 0


def test_statistics_that_stay_young_are_a_note():
    note = checked(fleet_of(pace=1.0)).lines[1]
    assert 'a momentum of 0.01 and at most 60 batches of a robot, 55% of the statistics' in note
    assert len(checked(fleet_of(pace=1.0, minutes=10.0)).lines) == 1


def test_the_data_of_a_robot_that_runs_here_are_enough():
    fleet = fleet_of(task_options={'most': 0})
    assert checked(fleet, robot='robot0').seconds > 0
    with pytest.raises(TaskError, match=r'no data of robot 1 here \(test_tried_out\.py'):
        checked(fleet, robot='robot1')


def test_a_task_with_a_live_camera_is_not_checked_and_the_line_says_why():
    options = {'images': 'topic:camera', 'labels': 'self', 'classes': ['a', 'b']}
    found = checked(fleet_of(task='rog_tasks.recognition:Recognition', task_options=options))
    assert math.isnan(found.seconds)
    assert found.lines == ('the task is not checked: it waits for images of camera',)


def test_the_pace_of_a_fleet_without_one_is_the_measured_one_and_is_said_once():
    fleet, said = with_pace(fleet_of(), lambda: 0.12345)
    assert [robot.pace for robot in fleet.robots] == [0.12, 0.12]
    assert said.endswith('--set training.pace=0.12')
    assert with_pace(fleet, lambda: pytest.fail('measured again')) == (fleet, '')
    assert with_pace(fleet_of(), lambda: math.nan)[1] == ''


def test_two_digits_are_kept():
    assert [rounded(value) for value in (0.2149, 1.96, 123.0, 0.000126)] == [
        0.21, 2.0, 120.0, 0.00013]
