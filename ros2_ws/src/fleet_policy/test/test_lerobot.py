"""A policy saved by LeRobot gives the same actions as in LeRobot.

The tests need LeRobot.
"""

import copy
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from fleet_env.versions import Versions
from fleet_env.vision import import_torchvision
from fleet_env.weights import state_bytes
from fleet_policy.adapters import LeRobotPolicy
from fleet_policy.contract import make_contract
from fleet_policy.errors import PolicyError
from fleet_policy.observer import usual
from fleet_policy.policy import chunk_of, inputs_of
from lopinfer_node.model.traced import trace
from rog_tasks.errors import TaskError
from rog_tasks.task import load_task, measure
from rog_tasks.task_check import try_out
from safetensors.torch import load_file

# Without this call, PyTorch's CPU build cannot import torchvision, which LeRobot needs.
import_torchvision()
pytest.importorskip('lerobot', reason='lerobot is not installed')

ENTRIES = {
    'rate': 30.0,
    'observations': {
        'observation.images.top': {'topic': 'top', 'type': 'sensor_msgs/msg/Image', 'height': 64,
                                   'width': 96},
        'observation.state': {'topic': 'state', 'type': 'std_msgs/msg/Float64MultiArray',
                              'size': 3}},
    'actions': {'action': {'topic': 'arm', 'type': 'std_msgs/msg/Float64MultiArray', 'size': 2}}}
CONTRACT = make_contract(ENTRIES)
STATISTICS = {
    'observation.images.top': {'mean': torch.full((3, 1, 1), 0.4),
                               'std': torch.full((3, 1, 1), 0.3)},
    'observation.state': {'mean': torch.tensor([1.0, 2.0, 3.0]), 'std': torch.tensor([2.0, 1, 4])},
    'action': {'mean': torch.tensor([10.0, -5.0]), 'std': torch.tensor([3.0, 0.5])}}


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    """Save an ACT policy and its processors; return (folder, policy, processors)."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    torch.manual_seed(0)
    config = ACTConfig(
        input_features={
            'observation.images.top': PolicyFeature(FeatureType.VISUAL, (3, 64, 96)),
            'observation.state': PolicyFeature(FeatureType.STATE, (3,))},
        output_features={'action': PolicyFeature(FeatureType.ACTION, (2,))},
        chunk_size=20, n_action_steps=20, dim_model=32, n_heads=4, dim_feedforward=64,
        n_encoder_layers=1, n_vae_encoder_layers=1, pretrained_backbone_weights=None, device='cpu')
    policy = ACTPolicy(config).eval()
    processors = make_pre_post_processors(config, dataset_stats=STATISTICS)
    folder = tmp_path_factory.mktemp('pretrained_model')
    for part in (policy, *processors):
        part.save_pretrained(folder)
    return folder, policy, processors


def test_actions_are_those_of_lerobot(saved):
    folder, policy, (before, after) = saved
    batch = {'observation.images.top': torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8),
             'observation.state': torch.tensor([[1.5, 0.0, -2.0]])}
    mine = LeRobotPolicy(str(folder), CONTRACT)
    with torch.no_grad():
        got = chunk_of(mine, mine.model()(*inputs_of(mine, batch, None, 2)))
        ready = before({'observation.images.top': batch['observation.images.top'].float() / 255,
                        'observation.state': batch['observation.state']})
        want = after(policy.predict_action_chunk(ready))[0]
    assert got.shape == (20, 2) and abs(want[:, 0].mean()) > 5
    torch.testing.assert_close(torch.from_numpy(got), want)


def test_a_policy_that_needs_former_observations_is_refused(saved, tmp_path):
    from lerobot.policies.factory import make_policy_config
    config = saved[1].config
    make_policy_config('diffusion', input_features=config.input_features,
                       output_features=config.output_features).save_pretrained(tmp_path)
    with pytest.raises(PolicyError, match='diffusion in .* needs the last 2 '):
        LeRobotPolicy(str(tmp_path), CONTRACT)


def test_it_loads_beside_a_torchvision_that_nobody_has_imported_yet(saved, tmp_path):
    (tmp_path / 'arm.yaml').write_text(yaml.safe_dump(ENTRIES))
    done = subprocess.run([sys.executable, '-c', (
        'from fleet_policy.adapters import LeRobotPolicy\n'
        'from fleet_policy.contract import read_contract\n'
        f'LeRobotPolicy({str(saved[0])!r}, read_contract({str(tmp_path / "arm.yaml")!r}))')],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope='module')
def episodes(tmp_path_factory):
    """Return a folder with a dataset in which the actions are ten times the first states."""
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    folder = tmp_path_factory.mktemp('episodes')
    made = LeRobotDataset.create('reach', 30, {
        'observation.state': {'dtype': 'float32', 'shape': (3,), 'names': None},
        'observation.images.top': {'dtype': 'image', 'shape': (64, 96, 3), 'names': None},
        'action': {'dtype': 'float32', 'shape': (2,), 'names': None}}, folder / 'reach',
        use_videos=False)
    for _ in range(2):
        for tick in range(25):
            state = np.sin([tick / 9, tick / 7, 1.0]).astype(np.float32)
            made.add_frame({'observation.state': state, 'action': 10 * state[:2], 'task': 'reach',
                            'observation.images.top': np.full((64, 96, 3), tick, np.uint8)})
        made.save_episode()
    made.finalize()
    return folder


@pytest.fixture
def task(saved, episodes, tmp_path):
    (tmp_path / 'arm.yaml').write_text(yaml.safe_dump(ENTRIES))

    def make(**options):
        return load_task('fleet_policy.imitation:Imitation', {
            'policy': 'fleet_policy.adapters:LeRobotPolicy', 'contract': str(tmp_path / 'arm.yaml'),
            'policy_options': {'folder': str(saved[0])}, 'episodes': str(episodes),
            'test': str(episodes), 'tolerance': 1.0, **options}, 1, 4)
    return make


def test_the_loss_is_that_of_lerobot(task, saved):
    _, policy, (before, _) = saved
    made = task()
    model, (inputs, actions, there) = made.model(), next(made.batches(0, 1))
    assert 0 < there.sum() < there.numel()
    torch.manual_seed(5)
    got = made.loss(model, (inputs, actions, there))
    ready = before({'action': actions, 'observation.images.top': inputs[0] / 255,
                    'observation.state': inputs[1]})
    torch.manual_seed(5)
    want, _ = copy.deepcopy(policy).train()({**ready, 'action_is_pad': there[..., 0] == 0})
    torch.testing.assert_close(got, want)
    assert try_out(task(), task().model()).odd == ()
    with pytest.raises(TaskError, match='must give actions that can be differentiated, or have a'):
        task(loss='l1')


@pytest.mark.parametrize('train', ['all', 'lora'])
def test_what_a_fleet_has_learned_acts_equally_in_pytorch_and_in_lerobot(task, saved, tmp_path,
                                                                         train):
    made = task(train=train)
    model, batches = made.model(), made.batches(0, 1)
    learned = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
    losses = []
    for _ in range(60):
        learned.zero_grad()
        losses.append(made.loss(model, next(batches)))
        losses[-1].backward()
        learned.step()
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    version = Versions(tmp_path / 'run/models').write(
        state_bytes(model), run='', fleet='', method='bsp', iteration=60, time='',
        accuracy=measure(made, model), task='', measured_on='', measured_by='')
    assert version.measured
    batch = {'observation.images.top': torch.randint(0, 256, (1, 3, 64, 96), dtype=torch.uint8),
             'observation.state': torch.tensor([[.5, 0.1, -.2]])}
    mine = LeRobotPolicy(str(saved[0]), CONTRACT, weights=str(tmp_path / 'run'))
    with torch.no_grad():
        inputs = inputs_of(mine, batch, None, 2)
        acted = mine.actions(model.eval()(*inputs))
        torch.testing.assert_close(mine.actions(mine.model()(*inputs)), acted)
        mine.save(str(tmp_path / 'learned'))
        torch.testing.assert_close(_in_lerobot(tmp_path / 'learned', batch), acted)
        torch.testing.assert_close(_in_pytorch(tmp_path / 'run/models/latest/model.safetensors',
                                               saved[1].config, batch), acted)
        before = mine.actions(LeRobotPolicy(str(saved[0]), CONTRACT).model()(*inputs))
    assert (acted - before).abs().max() > 0.1
    with pytest.raises(PolicyError, match='must be a new folder'):
        mine.save(str(tmp_path / 'learned'))
    with pytest.raises(PolicyError, match='weights must be those of the module'):
        LeRobotPolicy(str(saved[0]), CONTRACT, weights=str(_other(tmp_path)))


def _in_lerobot(folder, batch):
    """Return the actions of a folder with nothing but LeRobot."""
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    policy = ACTPolicy.from_pretrained(folder, local_files_only=True)
    before, after = make_pre_post_processors(policy.config, pretrained_path=str(folder))
    return after(policy.predict_action_chunk(before({
        name: x.float() / 255 if x.dtype == torch.uint8 else x for name, x in batch.items()})))


def _in_pytorch(file, config, batch):
    """Return the actions of a version's file with the network alone."""
    from lerobot.policies.act.modeling_act import ACT
    network = ACT(config).eval()
    network.load_state_dict({name.removeprefix('policy.model.'): value
                             for name, value in load_file(file).items()})
    image, state, action = STATISTICS.values()
    image = (batch['observation.images.top'] / 255 - image['mean']) / image['std']
    found = network({'observation.images': [image], 'observation.state': (
        batch['observation.state'] - state['mean']) / state['std']})[0]
    return found * action['std'] + action['mean']


def _other(folder):
    torch.save(torch.nn.Linear(2, 2).state_dict(), folder / 'other.pt')
    return folder / 'other.pt'


def test_lopinfer_can_share_it(saved):
    mine = LeRobotPolicy(str(saved[0]), CONTRACT)
    inputs = inputs_of(mine, usual(CONTRACT), None, 2)
    assert len(trace(mine.model().eval(), *inputs).graph) > 50


def test_a_contract_that_lacks_an_input_is_refused(saved):
    other = make_contract({
        'rate': 30.0, 'actions': {'action': {'topic': 'arm', 'size': 2,
                                             'type': 'std_msgs/msg/Float64MultiArray'}},
        'observations': {'state': {'topic': 'state', 'size': 3,
                                   'type': 'std_msgs/msg/Float64MultiArray'}}})
    with pytest.raises(PolicyError, match='the contract must have an observation '
                                          "'observation.images.top'"):
        LeRobotPolicy(str(saved[0]), other)
