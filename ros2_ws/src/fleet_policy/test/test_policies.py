"""Tests of policies: loading, adapters, chunks whose first actions are given, and replay."""

import importlib.util

import numpy as np
import pytest
import torch
from fleet_policy.adapters import LeRobotPolicy, Scaled, TorchPolicy
from fleet_policy.contract import make_contract
from fleet_policy.core.config import CoreSettings
from fleet_policy.errors import DataFault, PolicyError
from fleet_policy.observer import batch_of, usual
from fleet_policy.policy import chunk_of, example, inputs_of, load_contract, load_policy
from fleet_policy.replay import replay
from fleet_policy.sources import generated, recorded
from policies import CONTRACT, LENGTH, Inpainting, Net, Small

CONTRACT_OF = make_contract(CONTRACT)


@pytest.mark.parametrize('spec, options, message', [
    ('policies:Missing', {}, "policies has no 'Missing'"), ('policies', {}, 'must look like'),
    ('nowhere:Policy', {},
     "there is no module 'nowhere'; is it installed, or its folder on PYTHONPATH?"),
    ('policies:Small', {'size': 3}, "cannot be made with the options ['size']"),
    ('policies:Net', {}, 'it has no model')])
def test_a_policy_that_cannot_be_loaded_is_refused_in_words(spec, options, message):
    with pytest.raises(PolicyError) as error:
        load_policy(spec, options, CONTRACT_OF)
    assert message in str(error.value)


def test_the_contract_is_that_of_the_class_or_of_a_file(tmp_path):
    import yaml
    assert load_contract('policies:Small') == CONTRACT_OF
    path = tmp_path / 'mine.yaml'
    path.write_text(yaml.safe_dump({**CONTRACT, 'rate': 5.0}))
    assert load_contract('policies:Small', str(path)).rate == 5.0
    with pytest.raises(PolicyError, match='contract must name a file'):
        load_contract('policies:Net')


@pytest.mark.parametrize('run', ['run', 'acted'])
def test_any_torch_module_is_a_policy_and_images_cross_the_link_in_8_bits(tmp_path, run):
    from safetensors.torch import save_file
    net = Net()
    for parameter in net.parameters():
        parameter.data += 0.5
    (tmp_path / 'run/models/1').mkdir(parents=True)   # what a fleet has learned
    save_file(net.state_dict(), tmp_path / 'run/models/1/model.safetensors')
    (tmp_path / 'acted/models/1').mkdir(parents=True)   # and as the model of this policy
    save_file(Scaled(net).state_dict(), tmp_path / 'acted/models/1/model.safetensors')
    policy = load_policy('fleet_policy.adapters:TorchPolicy', {
        'module': 'policies:Net', 'weights': str(tmp_path / run)}, CONTRACT_OF)
    batch = {**usual(CONTRACT_OF), 'top': torch.randint(0, 256, (1, 3, 24, 32), dtype=torch.uint8)}
    inputs = inputs_of(policy, batch, None, 4)
    assert inputs[0].dtype == torch.uint8
    with torch.no_grad():
        got = chunk_of(policy, policy.model()(*inputs))
        want = net(batch['top'].float() / 255, batch['state'])[0]
    np.testing.assert_array_equal(got, want)
    with pytest.raises(PolicyError, match='weights must be those of the module'):
        TorchPolicy(Net(), CONTRACT_OF, str(tmp_path / 'other'))
    with pytest.raises(PolicyError, match='module must be a torch.nn.Module'):
        TorchPolicy(dict, CONTRACT_OF)


def test_a_module_whose_forward_does_not_take_the_observations_is_refused_with_their_names():
    class Blind(torch.nn.Module):
        def forward(self, state):
            return state

    class Any(torch.nn.Module):
        def forward(self, *observations, scale=1.0):
            return observations[0]

    with pytest.raises(PolicyError) as error:
        TorchPolicy(Blind(), CONTRACT_OF)
    assert str(error.value) == (
        'forward of Blind must take one argument for each observation of the contract, in this '
        'order: (top, state); it takes (state)')
    TorchPolicy(Any(), CONTRACT_OF)


def test_a_policy_that_inpaints_sees_what_will_be_executed_and_keeps_it():
    policy = Inpainting()
    prefix = np.arange(20, dtype=np.float32).reshape(5, 4)
    inputs = inputs_of(policy, usual(CONTRACT_OF), prefix, 4)
    with torch.no_grad():
        made = chunk_of(policy, policy.model()(*inputs))
    assert made.shape == (LENGTH, 4)
    np.testing.assert_array_equal(made[:5], prefix)
    assert inputs_of(policy, usual(CONTRACT_OF), None, 4)[3].tolist() == [0]
    assert [x.shape for x in example(policy, CONTRACT_OF)] == [x.shape for x in inputs]


def play(events, **options):
    torch.set_num_threads(1)
    return replay(CONTRACT_OF, Small(), events, **options)


def test_a_replay_gives_the_actions_of_the_whole_policy():
    made = play(generated(CONTRACT_OF, 4.0, seed=3), latency=0.1)
    assert made.starved == 0 and len(made.times) > 60
    observations = {}
    for seconds, name, message in generated(CONTRACT_OF, 4.0, seed=3):
        observations.setdefault(round(seconds * 20), {})[name] = message
    from fleet_policy.observer import Observer
    policy, model = Small(), Small().model()
    for k in (0, 17, 40, 60):
        tick = round(made.times[k] * 20)
        behind = round((made.times[k] - made.ages[k]) * 20)
        observer = Observer(CONTRACT_OF, 0.0)
        for name, message in observations[behind].items():
            observer.take(name, message, 0.0)
        with torch.no_grad():
            want = model(*policy.observe(batch_of(CONTRACT_OF, observer.newest())))
        np.testing.assert_allclose(made.actions[k], want[0, tick - behind], atol=1e-6)


@pytest.fixture
def bag(tmp_path):
    pytest.importorskip('rosbags', reason='rosbags is not installed')
    from pathlib import Path

    from rclpy.serialization import serialize_message
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore
    store = get_typestore(Stores.ROS2_JAZZY)
    path = tmp_path / 'bag'
    with Writer(Path(path), version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topics = {name: writer.add_connection(f'/robot1/{entry.topic}', entry.type, typestore=store)
                  for name, entry in CONTRACT_OF.observations.items()}
        for seconds, name, message in generated(CONTRACT_OF, 3.0, seed=5):
            writer.write(topics[name], int(1e9 * (100 + seconds)), serialize_message(message))
    return path


def test_a_bag_replayed_twice_gives_the_same_actions_as_what_was_recorded(bag):
    once, twice = (play(recorded(CONTRACT_OF, str(bag), 'robot1')) for _ in range(2))
    assert len(once.actions) > 30
    for name in ('times', 'actions', 'ages'):
        np.testing.assert_array_equal(getattr(once, name), getattr(twice, name))
    live = play(generated(CONTRACT_OF, 3.0, seed=5))
    np.testing.assert_allclose(once.actions, live.actions[:len(once.actions)], atol=1e-6)


def test_a_bag_without_a_topic_is_refused_with_those_it_has(bag):
    with pytest.raises(DataFault, match='has no topic /robot2/camera_top'):
        next(recorded(CONTRACT_OF, str(bag), 'robot2'))


def test_a_camera_that_stops_in_a_recording_ends_in_the_safe_state():
    events = [event for event in generated(CONTRACT_OF, 6.0)
              if event[1] != 'top' or event[0] < 2.0]
    made = play(events, settings=CoreSettings())
    assert 'camera_top has stopped' in made.reason and made.times[-1] < 3.2


def test_a_folder_without_a_policy_of_lerobot_is_refused(tmp_path):
    with pytest.raises(PolicyError, match='has no config.json'):
        LeRobotPolicy(str(tmp_path), CONTRACT_OF)
    (tmp_path / 'config.json').write_text('{}')
    if importlib.util.find_spec('lerobot') is None:
        with pytest.raises(PolicyError, match='needs lerobot 0.4 or newer'):
            LeRobotPolicy(str(tmp_path), CONTRACT_OF)


@pytest.mark.parametrize('limit', [0.0, 1.0])
def test_a_gap_in_a_recording_is_skipped_and_what_follows_is_the_same(limit):
    contract = make_contract({**CONTRACT, 'observations': {
        name: {**entry, 'limit': limit} for name, entry in CONTRACT['observations'].items()}})

    def after(gap):
        events = [(seconds + gap * (seconds >= 2.0), name, message)
                  for seconds, name, message in generated(contract, 4.0)]
        return replay(contract, Small(), events)
    torch.set_num_threads(1)
    short, long = after(10.0), after(1e7)
    np.testing.assert_array_equal(short.actions, long.actions)
    np.testing.assert_allclose(short.ages, long.ages, atol=1e-6)
    more = round((1e7 - 10.0) * contract.rate)   # ticks; with limit 0 each of them starves
    assert long.starved - short.starved == (0 if limit else more)


def test_a_recording_without_a_joint_is_refused_with_the_joints_that_it_has():
    events = [(seconds, name, message) for seconds, name, message in generated(CONTRACT_OF, 1.0)]
    for _, name, message in events:
        if name == 'state':
            message.name = ['a', 'b', 'd']
    with pytest.raises(DataFault, match=r"has position of joint 'c' \(its joints are a, b, d\)"):
        play(events)


@pytest.mark.parametrize('found', [{'a': 1.0}, 'text', [[1.0], [1.0, 2.0]]])
def test_actions_that_are_no_numbers_are_refused_in_one_line(found):
    class Odd(Small):
        def actions(self, output):
            return found
    with pytest.raises(PolicyError, match='must return a tensor or an array of numbers, got'):
        chunk_of(Odd(), None)
