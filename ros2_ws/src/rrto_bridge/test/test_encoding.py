"""Encoded values can be decoded; malformed data raises an error and has no other effect."""

import random

import pytest
import torch
from fleet_compute.inlets import Inlets
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rrto_bridge.execution.context import Context
from rrto_bridge.execution.executor import ContextExecutor
from rrto_bridge.protocol.errors import RemoteError
from rrto_bridge.protocol.record import Meta, Persistent, Ref, Special
from rrto_bridge.protocol.sequence import Bound, Own
from rrto_bridge.protocol.tensors import decoded, encoded, pack, unpack
from rrto_bridge.protocol.wire import decode, encode

INTS = st.integers(-2**63, 2**63 - 1)
SIZES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
METAS = SIZES.flatmap(lambda s: st.builds(
    Meta, st.just(s), st.just(s), st.text(max_size=8), st.integers(0, 2**40)))
LEAVES = st.one_of(st.none(), st.booleans(), INTS, st.floats(allow_nan=False), st.text(max_size=20),
                   st.complex_numbers(allow_nan=False), INTS.map(Ref), INTS.map(Own),
                   INTS.map(Persistent), INTS.map(Bound), METAS,
                   st.builds(Special, st.text(max_size=5), st.text(max_size=5)))
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=20)


@examples(300)
@given(VALUES)
def test_values_come_back_with_their_types(value):
    back = decode(encode(value))
    assert back == value and repr(back) == repr(value)


def test_bytes_come_back():
    assert bytes(decode(encode((1, b'abc')))[1]) == b'abc'


def test_minus_zero_and_nan_keep_their_bits():
    assert repr(decode(encode((-0.0, float('nan'))))) == '(-0.0, nan)'


@pytest.mark.parametrize('value', [object(), [1], {'a': 1}, 1j.real.__class__, (1, [2])])
def test_other_types_are_not_sent(value):
    with pytest.raises(TypeError):
        encode(value)


def test_large_integers_are_refused():
    with pytest.raises(OverflowError):
        encode(1 << 63)


def test_a_count_beyond_the_message_is_refused_before_memory_is_taken():
    with pytest.raises(RemoteError, match='announced'):
        decode(b'(' + (0xFFFFFFFF).to_bytes(4, 'little'))


def test_deep_nesting_is_refused():
    with pytest.raises(RemoteError, match='deep'):
        decode((b'(' + (1).to_bytes(4, 'little')) * 50 + b'N')


def test_damaged_messages_raise_only_remote_errors():
    chance = random.Random(0)
    whole = encode((3, True, (('aten.add.Tensor', (Ref(1), 2.5, 'x', None), (('alpha', 1),), 7),
                              ('htod', 4, Meta((2, 2), (2, 1), 'float32'), b'0123456789abcdef'))))
    for _ in range(5000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        damaged = damaged[:chance.randint(0, len(damaged))] if chance.random() < 0.5 else damaged
        try:
            decode(bytes(damaged))
        except RemoteError:
            pass


@pytest.mark.parametrize('dtype', [
    torch.float32, torch.float64, torch.bfloat16, torch.uint8, torch.int64, torch.bool,
    torch.complex64, torch.complex128, torch.float8_e4m3fn])
@pytest.mark.parametrize('order', [(0, 1, 2, 3), (0, 2, 3, 1), (3, 1, 0, 2)])
def test_a_tensor_that_crosses_a_link_is_encoded_and_comes_back_whatever_its_layout(dtype, order):
    tensor = (torch.arange(2 * 3 * 20 * 24).view(2, 3, 20, 24) % 7).to(dtype).permute(order)
    meta, data = pack(tensor)
    sent = encoded(meta, data, Inlets(lambda: 1e6))
    assert len(sent) < len(data) / 3
    back = unpack(meta, sent)
    assert back.stride() == tensor.stride() and pack(back)[1] == data


def test_what_a_program_wants_of_the_server_is_encoded_too():
    context = Context(torch.device('cpu'), 1 << 30)
    tensor = torch.randn(64, 500, generator=torch.Generator().manual_seed(0)).relu()
    context.add(1, tensor)
    assert len(context.download(1)[1]) == tensor.nbytes
    context.inlets = Inlets(lambda: 1e6)
    meta, data = ContextExecutor(context).download(context.tensor(1))
    assert len(data) < .8 * tensor.nbytes and torch.equal(unpack(meta, data), tensor)


@pytest.mark.parametrize('cut', [0, 1, 30, 100])
def test_encoded_bytes_that_are_damaged_are_refused(cut):
    meta, data = pack(torch.arange(1000.) % 7)
    sent = bytes(encoded(meta, data, Inlets(lambda: 1e6)))
    with pytest.raises(RemoteError, match='do not fit'):
        decoded(meta, sent[:cut])
