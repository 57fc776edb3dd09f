"""A policy saved by LeRobot gives the same actions as in LeRobot.

The tests need LeRobot.
"""

import pytest
import torch
from fleet_env.vision import import_torchvision
from fleet_policy.adapters import LeRobotPolicy
from fleet_policy.contract import make_contract
from fleet_policy.errors import PolicyError
from fleet_policy.observer import blank
from fleet_policy.policy import chunk_of, inputs_of
from lopinfer_node.model.traced import trace

# Without this call, PyTorch's CPU build cannot import torchvision, which LeRobot needs.
import_torchvision()
pytest.importorskip('lerobot', reason='lerobot is not installed')

CONTRACT = make_contract({
    'rate': 30.0,
    'observations': {
        'observation.images.top': {'topic': 'top', 'type': 'sensor_msgs/msg/Image', 'height': 64,
                                   'width': 96},
        'observation.state': {'topic': 'state', 'type': 'std_msgs/msg/Float64MultiArray',
                              'size': 3}},
    'actions': {'action': {'topic': 'arm', 'type': 'std_msgs/msg/Float64MultiArray', 'size': 2}}})
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


def test_lopinfer_can_share_it(saved):
    mine = LeRobotPolicy(str(saved[0]), CONTRACT)
    inputs = inputs_of(mine, blank(CONTRACT), None, 2)
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
