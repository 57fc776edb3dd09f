"""The server executes allowed requests within its limits, and survives all other messages."""

import hashlib
import os
import random
import resource

import pytest
import torch
from fleet_compute.inlets import Inlets
from fleet_compute.weights import Weights
from rrto_bridge.client.inprocess import InProcess
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.execution.context import Context
from rrto_bridge.execution.executor import ContextExecutor
from rrto_bridge.execution.perform import Performer
from rrto_bridge.protocol import tensors
from rrto_bridge.protocol.errors import OutOfMemory, Refused, RemoteError
from rrto_bridge.protocol.operators import resolve
from rrto_bridge.protocol.record import Call, Meta, Persistent, Ref, Special
from rrto_bridge.protocol.sequence import Own
from rrto_bridge.protocol.wire import decode, encode

MALFORMED = int(os.environ.get('RRTO_MALFORMED', '1500'))


def port(limit=1 << 20, weights=None):
    made = InProcess(ClientMachine('rpc'), limit)
    if weights is not None:
        made.performer.weights = weights
    return made


def upload(to, tensor):
    handle, ticket = to.machine.upload(*tensors.pack(tensor))
    to.wait(ticket)
    return handle


def issue(to, op, *arguments, **keywords):
    first, ticket = to.machine.issue(Call(op, arguments, tuple(keywords.items())), (), False)
    return to.wait(ticket), first


@pytest.mark.parametrize('name', [
    'aten.from_file.default', 'aten.set_.source_Storage', 'aten.record_stream.default',
    'aten._print.default', 'aten.conv2d', 'prims.add.default', 'aten.__class__.default',
    'aten.add.__init__', 'os.system.default', 'aten.resize_.default', 'aten._foobar.default',
    'aten._sparse_mm.default', 'aten.quantize_per_tensor.default', 'aten.add.Nothing', ''])
def test_what_is_not_in_the_list_is_refused(name):
    with pytest.raises(Refused):
        resolve(name)


def test_ordinary_operators_are_allowed():
    for name in ('add.Tensor', 'convolution.default', 'native_batch_norm.default', 'relu_.default',
                 '_softmax.default', 'nonzero.default', 'empty.memory_format',
                 '_fused_adam_.default'):
        assert str(resolve(f'aten.{name}')) == f'aten.{name}'


def test_few_bytes_of_a_large_tensor_are_refused_before_memory_is_taken():
    zeros = torch.zeros(1 << 20)
    meta, data = tensors.pack(zeros)
    few = tensors.encoded(meta, data, Inlets(lambda: 1e6))
    assert len(few) < len(data) / 100
    context = Context(torch.device('cpu'), 8 << 20)
    context.upload(1, meta, few)
    assert torch.equal(context.tensor(1), zeros) and context.used == len(data)
    context.free(1)
    context = Context(torch.device('cpu'), len(data) - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OutOfMemory):
        context.upload(1, meta, few)
    with pytest.raises(OutOfMemory):
        ContextExecutor(context).upload(few, meta)
    assert not context.used
    huge = meta._replace(shape=(1 << 40,))
    with pytest.raises(OutOfMemory):
        context.upload(1, huge, few)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 10


def test_a_refused_operator_is_named():
    with pytest.raises(Refused, match=r'aten\.from_file\.default'):
        issue(port(), 'aten.from_file.default', '/etc/passwd', True, 10)


def test_no_more_memory_than_the_limit():
    to = port(limit=4000)
    handle = upload(to, torch.zeros(500))
    with pytest.raises(OutOfMemory, match='MiB'):
        issue(to, 'aten.cat.default', (Ref(handle),) * 3)
    assert to.performer.context.used == 2000
    result, made = issue(to, 'aten.view.default', Ref(handle), (5, 100))
    assert to.performer.context.used == 2000 and result.shape == (5, 100)
    to.wait(to.machine.free((handle, made)))
    assert to.performer.context.used == 0


def test_a_prediction_that_is_wrong_is_an_error():
    to = port()
    handle = upload(to, torch.zeros(3))
    right, wrong = Meta((3,), (1,), 'float32'), Meta((1, 3), (3, 1), 'float32')
    to.machine._add(('aten.neg.default', (Ref(handle),), (), 50, right), False)
    to.wait(to.machine.synchronize())
    to.machine._add(('aten.neg.default', (Ref(handle),), (), 51, wrong), False)
    with pytest.raises(RuntimeError, match='neg.default returned .*, but the client expected'):
        to.wait(to.machine.synchronize())


def test_an_operators_error_reaches_its_caller_as_it_is():
    to = port()
    handle = upload(to, torch.zeros(3))
    with pytest.raises(RuntimeError, match='must be a matrix'):
        issue(to, 'aten.mm.default', Ref(handle), Ref(handle))
    with pytest.raises(IndexError):
        issue(to, 'aten.select.int', Ref(handle), 0, 10)


def test_empty_tensors_show_nobodys_memory():
    to = port()
    for _ in range(20):
        to.wait(to.machine.free((upload(to, torch.full((1000,), 7.0)),)))
        _, handle = issue(to, 'aten.empty.memory_format', (1000,))
        meta, data = to.wait(to.machine.download(handle))
        assert not any(bytes(data))


def test_random_numbers_are_each_programs_own():
    first, second = port(), port()
    state = torch.get_rng_state()
    for to in (first, second):
        to.wait(to.machine.seed(5))
    draws = []
    for to in (first, second, first, second):
        handle = upload(to, torch.zeros(4))
        issue(to, 'aten.uniform_.default', Ref(handle))
        draws.append(bytes(to.wait(to.machine.download(handle))[1]))
    assert draws[0] == draws[1] and draws[2] == draws[3] and draws[0] != draws[2]
    assert torch.equal(state, torch.get_rng_state())


def digest_of(data):
    return hashlib.sha256(data).hexdigest()


def test_weights_are_found_by_their_digest_and_checked(tmp_path):
    weights = Weights(1 << 20, tmp_path)
    to, other = port(weights=weights), port(weights=Weights(1 << 20, tmp_path))
    meta, data = tensors.pack(torch.arange(6.0))
    handle, ticket = to.machine.find('0' * 64, meta)
    assert to.wait(ticket) is False
    with pytest.raises(RemoteError, match='do not have the digest'):
        to.wait(to.machine.keep(handle, meta, data, '0' * 64))
    digest = digest_of(data)
    to.wait(to.machine.keep(handle, meta, data, digest))
    handle, ticket = other.machine.find(digest, meta)
    assert other.wait(ticket) is True and weights.used == 24
    for _ in range(2):
        # This call must not change the weight that the server keeps.
        issue(other, 'aten.add_.Scalar', Ref(handle), 1)
        handle, ticket = other.machine.find(digest, meta)
        assert other.wait(ticket)
        assert bytes(other.wait(other.machine.download(handle))[1]) == bytes(data)
    assert bytes(to.wait(to.machine.download(1))[1]) != b''
    for wrong in (meta._replace(shape=(7,)), meta._replace(dtype='x'), meta._replace(offset=1)):
        _, ticket = other.machine.find(digest, wrong)
        try:
            assert other.wait(ticket) is False
        except RemoteError:
            pass
    _, ticket = to.machine.find('../' + digest[3:], meta)
    assert to.wait(ticket) is False


@pytest.mark.parametrize('failing', ['lock', 'new', 'folder'])
def test_weights_that_cannot_be_kept_are_uploaded_all_the_same(failing, tmp_path):
    folder = tmp_path / 'weights'
    if failing != 'folder':   # a folder in the place of a file that must be written
        (folder / failing).mkdir(parents=True)
    weights = Weights(1 << 20, folder)
    to = port(weights=weights)
    meta, data = tensors.pack(torch.arange(6.0))
    handle, ticket = to.machine.find(digest_of(data), meta)
    assert to.wait(ticket) is False
    to.wait(to.machine.keep(handle, meta, data, digest_of(data)))
    assert bytes(to.wait(to.machine.download(handle))[1]) == bytes(data) and weights.used == 0


def garbage(chance):
    """Draw a malformed message, or a message with an impossible request."""
    handle = chance.choice([0, 1, 2, 3, -1, 2**62])
    leaves = [None, True, -1, 2**40, 0.5, 'x', Ref(handle), Special('dtype', 'float32'),
              Special('dtype', 'float99'), Meta((2**20, 2**30), (1, 1), 'float32'), b'abcd', Own(0),
              Persistent(1), Own(-5), (), ((),), Meta((2,), (1,), 'float32')]
    fields = [chance.choice(leaves) for _ in range(chance.randint(0, 5))]
    step = ('aten.add.Tensor', (Own(chance.randint(-1, 2)), Persistent(handle)), (), (Own(0),),
            (Meta((2,), (1,), 'float32'),), chance.random() < 0.5)
    item = chance.choice([
        (chance.choice(['htod', 'dtoh', 'free', 'seed', 'query', 'find', 'keep', 'define', 'start',
                        'more', 'switch', 'abandon', 'finish', 'forget', 'x', 'aten.add.Tensor',
                        'aten.mm.default', 'aten.index.Tensor']), *fields),
        ('aten.add.Tensor', (Ref(handle), Ref(1)), (), chance.choice([1, 2, 50])),
        ('aten.as_strided.default', (Ref(handle), (2**30,), (2**20,), chance.randint(-9, 9)), (),
         60),
        ('aten.index_select.default', (Ref(1), 0, Ref(2)), (), 61),
        ('define', chance.randint(-1, 3), (chance.randint(-2, 9),), (),
         (step,) * chance.randint(0, 3)),
        ('start', 1, chance.randint(0, 3), 100, (b'1234',), ()),
        ('abandon', 1, chance.randint(0, 9), (100, chance.randint(0, 200))),
        ('finish', 1, (chance.randint(0, 200),)), tuple(fields), 5])
    message = encode(chance.choice([(1, True, (item,)), (1, True, (item, item)), (1, item), item]))
    if chance.random() < 0.3:
        damaged = bytearray(message)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        return bytes(damaged)
    return message


def test_malformed_messages_change_nothing_of_another_program():
    chance = random.Random(3)
    victim, attacker = (Performer(Context(torch.device('cpu'), 1 << 24), Weights())
                        for _ in range(2))
    meta, data = tensors.pack(torch.arange(100.0))
    for who in (victim, attacker):
        for handle in (1, 2):
            who.context.upload(handle, meta, data)
    answered = 0
    for _ in range(MALFORMED):
        try:
            replies = list(attacker.perform(garbage(chance)))
        except RemoteError:
            continue
        answered += bool(replies)
        for reply in replies:
            decode(reply)
    assert answered > MALFORMED // 10
    assert list(victim.context.tensors) == [1, 2]
    assert all(bytes(victim.context.download(h)[1]) == bytes(data) for h in (1, 2))
    attacker.close()
    assert attacker.used == 0 and not attacker.context.tensors
