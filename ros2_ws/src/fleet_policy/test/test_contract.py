"""Tests of contracts: valid and invalid files, observations, and actions."""

import copy
import io
import math
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import yaml
from fleet_compute.pictures import file_of
from fleet_env.pictures import decode, from_message
from fleet_policy.actions import Writer
from fleet_policy.contract import make_contract, read_contract
from fleet_policy.core.machine import ACT, HOLD, NOTHING, STOP, Command
from fleet_policy.errors import ContractError, DataFault
from fleet_policy.observer import Observer, batch_of, image, usual
from fleet_policy.policy import example, inputs_of
from fleet_policy.sources import made_up
from policies import CONTRACT, Small
from sensor_msgs.msg import CompressedImage, Image, JointState


def changed(**at):
    """Return the contract with changed values.

    A keyword is the path of keys to a value, joined with ``__``. The value None removes the
    key.
    """
    data = copy.deepcopy(CONTRACT)
    for path, value in at.items():
        *above, last = path.split('__')
        node = data
        for key in above:
            node = node[key]
        if value is None:
            del node[last]
        else:
            node[last] = value
    return data


def test_a_contract_states_shapes_and_usual_fields():
    contract = make_contract(CONTRACT)
    assert contract.size == 4 and contract.rate == 20.0
    assert {name: tuple(x.shape) for name, x in usual(contract).items()} == {
        'top': (1, 3, 24, 32), 'state': (1, 3)}
    assert contract.observations['state'].field == 'position'
    assert contract.actions['arm'].field == 'data'


@pytest.mark.parametrize('at, message', [
    ({'rate': None}, "the key 'rate' is missing"), ({'rate': 0.0}, 'rate is 0.0 Hz; it must be'),
    ({'observations__state__type': 'sensor_msgs/msg/JointStat'},
     "observations.state.type is 'sensor_msgs/msg/JointStat': sensor_msgs has no message"),
    ({'observations__state__type': 'nowhere_msgs/msg/A'}, 'there is no package nowhere_msgs here'),
    ({'observations__state__field': 'positon'}, "has no field 'positon'; did you mean 'position'?"),
    ({'observations__state__field': 'header'}, 'it must be a list of numbers, but header'),
    ({'observations__state__names': None}, 'observations.state must have one of size, names'),
    ({'observations__state__unit': 'yard'}, "observations.state.unit is 'yard'; it must be one of"),
    ({'observations__top__height': None}, 'observations.top is an image, so it must have height'),
    ({'observations__top__colour': 'red'}, "unknown key 'observations.top.colour'"),
    ({'observations': {}}, 'observations must have at least one entry'),
    ({'actions__wheels__fields': ['linear.x', 'angular']}, 'it must be one number'),
    ({'actions__wheels__topic': 'arm'}, 'which is the topic of actions.arm, too'),
    ({'actions__arm__names': ['a', 'b']}, 'names no joints: give size instead'),
    ({'actions__arm__type': 'sensor_msgs/msg/JointState'}, 'names is missing'),
    ({'actions__arm': 7}, 'actions.arm must be a mapping')])
def test_what_is_wrong_is_named_with_file_and_line(tmp_path, at, message):
    path = tmp_path / 'contract.yaml'
    path.write_text(yaml.safe_dump(changed(**at), sort_keys=False))
    with pytest.raises(ContractError) as error:
        read_contract(path)
    assert message in str(error.value)
    assert str(path) in str(error.value) and 'line' in str(error.value)


def test_the_line_is_that_of_the_key(tmp_path):
    path = tmp_path / 'contract.yaml'
    text = yaml.safe_dump(CONTRACT, sort_keys=False).replace('type: sensor_msgs/msg/JointState',
                                                             'type: sensor_msgs/msg/Joint')
    path.write_text(text)
    line = next(k for k, row in enumerate(text.splitlines(), 1) if row.endswith('msg/Joint'))
    with pytest.raises(ContractError, match=f'line {line}:'):
        read_contract(path)


@pytest.mark.parametrize('text, message', [('', 'is empty; it needs rate'), ('7', 'a mapping'),
                                           ('a: [', 'is not valid YAML')])
def test_a_file_that_holds_no_contract_is_refused(tmp_path, text, message):
    path = tmp_path / 'contract.yaml'
    path.write_text(text)
    with pytest.raises(ContractError, match=message):
        read_contract(path)
    with pytest.raises(ContractError, match='cannot be read'):
        read_contract(tmp_path / 'other.yaml')


def observer(**at):
    return Observer(make_contract(changed(**at)), 0.0)


def joints(positions, names=('c', 'a', 'b', 'd')):
    return JointState(name=list(names), position=list(positions))


def seen(made):
    return batch_of(made._contract, made.newest())


def test_joints_are_sorted_by_name_and_given_in_the_unit_of_the_policy():
    made = observer(observations__state__unit='deg')
    made.take('state', joints([3.0, 1.0, 2.0, 9.0]), 1.0)
    made.take('top', made_up(made._contract.observations['top'], np.random.default_rng(0)), 1.0)
    np.testing.assert_allclose(seen(made)['state'], np.degrees([[1.0, 2.0, 3.0]]), rtol=1e-6)


@pytest.mark.parametrize('message, text', [
    (joints([1.0, 2.0]), 'has 4 names and 2 numbers'),
    (joints([1.0, 2.0, 3.0], 'aba'), "has the joint 'a' 2 times"),
    (joints([1.0, math.nan, 2.0, 3.0]), "must have finite numbers, got nan for joint 'a'"),
    (Image(height=24, width=32, encoding='rgb8', step=96, data=bytes(10)), 'do not fit 10 bytes'),
    (Image(height=24, width=32, encoding='yuv', step=96, data=bytes(2304)), "'yuv' is not one of")])
def test_a_message_that_does_not_fit_is_a_fault_with_its_topic(message, text):
    made = observer()
    name = 'top' if isinstance(message, Image) else 'state'
    with pytest.raises(DataFault, match=f'observations.{name}: .*') as error:
        made.take(name, message, 0.0)
    assert text in str(error.value) and made._contract.observations[name].topic in str(error.value)


def test_images_are_scaled_and_their_channels_ordered():
    entry = make_contract(CONTRACT).observations['top']
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[..., 0] = 200
    message = Image(height=48, width=64, encoding='rgb8', step=192, data=pixels.tobytes())
    for encoding, red in (('rgb8', 0), ('bgr8', 2)):
        made = observer(observations__top__encoding=encoding)
        made.take('top', message, 0.0)
        made.take('state', joints([0.0] * 4), 0.0)
        batch = seen(made)['top']
        assert batch.shape == entry.shape and batch.dtype.is_floating_point is False
        assert batch[0, red].unique().tolist() == [200]
        assert batch[0, 1].unique().tolist() == [0]


def test_compressed_images_are_decoded_and_damaged_ones_are_faults():
    made = observer(observations__top__type='sensor_msgs/msg/CompressedImage')
    made.take('state', joints([0.0] * 4), 0.0)
    made.take('top', made_up(made._contract.observations['top'], np.random.default_rng(0)), 0.0)
    assert seen(made)['top'].shape == (1, 3, 24, 32)
    made.take('top', CompressedImage(format='jpeg', data=b'nothing'), 0.0)
    with pytest.raises(DataFault, match='observations.top: .* cannot be decoded'):
        seen(made)


@pytest.mark.parametrize('mode, form, orientation', [
    ('P', 'PNG', 1), ('LA', 'PNG', 1), ('CMYK', 'JPEG', 1), ('RGB', 'JPEG', 3), ('RGB', 'JPEG', 6)])
def test_a_policy_sees_a_compressed_image_as_training_does(mode, form, orientation):
    pixels = np.zeros((24, 32, 3), np.uint8)
    pixels[:12] = 200, 100, 50
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    PIL.Image.fromarray(pixels).convert(mode).save(out, form, exif=exif.tobytes())
    message = CompressedImage(format=form.lower(), data=out.getvalue())
    entry = make_contract(changed(
        observations__top__type='sensor_msgs/msg/CompressedImage')).observations['top']
    found = image('top', entry, message)[0].numpy()
    np.testing.assert_array_equal(found, decode(from_message(message, 'x'), (24, 32), 3))
    light = {1: found[:, :10], 3: found[:, -10:], 6: found[:, :, -13:]}[orientation]
    grey = np.array([200 * .299 + 100 * .587 + 50 * .114] * 3)
    np.testing.assert_allclose(light.mean((1, 2)), grey if mode == 'LA' else (200, 100, 50),
                               atol=12)


def test_an_image_that_cannot_be_decoded_counts_until_one_can_be_decoded():
    made = observer(observations__top__type='sensor_msgs/msg/CompressedImage')
    made.refuse(DataFault('from before', 'top'))
    assert made.flaws(1.0)['top'] == ''
    good = made_up(made._contract.observations['top'], np.random.default_rng(0))
    bad = CompressedImage(format='jpeg', data=b'nothing')
    made.take('top', bad, 1.0)
    made.refuse(DataFault('cannot be decoded', 'top'))
    with pytest.raises(DataFault):
        made.take('top', bad, 1.1)
    assert 'cannot be decoded' in made.flaws(1.1)['top']
    made.take('top', good, 1.2)
    assert made.flaws(1.2)['top'] == ''


def test_the_time_of_an_observation_is_that_of_its_oldest_part():
    made = observer()
    made.take('state', joints([0.0] * 4), 1.0)
    assert made.observed == -math.inf
    made.take('top', made_up(made._contract.observations['top'], np.random.default_rng(0)), 3.0)
    assert made.observed == 1.0


def test_joints_may_come_in_several_messages_each_with_its_own_age():
    made = observer(observations__top=None)
    made.take('state', joints([1.0, 2.0], 'ab'), 1.0)
    made.take('state', joints([9.0, math.nan], ['wheel', 'other']), 1.1)
    assert made.observed == -math.inf and made.flaws(10.0) != {'state': ''}
    made.take('state', joints([3.0], 'c'), 1.5)
    made.take('state', JointState(name=['a', 'b'], velocity=[5.0, 5.0]), 1.6)   # no positions
    assert seen(made)['state'].tolist() == [[1.0, 2.0, 3.0]] and made.observed == 1.0
    for now in (1.9, 2.6, 3.3):
        made.take('state', joints([now, 2.0], 'ab'), now)
    assert seen(made)['state'][0, 1:].tolist() == [2.0, 3.0] and made.observed == 1.5
    assert made.flaws(3.4)['state'] == ("observations.state: joint_states with joint 'c' has "
                                        'stopped, no message for more than 1 s')
    made.take('state', joints([3.0], 'c'), 3.5)
    made.take('state', joints([3.0], 'c'), 3.6)
    assert made.flaws(3.6)['state'] == ''


def test_a_joint_that_no_message_has_is_named_with_those_that_are_there():
    made = observer(observations__top=None, observations__state__limit=0.0)
    made.take('state', joints([1.0, 2.0], 'ax'), 1.0)
    assert made.flaws(9.0)['state'] == ''
    for now in (11.0, 12.0):
        assert made.flaws(now)['state'].startswith(
            "observations.state: no message on joint_states has position of joints 'b', 'c' (its "
            'joints are a, x) for 10 s')


def test_the_fault_of_a_joint_stays_until_that_joint_is_well_and_the_newest_fault_counts():
    made = observer(observations__top=None)
    made.take('state', joints([0.0] * 3, 'abc'), 1.0)
    for now, bad in ((1.1, math.nan), (1.2, math.inf)):
        with pytest.raises(DataFault):
            made.take('state', joints([bad], 'c'), now)
        made.take('state', joints([0.0] * 2, 'ab'), now)
        assert f"got {bad} for joint 'c'" in made.flaws(now)['state']
    made.take('state', joints([4.0], 'c'), 1.3)
    assert made.flaws(1.3)['state'] == '' and seen(made)['state'][0, 2] == 4.0


def test_a_topic_slower_than_its_limit_is_named_once_with_its_rate():
    made = observer(observations__top=None)
    said = []
    for tick in range(100):
        now = tick / 10
        if tick % 15 == 0:
            made.take('state', joints([0.0] * 4), now)
        if not said or said[-1] != made.flaws(now)['state']:
            said.append(made.flaws(now)['state'])
    assert said == ['', 'observations.state: joint_states has stopped, no message for more than '
                    '1 s', 'observations.state: joint_states comes every 1.50 s (0.67 Hz), and its '
                    'limit is 1 s: raise limit, or publish faster']
    assert 'has stopped' in made.flaws(now + 5.0)['state']
    for later in (5.0, 5.5):
        made.take('state', joints([0.0] * 4), now + later)
    assert made.flaws(now + 5.5)['state'] == ''


def test_topics_that_are_missing_or_stop_are_named():
    made = observer()
    assert set(made.flaws(5.0).values()) == {''}
    assert 'no message on camera_top (sensor_msgs/msg/Image)' in made.flaws(11.0)['top']
    made.take('state', joints([0.0] * 4), 11.0)
    assert made.flaws(11.5)['state'] == ''
    assert 'joint_states has stopped' in made.flaws(12.5)['state']


def command(kind, values=None):
    return Command(kind, None if values is None else np.array(values))


def sent(writer, kind, values=None):
    found = dict(writer.messages(command(kind, values)))
    return {name: message.data.tolist() if name == 'arm' else
            [message.linear.x, message.angular.z] for name, message in found.items()}


def test_actions_are_written_and_what_follows_is_safe():
    for kind, after in ((HOLD, {'arm': [1.0, 2.0], 'wheels': [0.0, 0.0]}),
                        (STOP, {'wheels': [0.0, 0.0]})):
        writer = Writer(make_contract(CONTRACT))
        assert sent(writer, NOTHING) == {}
        assert sent(writer, ACT, [1.0, 2.0, 3.0, 4.0]) == {'arm': [1.0, 2.0], 'wheels': [3.0, 4.0]}
        assert sent(writer, kind) == after
        assert sent(writer, kind) == (after if kind == HOLD else {})   # `stop` is sent only once


def test_positions_are_not_held_before_there_was_one():
    assert sent(Writer(make_contract(CONTRACT)), HOLD) == {'wheels': [0.0, 0.0]}


def test_a_trajectory_has_one_point_a_tick_ahead_in_radians():
    pytest.importorskip('trajectory_msgs', reason='trajectory_msgs is not installed')
    contract = make_contract({**CONTRACT, 'actions': {'arm': {
        'topic': 'arm', 'type': 'trajectory_msgs/msg/JointTrajectory', 'names': ['a', 'b'],
        'unit': 'deg'}}})
    (_, message), = Writer(contract).messages(command(ACT, [180.0, 90.0]))
    assert list(message.joint_names) == ['a', 'b'] and len(message.points) == 1
    np.testing.assert_allclose(message.points[0].positions, [math.pi, math.pi / 2])
    assert message.points[0].time_from_start.nanosec == 50_000_000


def of_control_msgs(**entry):
    pytest.importorskip('control_msgs', reason='control_msgs is not installed')
    return make_contract({**CONTRACT, 'actions': {'arm': {
        'topic': 'arm', 'names': ['a', 'b'], **entry}}})


def test_a_command_of_control_msgs_names_its_joints():
    contract = of_control_msgs(type='control_msgs/msg/MultiDOFCommand', unit='deg')
    (_, message), = Writer(contract).messages(command(ACT, [180.0, 90.0]))
    assert list(message.dof_names) == ['a', 'b']
    np.testing.assert_allclose(message.values, [math.pi, math.pi / 2])
    assert list(message.values_dot) == []


def test_a_jog_of_control_msgs_has_velocities_which_become_zero():
    contract = of_control_msgs(type='control_msgs/msg/JointJog', kind='velocity')
    writer = Writer(contract)
    (_, message), = writer.messages(command(ACT, [1.0, -1.0]))
    assert list(message.joint_names) == ['a', 'b'] and list(message.velocities) == [1.0, -1.0]
    (_, message), = writer.messages(command(HOLD))
    assert list(message.velocities) == [0.0, 0.0] and list(message.displacements) == []
    with pytest.raises(ContractError, match='actions.arm.field is missing'):
        of_control_msgs(type='control_msgs/msg/JointJog')
    with pytest.raises(ContractError, match='must be a list of numbers, but interface_values'):
        of_control_msgs(type='control_msgs/msg/DynamicJointState', field='interface_values')


def test_the_contract_of_the_example_is_one():
    pytest.importorskip('trajectory_msgs', reason='trajectory_msgs is not installed')
    contract = read_contract(Path(__file__).resolve().parents[4] / 'examples/reach.yaml')
    assert contract.size == 2 and contract.observations['state'].unit == 'deg'


def test_names_of_joints_are_texts_also_where_yaml_reads_numbers(tmp_path):
    file = tmp_path / 'contract.yaml'
    file.write_text('''
rate: 10
observations:
  state: {topic: joint_states, type: sensor_msgs/msg/JointState, names: [1, 1_000, on]}
actions:
  command: {topic: commands, type: sensor_msgs/msg/JointState, names: ['1', 0x10, off]}
''')
    found = read_contract(file)
    assert found.observations['state'].names == ('1', '1_000', 'on')
    assert found.actions['command'].names == ('1', '0x10', 'off')


def test_the_inputs_of_a_model_remember_the_file_of_a_camera():
    """So LOPInfer may send the JPEG as it came; see `fleet_compute.pictures`."""
    contract = make_contract(changed(observations__top__type='sensor_msgs/msg/CompressedImage',
                                     observations__top__encoding='bgr8'))
    out = io.BytesIO()
    PIL.Image.fromarray(np.arange(24 * 32 * 3, dtype=np.uint8).reshape(24, 32, 3)).save(out, 'PNG')
    message = CompressedImage(format='png', data=out.getvalue())
    policy, values = Small(), {'top': message, 'state': np.zeros(3, np.float32)}
    inputs = inputs_of(policy, batch_of(contract, values), None, 4)
    assert [bytes(file.body).endswith(out.getvalue()) if (file := file_of(x)) else None
            for x in inputs] == [True, None]
    np.testing.assert_array_equal(inputs[0][0], image('top', contract.observations['top'],
                                                      message)[0].numpy())
    assert [file_of(x) is None for x in example(policy, contract)] == [False, True]
