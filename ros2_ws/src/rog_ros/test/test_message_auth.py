"""The tag of a message proves all of its fields, its sender and its session."""

import os
import stat

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.errors import ConfigError
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, Sending, TransferId
from rog_core.protocol.steps import Local, Shards
from rog_msgs.msg import FleetStatus, RobotStatus, RowAck, RowChunk, TrainingStatus
from rog_msgs.srv import Register, SaveCheckpoint, SetSync, Stop
from rog_ros.convert import from_ros, to_ros
from rog_ros.message_auth import (
    LARGE,
    Key,
    SealError,
    Session,
    Side,
    Signature,
    canonical,
    check,
    derived,
    new_key,
    only_proved,
    process_of,
    read_key,
    sealed,
    write_key,
)

FLEET = Key(bytes(range(32)))
ROBOT = FLEET.of('robot1')
SESSION = Session(ROBOT, 11, 22)
TRANSFER = TransferId(11 ^ 22, Kind.PUSH, 7, 3)


def examples_of_all():
    """Return one message of each type that carries a tag; no field has its default value."""
    octets = np.arange(9, dtype=np.uint8)
    command = Command(8, 0.5, 2, 'rsp:4', False, 1.5, Sending(0.25, 4, True, 0.1), True,
                      Shards(9, (1, 2), (0.5, 2.0)))
    status = TrainingStatus(robot='robot1', incarnation=1, state='waiting', loss=0.5, count=9)
    status.header.frame_id = 'robot1'
    register = Register.Request(robot='robot1', incarnation=11, names=['a', 'bc'],
                                shapes=['3', ''], server=5)
    register.pull = to_ros(Receipt(TRANSFER, 3, b'\7', 1))
    return [to_ros(value) for value in (
        Chunk(TRANSFER, 5, 1, 2, octets, octets, 6),
        Chunk(TRANSFER, 5, 1, 2, octets, np.zeros(LARGE, np.uint8), 6),
        Ack(4, 5, 1.5, TRANSFER.incarnation),
        Receipt(TRANSFER, 3, b'\7'),
        End(TRANSFER, 5, 0.5, 0.25, command), End(TRANSFER, 5, command=Command(step=Local(3))))
        ] + [status, register, Register.Response(reason='why', incarnation=22),
             SetSync.Request(sync='bsp', time=4),
             Stop.Request(server=5), Stop.Response(success=True, message='stopping'),
             SetSync.Response(message='bsp'), SaveCheckpoint.Response(message='/out')]


ALL = examples_of_all()
NAMES = [type(message).__name__ for message in ALL]


def value_of(message):
    """Return the value that a node reads from a message before it checks the tag.

    The result is None for a message whose own fields the tag covers.
    """
    return from_ros(message) if isinstance(message, (RowChunk, RowAck)) else None


def seal(message, key=SESSION.to_server):
    """Add the tag to a message, as the nodes do."""
    value = value_of(message)
    return to_ros(value, key) if value is not None else sealed(key, message)


def verify(message, key=SESSION.to_server):
    key.check(message, value_of(message))


@pytest.mark.parametrize('message', ALL, ids=NAMES)
def test_a_sealed_message_is_proved_also_after_the_wire_and_only_with_the_key(message):
    message = seal(message)
    back = deserialize_message(serialize_message(message), type(message))
    verify(back)
    for key in (SESSION.to_robot, Session(ROBOT, 11, 23).to_server,
                Session(ROBOT, 12, 22).to_server, Session(FLEET.of('robot2'), 11, 22).to_server,
                Side(ROBOT.secret), Side(FLEET.secret)):
        with pytest.raises(SealError, match='not made with our key'):
            verify(back, key)
    back.tag = back.tag[:-1]
    with pytest.raises(SealError):
        verify(back)
    back.tag = []
    with pytest.raises(SealError, match='no tag'):
        verify(back)


def altered(message):
    """Yield (field name, changed value) for each field except ``tag``, and each kind of change."""
    for name, kind in message.get_fields_and_field_types().items():
        value = getattr(message, name)
        if name == 'tag':
            continue
        if kind == 'boolean':
            yield name, not value
        elif kind in ('double', 'float'):
            yield name, value + 0.125 if np.isfinite(value) else 0.125
        elif kind.startswith(('int', 'uint')):
            yield name, value ^ 1
        elif kind.startswith('string'):
            yield name, value + 'x'
        elif kind == 'sequence<string>':
            yield name, [*value, '']
            yield name, [''.join(value)]
        elif kind == 'sequence<double>':
            yield name, [*value, 0.0]
        elif kind.startswith('sequence<uint'):
            yield name, [*value, 0]
        elif kind.startswith('sequence<'):  # a sequence of messages
            yield name, value[::-1]
            yield name, value[:-1]
        else:  # a message inside the message
            for inner, other in altered(value):
                changed = deserialize_message(serialize_message(value), type(value))
                setattr(changed, inner, other)
                yield name, changed


@pytest.mark.parametrize('message', ALL, ids=NAMES)
def test_every_field_is_proved(message):
    message = seal(message)
    count = 0
    for name, value in altered(message):
        other = deserialize_message(serialize_message(message), type(message))
        setattr(other, name, value)
        with pytest.raises(SealError):
            verify(other)
        count += 1
    assert count >= len(message.get_fields_and_field_types()) - 1


def test_two_types_with_the_same_fields_are_told_apart():
    assert canonical(Stop.Request()) != canonical(SetSync.Request())
    assert canonical(Register.Request())[:20] != canonical(Register.Response())[:20]


@examples(50)
@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from([0, LARGE]))
def test_where_one_list_of_bytes_ends_is_proved(left, right, more):
    def chunk(ids, values):
        return SESSION.to_server.tag_of(Chunk(TRANSFER, 0, 1, 1, np.frombuffer(ids, np.uint8),
                                              np.frombuffer(values + bytes(more), np.uint8)))

    moved = left + right[:1], right[1:]
    assert (chunk(left, right) == chunk(*moved)) == ((left, right) == moved)


def test_the_bytes_that_are_proved_do_not_change_by_themselves():
    """For fixed messages, the bytes that a tag covers and the tag itself never change.

    So other versions and implementations of ROS 2 must compute these values too.
    """
    def tag(message):
        return bytes(seal(message).tag).hex()

    receipt = to_ros(Receipt(TRANSFER, 3, b'\7', 1))
    assert canonical(receipt).hex() == (
        '0f0000005472616e73666572526563656970741d0000000000000007000000000000000300000000'
        '0000000300000000000000000000000000000001000000070100000000000000')
    assert tag(receipt) == '55b9623c3cabf77a6a90fd13b08c6618'
    assert tag(to_ros(Ack(4, 5, 1.5, TRANSFER.incarnation))) == '14b9467996dd7830ac97538f099adb5e'
    assert [tag(ALL[0]), tag(ALL[1])] == [
        'adda853db885a05c6206f8dcb101ba96', 'e0254b5d7d5dbb345d2b9cf29c57ffca']
    status = FleetStatus(incarnation=5, robots=[RobotStatus(robot='robot1')])
    Signature(FLEET).sign(status)
    assert bytes(status.tag).hex() == (
        'd548fd46fd392814ad963537812a49bbf97e9f5b3568c9506ebda357301b3e1a'
        '26d1febc885bca2310dc786b0f1d651d63cdc5a518efbea0a892f875e4cb8807')


def a_fleet_status():
    """Return a FleetStatus in which no field has its default value."""
    status = FleetStatus(incarnation=5, count=9, run=3, start=2, state='training', host='laptop',
                         robots=[RobotStatus(robot='robot1'), RobotStatus(robot='robot2')])
    status.header.stamp.sec = 8
    Signature(FLEET).sign(status)
    return status


def test_a_fleet_status_is_signed_for_all_robots_and_only_the_fleets_key_can():
    status = a_fleet_status()
    back = deserialize_message(serialize_message(status), FleetStatus)
    for key in (FLEET, ROBOT, FLEET.of('robot2')):
        assert Signature(key).proves(back)
    assert not Signature(new_key()).proves(back)
    with pytest.raises(AssertionError, match='cannot sign'):
        Signature(ROBOT).sign(back)
    for tag in (b'', back.tag[:-1], bytes(64)):
        back.tag = tag
        assert not Signature(ROBOT).proves(back)


def test_every_field_of_a_fleet_status_is_signed():
    status = a_fleet_status()
    changes = list(altered(status))
    assert {name for name, _ in changes} == set(status.get_fields_and_field_types()) - {'tag'}
    for name, value in changes:
        other = deserialize_message(serialize_message(status), FleetStatus)
        setattr(other, name, value)
        assert not Signature(ROBOT).proves(other), name


def test_what_belongs_to_no_session_is_proved_by_a_key_alone():
    key = derived(ROBOT.secret, 'ask')
    request = sealed(key, Register.Request(robot='robot1'), b'more')
    check(key, request, b'more')
    for wrong, more in ((key, b''), (ROBOT.secret, b'more')):
        with pytest.raises(SealError):
            check(wrong, request, more)


def test_the_public_number_of_a_process_is_its_own_and_not_the_secret_one():
    assert process_of(5) == process_of(5) != process_of(6)
    assert process_of(5) not in (5, 0) and process_of(2 ** 64 - 1) < 2 ** 64


# -- keys


def test_a_key_file_can_be_read_by_its_owner_only_and_comes_back(tmp_path):
    path, key = tmp_path / 'fleet.key', new_key()
    write_key(path, key)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert read_key(path) == key and new_key() != key
    write_key(tmp_path / 'robot1.key', key.of('robot1'))
    assert read_key(tmp_path / 'robot1.key') == key.of('robot1')
    with pytest.raises(ConfigError, match='never replaced'):
        write_key(path, new_key())
    path.chmod(0o640)
    with pytest.raises(ConfigError, match='can be read by others .*chmod 600'):
        read_key(path)


@pytest.mark.parametrize('text', ['', 'rog-key-1', 'rog-key-1 - 00', 'rog-key-2 - ' + '00' * 32,
                                  'rog-key-1 - ' + 'zz' * 32, 'rog-key-1 - ' + '00' * 32 + ' more',
                                  'rog-key-1 - ' + '00' * 32 + ' ' + '00' * 32,
                                  'rog-key-1 robot1 ' + '00' * 32,
                                  'rog-key-1 robot1 ' + '00' * 32 + ' 00'])
def test_what_is_no_key_is_refused(tmp_path, text):
    path = tmp_path / 'fleet.key'
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match='is not a key of rog key'):
        read_key(path)
    with pytest.raises(ConfigError, match='cannot be read'):
        read_key(tmp_path / 'none')


def test_a_robots_key_is_good_for_this_robot_and_nothing_else():
    assert FLEET.of('robot1') == ROBOT != FLEET.of('robot2')
    assert ROBOT.of('robot1') == ROBOT
    with pytest.raises(ConfigError, match="the key of 'robot1', not of 'robot2'"):
        ROBOT.of('robot2')
    with pytest.raises(ConfigError, match="needs the fleet's own"):
        ROBOT.control()


def test_keys_for_different_purposes_differ():
    keys = {derived(FLEET.secret, *parts) for parts in (
        (), ('a',), ('b',), ('a', 'b'), ('ab',), (1,), (1, 2), (2, 1), ('a', 1), ('robot', 'ask'))}
    assert len(keys) == 10


def test_a_status_of_more_robots_than_a_server_knows_is_not_worth_checking():
    key = new_key()
    for robots, proved in ((256, True), (257, False)):
        status = FleetStatus(robots=[RobotStatus()] * robots)
        Signature(key).sign(status)
        assert Signature(key).proves(status) is proved


def test_an_answer_that_is_not_proved_leaves_the_call_open_for_the_one_that_is():
    class Future:
        answers: list = []

        def set_result(self, answer):
            self.answers.append(answer)

    future = Future()
    only_proved(future, lambda answer: answer == 'proved')
    future.set_result('of a stranger')
    assert future.answers == []
    future.set_result('proved')
    assert future.answers == ['proved']
