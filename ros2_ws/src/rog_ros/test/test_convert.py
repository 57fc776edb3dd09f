"""Values of rog_core do not change if they are converted to messages and back.

The same holds for the serialised form of the messages.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.errors import RemoteProtocolError
from rog_core.protocol.messages import (
    Ack,
    Chunk,
    Command,
    End,
    Kind,
    Receipt,
    RegisterRequest,
    RegisterResponse,
    Sending,
    TransferId,
)
from rog_core.protocol.steps import Full, Gradient, Local, Shards
from rog_msgs.msg import RowChunk
from rog_msgs.srv import Register
from rog_ros.convert import (
    LONGEST,
    from_ros,
    payload_bytes,
    request_from_ros,
    request_to_ros,
    response_from_ros,
    response_to_ros,
    to_ros,
)

u8, u16, u32, u64 = (st.integers(0, 2 ** bits - 1) for bits in (8, 16, 32, 64))
seconds = st.floats(0, allow_infinity=False)
octets = st.binary(max_size=200)
transfers = st.builds(TransferId, u64, st.sampled_from(Kind), u32, u32)
shares = st.floats(0, 1)
sendings = st.builds(Sending, shares, u32, st.booleans(), shares)
numbers = st.floats(allow_nan=False)
steps = st.one_of(st.builds(Gradient, st.booleans()), st.just(Full()), st.builds(Local, u32),
                  st.builds(Shards, u32, st.lists(u32).map(tuple), st.lists(numbers).map(tuple),
                            st.booleans()))
commands = st.builds(Command, u32, st.floats(0), u32, st.sampled_from(['', 'bsp', 'rsp:4']),
                     st.booleans(), st.floats(0), sendings, st.booleans(), steps)
receipts = st.builds(Receipt, transfers, u32, octets, u32)
values = st.one_of(st.builds(Ack, u32, u64, st.floats(allow_nan=False), u64), receipts,
                   st.builds(End, transfers, u32, seconds, seconds, commands))


def over_the_wire(message):
    return deserialize_message(serialize_message(message), type(message))


@given(values)
def test_a_value_comes_back_as_it_was(value):
    back = from_ros(over_the_wire(to_ros(value)))
    assert back == value
    if isinstance(value, End):  # momentum and feedback must also be equal
        assert vars(back.command.step) == vars(value.command.step)


@given(transfers, u32, u8, u16, octets, octets, u32)
def test_a_chunk_comes_back_as_it_was(transfer, sequence, codec, segments, ids, data, packet):
    chunk = Chunk(transfer, sequence, codec, segments, np.frombuffer(ids, np.uint8),
                  np.frombuffer(data, np.uint8), packet)
    back = from_ros(over_the_wire(to_ros(chunk)))
    assert (back.transfer, back.sequence, back.codec, back.segments, back.packet) == (
        transfer, sequence, codec, segments, packet)
    assert back.ids.tobytes() == ids and back.values.tobytes() == data
    assert back.ids.dtype == back.values.dtype == np.uint8
    assert payload_bytes(back) >= len(ids) + len(data)


@pytest.mark.parametrize('told', [{'step': 'fast'}, {'step': ''}, {'step': 'local'},
                                  {'step': 'full', 'step_integers': [1]},
                                  {'step': 'shards', 'step_integers': [1]}])
def test_an_unknown_step_or_numbers_that_are_not_its_own_are_the_peers_fault(told):
    end = to_ros(End(TransferId(1, Kind.PULL, 1, 1), 0, command=Command(1)))
    end.command[0].step_integers = []
    for name, value in told.items():
        setattr(end.command[0], name, value)
    with pytest.raises(RemoteProtocolError, match='step'):
        from_ros(over_the_wire(end))


def test_an_unknown_kind_is_the_peers_fault():
    with pytest.raises(RemoteProtocolError, match='kind 200'):
        from_ros(RowChunk(kind=200))


shapes = st.lists(st.integers(1, 99), max_size=3).map(tuple)
requests = st.builds(
    RegisterRequest, st.just('robot1'), u64, u32, u32, st.just('row'), st.just('onebit'),
    st.just('digest'), st.lists(st.tuples(st.text('abc.', min_size=1), shapes,
                                           st.integers(0, 3))).map(tuple), u32,
    u32, st.none() | receipts)


@given(requests)
def test_a_registration_comes_back_as_it_was(request):
    # A receipt without chunks means the same as no receipt.
    if request.pull is not None and not request.pull.chunks:
        request = replace(request, pull=None)
    assert request_from_ros(request_to_ros(request)) == request


@pytest.mark.parametrize('names, given_shapes', [
    (['a'], []), *((['a'], [shape]) for shape in (
        '3x', '-', '-3', '+3', '3_0', '9' * 13, 'x'.join('1' * 17), '1' * 10 ** 6, '\u0663')),
    (['a' * 257], ['3']), (['a'] * 70_000, ['3'] * 70_000)])
def test_a_malformed_registration_is_the_peers_fault(names, given_shapes):
    with pytest.raises(RemoteProtocolError):
        request_from_ros(Register.Request(names=names, shapes=given_shapes,
                                          roles=bytes(len(names))))


@pytest.mark.parametrize('roles', [[], [0, 0], [4], [255]])
def test_a_role_that_no_tensor_can_have_is_the_peers_fault(roles):
    with pytest.raises(RemoteProtocolError, match='role'):
        request_from_ros(Register.Request(names=['a'], shapes=['3'], roles=bytes(roles)))


@given(st.booleans(), st.booleans(), u64, u32, u32, receipts, st.booleans())
def test_an_answer_comes_back_as_it_was(accepted, retry, incarnation, iteration, attempt, push,
                                        over):
    push = push if push.chunks else None  # a receipt without chunks means the same as no receipt
    answer = RegisterResponse(accepted, 'why', retry, incarnation, iteration, attempt, 'bsp', push,
                              over)
    assert response_from_ros(response_to_ros(answer, Register.Response())) == answer


def test_a_methods_name_is_short_and_printable_whatever_the_peer_says():
    """A received method name is short and printable, because a robot puts it into each status."""
    for said, kept in (('rsp:4+pipeline', 'rsp:4+pipeline'), ('r' * 10**6, None),
                       ('\x1b[2J', '?[2J')):
        end = to_ros(End(TransferId(1, Kind.PULL, 1, 1), 0, command=Command(1)))
        answer = Register.Response(accepted=True, sync=said)
        end.command[0].sync = said
        for sync in (from_ros(end).command.sync, response_from_ros(answer).sync):
            assert len(sync) <= LONGEST and sync.isprintable()
            assert kept is None or sync == kept
