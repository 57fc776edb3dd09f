"""After any interruption of an upload, the store lists the whole model or nothing of it."""

import os
import random
import resource
import tracemalloc
from hashlib import sha256

import pytest
import safetensors.torch
import torch
from fleet_compute.inlets import shortened
from lopinfer_node.errors import ModelError, RemoteError
from lopinfer_node.model.files import CONTENTS, GRAPH, WEIGHTS, save_texts, save_weights
from lopinfer_node.model.traced import trace
from lopinfer_node.runtime.store import (
    FILES,
    PART_BYTES,
    Store,
    UploadRequest,
    announce,
    send_file,
    send_model,
    send_traced,
)
from runtime_models import Small

DIGEST = 'c' * 64


def wide(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(900, 200), torch.nn.ReLU(), torch.nn.Linear(200, 4))
    return trace(model.eval(), torch.zeros(1, 900))


@pytest.fixture(scope='module')
def model():
    return wide()    # its weights are three parts


def send(traced, folder, call):
    folder.mkdir(exist_ok=True)
    send_traced(traced, folder, call)


def test_an_upload_survives_lost_calls_and_a_restart(model, tmp_path):
    path, draw, calls = tmp_path / 'store', random.Random(2), []
    stores = [Store(path)]

    def call(request):
        calls.append(request.offset)
        if len(calls) == 5:
            stores[0] = Store(path)       # a new store stands for a restart
        if draw.random() < 0.3:
            raise TimeoutError
        return stores[0].take(request)

    for _ in range(50):
        try:
            send(model, tmp_path / 'robot', call)
            break
        except TimeoutError:
            continue
    assert stores[0].digests() == {model.digest}
    found = stores[0].load(model.digest).parameters
    assert all(torch.equal(found[name], t) for name, t in model.parameters.items())
    asked = []
    send(model, tmp_path / 'robot', lambda r: asked.append(r.data) or stores[0].take(r))
    assert asked == [b'', b'', b'']       # a second robot only asks, and sends no data


def test_parts_from_before_a_restart_are_hashed_in_blocks(tmp_path):
    size = 64 << 20
    path = tmp_path / f'{DIGEST}.part' / (FILES[1] + '.part')
    path.parent.mkdir()
    path.write_bytes(bytes(size))
    tracemalloc.start()
    reply = Store(tmp_path).take(UploadRequest(DIGEST, FILES[1], '', size + 1, 0, b''))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reply.received == size and most < size / 8


def test_a_file_that_arrives_damaged_is_refused_and_can_be_sent_again(model, tmp_path):
    store, damage = Store(tmp_path / 'store'), [True]

    def call(request):
        if damage and request.offset and request.file == WEIGHTS:
            damage.clear()
            request = UploadRequest(request.digest, request.file, request.sha256, request.size,
                                    request.offset, b'\0' * len(request.data))
        return store.take(request)

    with pytest.raises(RemoteError, match='damaged'):
        send(model, tmp_path / 'robot', call)
    assert store.digests() == set()
    send(model, tmp_path / 'robot', call)
    assert store.digests() == {model.digest}


@pytest.mark.parametrize('bad', [
    UploadRequest('../../etc', 'graph.json', '', 1, 0, b'x'),
    UploadRequest(DIGEST, '../passwd', '', 1, 0, b'x'),
    UploadRequest(DIGEST, 'graph.json', '', 10 ** 12, 0, b'x'),
    UploadRequest(DIGEST, 'graph.json', '', 1, 0, b'xyz')])
def test_an_invalid_part_of_a_model_is_refused(bad, tmp_path):
    store = Store(tmp_path / 'store')
    assert not store.take(bad).accepted
    assert not [p for p in (tmp_path / 'store').rglob('*') if p.is_file()]


def test_a_full_disk_refuses_the_model_and_keeps_nothing_of_it(model, tmp_path):
    store = Store(tmp_path / 'store')
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PART_BYTES + 1, hard))
    try:
        folder = tmp_path / 'robot'
        folder.mkdir()
        save_texts(model, folder)
        send_file(folder / CONTENTS, model.digest, store.take)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        save_weights(model, folder, model.parameters)
        resource.setrlimit(resource.RLIMIT_FSIZE, (PART_BYTES + 1, hard))
        with pytest.raises(RemoteError, match='cannot keep weights.safetensors: .*File too large'):
            send_model(folder, model.digest, store.take)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [p for p in (tmp_path / 'store').rglob('*') if p.is_file()]
    send(model, folder, store.take)
    assert store.digests() == {model.digest}


def begin(store, digest, served=()):
    return store.take(UploadRequest(digest, 'graph.json', '', 9, 0, b'abc'), served)


def test_in_a_full_store_the_model_goes_that_was_not_used_for_longest(tmp_path):
    store = Store(tmp_path, models=3)
    (tmp_path / 'not of the store').mkdir()
    for age, digest in enumerate('abcd'):
        (tmp_path / (digest * 64)).mkdir()
        os.utime(tmp_path / (digest * 64), (age, age))
    store.use('a' * 64)
    assert begin(store, 'e' * 64, served=['c' * 64]).accepted
    assert sorted(p.name[0] for p in tmp_path.iterdir()) == ['a', 'c', 'e', 'n', 'w']


def test_a_full_store_of_models_that_are_served_takes_no_further_one(tmp_path):
    store = Store(tmp_path, models=1)
    (tmp_path / DIGEST).mkdir()
    assert 'limit of 1 models' in begin(store, 'd' * 64, served=[DIGEST]).reason
    assert (tmp_path / DIGEST).exists()
    assert begin(store, 'd' * 64).accepted and not (tmp_path / DIGEST).exists()
    assert store.take(UploadRequest('d' * 64, 'graph.json', '', 9, 3, b'abc')).received == 6


def test_a_part_that_was_not_asked_for_changes_nothing(tmp_path):
    store = Store(tmp_path / 'store')
    assert store.take(UploadRequest(DIGEST, 'graph.json', '', 9, 0, b'abc')).received == 3
    assert store.take(UploadRequest(DIGEST, 'graph.json', '', 9, 0, b'xyz')).received == 3
    assert store.take(UploadRequest(DIGEST, 'graph.json', '', 9, 6, b'xyz')).received == 3


@pytest.fixture
def traced():
    torch.manual_seed(1)
    return trace(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(),
                 torch.rand(1, 3, 8, 8))


def damage(path):
    with path.open('r+b') as file:
        file.seek(-5, os.SEEK_END)
        file.write(b'\x7f')


def test_a_model_whose_graph_was_damaged_on_the_disk_is_not_read(traced, tmp_path):
    store = Store(tmp_path)
    store.add(traced)
    assert store.load(traced.digest).digest == traced.digest
    damage(store.path(traced.digest) / GRAPH)
    with pytest.raises(ModelError):
        store.load(traced.digest)


def test_a_weight_that_was_damaged_on_the_disk_is_sent_again_alone(model, tmp_path):
    store = Store(tmp_path / 'store')
    send(model, tmp_path / 'robot', store.take)
    damage(store.kept.folder / model.contents['2.weight'].sha256)
    with pytest.raises(ModelError, match='2.weight is no longer kept, or was damaged'):
        store.load(model.digest)
    assert not store.has(model.digest)
    sizes = {}

    def call(request):
        sizes[request.file] = request.size
        return store.take(request)
    send(model, tmp_path / 'robot', call)
    assert sizes[WEIGHTS] < 2 * 4 * 4 * 200
    assert store.load(model.digest).digest == model.digest


def test_weights_that_were_read_do_not_follow_the_file(traced, tmp_path):
    store = Store(tmp_path)
    store.add(traced)
    read = store.load(traced.digest)
    before = {name: tensor.clone() for name, tensor in read.parameters.items()}
    for path in store.kept.folder.iterdir():
        if path.stat().st_size:
            damage(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in read.parameters.items())


def test_a_model_of_this_machines_own_is_there_whole_or_not_at_all(traced, tmp_path, monkeypatch):
    def half(made, folder):
        save_texts(made, folder)
        raise KeyboardInterrupt
    store = Store(tmp_path)
    monkeypatch.setattr('lopinfer_node.model.files.save_texts', half)
    with pytest.raises(KeyboardInterrupt):
        store.add(traced)
    assert not store.digests()
    monkeypatch.undo()
    store.add(traced)
    assert store.load(traced.digest).digest == traced.digest


def test_a_graph_is_flushed_to_disk_before_it_is_complete(model, tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, 'fsync', lambda file: synced.append(os.readlink(
        f'/proc/self/fd/{file}')) or fsync(file))
    send(model, tmp_path / 'robot', Store(tmp_path / 'store').take)
    assert all(any(path.endswith(name + '.part') for path in synced) for name in (GRAPH, CONTENTS))


def test_weights_beyond_the_servers_memory_are_refused_before_anything_is_sent(tmp_path):
    store, asked = Store(tmp_path, memory=1 << 20), []

    def call(request):
        asked.append(request)
        return store.take(request)
    with pytest.raises(RemoteError, match='parameter memory'):
        announce(DIGEST, 2 << 20, call)
    assert [request.data for request in asked] == [b'']
    assert [p.name for p in tmp_path.iterdir()] == ['weights']
    announce(DIGEST, 1 << 19, call)
    announce(DIGEST, 0, call)   # a model without weights


def small(change=0.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with torch.no_grad():
        model[2].bias += change
    return model.eval()


def sent(store, folder, model):
    """Send a model; return its trace, and the bytes of weights that were sent."""
    traced, sizes = trace(model, torch.zeros(1, 64)), {}

    def call(request):
        sizes[request.file] = request.size
        return store.take(request)
    folder.mkdir()
    send_traced(traced, folder, call)
    return traced, sizes[WEIGHTS]


def test_of_a_changed_model_only_the_changed_weights_are_sent(tmp_path):
    store, x = Store(tmp_path / 'store'), torch.rand(1, 64)
    first, whole = sent(store, tmp_path / 'first', small())
    second, changed = sent(store, tmp_path / 'second', small(1.0))
    assert whole > 4 * 64 * 64 > 100 * 4 > changed
    for traced, model in ((first, small()), (second, small(1.0))):
        found = store.load(traced.digest)
        torch.testing.assert_close(found.run({found.graph.inputs[0]: x})[0], model(x).detach())


def test_a_model_needs_no_other_model_whose_weights_it_shares(tmp_path):
    store = Store(tmp_path / 'store', models=2)
    first, _ = sent(store, tmp_path / 'first', small())
    second, _ = sent(store, tmp_path / 'second', small(1.0))
    third, _ = sent(store, tmp_path / 'third', small(2.0))
    assert store.digests() == {second.digest, third.digest}
    assert store.load(third.digest).digest == third.digest


def test_a_model_whose_weights_had_to_go_counts_as_not_stored_and_can_be_sent_again(tmp_path):
    store = Store(tmp_path / 'store', disk=20_000)
    first, whole = sent(store, tmp_path / 'first', small())
    torch.manual_seed(5)
    other = torch.nn.Linear(64, 64)
    store.keep_weights(safetensors.torch.save({'w': other.weight.detach()}))
    assert not store.has(first.digest) and not store.digests()
    with pytest.raises(ModelError, match='no longer kept'):
        store.load(first.digest)
    assert 4 * 64 * 64 < sent(store, tmp_path / 'again', small())[1] < whole    # what had to go
    assert store.load(first.digest).digest == first.digest


def test_a_model_that_does_not_fit_on_the_disk_is_refused(tmp_path):
    with pytest.raises(RemoteError, match='parameter disk'):
        sent(Store(tmp_path / 'store', disk=1000), tmp_path / 'first', small())
    store = Store(tmp_path / 'other', disk=20_000)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 32)).eval()
    store.keep_weights(safetensors.torch.save({'w': model[0].weight.detach()}))
    with pytest.raises(RemoteError, match='0.weight .* no room for all of them'):
        sent(store, tmp_path / 'second', model)     # each of two halves fits
    assert not store.digests()


def test_weights_that_are_not_what_was_said_are_refused(tmp_path):
    store, folder = Store(tmp_path / 'store'), tmp_path / 'robot'
    traced = trace(small(), torch.zeros(1, 64))
    folder.mkdir()
    save_texts(traced, folder)
    send_file(folder / CONTENTS, traced.digest, store.take)
    save_weights(trace(small(1.0), torch.zeros(1, 64)), folder, traced.parameters)
    with pytest.raises(RemoteError, match='2.bias is not what'):
        send_model(folder, traced.digest, store.take)
    assert not store.digests()
    save_weights(traced, folder, traced.parameters)
    send_model(folder, traced.digest, store.take)
    assert store.load(traced.digest).digest == traced.digest


@pytest.mark.parametrize('text', [
    '{"a": "b"}', '[]', '{"a": 1}', '{', '"x"', '[' * 100_000, '{"a": ["../x", "float32", [1]]}',
    '{"a": ["%s", "load", [1]]}' % ('0' * 64), '{"a": ["%s", "float32", [-1]]}' % ('0' * 64),
    '{"a": ["%s", "float32", [9999999999999]]}' % ('0' * 64), '{"a": ["%s", "float32", 1]}' % (
        '0' * 64)])
def test_contents_that_are_no_texts_are_refused(tmp_path, text):
    store, data = Store(tmp_path), text.encode()
    reply = store.take(UploadRequest(DIGEST, CONTENTS, sha256(data).hexdigest(), len(data), 0,
                                     data))
    assert not reply.accepted and reply.reason
    good = b'{"a": ["%s", "float32", [1]]}' % (b'0' * 64)
    assert store.take(UploadRequest(DIGEST, CONTENTS, sha256(good).hexdigest(), len(good), 0, good)
                      ).missing == ['a']


def test_the_weights_of_a_fleets_version_need_not_be_sent(tmp_path):
    traced, store = trace(Small().eval(), torch.rand(1, 3, 32, 40)), Store(tmp_path / 'store')
    files = [safetensors.torch.save({name: t.contiguous() + k
                                     for name, t in traced.parameters.items()}) for k in range(5)]
    (tmp_path / 'robot').mkdir()
    assert store.keep_weights(files[0]) == len(traced.parameters)
    asked = []
    send_traced(traced, tmp_path / 'robot',
                lambda request: asked.append(request) or store.take(request))
    assert sum(len(r.data) for r in asked if r.file == WEIGHTS) < 1000
    assert store.load(traced.digest).digest == traced.digest
    with pytest.raises(ModelError, match='not a safetensors file'):
        store.keep_weights(b'nonsense')
    assert store.digests() == {traced.digest}


def test_weights_cross_the_link_in_fewer_bytes(model, tmp_path):
    store, sizes = Store(tmp_path / 'store'), []

    def call(request):
        sizes.append(len(request.data))
        return store.take(request)
    send(model, tmp_path / 'robot', call)
    assert sum(sizes) < .95 * sum(t.nbytes for t in model.parameters.values())
    part = bytes(shortened(torch.randn(PART_BYTES // 4).numpy().tobytes()))
    for data, length in ((part[:-1], PART_BYTES), (part, PART_BYTES - 4)):
        reply = store.take(UploadRequest('d' * 64, WEIGHTS, '', 1 << 20, 0, data, length))
        assert 'is damaged' in reply.reason and not reply.received
