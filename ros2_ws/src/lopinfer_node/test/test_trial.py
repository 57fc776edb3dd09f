"""A separate process measures a model's memory and time, because a model may crash its process."""

import json
import shutil
import subprocess
import sys
import threading
from functools import cache

import pytest
import torch
from lopinfer_node.errors import ModelError, ProfileError
from lopinfer_node.model.traced import trace
from lopinfer_node.runtime import trial
from lopinfer_node.runtime.store import Store
from lopinfer_node.runtime.trial import Trial, Trier, _plan_bytes

MIB = 1 << 20
LIMIT = 120


class Squares(torch.nn.Module):
    """Makes a matrix of `size` rows and columns, and multiplies it by itself `times` times."""

    def __init__(self, size, times):
        super().__init__()
        self.size, self.times = size, times

    def forward(self, x):
        y = x.reshape(-1, 1) * x.reshape(1, -1)
        for _ in range(self.times):
            y = y @ y
        return y.mean(1)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Return a function that stores a model with the same files as a model that a robot has sent.

    The function takes the size of the matrix and the number of products, and returns the
    model's folder.
    """
    store = Store(tmp_path_factory.mktemp('store'))

    @cache
    def stored(size, times=0):
        traced = trace(Squares(size, times).eval(), torch.ones(size), verify=False)
        store.add(traced)
        return store.path(traced.digest)
    return stored


def test_a_trial_says_what_a_model_takes_and_can_be_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(trial, 'subprocess', subprocess)   # this one is not forked
    found = Trier('cpu', 512 * MIB, 30.0)(folder(4096))
    assert 32 * MIB < found.request < 256 * MIB and found.loaded < 32 * MIB
    assert found.profile.whole.sum() > 0
    found.save(tmp_path / 'trial.json')
    kept = Trial.load(tmp_path / 'trial.json')
    assert (kept.loaded, kept.request, kept.plan, kept.profile.as_json()) == (
        found.loaded, found.request, found.plan, found.profile.as_json())


@pytest.mark.parametrize('damage', [{'loaded': -1}, {'request': 1.5}, {'plan': '1'},
                                    {'profile': {}}, {'profile': None}])
def test_a_damaged_trial_file_is_refused(damage, tmp_path):
    path = tmp_path / 'trial.json'
    path.write_text(json.dumps({'loaded': 1, 'request': 1, 'plan': 1, 'profile': {}} | damage))
    with pytest.raises(ProfileError):
        Trial.load(path)


def test_memory_of_a_plan_grows_with_the_operators():
    few, many = (_plan_bytes(trace(Squares(4, times).eval(), torch.ones(4), verify=False))
                 for times in (1, 200))
    assert 0 < few < 200 * 300 < many


def test_a_model_that_takes_too_much_memory_is_refused(folder):
    with pytest.raises(ModelError, match='take more than the 64 MiB that the server has'):
        Trier('cpu', 64 * MIB, 30.0)(folder(6144))


def test_a_model_that_computes_for_too_long_is_refused(folder):
    with pytest.raises(ModelError, match='one inference takes more than 0.02 s'):
        Trier('cpu', 512 * MIB, 0.02)(folder(1024, 8))


def test_a_model_that_is_not_what_its_digest_says_is_refused(folder, tmp_path):
    path = folder(16)
    other = shutil.copytree(path, tmp_path / ('e' * 64))
    with pytest.raises(ModelError, match=f'its files are those of {path.name}'):
        Trier('cpu', 512 * MIB, 30.0)(other)


def test_a_trial_does_not_go_on_without_its_server(folder):
    command = [sys.executable, '-m', 'lopinfer_node.runtime.trial', str(folder(16)), 'cpu', '1',
               # process 1 is not this trial's parent, as if the server had ended
               str(512 * MIB), '30', '1']
    ended = subprocess.run(command, capture_output=True, timeout=LIMIT, check=False)
    assert (ended.returncode, ended.stdout) == (1, b'')


def test_the_end_of_the_process_is_the_models_and_close_ends_it(folder):
    trier = Trier('cpu', 512 * MIB, 30.0)
    path, said = folder(1024, 8), []

    def run():
        with pytest.raises(ModelError) as error:
            trier(path)
        said.append(str(error.value))
    thread = threading.Thread(target=run)
    thread.start()
    trier.close()
    thread.join(LIMIT)
    assert said == ['it ended the process that tried it (status -9)']
    run()
    assert said[1] == said[0]
