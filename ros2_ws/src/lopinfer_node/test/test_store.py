"""A store lists the whole model or nothing of it, and reads only what was stored."""

import os

import pytest
import safetensors.torch
import torch
from fleet_compute.weights import FOLDER
from lopinfer_node.errors import ModelError, RemoteError
from lopinfer_node.model.files import CONTENTS, GRAPH, contents_of, texts
from lopinfer_node.model.traced import trace
from lopinfer_node.runtime.store import Store
from runtime_models import Small


@pytest.fixture
def traced():
    torch.manual_seed(1)
    return trace(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval(),
                 torch.rand(1, 3, 8, 8))


def small(change=0.0):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    with torch.no_grad():
        model[2].bias += change
    return trace(model.eval(), torch.zeros(1, 64))


def damage(path):
    with path.open('r+b') as file:
        file.seek(-5, os.SEEK_END)
        file.write(b'\x7f')


def put(store, digest, served=()):
    store.put(digest, served, b'{}', b'{}')


def test_in_a_full_store_the_model_goes_that_was_not_used_for_longest(tmp_path):
    store = Store(tmp_path, models=3)
    (tmp_path / 'not of the store').mkdir()
    for age, digest in enumerate('abcd'):
        (tmp_path / (digest * 64)).mkdir()
        os.utime(tmp_path / (digest * 64), (age, age))
    store.use('a' * 64)
    put(store, 'e' * 64, served=['c' * 64])
    assert sorted(p.name[0] for p in tmp_path.iterdir()) == ['a', 'c', 'e', 'n', 'w']


def test_a_full_store_of_models_that_are_served_takes_no_further_one(tmp_path):
    store = Store(tmp_path, models=1)
    put(store, 'c' * 64)
    with pytest.raises(RemoteError, match='limit of 1 models'):
        put(store, 'd' * 64, served=['c' * 64])
    assert store.digests() == {'c' * 64}
    put(store, 'd' * 64)
    assert store.digests() == {'d' * 64}


def test_a_full_store_takes_a_model_of_this_machine(traced, tmp_path):
    store = Store(tmp_path, models=1)
    for made in (small(), traced):
        store.add(made)
        assert store.digests() == {made.digest}


def test_a_model_whose_graph_was_damaged_on_the_disk_is_not_read(traced, tmp_path):
    store = Store(tmp_path)
    store.add(traced)
    assert store.load(traced.digest).digest == traced.digest
    damage(store.path(traced.digest) / GRAPH)
    with pytest.raises(ModelError):
        store.load(traced.digest)


def test_a_weight_that_was_damaged_on_the_disk_is_not_read_and_counts_as_gone(traced, tmp_path):
    store = Store(tmp_path)
    store.add(traced)
    damage(store.kept.folder / traced.contents['0.weight'].sha256)
    with pytest.raises(ModelError, match='0.weight is no longer kept, or was damaged'):
        store.load(traced.digest)
    assert not store.has(traced.digest) and not store.digests()
    store.add(traced)
    assert store.load(traced.digest).digest == traced.digest


def test_weights_that_were_read_do_not_follow_the_file(traced, tmp_path):
    store = Store(tmp_path)
    store.add(traced)
    read = store.load(traced.digest)
    before = {name: tensor.clone() for name, tensor in read.parameters.items()}
    for path in store.kept.folder.iterdir():
        if path.stat().st_size:
            damage(path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in read.parameters.items())


@pytest.mark.parametrize('error', [KeyboardInterrupt, OSError('No space left on device')])
def test_a_model_is_there_whole_or_not_at_all(traced, tmp_path, monkeypatch, error):
    def fails(path):
        raise error
    store = Store(tmp_path)
    monkeypatch.setattr('lopinfer_node.runtime.store.flush', fails)
    with pytest.raises(type(error) if isinstance(error, OSError) else error):
        store.add(traced)
    assert not store.digests()
    monkeypatch.undo()
    store.add(traced)
    assert store.load(traced.digest).digest == traced.digest


def test_texts_are_flushed_to_disk_before_they_are_complete(traced, tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, 'fsync', lambda file: synced.append(os.readlink(
        f'/proc/self/fd/{file}')) or fsync(file))
    Store(tmp_path).add(traced)
    assert all(any(path.endswith(f'.part/{name}') for path in synced)
               for name in (GRAPH, CONTENTS))


def test_a_model_needs_no_other_model_whose_weights_it_shares(tmp_path):
    store = Store(tmp_path, models=2)
    first, second, third = map(small, (0.0, 1.0, 2.0))
    for traced in (first, second, third):
        for name, tensor in traced.parameters.items():
            store.keep(tensor.detach().numpy().tobytes(), traced.contents[name])
        store.put(traced.digest, (), *texts(traced).values())
    assert store.digests() == {second.digest, third.digest}
    assert store.load(third.digest).digest == third.digest


def test_a_model_whose_weights_had_to_go_counts_as_not_stored(tmp_path):
    store, first = Store(tmp_path, disk=20_000), small()
    store.add(first)
    torch.manual_seed(5)
    store.keep_weights(safetensors.torch.save({'w': torch.randn(64, 64)}))
    assert not store.has(first.digest) and not store.digests()
    with pytest.raises(ModelError, match='no longer kept'):
        store.load(first.digest)
    with pytest.raises(RemoteError, match='no room for all of its weights'):
        store.put(first.digest, (), *texts(first).values())
    store.add(first)
    assert store.load(first.digest).digest == first.digest


@pytest.mark.parametrize('text', [
    '{"a": "b"}', '[]', '{"a": 1}', '{', '"x"', '[' * 100_000, '{"a": ["../x", "float32", [1]]}',
    '{"a": ["%s", "load", [1]]}' % ('0' * 64), '{"a": ["%s", "float32", [-1]]}' % ('0' * 64),
    '{"a": ["%s", "float32", [9999999999999]]}' % ('0' * 64),
    '{"a": ["%s", "float32", 1]}' % ('0' * 64), '{"a": ["%s", 7, [1]]}' % ('0' * 64)])
def test_contents_that_are_no_texts_are_refused(text):
    with pytest.raises(ModelError):
        contents_of(text.encode())
    assert contents_of(b'{"a": ["%s", "float32", [3]]}' % (b'0' * 64))['a'].nbytes == 12


def test_the_weights_of_a_fleets_version_are_kept(tmp_path):
    traced, store = trace(Small().eval(), torch.rand(1, 3, 32, 40)), Store(tmp_path)
    content = safetensors.torch.save({n: t.contiguous() for n, t in traced.parameters.items()})
    assert store.keep_weights(content) == len(traced.parameters)
    store.put(traced.digest, (), *texts(traced).values())
    assert store.load(traced.digest).digest == traced.digest
    with pytest.raises(ModelError, match='not a safetensors file'):
        store.keep_weights(b'nonsense')
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([FOLDER, traced.digest])
