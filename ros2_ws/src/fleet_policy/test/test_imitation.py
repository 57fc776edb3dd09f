"""A policy's model learns recorded episodes; new ones enter; held-out ones measure it."""

import copy
import io
import logging
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from fleet_env.vision import import_torchvision
from fleet_env.weights import load_weights, state_bytes
from fleet_policy.actions import numbers_of
from fleet_policy.contract import make_contract, read_contract
from fleet_policy.episodes import METADATA, Episodes, read_dataset, read_episode
from fleet_policy.errors import DataFault
from fleet_policy.imitation import LOOK, Imitation
from fleet_policy.messages import MessageError, message_class, write
from fleet_policy.observer import batch_of
from fleet_policy.policy import Policy
from fleet_policy.sources import made_up
from fleet_policy.to_lerobot import main as to_lerobot
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.model.flat import FlatModel, contents_of
from rog_tasks import export
from rog_tasks.errors import DataError, TaskError
from rog_tasks.task import load_task, measure, prepare
from rog_tasks.task_check import try_out

CONTRACT = {
    'rate': 10.0,
    'observations': {
        'top': {'topic': 'camera', 'type': 'sensor_msgs/msg/Image', 'height': 6, 'width': 8},
        'state': {'topic': 'joint_states', 'type': 'sensor_msgs/msg/JointState',
                  'names': ['a', 'b'], 'unit': 'deg'}},
    'actions': {
        'arm': {'topic': 'arm', 'type': 'trajectory_msgs/msg/JointTrajectory',
                'names': ['a', 'b'], 'unit': 'deg'},
        'wheels': {'topic': 'cmd_vel', 'type': 'geometry_msgs/msg/Twist', 'kind': 'velocity',
                   'fields': ['linear.x']}}}
CONTRACT_OF = make_contract(CONTRACT)
LENGTH = 4


class Net(torch.nn.Module):
    """Maps an image and joints to a chunk (B, LENGTH, 3)."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 16)
        self.head = torch.nn.Linear(16, LENGTH * 3)

    def forward(self, image, state):
        return self.head(self.body(state / 50).tanh() + image.float().mean() / 1e6) \
            .unflatten(1, (LENGTH, 3))


class Follower(Policy):
    """A policy whose arm goes where its joints are, at ten times the angle."""

    contract = CONTRACT

    def model(self):
        return Net().eval()

    def observe(self, batch):
        return batch['top'], batch['state']

    def actions(self, output):
        return output


class Detached(Follower):
    """A policy without gradients, as LeRobot's are."""

    def actions(self, output):
        return output.detach()


class Biased(Follower):
    """A policy whose model has no linear layer."""

    def model(self):
        class Bias(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.bias = torch.nn.Parameter(torch.zeros(LENGTH, 3))

            def forward(self, image, state):
                return self.bias.expand(len(state), LENGTH, 3)
        return Bias()


class Inpainting(Follower):
    """A policy that needs given actions."""

    chunk = LENGTH


def arm(values, names=('a', 'b')):
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint
    return JointTrajectory(joint_names=list(names),
                           points=[JointTrajectoryPoint(positions=[*map(float, values)])])


def record(folder, ticks, namespace='/robot1', without=(), late=0.0, gap=0):
    """Write an episode whose commands are 10 times the joints, and whose wheels count ticks.

    ``without``: topics that are not recorded. ``late``: s by which commands come later.
    ``gap``: ticks in the middle in which no camera image comes.
    """
    from rclpy.serialization import serialize_message
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore
    store, rng = get_typestore(Stores.ROS2_JAZZY), np.random.default_rng(ticks)
    entries = {**CONTRACT_OF.observations, **CONTRACT_OF.actions}
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        topics = {name: writer.add_connection(f'{namespace}/{entry.topic}', entry.type,
                                              typestore=store)
                  for name, entry in entries.items() if name not in without}
        for tick in range(ticks):
            joints = 0.3 * np.sin([tick / 5, tick / 7])
            twist = message_class('geometry_msgs/msg/Twist')()
            twist.linear.x = float(tick)
            state = write(message_class('sensor_msgs/msg/JointState')(), 'position', (),
                          ['a', 'b'], joints)
            sent = {'top': (0, made_up(entries['top'], rng)), 'state': (0, state),
                    'arm': (late, arm(10 * joints)), 'wheels': (late, twist)}
            if ticks // 2 <= tick < ticks // 2 + gap:
                del sent['top']
            for name, (later, message) in sent.items():
                if name in topics:
                    writer.write(topics[name], int(1e9 * (100 + tick / 10 + later)),
                                 serialize_message(message))
    return folder


def options(tmp_path, **changes):
    return {'policy': 'test_imitation:Follower', 'episodes': str(tmp_path), 'held_out': 0.0,
            'tolerance': {'arm': 5.0, 'wheels': 3.0}, **changes}


@pytest.fixture(autouse=True)
def there(monkeypatch):
    from pathlib import Path
    monkeypatch.syspath_prepend(Path(__file__).parent)


@pytest.mark.parametrize('late', [0.0, 0.04])
def test_an_episode_has_for_each_tick_what_was_seen_and_then_done(tmp_path, late):
    episode = read_episode(CONTRACT_OF, record(tmp_path / 'one', 20, late=late))
    assert [tick for tick, _ in episode.seen] == list(range(20)) and len(episode.actions) == 20
    np.testing.assert_array_equal(episode.actions[:, 2], np.arange(20))
    states = np.array([values['state'] for _, values in episode.seen])
    np.testing.assert_allclose(episode.actions[:, :2], 10 * states, rtol=1e-5)
    np.testing.assert_allclose(states[3], np.degrees(0.3 * np.sin([3 / 5, 3 / 7])), rtol=1e-5)
    chunk, count = episode.chunk(18, LENGTH)
    assert count == 2 and chunk[:, 2].tolist() == [18, 19, 19, 19]


def test_what_the_node_would_not_act_on_is_not_learned(tmp_path):
    episode = read_episode(CONTRACT_OF, record(tmp_path / 'one', 60, gap=20, namespace=''))
    ticks = [tick for tick, _ in episode.seen]
    assert set(range(41, 50)).isdisjoint(ticks) and {20, 35, 59} <= {*ticks}
    assert len(episode.actions) == 60


@pytest.mark.parametrize(('changes', 'why'), [
    ({'without': ['wheels']}, 'must have all topics of the contract'),
    ({'ticks': 0}, 'must have observations that are followed by actions')])
def test_a_recording_that_cannot_be_learned_is_refused(tmp_path, changes, why):
    with pytest.raises(DataFault, match=why):
        read_episode(CONTRACT_OF, record(tmp_path / 'one', **{'ticks': 5, **changes}))


@given(st.permutations(['a', 'b', 'gripper']))
@examples(6)
def test_an_action_is_read_by_the_names_of_its_joints(names):
    entry = CONTRACT_OF.actions['arm']
    values = {'a': 0.5, 'b': -1.0, 'gripper': 7.0}
    found = numbers_of(entry, arm([values[name] for name in names], names))
    np.testing.assert_allclose(found, np.degrees([0.5, -1.0]), rtol=1e-6)


def test_an_action_without_a_joint_or_a_point_is_refused():
    entry = CONTRACT_OF.actions['arm']
    with pytest.raises(MessageError, match="must have positions of 'b'"):
        numbers_of(entry, arm([0.5], ['a']))
    empty = arm([0, 0])
    empty.points.clear()
    with pytest.raises(MessageError, match='must have a point'):
        numbers_of(entry, empty)


def test_a_model_learns_what_was_done_and_the_test_says_so(tmp_path):
    for name in 'abc':
        record(tmp_path / 'mine/0' / name, 40)
    record(tmp_path / 'test' / 'one', 30)
    task = load_task('fleet_policy.imitation:Imitation', options(
        tmp_path, episodes=str(tmp_path / 'mine/{rank}'), test=str(tmp_path / 'test'),
        loss='mse', tolerance={'arm': 30.0, 'wheels': 8.0}), 1, 16)
    model, batches = task.model(), task.batches(0, 2)
    before = measure(task, model)
    rate = torch.optim.Adam(model.parameters(), 0.3)
    for _ in range(400):
        rate.zero_grad()
        task.loss(model, next(batches)).backward()
        rate.step()
    after = measure(task, model)
    assert before < 0.3 and after > 0.7 and measure(task, model) == after, (before, after)


def test_equal_seeds_give_equal_models_and_batches(tmp_path):
    record(tmp_path / 'one', 20)
    one, other = (load_task('fleet_policy.imitation:Imitation',
                            options(tmp_path, test=str(tmp_path)), 4, 8)
                  for _ in range(2))
    for a, b in zip(one.model().parameters(), other.model().parameters(), strict=True):
        assert torch.equal(a, b)
    (a, _), ours, there = next(one.batches(0, 1))
    (b, _), theirs, _ = next(other.batches(0, 1))
    assert torch.equal(a, b) and torch.equal(ours, theirs)
    assert a.shape == (8, 3, 6, 8) and ours.shape == (8, LENGTH, 3) and there.shape == (8, 4, 1)
    assert try_out(one, one.model()).odd == ()


def test_the_repeated_action_after_the_end_does_not_count(tmp_path):
    record(tmp_path / 'one', 1)
    task = Imitation(**options(tmp_path))
    task.batch_size = 2
    model, batch = task.model(), next(task.batches(0, 1))
    batch[1][:, 1:] = 1e9
    assert task.loss(model, batch) < 1e3 and batch[2][0, :, 0].tolist() == [1, 0, 0, 0]


def test_episodes_that_are_added_are_learned_once_they_are_whole(tmp_path, caplog):
    record(tmp_path / 'one', 5)
    task = Imitation(**options(tmp_path))
    task.batch_size = 8
    batches = task.batches(0, 1)

    def seen(count):
        return max(float(next(batches)[1][:, 0, 2].max()) for _ in range(count))
    assert seen(LOOK) == 4
    record(tmp_path / 'two', 30)
    (tmp_path / 'two' / METADATA).rename(tmp_path / 'later')
    assert seen(2 * LOOK) == 4
    (tmp_path / 'later').rename(tmp_path / 'two' / METADATA)
    record(tmp_path / 'bad', 5, without=['wheels'])
    with caplog.at_level(logging.WARNING):
        assert seen(4 * LOOK) > 20
    assert caplog.text.count('bad is left out') == 1 and 'wheels' not in caplog.text.split('its')[0]


def test_the_name_of_an_episode_decides_whether_it_is_held_out(tmp_path):
    for number in range(12):
        record(tmp_path / f'e{number}', 3)
    whole = Episodes(CONTRACT_OF, tmp_path, 0.3, 1 << 30)
    held = {episode.name for episode in whole.held}
    assert 0 < len(held) < 12
    (tmp_path / 'e0').rename(tmp_path / 'first')
    again = Episodes(CONTRACT_OF, tmp_path, 0.3, 1 << 30)
    assert {e.name for e in again.held} - {'first'} == held - {'e0'}
    task = Imitation(**options(tmp_path, held_out=0.3))
    assert math.isnan(measure(task, task.model()))
    next(task.batches(0, 1))
    assert 0 <= measure(task, task.model()) <= 1


def test_the_earliest_episodes_are_forgotten_when_memory_is_full(tmp_path):
    for name in 'abcd':
        record(tmp_path / name, 10)
    size = read_episode(CONTRACT_OF, tmp_path / 'a').size
    kept = Episodes(CONTRACT_OF, tmp_path, 0.0, 2 * size + 1).training
    assert [episode.name for episode in kept] == ['c', 'd'] and size > 10 * 6 * 8 * 3


@pytest.mark.parametrize(('train', 'names'), [
    ('head', {'head.weight', 'head.bias'}), (['*.bias'], {'head.bias', 'body.bias'}),
    ('all', {'head.weight', 'head.bias', 'body.weight', 'body.bias'})])
def test_what_is_trained_is_chosen_and_the_rest_starts_where_it_should(tmp_path, train, names):
    torch.manual_seed(9)
    wanted = Net()
    torch.save(wanted.state_dict(), tmp_path / 'start.pt')
    task = Imitation(**options(tmp_path, train=train, start=str(tmp_path / 'start.pt')))
    model = task.model()
    assert {name for name, p in model.named_parameters() if p.requires_grad} == names
    fixed = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(p, wanted.state_dict()[name]) for name, p in fixed.items())
    task.pretrain(model)
    assert all(torch.equal(p, wanted.state_dict()[name]) for name, p in model.named_parameters())


class Attending(Net):
    """Has attention, a weight that two layers share, and statistics that robots exchange."""

    def __init__(self):
        super().__init__()
        self.among = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        self.one, self.same = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.same.weight = self.one.weight
        self.norm = torch.nn.BatchNorm1d(16)

    def forward(self, image, state):
        x = self.norm(self.same(self.one(self.body(state / 50))))[:, None]
        return self.head(self.among(x, x, x)[0][:, 0] + image.float().mean() / 1e6) \
            .unflatten(1, (LENGTH, 3))


class Attentive(Follower):
    """The policy of a larger model."""

    def model(self):
        return Attending().eval()


def test_low_rank_adapters_are_trained_and_the_model_stays_that_of_the_policy(tmp_path):
    record(tmp_path / 'one', 20)
    torch.manual_seed(9)
    start = Attending().eval()
    torch.save(start.state_dict(), tmp_path / 'start.pt')
    made = options(tmp_path, policy='test_imitation:Attentive', start=str(tmp_path / 'start.pt'))
    task = load_task('fleet_policy.imitation:Imitation', {**made, 'train': 'lora', 'lora_rank': 2},
                     4, 8)
    model, robots = task.model(), FlatModel(task.model())
    prepare(task, model)
    batch = next(task.batches(0, 1))
    torch.testing.assert_close(model.eval()(*batch[0]), start(*batch[0]))
    trained = {name: tuple(p.shape) for name, p in robots.named}
    assert {name.split('.parametrizations')[0]: shape for name, shape in trained.items()
            if name.endswith('a')} == {'body': (2, 2), 'head': (2, 16), 'among': (2, 16),
                                       'among.out_proj': (2, 16)} and len(trained) == 8
    learned = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.1)
    before = task.loss(model, batch).item()
    for _ in range(100):
        learned.zero_grad()
        loss = task.loss(model.train(), batch)
        loss.backward()
        learned.step()
    assert loss < 0.8 * before
    # what travels, put into another machine's model, is written as a state of the plain model
    server = contents_of(copy.deepcopy(task.model()))
    server.store(contents_of(model).flatten())
    (tmp_path / 'learned.safetensors').write_bytes(state_bytes(server.model))
    plain, again = Attending().eval(), copy.deepcopy(task.model()).eval()
    load_weights(plain, tmp_path / 'learned.safetensors')
    load_weights(again, tmp_path / 'learned.safetensors')
    assert {*plain.state_dict()} == {*model.state_dict()} == {*start.state_dict()}
    for one in (plain, again):
        torch.testing.assert_close(one(*batch[0]), model.eval()(*batch[0]))
    if not torch.__version__.startswith('2.4.'):  # whose export knows no parametrizations
        program = export.exported(task, again, 'export', 1)
        torch.testing.assert_close(torch.export.load(io.BytesIO(program)).module()(*batch[0]),
                                   plain(*batch[0]))
    further = Imitation(**{**made, 'start': str(tmp_path / 'learned.safetensors')})
    further.pretrain(after := further.model())
    torch.testing.assert_close(after.eval()(*batch[0]), plain(*batch[0]))


@pytest.mark.parametrize(('changes', 'why'), [
    ({'lora_rank': 0}, 'lora_rank must be at least 1'),
    ({'policy': 'test_imitation:Biased', 'train': 'lora'}, 'lora needs a linear layer'),
    ({'loss': 'huber'}, 'loss must be one of l1, mse'),
    ({'held_out': 1.0}, 'held_out must be at least 0 and less than 1'),
    ({'train': ['encoder.*']}, r"'encoder\.\*' must fit the name of a parameter"),
    ({'tolerance': {'arm': 1.0}}, 'tolerance must be a number of at least 0, or one for each of'),
    ({'policy': 'test_imitation:Inpainting'}, 'must not inpaint'),
    ({'policy': 'test_imitation:Detached'}, 'must give actions that can be differentiated'),
    ({'policy': 'nothing:Here'}, "no module 'nothing'"),
    ({'test': 'nowhere'}, 'nowhere must be a folder of episodes')])
def test_an_option_that_is_wrong_is_named(tmp_path, changes, why):
    with pytest.raises(TaskError, match=why):
        Imitation(**options(tmp_path, **changes))


def test_robots_do_not_share_episodes_and_need_one(tmp_path):
    task = Imitation(**options(tmp_path))
    with pytest.raises(TaskError, match=r'must have \{rank\} in the path'):
        task.batches(0, 2)
    with pytest.raises(DataError, match='must have a recording to learn from'):
        task.batches(0, 1)


FEATURES = {'observation.state': {'dtype': 'float32', 'shape': (2,), 'names': None},
            'observation.images.top': {'dtype': 'image', 'shape': (12, 16, 3),
                                       'names': ['height', 'width', 'channels']},
            'action': {'dtype': 'float32', 'shape': (3,), 'names': None}}
LEROBOT = make_contract({**CONTRACT, 'observations': {
    'observation.images.top': CONTRACT['observations']['top'],
    'observation.state': CONTRACT['observations']['state']}})


@pytest.fixture
def lerobot():
    import_torchvision()
    pytest.importorskip('lerobot', reason='lerobot is not installed')


@pytest.fixture
def dataset(tmp_path, lerobot):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    made = LeRobotDataset.create('mine', 10, FEATURES, tmp_path / 'mine', use_videos=False)
    for episode in range(3):
        for tick in range(5):
            made.add_frame({'observation.state': np.array([tick, episode], np.float32),
                            'observation.images.top': np.full((12, 16, 3), 10 * tick, np.uint8),
                            'action': np.array([tick, episode, 9], np.float32), 'task': 'reach'})
        made.save_episode()
    made.finalize()
    return tmp_path


def test_a_dataset_of_lerobot_has_the_same_form(dataset):
    one, two, three = Episodes(LEROBOT, dataset, 0.0, 1 << 30).training
    assert [e.name for e in (one, two, three)] == ['mine/0', 'mine/1', 'mine/2']
    np.testing.assert_array_equal(two.actions, [[tick, 1, 9] for tick in range(5)])
    tick, values = three.seen[4]
    batch = batch_of(LEROBOT, values)
    assert tick == 4 and batch['observation.state'].tolist() == [[4, 2]]
    assert batch['observation.images.top'].shape == (1, 3, 6, 8)
    assert {*batch['observation.images.top'].flatten().tolist()} == {40}


def test_a_dataset_that_does_not_fit_the_contract_is_refused(dataset):
    with pytest.raises(DataFault, match=r"must have a feature 'top' of 3 .*observation.images.top"):
        read_dataset(CONTRACT_OF, dataset / 'mine')
    with pytest.raises(DataFault, match='must have the rate of the contract, 30 Hz'):
        read_dataset(replace(LEROBOT, rate=30.0), dataset / 'mine')
    (dataset / 'mine/meta/info.json').write_text('{}')
    with pytest.raises(DataFault, match='cannot be read as a dataset of LeRobot'):
        read_dataset(LEROBOT, dataset / 'mine')


@pytest.fixture
def contract_file(tmp_path):
    """Return a contract with the names of LeRobot for what `record` writes."""
    def make(**changes):
        found = {**CONTRACT, 'observations': {
            'observation.images.top': {**CONTRACT['observations']['top'], 'encoding': 'bgr8'},
            'observation.state': CONTRACT['observations']['state']}, **changes}
        (tmp_path / 'arm.yaml').write_text(yaml.safe_dump(found, sort_keys=False))
        return tmp_path / 'arm.yaml'
    return make


@pytest.mark.parametrize('gap', [0, 20])
def test_recordings_become_a_dataset_of_lerobot(tmp_path, lerobot, contract_file, capsys, gap):
    contract = contract_file()
    for name in 'ab':
        record(tmp_path / 'bags' / name, 60, gap=gap)
    assert to_lerobot([str(contract), str(tmp_path / 'bags'), '--to', str(tmp_path / 'mine'),
                       '--task', 'wave']) == 0
    one = read_episode(read_contract(contract), tmp_path / 'bags/a')
    parts = [p.tolist() for p in np.split(
        np.array([tick for tick, _ in one.seen]), np.flatnonzero(
            np.diff([tick for tick, _ in one.seen]) > 1) + 1)]
    assert len(parts) == 1 + bool(gap)
    found = read_dataset(read_contract(contract), tmp_path / 'mine')
    assert f'{2 * len(parts)} episodes, {2 * len(one.seen)} frames' in capsys.readouterr().out
    assert [len(e.actions) for e in found] == 2 * [len(part) for part in parts]
    wanted = dict(one.seen)
    for episode, part in zip(found, 2 * parts, strict=True):
        np.testing.assert_array_equal(episode.actions, one.actions[part])
        for (_, got), tick in zip(episode.seen, part, strict=True):
            batch, want = (batch_of(read_contract(contract), v) for v in (got, wanted[tick]))
            assert all(torch.equal(batch[name], want[name]) for name in want)
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    theirs = LeRobotDataset('local/mine', tmp_path / 'mine')
    assert theirs[0]['task'] == 'wave' and theirs.fps == 10
    assert theirs.features['action']['names'] == ['a', 'b', 'linear.x']
    assert theirs.meta.stats['observation.state']['mean'].shape == (2,)
    pixels = theirs[0]['observation.images.top'].flip(0)     # the contract's order is BGR
    assert torch.equal((255 * pixels).round().byte()[None],
                       batch_of(read_contract(contract), wanted[0])['observation.images.top'])


@pytest.mark.parametrize(('changes', 'ticks', 'why'), [
    ({'rate': 12.5}, 5, 'must be a whole number, that of the contract is 12.5 Hz'),
    ({'observations': CONTRACT['observations']}, 5, r"begin with observation\..* has 'top'"),
    ({}, 0, 'must have observations that are followed by actions')])
def test_what_cannot_be_a_dataset_leaves_none(tmp_path, lerobot, contract_file, capsys, changes,
                                              ticks, why):
    record(tmp_path / 'bags/one', 5)
    record(tmp_path / 'bags/two', ticks)
    given = [str(contract_file(**changes)), str(tmp_path / 'bags'), '--task', 'wave', '--to']
    assert to_lerobot([*given, str(tmp_path / 'mine')]) == 2
    assert re.search(why, capsys.readouterr().err)
    assert {path.name for path in tmp_path.iterdir()} == {'bags', 'arm.yaml'}
    assert to_lerobot([*given, str(tmp_path / 'bags')]) == 2
    assert 'bags must be a new folder' in capsys.readouterr().err


def test_without_lerobot_no_dataset_is_written(tmp_path, contract_file, capsys, monkeypatch):
    for name in ('lerobot', 'lerobot.datasets.lerobot_dataset'):
        monkeypatch.setitem(sys.modules, name, None)
    record(tmp_path / 'bags/one', 5)
    given = [str(contract_file()), '--task', 'wave', '--to', str(tmp_path / 'mine')]
    assert to_lerobot([*given, str(tmp_path / 'bags')]) == 2
    assert 'needs lerobot 0.4 or newer' in capsys.readouterr().err
    assert to_lerobot([*given, str(tmp_path / 'none')]) == 2
    assert 'none must have a recording' in capsys.readouterr().err


def test_without_lerobot_its_datasets_are_refused(tmp_path, monkeypatch):
    (tmp_path / 'mine/meta').mkdir(parents=True)
    (tmp_path / 'mine/meta/info.json').write_text('{}')
    for name in ('lerobot', 'lerobot.datasets.lerobot_dataset'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(DataError, match='needs lerobot 0.4 or newer'):
        Episodes(CONTRACT_OF, tmp_path, 0.0, 1 << 30)
