"""rog models: what a run has learned is listed, and exported so that plain PyTorch loads it."""

import math
import os
import re
import signal
import sys
from importlib import import_module

import pytest
import safetensors.torch
import torch
from fleet_env.settings.fleet_file import read_fleet, write_run_fleet
from fleet_env.versions import Versions
from fleet_env.weights import state_bytes
from fleet_models import follow
from fleet_testing import LIMIT, PROGRAMS, Forked, Lines, forks, free_domain
from rog_cli.main import main

TASK = '''
import itertools
import math

import torch
from torch import nn


class Block(nn.Module):
    """A model with a batch normalisation, called with one argument by name."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)

    def forward(self, x, scale=None):
        out = self.last(self.norm(self.first(x)).relu())
        return {'logits': out if scale is None else out * scale}


class Two:
    """Learns to tell two classes of vectors apart."""

    batch_size = 8

    def model(self):
        torch.manual_seed(1)
        return Block()

    def batches(self, rank, world):
        for seed in itertools.count(rank, world):
            x = torch.randn(self.batch_size, 4, generator=torch.Generator().manual_seed(seed))
            yield x, x.sum(1).gt(0).long()

    def loss(self, model, batch):
        out = model(batch[0], scale=torch.ones(1))['logits']
        return nn.functional.cross_entropy(out, batch[1])

    def evaluate(self, model):
        x, y = next(self.batches(1, 2))
        return float((model(x)['logits'].argmax(1) == y).float().mean())


class Indirect(Two):
    """Its loss does not call the model as a whole."""

    def loss(self, model, batch):
        return model.last(model.first(batch[0])).sum()


class Awkward(Two):
    """Its model has a branch that depends on the data, which torch.export refuses."""

    def model(self):
        class Odd(Block):
            def forward(self, x, scale=None):
                return super().forward(x if x.sum() > 0 else -x, scale)
        torch.manual_seed(1)
        return Odd()
'''

FLEET = '''
name: small
seed: 3
minutes: 0.1
training: {task: 'exported_task:Two', batch_size: 8, pace: 0.5}
link: {rate: 10}
robots: [{name: robot1}, {name: robot2}]
'''
ABOUT = {'run': 'run', 'fleet': 'small', 'method': 'rsp:4', 'time': '2026-11-28T10:00:00+0000',
         'task': 'exported_task:Two', 'measured_on': "the server's model", 'measured_by': 'test'}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a task, which stands beside the fleet file in another folder."""
    (tmp_path / 'mine').mkdir()
    (tmp_path / 'mine' / 'exported_task.py').write_text(TASK)
    (tmp_path / 'mine' / 'small.yaml').write_text(FLEET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', [*sys.path])
    monkeypatch.setenv('PYTHONPATH', os.environ.get('PYTHONPATH', ''))
    yield tmp_path
    sys.modules.pop('exported_task', None)


def trained(run, accuracies, task='Two'):
    """Write a run with a version for each of the accuracies; return the last model."""
    sys.path.append('mine')
    tasks = import_module('exported_task')
    run.mkdir(parents=True)
    fleet = read_fleet('mine/small.yaml')
    write_run_fleet(fleet, run)
    text = (run / 'fleet.yaml').read_text().replace('exported_task:Two', f'exported_task:{task}')
    (run / 'fleet.yaml').write_text(text)
    sys.path.remove('mine')
    model = getattr(tasks, task)().model()
    store = Versions(run / 'models')
    for iteration, accuracy in enumerate(accuracies):
        with torch.no_grad():
            model(torch.randn(16, 4))    # moves the statistics of the batch normalisation
            model.last.bias += 1
        store.write(state_bytes(model), iteration=iteration, accuracy=accuracy, **ABOUT)
    return model.eval()


def rog(capsys, *arguments):
    code = main(['models', *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_versions_of_a_run_are_listed_with_the_latest_and_the_best(folder, capsys):
    trained(folder / 'runs/one', [.5, .75, .25, math.nan])
    code, text, error = rog(capsys, 'list')
    assert (code, error) == (0, '')
    rows = [line.split() for line in text.splitlines()[3:]]
    assert [row[:3] for row in rows] == [['2', '1', '75.0'], ['3', '2', '25.0'], ['4', '3', '-']]
    assert rows[0][-1] == 'best' and rows[2][-1] == 'latest'
    (folder / 'runs/one/models/3/version.json').write_text('{')
    code, text, error = rog(capsys, 'list', 'runs/one/models')
    assert code == 0 and 'models/3/version.json cannot be read' in error and '75.0' in text


@pytest.mark.parametrize('name, load', [
    ('m.safetensors', safetensors.torch.load_file), ('m.pt', torch.load)])
def test_an_exported_state_loads_in_plain_pytorch(folder, capsys, name, load):
    model = trained(folder / 'runs/one', [.75, .5])
    code, text, _ = rog(capsys, 'export', '--to', name)
    assert (code, text) == (0, f'wrote {name}: version 2 of runs/one, iteration 1, accuracy '
                               '50.0 %\n')
    plain = type(model)()
    plain.load_state_dict(load(name), strict=True)
    assert torch.equal(plain.eval()(torch.ones(3, 4))['logits'], model(torch.ones(3, 4))['logits'])


def test_an_exported_program_needs_no_code_of_the_task(folder, capsys):
    forks(*PROGRAMS)    # now, because the export adds the folder of the task to the path
    model = trained(folder / 'runs/one', [.75, .5])
    for name in ('m.ts', 'm.pt2'):
        code, _, error = rog(capsys, 'export', 'runs/one', '--to', name)
        assert (code, error.count('\n')) == (0, 1) and 'makes a program' in error
    # the task's batches have 8 samples; before PyTorch 2.6, those of the program, too
    samples = 3 if hasattr(torch.export.Dim, 'AUTO') else 8
    scale, x = torch.ones(1), torch.ones(samples, 4)
    (folder / 'plain.py').write_text(f'''
import importlib.util, torch, warnings
assert not importlib.util.find_spec('exported_task')
warnings.simplefilter('ignore')
for program in torch.jit.load("m.ts"), torch.export.load("m.pt2").module():
    print(program(torch.ones({samples}, 4), scale=torch.ones(1))['logits'].tolist())
''')
    env = {**os.environ, 'PYTHONPATH': ''}
    with Forked(PROGRAMS, ['plain.py'], env, cwd=folder) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert len(lines := said.splitlines()) == 2
    for line in lines:
        torch.testing.assert_close(torch.tensor(eval(line)), model(x, scale)['logits'])


def test_the_best_version_is_another_than_the_latest(folder, capsys):
    trained(folder / 'runs/one', [.25, .75, .5])
    assert 'version 2 ' in rog(capsys, 'export', '--version', 'best', '--to', 'm.pt')[1]
    assert 'version 1 ' in rog(capsys, 'export', '--version', '1', '--to', 'm.pt')[1]


@pytest.mark.parametrize('arguments, words', [
    (['list', 'nowhere'], 'nowhere must be the folder of a run'),
    (['list', 'mine'], r'mine has no version of a model \(models/1\)'),
    (['export', '--version', '9', '--to', 'm.pt'], "best, latest or one of 1, 2, got '9'"),
    (['export', '--version', 'best', '--to', 'm.pt'], 'no version has an accuracy'),
    (['export', '--to', 'm.onnx'], 'must end in one of .safetensors, .pt, .pth, .ts, .pt2'),
    (['export', '--to', 'gone/m.pt'], '--to gone/m.pt: its folder must exist')])
def test_what_cannot_be_done_is_said_in_one_line(folder, capsys, arguments, words):
    trained(folder / 'runs/one', [math.nan, math.nan])
    code, text, error = rog(capsys, *arguments)
    assert (code, text, error.count('\n')) == (2, '', 1)
    assert re.search(words, error), error
    assert not list(folder.glob('.m*')) and not list(folder.glob('m.*'))


@pytest.mark.parametrize('task, name, words', [
    ('Indirect', 'm.ts', "the task's loss does not call the model itself"),
    ('Awkward', 'm.pt2', 'the model cannot be exported as export')])
def test_a_model_that_cannot_be_exported_is_named_with_what_can(folder, capsys, task, name, words):
    trained(folder / 'runs/one', [.5], task)
    code, _, error = rog(capsys, 'export', '--to', name)
    assert code == 2 and words in error and 'export the weights alone (.safetensors)' in error
    assert not (folder / name).exists()
    assert rog(capsys, 'export', '--to', 'm.safetensors')[0] == 0


def test_a_run_without_its_fleet_file_has_weights_only(folder, capsys):
    trained(folder / 'runs/one', [.5])
    (folder / 'runs/one/fleet.yaml').unlink()
    assert rog(capsys, 'export', '--to', 'm.pt')[0] == 0
    assert 'has no fleet.yaml, which names the task' in rog(capsys, 'export', '--to', 'm.ts')[2]


def test_without_any_run_the_folder_of_one_is_asked_for(folder, capsys):
    assert f'no folder in {folder}/runs holds a model' in rog(capsys, 'list')[2]


def test_a_run_in_virtual_time_leaves_a_model_that_can_be_exported(folder, capsys):
    out = folder / 'runs/sim'
    assert main(['sim', 'mine/small.yaml', '--out', str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out / 'models/latest/model.safetensors') in said
    assert "The server's model at iteration" in said
    version = Versions(out / 'models').read(1)
    assert version.iteration > 1 and version.measured and version.task == 'exported_task:Two'
    code, _, error = rog(capsys, 'export', '--to', 'm.pt2')
    assert (code, error.count('\n')) == (0, 1) and 'makes a program' in error


def test_the_model_of_an_ended_run_is_offered_and_a_person_chooses(folder, capsys, monkeypatch):
    monkeypatch.setenv('ROS_DOMAIN_ID', str(domain := free_domain()))
    model = trained(folder / 'run', [.5, .6, .7])
    mine = type(model)()
    process = Forked(PROGRAMS, ['rog_cli.main', 'models', 'serve', 'run', '--domain-id',
                                str(domain)])
    lines = Lines(process)
    try:
        lines.wait('offers version 3 .* 70.0 %')
        with follow(mine) as following:
            assert following.wait(LIMIT) and following.take()
            assert all(torch.equal(a, b) for a, b in zip(
                mine.state_dict().values(), model.state_dict().values(), strict=True))
            assert rog(capsys, 'pin', 1, '--run', 'run')[:2] == (
                0, 'version 1 is offered, and stays until another choice\n')
            assert following.wait(LIMIT) and following.take() and following.version.number == 1
            code, _, error = rog(capsys, 'serve', 'run', '--domain-id', domain)
            assert code == 2 and 'offers a model already' in error
    finally:
        process.send_signal(signal.SIGINT)
        assert lines.ended()[0] == 0
