"""Tensors that move to another server keep their values, and still share memory as before."""

import hashlib

import pytest
import torch
from fleet_compute.weights import Weights
from rrto_bridge.client.inprocess import InProcess
from rrto_bridge.client.journal import Journal
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.client.migration import migrate, prepare
from rrto_bridge.client.percall import PerCall
from rrto_bridge.client.replaying import Replaying
from rrto_bridge.execution.context import Context
from rrto_bridge.protocol.errors import RrtoError
from rrto_bridge.protocol.record import Call, Meta, Ref
from rrto_bridge.protocol.tensors import pack

META = Meta((5000,), (1,), 'float32')


def held(**tensors):
    """Return a context that contains these tensors, with the handles 1, 2, 3, ..."""
    context = Context(torch.device('cpu'), 1 << 30)
    for handle, tensor in enumerate(tensors.values(), 1):
        context.add(handle, tensor)
    return context


def engine(kind, limit=1 << 30):
    made = kind(InProcess(ClientMachine('async'), limit), Journal())
    made.machine.allocate(100)
    return made


@pytest.mark.parametrize('kind', [PerCall, Replaying])
def test_values_layout_and_sharing_survive(kind):
    base = torch.arange(4096.0).view(64, 64)
    here = held(base=base, row=base[3], turned=base.t()[::2], empty=torch.zeros(0, 3),
                nothing=torch.zeros(2, 0), flag=torch.tensor(True),
                half=torch.rand(3, 4).half()[1:, 2:])
    there = engine(kind)
    migrate(here, there)
    arrived = there.port.performer.context
    assert arrived.tensors.keys() == here.tensors.keys() and arrived.used == here.used
    for handle, tensor in here.tensors.items():
        found = arrived.tensors[handle]
        assert torch.equal(found, tensor) and found.stride() == tensor.stride()
        assert found.storage_offset() == tensor.storage_offset()
    with torch.inference_mode():
        arrived.tensors[2].fill_(7)
    assert arrived.tensors[1][3, 4] == arrived.tensors[3][2, 3] == 7
    again = InProcess(ClientMachine('async'))
    assert there.journal.rebuild(again) == ''
    rebuilt = again.context()
    assert rebuilt.tensors.keys() == here.tensors.keys()
    assert all(torch.equal(rebuilt.tensors[h], t) for h, t in here.tensors.items() if h > 3)


def test_weights_that_are_there_are_not_sent(tmp_path):
    weight = torch.rand(10_000)
    here, there = held(weight=weight), engine(PerCall)
    there.port.performer.weights = Weights(1 << 20, tmp_path)
    data = weight.numpy().tobytes()
    there.port.performer.weights.keep(data, hashlib.sha256(data).hexdigest())
    sent = []
    perform = there.port.performer.perform
    there.port.performer.perform = lambda message: sent.append(len(message)) or perform(message)
    migrate(here, there)
    assert sum(sent) < 1000 and torch.equal(there.port.performer.context.tensors[1], weight)


@pytest.mark.parametrize('kind', [PerCall, Replaying])
def test_what_was_prepared_moves_with_few_bytes_and_one_wait(kind, tmp_path):
    here, there = engine(PerCall), engine(kind)
    there.port.performer.weights = Weights(1 << 20, tmp_path)
    handles = [here.upload(*pack(torch.rand(5000)), True) for _ in range(9)]
    there.machine.follow(here.machine)
    held = prepare(here.journal, there)
    assert list(held) == handles == list(there.port.performer.context.tensors)
    here.execute(Call('aten.zero_.default', (Ref(handles[3]),)), (META,), False)   # meanwhile
    here.free(handles[:1])
    here.synchronize()
    there.machine.follow(here.machine)
    before, sent, perform = there.machine.round_trips, [], there.port.performer.perform
    there.port.performer.perform = lambda message: sent.append(len(message)) or perform(message)
    migrate(here.port.performer.context, there, held)
    assert 20_000 < sum(sent) < 25_000 and there.machine.round_trips - before <= 3
    found = there.port.performer.context.tensors
    assert sorted(found) == handles[1:]
    assert all(torch.equal(found[h], here.port.performer.context.tensors[h]) for h in found)
    again = InProcess(ClientMachine('async'))
    assert there.journal.rebuild(again) == ''
    assert all(torch.equal(again.context().tensors[h], t) for h, t in found.items())


def test_what_changes_here_leaves_the_journal_as_it_was():
    lost = engine(PerCall)
    weight, view = torch.rand(5000), torch.rand(5000)
    handles = [lost.upload(*pack(t), True) for t in (weight, view)]
    places = [InProcess(ClientMachine('async').follow(lost.machine)) for _ in range(2)]
    for place in places:
        assert lost.journal.rebuild(place) == ''
        part = Call('aten.slice.Tensor', (Ref(handles[1]), 0, 0, 9))
        here = PerCall(place)
        part = here.execute(part, (META,), True).handles[0]
        for handle in (handles[0], part):
            here.execute(Call('aten.add_.Tensor', (Ref(handle), 1)), (META,), False)
        here.synchronize()
        assert not place.context().digests
        assert torch.equal(place.context().tensors[handles[0]], weight + 1)
        assert torch.equal(place.context().tensors[handles[1]][:10],
                           torch.cat([view[:9] + 1, view[9:10]]))
        assert [bytes(u.data) for u in lost.journal.uploads()] == [
            t.numpy().tobytes() for t in (weight, view)]


def test_what_can_not_be_carried_is_an_error():
    base = torch.rand(8)
    with pytest.raises(RrtoError, match='share memory'):
        migrate(held(base=base, bits=base.view(torch.int32)), engine(PerCall))
    with pytest.raises(RrtoError, match='MiB'):
        migrate(held(base=torch.zeros(1000)), engine(PerCall, 100))


def test_random_numbers_go_on_from_the_present_state():
    here, there = held(), engine(PerCall)
    migrate(here, there)
    fresh = torch.Generator().get_state()
    assert torch.equal(there.port.performer.context.generator.get_state(), fresh)
    here.seed(3)
    migrate(here, there)
    assert not torch.equal(there.port.performer.context.generator.get_state(), fresh)
