"""The seal of a message of ROG proves all of its fields, its sender and its session."""

import numpy as np
import pytest
from fleet_link.errors import SealError
from fleet_link.key import Key, new_key
from fleet_link.seal import Seal, Session
from fleet_ros.sealing import canonical, seal, unseal
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.protocol.messages import Ack, Chunk, Command, End, Kind, Receipt, Sending, TransferId
from rog_core.protocol.steps import Local, Shards
from rog_msgs.msg import FleetStatus, RobotStatus, RowChunk, TrainingStatus
from rog_msgs.srv import Register, SetSync, Stop
from rog_ros.convert import from_ros, to_ros
from rog_ros.signature import Signature, process_of

FLEET = Key(bytes(range(32)))
ROBOT = FLEET.of('robot1')
SESSION = Session(ROBOT.secret, 11, 22)
TRANSFER = TransferId(11 ^ 22, Kind.PUSH, 7, 3)


def examples_of_all():
    """Return one message of each type that is sealed; no field has its default value."""
    octets = np.arange(9, dtype=np.uint8)
    command = Command(8, 0.5, 2, 'rsp:4', False, 1.5, Sending(0.25, 4, True, 0.1), True,
                      Shards(9, (1, 2), (0.5, 2.0)))
    status = TrainingStatus(robot='robot1', incarnation=1, state='waiting', loss=0.5, count=9)
    status.header.frame_id = 'robot1'
    return [to_ros(value) for value in (
        Chunk(TRANSFER, 5, 1, 2, octets, octets, 6),
        Ack(4, 5, 1.5, TRANSFER.incarnation),
        Receipt(TRANSFER, 3, b'\7'),
        End(TRANSFER, 5, 0.5, 0.25, command), End(TRANSFER, 5, command=Command(step=Local(3))))
        ] + [status]


def copy(message):
    return deserialize_message(serialize_message(message), type(message))


def peer():
    """Return what opens the messages of robot1 in a session in which nothing was heard yet."""
    return Session(ROBOT.secret, 11, 22).to_server


ALL = [seal(SESSION.to_server, message) for message in examples_of_all()]
NAMES = [type(message).__name__ for message in ALL]


@pytest.mark.parametrize('message', ALL, ids=NAMES)
def test_a_sealed_message_is_opened_also_after_the_wire_and_only_with_the_key(message):
    for key in (SESSION.to_robot, Session(ROBOT.secret, 11, 23).to_server,
                Session(ROBOT.secret, 12, 22).to_server, Session(FLEET.secret, 11, 22).to_server,
                Seal(ROBOT.secret)):
        other = copy(message)
        with pytest.raises(SealError, match='not sealed with our key'):
            unseal(key, other)
        assert other == copy(message), 'nothing has changed'
    field = 'values' if isinstance(message, RowChunk) else 'tag'
    for wrong in (getattr(message, field)[:-1], []):
        other = copy(message)
        setattr(other, field, wrong)
        with pytest.raises(SealError, match='not sealed'):
            unseal(peer(), other)
    hears = peer()
    unseal(hears, copy(message))
    with pytest.raises(SealError, match='it is repeated'):
        unseal(hears, copy(message))


def test_rows_are_hidden_and_come_back():
    rows = np.frombuffer(b'what a robot has learned', np.uint8)
    chunk = Chunk(TRANSFER, 5, 1, 2, np.arange(9, dtype=np.uint8), rows, 6)
    message = copy(seal(SESSION.to_server, to_ros(chunk)))
    assert b'learned' not in serialize_message(message)
    unseal(peer(), message)
    back = from_ros(message)
    assert back.values.tobytes() == rows.tobytes() and back.packet == 6


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
            if len(value) > 1:
                yield name, value[::-1]
            yield name, value[:-1]
            for inner, other in altered(value[0]):
                changed = copy(value[0])
                setattr(changed, inner, other)
                yield name, [changed, *value[1:]]
        else:  # a message inside the message
            for inner, other in altered(value):
                changed = deserialize_message(serialize_message(value), type(value))
                setattr(changed, inner, other)
                yield name, changed


@pytest.mark.parametrize('message', ALL, ids=NAMES)
def test_every_field_is_proved(message):
    count = 0
    for name, value in altered(message):
        other = copy(message)
        setattr(other, name, value)
        with pytest.raises(SealError):
            unseal(peer(), other)
        count += 1
    assert count >= len(message.get_fields_and_field_types()) - 1


def test_two_types_with_the_same_fields_are_told_apart():
    assert canonical(Stop.Request()) != canonical(SetSync.Request())
    assert canonical(Register.Request())[:20] != canonical(Register.Response())[:20]


def test_two_chunks_of_a_session_never_have_the_same_nonce():
    """A repeated chunk has a new packet number; another transfer may count from 0 again."""
    chunks = [Chunk(TransferId(11 ^ 22, kind, 7, attempt), 5, 1, 2, np.zeros(1, np.uint8),
                    np.zeros(64, np.uint8), packet)
              for kind in (Kind.PUSH, Kind.ANCHOR) for attempt in (3, 4) for packet in (6, 7)]
    sealed = {bytes(seal(SESSION.to_server, to_ros(chunk)).values[:64]) for chunk in chunks}
    assert len(sealed) == len(chunks)


def test_the_bytes_that_are_proved_do_not_change_by_themselves():
    """Other versions and implementations of ROS 2 must compute the same bytes."""
    receipt = to_ros(Receipt(TRANSFER, 3, b'\7', 1))
    assert canonical(receipt).hex() == (
        '0f0000005472616e73666572526563656970741d0000000000000007000000000000000300000000'
        '0000000300000000000000000000000000000001000000070100000000000000')
    assert bytes(seal(peer(), receipt).tag).hex() == '00000000d723935344f5f02971d9364d'
    assert bytes(ALL[0].values).hex() == '706d904c8dead36f55f82e1ed8ec7147b5d433e647168550aa'
    status = FleetStatus(incarnation=5, robots=[RobotStatus(robot='robot1')])
    Signature(FLEET).sign(status)
    assert bytes(status.tag).hex() == (
        '4842a7204265ef976ca446e53656baef88736bcb949e8a91a815276720ca0bbb'
        'b64e7c21ce75cc5be371c5afac8933dbb9e415d15c0f3a0f02f52de3f5d01902')


def a_fleet_status():
    """Return a FleetStatus in which no field has its default value."""
    status = FleetStatus(incarnation=5, count=9, run=3, start=2, state='training', host='laptop',
                         robots=[RobotStatus(robot='robot1'), RobotStatus(robot='robot2')])
    status.header.stamp.sec = 8
    Signature(FLEET).sign(status)
    return status


def test_a_fleet_status_is_signed_for_all_robots_and_only_the_fleets_key_can():
    status = a_fleet_status()
    back = copy(status)
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
        other = copy(status)
        setattr(other, name, value)
        assert not Signature(ROBOT).proves(other), name


def test_the_public_number_of_a_process_is_its_own_and_not_the_secret_one():
    assert process_of(5) == process_of(5) != process_of(6)
    assert process_of(5) not in (5, 0) and process_of(2 ** 64 - 1) < 2 ** 64


def test_a_status_of_more_robots_than_a_server_knows_is_not_worth_checking():
    key = new_key()
    for robots, proved in ((256, True), (257, False)):
        status = FleetStatus(robots=[RobotStatus()] * robots)
        Signature(key).sign(status)
        assert Signature(key).proves(status) is proved
