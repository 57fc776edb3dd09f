"""A process of a robot uses the model that the robot's worker trains, shared in memory."""

import os
import time

import pytest
import torch
from fleet_models import follow, local
from fleet_models.local import Share, shared_folder
from fleet_testing import LIMIT, eventually

ROBOT = f'test{os.getpid()}'


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    monkeypatch.setattr(local, 'MEMORY', tmp_path)


def net():
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(),
                                                 other.state_dict().values(), strict=True))


def test_what_the_worker_trains_is_taken_up_and_nothing_is_written_unless_somebody_reads():
    trained, mine = net(), net()
    share = Share(ROBOT, 'task', trained)
    share.offer(1, time.monotonic())
    assert not shared_folder(ROBOT).exists()
    with follow(mine, 'local', robot=ROBOT) as fleet:
        for iteration in (1, 5):
            with torch.no_grad():
                trained[0].weight += 1
                trained[1].running_mean += 1
            eventually(lambda: share.offer(iteration, time.monotonic()) or fleet.ready)  # noqa: B023
            assert fleet.take() and same(mine, trained) and fleet.version.iteration == iteration
        assert share.error == '' and fleet.reason == ''
    os.utime(shared_folder(ROBOT) / local.WANTED, (0, 0))
    trained[0].weight.data += 1
    share.offer(9, time.monotonic() + 100)
    with follow(mine, 'local', robot=ROBOT) as fleet:
        assert fleet.wait(LIMIT) and fleet.take() and fleet.version.iteration == 5


def test_a_worker_without_memory_says_so_and_trains_on(monkeypatch):
    share = Share(ROBOT, 'task', net())
    shared_folder(ROBOT).mkdir(parents=True)
    (shared_folder(ROBOT) / local.WANTED).touch()
    monkeypatch.setattr(local, 'write_apart', lambda *_: (_ for _ in ()).throw(OSError(28, 'full')))
    share.offer(1, 1.0)
    assert 'is not shared' in share.error


def test_a_half_written_model_is_not_taken():
    mine, before = net(), net()
    mine.load_state_dict(before.state_dict())
    share = Share(ROBOT, 'task', net())
    with follow(mine, 'local', robot=ROBOT) as fleet:
        eventually(lambda: share.offer(1, time.monotonic())
                   or (shared_folder(ROBOT) / 'model.safetensors').exists())
        eventually(lambda: fleet.ready)
        fleet.take()
        taken = {k: v.clone() for k, v in mine.state_dict().items()}
        (shared_folder(ROBOT) / 'model.safetensors').write_bytes(b'half')
        assert not fleet.wait(3 * local.PERIOD)
        assert all(torch.equal(v, taken[k]) for k, v in mine.state_dict().items())
