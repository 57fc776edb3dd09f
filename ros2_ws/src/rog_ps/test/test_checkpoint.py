"""A checkpoint comes back as it was, or is refused; a write that fails leaves the former one."""

import json
import os

import numpy as np
import pytest
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.aggregation import Aggregation, ServerState
from rog_core.codecs import get_codec
from rog_core.messages import Kind, Receipt, TransferId
from rog_core.methods import Team
from rog_core.methods.base import Model, Standing
from rog_core.partition import partition_of
from rog_ps import checkpoint
from safetensors.numpy import load_file, save_file

PARTITION = partition_of([('conv', (40, 30)), ('bias', (40,)), ('scale', ())], 'row', 'onebit')
MASTER = np.random.default_rng(1).normal(size=PARTITION.elements).astype(np.float32)

receipts = st.builds(Receipt, st.builds(TransferId, st.integers(0, 2 ** 64 - 1), st.just(Kind.PUSH),
                                        st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 32 - 1)),
                     st.integers(0, 99), st.binary(max_size=13))
pushes = st.dictionaries(st.sampled_from(['robot1', 'robot2']),
                         st.tuples(st.integers(0, 2 ** 64 - 1), receipts))


def state(iteration=7, known=None, **more):
    return ServerState(iteration, 'rsp:4', np.arange(PARTITION.rows), known or {}, **more)


@examples(30)
@given(st.integers(0, 2 ** 40), pushes, st.floats(0, 1e9))
def test_it_comes_back_as_it_was(tmp_path_factory, iteration, known, elapsed):
    folder = tmp_path_factory.mktemp('run')
    checkpoint.write(folder, PARTITION, MASTER, state(iteration, known), elapsed)
    master, back, seconds = checkpoint.read(folder, PARTITION)
    assert np.array_equal(master, MASTER) and seconds == elapsed
    assert (back.iteration, back.sync, back.pushes) == (iteration, 'rsp:4', known)
    assert np.array_equal(back.updated_at, np.arange(PARTITION.rows))


names = st.text(st.characters(exclude_categories=['Cs', 'Cc']), min_size=1, max_size=8)
policies = st.dictionaries(names, st.integers(0, 2 ** 40) | st.lists(names, max_size=4),
                           max_size=3)


@examples(30)
@given(policies, st.sets(names, max_size=3), st.integers(0, 99))
def test_what_the_method_holds_comes_back(tmp_path_factory, policy, robots, seed):
    folder = tmp_path_factory.mktemp('run')
    noise = np.random.default_rng(seed)
    update = {name: noise.normal(size=PARTITION.elements).astype(np.float32)
              for name in ('velocity', *(f'held/{robot}' for robot in robots))}
    checkpoint.write(folder, PARTITION, MASTER, state(policy=policy, update=update), 0.0)
    master, back, _ = checkpoint.read(folder, PARTITION)
    assert np.array_equal(master, MASTER) and back.policy == policy
    assert set(back.update) == set(update)
    assert all(np.array_equal(back.update[name], held) for name, held in update.items())


def test_a_gsgm_server_goes_on_in_the_middle_of_a_round(tmp_path):
    def server():
        model = Model(PARTITION, MASTER.copy(), get_codec('onebit'))
        return Aggregation('gsgm', model, Team(codec='onebit', momentum=0.9))

    ours = server()
    fleet = {name: Standing(0, 0) for name in ('robot1', 'robot2')}
    push = np.ones(PARTITION.elements, np.float32)
    for _ in range(2):  # the second waits for the other robot's first
        ours.method.held['robot1'] = push.copy()
        ours.carry_out(ours.method.close('robot1', True, fleet, 0.0), len(fleet))
        ours.settle(fleet, frozenset())
    policy, update = ours.state()
    assert policy == {'contributed': ['robot1'], 'queue': ['robot1'], 'list': ['robot2']}
    known = ServerState(2, 'gsgm', np.zeros(PARTITION.rows, np.int64), {}, policy, update)
    checkpoint.write(tmp_path, PARTITION, ours.model.master, known, 0.0)
    master, back, _ = checkpoint.read(tmp_path, PARTITION)
    again = server()
    again.model.master[:] = master
    again.load(back)
    for one in (ours, again):
        one.method.held['robot2'] = push.copy()
        one.carry_out(one.method.close('robot2', True, fleet, 0.0), len(fleet))
        one.settle(fleet, frozenset())
    assert again.state()[0] == ours.state()[0]
    assert again.state()[0]['contributed'] == ['robot1']
    assert np.array_equal(ours.model.master, again.model.master)
    fall = MASTER - again.model.master
    assert np.allclose(fall, 1.5 + 0.9 / 2, atol=1e-5)  # the third has momentum


def test_a_checkpoint_of_the_former_version_is_read(tmp_path):
    path = checkpoint.write(tmp_path, PARTITION, MASTER, state(3), 0.0)
    rewrite(path, lambda meta, t: meta.pop('policy') or meta.update(schema='rog-checkpoint/1'))
    _, back, _ = checkpoint.read(tmp_path, PARTITION)
    assert (back.iteration, back.policy, back.update) == (3, {}, {})


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
    (lambda meta, t: meta.pop('policy'), 'cannot be read'),
    (lambda meta, t: meta.update(policy=[1]), 'cannot be read'),
    (lambda meta, t: meta.update(sync='fast'), "'fast' is unknown"),
    (lambda meta, t: t.update({'rog/update/velocity': MASTER[:-1]}),
     'velocity is float32 of shape'),
    (lambda meta, t: t.update({'rog/update/velocity': MASTER.astype(np.float64)}),
     'velocity is float64'),
    (lambda meta, t: t.update({'rog/update/held/robot1': np.full_like(MASTER, np.inf)}),
     'held/robot1 holds values'),
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
