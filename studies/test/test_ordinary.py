"""Ordinary models leave a fleet as they are in it: whole, and equal to those of the robots."""

import re
import subprocess
import sys

import pytest
import torch
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import LinkConfig
from rog_core.errors import ConfigError
from rog_studies import whole_models
from rog_studies.ordinary import TASKS, LoRA, TiedLanguage, Torchvision, Words, Yolo
from rog_studies.plain import accuracy_of, loaded, train
from rog_studies.whole_runs import METHODS, MODELS, Trained, fleet_of, run_fleet

BATCHNORM = ('mobilenet_v3_small', 'resnet18', 'yolo')


def task_of(name, seed=1):
    made, options = TASKS[name]
    return made(**options, seed=seed)


def statistics_of(model):
    """Return a dict: name of each running statistic and of each counter -> its tensor."""
    return {name: buffer for name, buffer in model.named_buffers()
            if name.endswith(('running_mean', 'running_var', 'num_batches_tracked'))}


def lag_of(method):
    """Return of how many batches a row may know nothing when the run ends."""
    bound = re.match(r'rsp:(\d+)', method)
    return METHODS[method].steps * (int(bound[1]) if bound else 2)


def require_whole(name, fleet, out, better_than, method):
    """Run a fleet, and require that all copies of its model are whole, trained and the same."""
    result = run_fleet(fleet, out, METHODS[method].steps)
    task = task_of(name, fleet.seed)
    model, fresh = loaded(task, out / result['file']), task.model()
    assert accuracy_of(task, model) == pytest.approx(result['server'], abs=1e-6)
    assert result['server'] > better_than
    for robot, accuracy in result['robots'].items():
        assert accuracy == pytest.approx(result['server'], abs=.01), robot
    initial = statistics_of(fresh)
    for buffer, value in statistics_of(model).items():
        assert not value.equal(initial[buffer]), buffer
        assert torch.isfinite(value).all(), buffer
    if name in BATCHNORM:
        # a robot's own batches, or more: never those of no robot
        counted = {int(value) for buffer, value in statistics_of(model).items()
                   if buffer.endswith('num_batches_tracked')}
        assert min(counted) >= min(result['batches'].values()) - lag_of(method)
    return model


@pytest.mark.parametrize(('name', 'better_than'), [('yolo', .4), ('lora', .8)])
def test_a_model_is_whole_on_the_server_and_the_same_on_the_robots(name, better_than, tmp_path):
    # On links so fast, the run ends while both robots compute, and nothing is on its way. A lossy
    # codec would still owe the robots a part of each row.
    fleet = fleet_of(name, 'bsp', 1, minutes=.25)
    robots = tuple(changed(robot, link=LinkConfig(rate=500.0)) for robot in fleet.robots)
    fleet = changed(fleet, robots=robots, training={'learning_rate': .01, 'codec': 'raw'})
    require_whole(name, fleet, tmp_path, better_than, 'bsp')


@pytest.mark.long
@pytest.mark.parametrize('method', METHODS)
@pytest.mark.parametrize('name', MODELS)
def test_every_model_is_whole_with_every_method(name, method, tmp_path):
    require_whole(name, fleet_of(name, method, 2), tmp_path, MODELS[name].chance + .2,
                  method)


@pytest.mark.long
@pytest.mark.parametrize(('name', 'method'), [
    ('resnet18', 'bsp'), ('yolo', 'rsp:20+pipeline+sparse'), ('vit', 'diloco:8'),
    ('tied', 'rsp:4+pipeline+sparse+local=8')])
def test_four_robots_train_one_whole_model(name, method, tmp_path):
    require_whole(name, fleet_of(name, method, 3, robots=4), tmp_path, MODELS[name].chance + .2,
                  method)


@pytest.mark.parametrize('name', TASKS)
def test_equal_seeds_give_equal_models_and_batches(name):
    one, other, third = task_of(name, 1), task_of(name, 1), task_of(name, 2)
    first, second = one.model().state_dict(), other.model().state_dict()
    assert all(value.equal(second[key]) for key, value in first.items())
    assert any(not value.equal(first[key]) for key, value in third.model().state_dict().items())
    for rank in range(2):
        batch, same = next(one.batches(rank, 2)), next(other.batches(rank, 2))
        assert all(map(torch.equal, batch, same))
    assert not next(one.batches(0, 2))[0].equal(next(one.batches(1, 2))[0])
    loss = one.loss(one.model(), next(one.batches(0, 2)))
    assert loss.shape == () and loss.isfinite()


@pytest.mark.parametrize('name', TASKS)
def test_no_robot_trains_on_test_data(name):
    task = task_of(name)
    samples = [inputs for rank in range(2) for inputs, _ in task.shard(rank, 2)]
    assert sum(map(len, samples)) == task.trained
    assert sum(len(labels) for _, labels in task.tested()) == len(task.inputs) - task.trained > 0


def test_a_network_without_statistics_has_no_buffers_and_the_same_parameters():
    bare, usual = Torchvision('resnet18', statistics=False).model(), Torchvision('resnet18').model()
    assert not list(bare.buffers()) and len(list(usual.buffers())) == 60
    assert [(n, p.shape) for n, p in bare.named_parameters()] \
        == [(n, p.shape) for n, p in usual.named_parameters()]


def test_what_is_special_in_a_model_is_there():
    lora = LoRA().model()
    trained = [name for name, p in lora.named_parameters() if p.requires_grad]
    assert all('lora_' in name or name.startswith('head') for name in trained)
    assert sum(p.numel() for p in lora.parameters() if not p.requires_grad) > 20_000
    tied = TiedLanguage().model()
    assert tied.out.weight is tied.embedding.weight
    assert {'out.weight', 'embedding.weight'} <= set(tied.state_dict())
    words = Words()
    model = words.model()
    words.loss(model, next(words.batches(0, 2))).backward()
    assert model[0].weight.grad.is_sparse


def test_a_detector_that_is_right_has_a_score_of_one():
    class Oracle(torch.nn.Module):
        """Answers as the labels say; ``shift`` moves each box by so many cells."""

        def __init__(self, shift=0.0):
            super().__init__()
            self.shift = shift

        def forward(self, inputs):
            at = next(k for k in range(0, len(task.inputs), 100)
                      if task.inputs[k:k + len(inputs)].equal(inputs))
            labels = task.labels[at:at + len(inputs)]
            box = (labels[..., 1:5] + self.shift).clamp(1e-4, 1 - 1e-4).logit()
            classes = 9 * torch.nn.functional.one_hot(labels[..., 5].long(), 10)
            return torch.cat((2 * labels[..., :1] - 1, box, classes), 3).permute(0, 3, 1, 2)

    task = Yolo()
    assert task.evaluate(Oracle()) == pytest.approx(1.0)
    assert task.evaluate(Oracle(.9)) < .7


def test_one_machine_trains_with_the_robots_batches():
    task = task_of('lstm')
    few, many = train(task, [[30, 30], [150, 148]], .1, .9, True)
    assert few < many and many > .6
    assert train(task, [[30, 30]], .1, .9, True) == [few]


@pytest.mark.long
def test_the_study_runs_goes_on_and_writes_its_page(tmp_path, monkeypatch):
    monkeypatch.setitem(MODELS, 'lstm', Trained('LSTM', .1, .3))
    told = []

    def run(**options):
        told.clear()
        return whole_models.run_whole(tmp_path, ['lstm'], ['bsp', 'diloco:8'], 1, 1,
                                      tell=lambda text, seed: told.append(text), **options)

    data = run()
    result = data['models']['lstm']['bsp']['1']
    assert result['exported'] == pytest.approx(result['server'], abs=1e-6)
    assert len(told) == 3 and told[0].startswith('lstm, bsp: server')
    page = (tmp_path / 'whole_models.md').read_text()
    assert page.count('| `bsp` |') == 1 and f'{100 * result["server"]:.1f}' in page
    with pytest.raises(ConfigError, match='already holds a run'):
        run()
    assert run(resume=True) == data and all(text.endswith('kept') for text in told)
    monkeypatch.setitem(MODELS, 'lstm', Trained('LSTM', .2, .3))
    with pytest.raises(ConfigError, match='other settings'):
        run(resume=True)
    with pytest.raises(ConfigError, match="'vgg' is no model"):
        whole_models.run_whole(tmp_path, ['vgg'])


def test_plain_pytorch_refuses_a_file_that_lacks_a_tensor(tmp_path):
    from safetensors.torch import save_file
    task = task_of('yolo')
    state = {name: value.clone() for name, value in task.model().state_dict().items()
             if 'running_mean' not in name}
    save_file(state, tmp_path / 'model.safetensors')
    with pytest.raises(RuntimeError, match='running_mean'):
        loaded(task, tmp_path / 'model.safetensors')


def test_plain_pytorch_knows_no_fleet():
    found = subprocess.run(
        [sys.executable, '-c', 'import sys, rog_studies.plain as p; '
         'print([name for name in p.FLEETS if name in sys.modules])'],
        capture_output=True, text=True, check=True)
    assert found.stdout.strip() == '[]'
