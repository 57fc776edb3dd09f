"""A checkpoint is read back unchanged, or refused; a failed write keeps the previous checkpoint."""

import numpy as np
import pytest
from fleet_env.errors import DurableError
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_core.codecs import get_codec
from rog_core.methods import Team
from rog_core.methods.base import Model, Standing
from rog_core.model.partition import Parameter, Role, partition_of
from rog_core.protocol.messages import Kind, Receipt, TransferId
from rog_core.server.aggregation import Aggregation, ServerState
from rog_ps import checkpoint
from rog_ps.directory import FORMER, check_directory, kept
from safetensors.numpy import load, load_file, save

PARTITION = partition_of([('conv', (40, 30)), ('bias', (40,)), ('scale', ())], 'row', 'onebit')
MASTER = np.random.default_rng(1).normal(size=PARTITION.elements).astype(np.float32)

receipts = st.builds(Receipt, st.builds(TransferId, st.integers(0, 2 ** 64 - 1), st.just(Kind.PUSH),
                                        st.integers(0, 2 ** 32 - 1), st.integers(0, 2 ** 32 - 1)),
                     st.integers(0, 99), st.binary(max_size=13))
pushes = st.dictionaries(st.sampled_from(['robot1', 'robot2']),
                         st.tuples(st.integers(0, 2 ** 64 - 1), receipts))


def read(folder):
    return checkpoint.read(kept(folder).newest(), PARTITION)


def state(iteration=7, known=None, **more):
    return ServerState(iteration, 'rsp:4', np.arange(PARTITION.rows), known or {}, **more)


@examples(30)
@given(st.integers(0, 2 ** 40), pushes, st.floats(0, 1e9))
def test_it_comes_back_as_it_was(tmp_path_factory, iteration, known, elapsed):
    folder = tmp_path_factory.mktemp('run')
    checkpoint.write(kept(folder), PARTITION, MASTER, state(iteration, known), elapsed)
    master, back, seconds = read(folder)
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
    checkpoint.write(kept(folder), PARTITION, MASTER, state(policy=policy, update=update), 0.0)
    master, back, _ = read(folder)
    assert np.array_equal(master, MASTER) and back.policy == policy
    assert set(back.update) == set(update)
    assert all(np.array_equal(back.update[name], held) for name, held in update.items())


def test_what_a_fleet_has_not_handed_up_comes_back(tmp_path):
    base = MASTER + 0.5
    checkpoint.write(kept(tmp_path), PARTITION, MASTER, state(base=base), 0.0)
    assert np.array_equal(read(tmp_path)[1].base, base)


@pytest.mark.parametrize('base', [MASTER[1:], MASTER.astype(np.float64), MASTER * np.nan])
def test_a_base_that_cannot_be_one_is_refused(tmp_path, base):
    checkpoint.write(kept(tmp_path), PARTITION, MASTER, state(base=base), 0.0)
    with pytest.raises(checkpoint.CheckpointError, match='rog/upstream'):
        read(tmp_path)


def test_a_gsgm_server_goes_on_in_the_middle_of_a_round(tmp_path):
    def server():
        model = Model(PARTITION, MASTER.copy(), get_codec('onebit'))
        return Aggregation('gsgm', model, Team(codec='onebit', momentum=0.9))

    ours = server()
    fleet = {name: Standing(0, 0) for name in ('robot1', 'robot2')}
    push = np.ones(PARTITION.elements, np.float32)
    for _ in range(2):  # the second push waits for the other robot's first push
        ours.method.held['robot1'] = push.copy()
        ours.method.pushed('robot1', True, fleet, 0.0)
        ours.settle(fleet, frozenset())
    policy, update = ours.state()
    assert policy == {'contributed': ['robot1'], 'queue': ['robot1'], 'list': ['robot2']}
    known = ServerState(2, 'gsgm', np.zeros(PARTITION.rows, np.int64), {}, policy, update)
    checkpoint.write(kept(tmp_path), PARTITION, ours.model.master, known, 0.0)
    master, back, _ = read(tmp_path)
    again = server()
    again.model.master[:] = master
    again.load(back)
    for one in (ours, again):
        one.method.held['robot2'] = push.copy()
        one.method.pushed('robot2', True, fleet, 0.0)
        one.settle(fleet, frozenset())
    assert again.state()[0] == ours.state()[0]
    assert again.state()[0]['contributed'] == ['robot1']
    assert np.array_equal(ours.model.master, again.model.master)
    fall = MASTER - again.model.master
    # three pushes of 1/2 each; only the third also has momentum
    assert np.allclose(fall, 1.5 + 0.9 / 2, atol=1e-5)


def test_a_checkpoint_of_a_former_version_is_not_taken_for_none(tmp_path):
    (tmp_path / FORMER).write_bytes(b'')
    with pytest.raises(DurableError, match='earlier version'):
        check_directory(tmp_path, resume=True)
    check_directory(tmp_path, resume=False)


def test_any_safetensors_reader_finds_the_parameters_by_name(tmp_path):
    path = checkpoint.write(kept(tmp_path), PARTITION, MASTER, state(), 0.0)
    tensors = load_file(path)
    assert tensors['conv'].shape == (40, 30) and tensors['scale'].shape == ()
    assert np.array_equal(tensors['conv'].reshape(-1), MASTER[:1200])


def rewrite(folder, change):
    """Write the checkpoint again with a changed content and a valid digest."""
    found = kept(folder).newest()
    meta, tensors = dict(found.meta), load(found.content)
    change(meta, tensors)
    kept(folder).write(save(tensors), meta)


@pytest.mark.parametrize('change, message', [
    (lambda meta, t: meta.update(schema='rog-checkpoint/9'), 'schema rog-checkpoint/9'),
    (lambda meta, t: meta.update(model='0' * 64), 'another model'),
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
    checkpoint.write(kept(tmp_path), PARTITION, MASTER, state(), 0.0)
    rewrite(tmp_path, change)
    with pytest.raises(checkpoint.CheckpointError, match=message):
        read(tmp_path)


def test_a_foreign_file_is_refused(tmp_path):
    kept(tmp_path).write(save({'x': np.zeros(3)}), {})
    with pytest.raises(checkpoint.CheckpointError, match='cannot be read'):
        read(tmp_path)


def test_a_diverged_model_never_replaces_a_good_one(tmp_path):
    writer = checkpoint.Writer(PARTITION)
    good = writer.write(kept(tmp_path), MASTER, state(3), 0.0)
    bad = {'not finite': (np.where(np.arange(MASTER.size) == 5, np.inf, MASTER), state(4)),
           'has diverged': (MASTER * np.float32(1e4), state(4)),
           'the state of its method': (MASTER, state(4, update={'velocity': MASTER * np.nan}))}
    for message, (master, held) in bad.items():
        with pytest.raises(checkpoint.CheckpointError, match=message):
            writer.write(kept(tmp_path), master, held, 0.0)
    assert read(tmp_path)[1].iteration == 3 and good.exists()
    writer.write(kept(tmp_path), MASTER * 3, state(5), 0.0)
    assert read(tmp_path)[1].iteration == 5


@pytest.mark.parametrize('name', ['', '.', '..', '../out', '/etc', 'a/b', '.ssh', 'a b', 'x' * 65,
                                  'n\nm', '\u00e4'])
def test_the_name_of_a_checkpoint_leads_nowhere_else(tmp_path, name):
    with pytest.raises(checkpoint.CheckpointError, match='cannot be the name'):
        checkpoint.named(tmp_path, name)
    assert checkpoint.named(tmp_path, 'before_rain-2.1') == tmp_path / 'saved' / 'before_rain-2.1'


def test_there_is_an_end_to_names(tmp_path):
    for number in range(checkpoint.NAMED):
        checkpoint.named(tmp_path, f'n{number}').mkdir(parents=True)
    checkpoint.named(tmp_path, 'n7')
    with pytest.raises(checkpoint.CheckpointError, match='holds 100'):
        checkpoint.named(tmp_path, 'one-more')


WHOLE = partition_of([('conv', (40, 30)), ('bias', (40,)), ('scale', ()),
                      Parameter('mean', (30,), Role.AVERAGE), Parameter('count', (), Role.MAXIMUM),
                      Parameter('base', (20, 60), Role.FROZEN)])


def test_a_checkpoint_of_a_version_without_buffers_gets_them_from_a_new_model(tmp_path):
    update = {'velocity': np.ones(PARTITION.elements, np.float32)}
    checkpoint.write(kept(tmp_path), PARTITION, MASTER, state(update=update), 5.0)
    fresh = np.arange(WHOLE.elements, dtype=np.float32)
    found = kept(tmp_path).newest()
    master, back, _ = checkpoint.read(found, WHOLE, fresh)
    assert np.array_equal(master, [*MASTER, *fresh[WHOLE.buffers]])
    assert back.updated_at.size == WHOLE.rows and not back.updated_at[WHOLE.buffer_rows].any()
    assert back.update['velocity'].sum() == PARTITION.elements
    with pytest.raises(checkpoint.CheckpointError, match='another model'):
        checkpoint.read(found, WHOLE)


def test_buffers_and_unfrozen_parameters_come_back(tmp_path):
    grown = WHOLE.grown
    master = np.random.default_rng(2).normal(size=grown.elements).astype(np.float32)
    for part, values in ((WHOLE, master[:WHOLE.elements]), (grown, master)):
        writer = checkpoint.Writer(WHOLE)
        told = ServerState(7, 'rsp:4', np.arange(part.rows), {})
        writer.write(kept(tmp_path), values, told, 1.0)
        back, was, _ = checkpoint.read(kept(tmp_path).newest(), WHOLE, values[:WHOLE.elements])
        assert np.array_equal(back, values) and was.updated_at.size == part.rows
