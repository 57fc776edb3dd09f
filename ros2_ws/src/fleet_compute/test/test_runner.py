"""Tenants get from the runner what they would compute themselves, or compute it themselves."""

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import socket
import threading
from types import SimpleNamespace

import pytest
import torch
from fleet_compute.runner import MOST_OFFERS, Arena, Form, Runner, Tenant
from fleet_testing import LIMIT, examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

FORM = Form((2, 3), (3, 1), torch.float32)


class Scaled:
    """Multiplies by a number, and gives the sum too; `trick` breaks what it gives in a batch."""

    together = True
    inputs, outputs = [FORM], [FORM, Form((), (), torch.float32)]

    def __init__(self, factor, trick=''):
        self.factor, self.trick, self.name, self.batches = factor, trick, f'times {factor}', 0

    def __call__(self, x):
        batched = torch._C._functorch.is_batchedtensor(x)
        self.batches += batched
        if self.trick == 'raises' and batched:
            raise RuntimeError('no rule for batches')
        if self.trick == 'fails' and not batched:
            raise RuntimeError('never')
        return x * (self.factor + (self.trick == 'differs' and batched)), x.sum()


class Place:
    """A runner whose turns the test takes, unless `start` lets a thread take them."""

    def __init__(self, folder, device='cpu'):
        self.path, self.said, self.loaded = folder / 'runner', [], []
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(1000)      # a full queue refuses who comes
        self.runner = Runner(self.listener, torch.device(device), self.load, self.said.append)
        self.tenants = []

    def load(self, definition):
        factor, trick = json.loads(definition)
        self.loaded.append(Scaled(factor, trick))
        if trick == 'unloadable':
            raise MemoryError('too large')
        return self.loaded[-1]

    def start(self):
        threading.Thread(target=self.runner.serve, daemon=True).start()

    def tenant(self, patience=LIMIT):
        self.tenants.append(Tenant(self.path, patience))
        return self.tenants[-1]

    def turn(self):
        """Let the runner do what it can without another message."""
        for _ in range(4):
            self.runner.turn(wait=False)

    def close(self):
        for tenant in self.tenants:
            tenant.close()
        self.listener.close()


GPU = pytest.param('cuda:0', marks=[pytest.mark.gpu, pytest.mark.skipif(
    not torch.cuda.is_available(), reason='no GPU')])


@pytest.fixture
def place(tmp_path, request):
    made = Place(tmp_path, getattr(request, 'param', 'cpu'))
    yield made
    made.close()


def offered(tenant, factor=2, trick=''):
    definition = json.dumps([factor, trick]).encode()
    return tenant.offer(hashlib.sha256(definition).hexdigest(), definition, Scaled.inputs,
                        Scaled.outputs)


def pair(place, trick=''):
    """Return two offers of the same, whose tenants know that they are shared."""
    offers = [offered(place.tenant(), trick=trick) for _ in range(2)]
    place.turn()
    for tenant in place.tenants:
        tenant.look()
    return offers


def inputs(k=0):
    return [torch.arange(6.0).reshape(2, 3) + k]


def asked(offer, k):
    """Ask for a request without waiting for its results."""
    offer._arena.inputs[0].copy_(inputs(k)[0])
    offer._tenant._runs += 1
    offer._tenant._say(run=offer._number, id=offer._tenant._runs)


def answered(offer):
    return json.loads(offer._tenant._socket.recv(1 << 12))


def right(offer, k, factor=2):
    one, two = offer._arena.outputs
    return torch.equal(one, inputs(k)[0] * factor) and two == inputs(k)[0].sum()


def test_what_two_tenants_offer_is_shared_until_one_of_them_goes(place):
    first = offered(place.tenant())
    place.turn()
    place.tenants[0].look()
    assert not first.shared and not place.loaded     # nothing is loaded for one
    second = offered(place.tenant())
    other = offered(place.tenants[1], 3)
    place.turn()
    for tenant in place.tenants:
        tenant.look()
    assert first.shared and second.shared and not other.shared and len(place.loaded) == 1
    said = [*place.said]
    place.tenants[1].close()
    place.turn()
    place.tenants[0].look()
    assert not first.shared
    place.tenant().close()
    offered(place.tenant())
    place.turn()
    place.tenants[-1].close()       # what it was told is unread
    place.turn()
    assert place.said[len(said):] == [said[0]]      # they shared again, and that was all


def ask_together(place, offers):
    """Let the requests of all offers wait at the same time, four times; each result is right."""
    for turn in range(4):
        for k, offer in enumerate(offers):
            asked(offer, k + turn)
        place.turn()
        for k, offer in enumerate(offers):
            assert answered(offer)['error'] == '' and right(offer, k + turn)


@pytest.mark.parametrize('place', ['cpu', GPU], indirect=True)
def test_requests_that_wait_together_are_a_batch_that_gives_what_each_gives_alone(place):
    ask_together(place, pair(place))
    assert place.loaded[0].batches > 0


@pytest.mark.parametrize('trick', ['raises', 'differs'])
def test_a_batch_that_fails_or_gives_something_else_is_not_used(place, trick):
    ask_together(place, pair(place, trick))
    assert place.loaded[0].batches == 1


def test_a_request_that_fails_is_left_to_its_tenant(place):
    place.start()
    first, second = offered(place.tenant(), trick='fails'), offered(place.tenant(), trick='fails')
    until_shared(first, second)
    assert first.run(inputs()) is None and first.shared and not place.tenants[0].lost


def test_what_cannot_be_loaded_is_not_shared(place):
    offers = pair(place, 'unloadable')
    assert not any(offer.shared for offer in offers) and 'MemoryError' in place.said[-1]


def until_shared(*offers):
    import time
    end = time.monotonic() + LIMIT
    while not all(offer.shared for offer in offers):
        assert time.monotonic() < end
        for offer in offers:
            offer._tenant.look()


@pytest.mark.parametrize('place', ['cpu', GPU], indirect=True)
def test_tenants_that_ask_at_any_time_get_their_own_results(place):
    place.start()
    offers = [offered(place.tenant(), 2 + k % 2) for k in range(6)]
    until_shared(*offers)
    wrong = []

    def ask(k):
        with torch.inference_mode():
            for turn in range(100):
                results = offers[k].run(inputs(k + 10 * turn))
                if results is None or not right(offers[k], k + 10 * turn, 2 + k % 2):
                    wrong.append((k, turn))
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not wrong


def test_a_tenant_computes_itself_when_the_runner_ends_or_does_not_answer(place):
    one, two = pair(place)
    one._tenant._patience = 0.01
    assert one.run(inputs()) is None and one._tenant.lost and not one.shared
    for client in [key.data for key in place.runner._selector.get_map().values() if key.data]:
        client.socket.close()
    assert two.run(inputs()) is None and two._tenant.lost
    two.close()
    with pytest.raises(OSError):
        Tenant(place.path.with_name('nobody'), 1.0)


@pytest.mark.parametrize('message', [
    b'{', b'[]', b'{"run": 7, "id": 1}', b'{"forget": 1}', b'{"offer": 1, "key": "x"}',
    b'{"offer": [], "key": 0}', b'"text"'])
def test_a_tenant_that_talks_nonsense_is_dropped_and_the_others_stay(place, message):
    offers = pair(place)
    bad = place.tenant()
    bad._socket.send(message)
    place.turn()
    bad.look()
    assert bad.lost
    asked(offers[0], 5)
    place.turn()
    assert answered(offers[0])['error'] == '' and right(offers[0], 5)


@pytest.mark.parametrize('wrong', ['small', 'unsealed'])
def test_memory_that_could_shrink_is_not_mapped(place, wrong):
    offer, bad = offered(place.tenant()), place.tenant()
    definition = json.dumps([2, '']).encode()
    memory = os.memfd_create('arena', os.MFD_ALLOW_SEALING)
    os.truncate(memory, 1 if wrong == 'small' else Arena.size(Scaled.inputs, Scaled.outputs))
    if wrong == 'small':
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    text = os.memfd_create('definition')
    os.write(text, definition)
    socket.send_fds(bad._socket, [json.dumps(
        {'offer': 1, 'key': hashlib.sha256(definition).hexdigest()}).encode()], [text, memory])
    place.turn()
    place.tenants[0].look()
    assert offer.shared and 'must be' in place.said[-1]
    asked_raw = json.dumps({'run': 1, 'id': 1}).encode()
    bad._socket.send(asked_raw)
    place.turn()
    message = {}
    while 'done' not in message:
        message = json.loads(bad._socket.recv(1 << 12))
    assert message['error']


@pytest.fixture
def no_descriptors(place):
    """Return a function after whose call this process gets only `left` more file descriptors."""
    limits, held = resource.getrlimit(resource.RLIMIT_NOFILE), []

    def take(left):
        highest = os.dup(place.listener.fileno())
        held.append(highest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(highest))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, limits[1]))

    def give():
        for descriptor in held:
            os.close(descriptor)
        held.clear()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    take.give = give
    yield take
    give()


@pytest.mark.parametrize(('moment', 'left'), [
    ('a tenant comes', 0), ('it offers', 0), ('it offers', 1), ('it offers', 2), ('it offers', 3)])
def test_without_file_descriptors_the_others_stay(place, no_descriptors, moment, left):
    offers = pair(place)
    late = place.tenant()
    if moment == 'it offers':
        place.turn()
        offered(late)
    no_descriptors(left)
    place.turn()
    asked(offers[0], 5)
    place.turn()
    assert answered(offers[0])['error'] == '' and right(offers[0], 5)
    no_descriptors.give()
    offers[1]._tenant.close()       # now there are some again
    place.turn()
    late.look()
    if late.lost:
        late = place.tenant()
    last = offered(late)
    place.turn()
    late.look()
    assert last.shared


@pytest.mark.parametrize('read', [0, 1])
def test_a_tenant_that_has_not_read_for_long_learns_what_is_shared(place, read):
    """Its socket is full then: the last message that it gets says that it shares, or does not."""
    idle = offered(place.tenant())
    place.turn()
    for _ in range(read):
        answered(idle)
    for _ in range(500):
        other = Tenant(place.path, LIMIT)
        offered(other)
        place.turn()
        other.close()
        place.turn()
    idle._tenant.look()
    if idle.shared:
        asked(idle, 0)
        place.turn()
        idle._tenant.look()
        assert not idle.shared
    busy = offered(place.tenant())
    place.turn()
    for offer in (idle, busy):
        offer._tenant.look()
        assert offer.shared


def test_a_runner_whose_device_is_broken_ends(place, monkeypatch):
    def synchronize(device):
        raise RuntimeError('CUDA error: device-side assert triggered')
    offers = pair(place)
    monkeypatch.setattr(torch.cuda, 'synchronize', synchronize)
    place.runner._device = SimpleNamespace(type='cuda')     # no tensor can move there
    asked(offers[0], 1)
    with pytest.raises(RuntimeError, match='device-side assert'):
        place.turn()


def test_a_tenant_offers_a_bounded_number(place):
    tenant = place.tenant()
    with contextlib.suppress(OSError):
        for k in range(MOST_OFFERS + 1):
            offered(tenant, k)
            place.turn()
    place.turn()
    tenant.look()
    assert tenant.lost and not place.runner._commons


class Life(RuleBasedStateMachine):
    """Whatever tenants do in whatever order, a result is the right one."""

    @initialize()
    def begin(self):
        import tempfile
        from pathlib import Path
        self.folder = tempfile.TemporaryDirectory()
        self.place = Place(Path(self.folder.name))
        self.offers = []
        self.place.start()

    def teardown(self):
        self.place.close()
        self.folder.cleanup()

    @rule(factor=st.integers(2, 3), trick=st.sampled_from(['', 'differs', 'fails']))
    def join(self, factor, trick):
        tenant = self.place.tenant()
        self.offers.append((offered(tenant, factor, trick), factor))

    @precondition(lambda self: self.offers)
    @rule(k=st.integers(0, 99), how=st.sampled_from(['close', 'forget']))
    def leave(self, k, how):
        offer, _ = self.offers.pop(k % len(self.offers))
        (offer if how == 'forget' else offer._tenant).close()

    @precondition(lambda self: self.offers)
    @rule(k=st.integers(0, 99), seed=st.integers(0, 9))
    def ask(self, k, seed):
        offer, factor = self.offers[k % len(self.offers)]
        offer._tenant.look()
        if offer.shared and offer.run(inputs(seed)) is not None:
            assert right(offer, seed, factor)
        assert not offer._tenant.lost


TestLife = Life.TestCase
TestLife.settings = examples(20)
