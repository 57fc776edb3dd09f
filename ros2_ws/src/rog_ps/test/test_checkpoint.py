"""A checkpoint comes back as it was, or is refused; a write that fails leaves the former one."""

import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rog_core.messages import Kind, Receipt, TransferId
from rog_core.partition import partition_of
from rog_core.server import ServerState
from rog_ps import checkpoint
from safetensors.numpy import load_file, save_file

PARTITION = partition_of([('conv', (40, 30)), ('bias', (40,)), ('scale', ())], 'row', 'onebit')
MASTER = np.random.default_rng(1).normal(size=PARTITION.elements).astype(np.float32)

receipts = st.builds(Receipt, st.builds(TransferId, st.integers(0, 2 ** 64 - 1), st.just(Kind.PUSH),
                                        st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 32 - 1)),
                     st.integers(0, 99), st.binary(max_size=13))
pushes = st.dictionaries(st.sampled_from(['robot1', 'robot2']),
                         st.tuples(st.integers(0, 2 ** 64 - 1), receipts))


def state(iteration=7, known=None):
    return ServerState(iteration, 'rsp:4', np.arange(PARTITION.rows), known or {})


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2 ** 40), pushes, st.floats(0, 1e9))
def test_it_comes_back_as_it_was(tmp_path_factory, iteration, known, elapsed):
    folder = tmp_path_factory.mktemp('run')
    checkpoint.write(folder, PARTITION, MASTER, state(iteration, known), elapsed)
    master, back, seconds = checkpoint.read(folder, PARTITION)
    assert np.array_equal(master, MASTER) and seconds == elapsed
    assert (back.iteration, back.sync, back.pushes) == (iteration, 'rsp:4', known)
    assert np.array_equal(back.updated_at, np.arange(PARTITION.rows))


def test_any_safetensors_reader_finds_the_parameters_by_name(tmp_path):
    path = checkpoint.write(tmp_path, PARTITION, MASTER, state(), 0.0)
    tensors = load_file(path)
    assert tensors['conv'].shape == (40, 30) and tensors['scale'].shape == ()
    assert np.array_equal(tensors['conv'].reshape(-1), MASTER[:1200])


def rewrite(path, change):
    """Write the checkpoint at path anew with its metadata changed."""
    from safetensors import safe_open
    with safe_open(str(path), 'numpy') as file:
        meta = json.loads(file.metadata()['rog'])
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    change(meta, tensors)
    save_file(tensors, str(path), {'rog': json.dumps(meta)})


@pytest.mark.parametrize('change, message', [
    (lambda meta, t: meta.update(schema='rog-checkpoint/9'), 'schema rog-checkpoint/9'),
    (lambda meta, t: meta.update(digest='0' * 64), 'another model'),
    (lambda meta, t: meta.pop('pushes'), 'cannot be read'),
    (lambda meta, t: meta.update(pushes={'robot1': [1, 2]}), 'cannot be read'),
    (lambda meta, t: meta.update(iteration='x'), 'cannot be read'),
    (lambda meta, t: t.pop('bias'), 'cannot be read'),
    (lambda meta, t: t.update(bias=np.zeros(39, np.float32)), 'cannot be read'),
    (lambda meta, t: t.update(bias=np.full(40, np.nan, np.float32)), 'not finite'),
    (lambda meta, t: t.update({'rog/updated_at': np.zeros(3, np.int64)}), 'cannot be read'),
])
def test_one_that_does_not_fit_is_refused(tmp_path, change, message):
    path = checkpoint.write(tmp_path, PARTITION, MASTER, state(), 0.0)
    rewrite(path, change)
    with pytest.raises(checkpoint.CheckpointError, match=message):
        checkpoint.read(tmp_path, PARTITION)


def test_a_foreign_file_is_refused(tmp_path):
    save_file({'x': np.zeros(3)}, str(tmp_path / checkpoint.FILE))
    with pytest.raises(checkpoint.CheckpointError, match='cannot be read'):
        checkpoint.read(tmp_path, PARTITION)


def test_a_write_that_fails_leaves_the_former_checkpoint(tmp_path, monkeypatch):
    checkpoint.write(tmp_path, PARTITION, MASTER, state(3), 0.0)

    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full)
    with pytest.raises(checkpoint.CheckpointError, match='No space left'):
        checkpoint.write(tmp_path, PARTITION, MASTER, state(4), 0.0)
    assert checkpoint.read(tmp_path, PARTITION)[1].iteration == 3
    assert [p.name for p in tmp_path.iterdir()] == [checkpoint.FILE]
