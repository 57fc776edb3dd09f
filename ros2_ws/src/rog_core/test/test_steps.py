"""Steps travel as plain values; valid steps are computed as specified, invalid ones are refused."""

import copy
import math

import numpy as np
import pytest
import torch
from configs import SGD, transfer_config
from hostile import BAD_STEPS
from hypothesis import given
from hypothesis import strategies as st
from rog_core.errors import RemoteProtocolError
from rog_core.model.flat import flatten
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import Compute
from rog_core.protocol.steps import MAX_LOCAL, STEPS, Full, Gradient, Local, Phase, Shards, step_of
from rog_core.worker.computation import COMPUTATIONS, computation_of
from rog_core.worker.learner import Learner

SHARDS, BATCHES = 6, 4
numbers = st.floats(-9, 9, width=32)
shards = st.lists(st.tuples(st.integers(0, SHARDS - 1), numbers), min_size=1, max_size=5,
                  unique_by=lambda part: part[0]).flatmap(
    lambda parts: st.builds(Shards, st.just(SHARDS), st.just(tuple(k for k, _ in parts)),
                            st.just(tuple(w for _, w in parts)), st.booleans()))
steps = st.one_of(st.builds(Gradient, st.booleans()), st.just(Full()), shards,
                  st.builds(Local, st.integers(1, MAX_LOCAL)),
                  st.tuples(st.integers(1, MAX_LOCAL), st.integers(1, MAX_LOCAL)).flatmap(
                      lambda n: st.builds(Phase, st.just(n[0]), st.just(n[1]),
                                          st.integers(0, n[1] - 1))))


# -- steps as plain values


@given(steps)
def test_a_step_survives_being_told_in_plain_values(step):
    assert all(type(value) is int and value >= 0 for value in step.integers())
    assert all(type(value) is float for value in step.numbers())
    told = step_of(step.name, list(step.integers()), list(step.numbers()))
    assert type(told) is type(step) and vars(told) == vars(step)
    told.check()


def test_every_step_is_found_by_its_name():
    assert {name: cls.name for name, cls in STEPS.items()} == {name: name for name in STEPS}
    assert set(STEPS.values()) == {Gradient, Shards, Full, Local, Phase} == set(COMPUTATIONS)


@pytest.mark.parametrize('name', ['', 'fast', 'Gradient', 'os:system'])
def test_a_step_that_this_version_does_not_know_is_the_servers_fault(name):
    with pytest.raises(RemoteProtocolError, match='step must be one of gradient, shards, full, '
                                                  f"local, phase, got '{name}'"):
        step_of(name, (), ())


@pytest.mark.parametrize(('name', 'integers', 'floats'), [
    ('gradient', (), ()), ('gradient', (1, 1), ()), ('gradient', (1,), (0.5,)),
    ('shards', (), ()), ('shards', (4,), (1.0,)), ('full', (1,), ()), ('full', (), (1.0,)),
    ('local', (), ()), ('local', (3, 4), ()), ('local', (3,), (0.5,)),
    ('phase', (3,), ()), ('phase', (3, 1, 0, 1), ()), ('phase', (3, 1, 0), (0.5,))])
def test_numbers_that_are_not_those_of_the_step_are_the_servers_fault(name, integers, floats):
    with pytest.raises(RemoteProtocolError, match=f"number of values for the step '{name}'"):
        step_of(name, integers, floats)


@pytest.mark.parametrize('name', BAD_STEPS)
def test_a_step_that_nobody_can_do_is_refused_however_it_is_told(name):
    bad = BAD_STEPS[name]
    with pytest.raises(RemoteProtocolError, match=' must '):
        bad.check()
    with pytest.raises(RemoteProtocolError, match=' must '):
        step_of(bad.name, bad.integers(), bad.numbers()).check()


@given(st.sampled_from(sorted(STEPS)), st.lists(st.integers(0, 2 ** 32 - 1), max_size=6),
       st.lists(st.floats(), max_size=6))
def test_any_numbers_are_a_step_that_can_be_done_or_are_refused(name, integers, floats):
    try:
        step = step_of(name, integers, floats)
        step.check()
    except RemoteProtocolError:
        return
    assert all(map(math.isfinite, step.numbers()))


# -- the computations of steps


class Batches:
    """Batches of a fixed classification task.

    ``taken``: how many batches the method `batch` has returned.
    """

    def __init__(self):
        generator = torch.Generator().manual_seed(2)
        self.inputs = torch.randn(40, 8, 5, generator=generator)
        self.targets = torch.randint(3, (40, 8), generator=generator)
        self.taken = 0

    def batch(self):
        self.taken += 1
        return self.taken - 1

    def shard(self):
        return iter(range(BATCHES))

    def batch_of(self, shards, shard, iteration):
        return (shards * iteration + shard) % 40

    def loss(self, model, batch):
        return torch.nn.functional.cross_entropy(model(self.inputs[batch]), self.targets[batch])


def network():
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3))


def learner(model=None):
    return Learner(model or network(), 'robot1', 1, transfer_config('raw'), Batches())


def gradient_of(batch):
    """Return the loss and the gradient of one batch, computed by PyTorch alone."""
    model, data = network(), Batches()
    loss = data.loss(model, batch)
    loss.backward()
    return loss.item(), np.concatenate([p.grad.numpy().reshape(-1) for p in model.parameters()])


def kept(ours, step, sgd=SGD):
    """Store the result of the step that was just computed; return all pending values."""
    gradient = ours.gradient()
    computation_of(step).keep(ours.store, gradient, sgd)
    return ours.store.pending.copy()


def close(one, other):
    return np.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_gradient_is_that_of_the_robots_own_next_batch():
    ours = learner()
    for batch in range(3):
        loss, gradient = gradient_of(batch)
        assert ours.source.compute(Compute(1, Gradient()), SGD) == pytest.approx(loss, rel=1e-5)
        assert close(ours.gradient(), gradient)
    assert computation_of(Gradient()).batches(ours.source) == 1


@pytest.mark.parametrize('momentum', [True, False])
def test_a_gradient_is_kept_with_momentum_unless_that_is_the_servers(momentum):
    ours, sgd = learner(), SgdConfig(0.1, 0.5, 0.0, False)
    step, velocity, total = Gradient(momentum), 0.0, 0.0
    for batch in range(3):
        ours.source.compute(Compute(1, step), sgd)
        velocity = 0.5 * momentum * velocity + gradient_of(batch)[1]
        total = total + 0.1 * velocity
        assert close(kept(ours, step, sgd), total)


def test_a_coded_gradient_is_the_weighted_sum_of_its_shards():
    ours, step = learner(), Shards(SHARDS, (0, 4, 5), (0.5, -2.0, 1.0))
    loss = ours.source.compute(Compute(3, step), SGD)
    parts = [gradient_of(SHARDS * 3 + shard) for shard in step.ids]
    assert loss == pytest.approx(np.mean([loss for loss, _ in parts]), rel=1e-5)
    total = sum(weight * part for weight, (_, part) in zip(step.weights, parts, strict=True))
    assert close(ours.gradient(), total)
    assert computation_of(step).batches(ours.source) == 3
    # coded gradients use `batch_of`, so this is the first call of `batch`
    assert ours.source.batch() == 0


def test_a_full_gradient_is_the_mean_over_the_shard_and_travels_whole():
    ours, step = learner(), Full()
    loss = ours.source.compute(Compute(1, step), SGD)
    parts = [gradient_of(batch) for batch in range(BATCHES)]
    assert loss == pytest.approx(np.mean([loss for loss, _ in parts]), rel=1e-5)
    mean = np.mean([part for _, part in parts], axis=0)
    assert not kept(ours, step).any()
    assert close(ours.store.full, mean) and step.uncompressed
    ours.source.clear()
    assert close(ours.store.full, mean)  # the full gradient has memory of its own
    assert computation_of(step).batches(ours.source) == BATCHES


def test_a_corrected_gradient_is_computed_at_the_anchor_too_and_the_model_stays():
    ours = learner()
    before = ours.store.model.copy()
    anchor, full = before + np.float32(0.1), np.full_like(before, 0.25)
    ours.store.anchor = anchor, full
    assert computation_of(Gradient()).batches(ours.source) == 2
    ours.source.compute(Compute(1, Gradient()), SGD)
    assert (ours.store.model == before).all()
    there = learner()
    there.store.model[:] = anchor
    there.source.compute(Compute(1, Gradient()), SGD)
    assert close(ours.gradient(), gradient_of(0)[1] - there.gradient() + full)


@pytest.mark.parametrize('nesterov', [True, False])
@pytest.mark.parametrize('momentum', [0.9, 0.5])
@pytest.mark.parametrize('count', [1, 3, 10])
def test_local_steps_are_those_of_torch_and_the_model_stays(nesterov, momentum, count):
    sgd, step = SgdConfig(0.1, momentum, 0.0, nesterov), Local(count)
    ours, theirs = learner(), network()
    before, data = flatten(theirs), Batches()
    losses = []
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov)
    for _ in range(count):
        optimizer.zero_grad()
        losses.append(data.loss(theirs, data.batch()))
        losses[-1].backward()
        optimizer.step()
    loss = ours.source.compute(Compute(1, step), sgd)
    assert loss == pytest.approx(np.mean([value.item() for value in losses]), rel=1e-5)
    assert (ours.store.model == before).all() and (flatten(theirs) != before).any()
    # The robot sends the change that the steps made; learning rate and momentum are already in it.
    assert close(kept(ours, step, sgd), before - flatten(theirs))
    assert computation_of(step).batches(ours.source) == count


def test_every_local_exchange_begins_with_no_momentum_and_with_the_next_batches():
    sgd, step = SgdConfig(0.1, 0.9, 0.0, True), Local(2)
    ours = learner()
    ours.source.compute(Compute(1, step), sgd)
    first = kept(ours, step, sgd)
    ours.source.compute(Compute(2, step), sgd)
    fresh = learner()
    fresh.source.batch(), fresh.source.batch()
    fresh.source.compute(Compute(2, step), sgd)
    assert close(kept(ours, step, sgd) - first, kept(fresh, step, sgd))
    assert ours.source.batch() == 4


@pytest.mark.parametrize('nesterov', [True, False])
def test_weight_decay_of_local_steps_is_decoupled(nesterov):
    """Each step also multiplies the weights by 1 - learning rate * decay.

    Momentum does not include this decay. In contrast, torch.optim.SGD and `Accumulator.accumulate`
    add the decay to the gradient.
    """
    sgd, data, model = SgdConfig(0.1, 0.5, 0.2, nesterov), Batches(), network()
    before, velocity = flatten(model), 0.0
    for _ in range(3):
        model.zero_grad()
        data.loss(model, data.batch()).backward()
        gradient = np.concatenate([p.grad.numpy().reshape(-1) for p in model.parameters()])
        velocity = 0.5 * velocity + gradient
        way = gradient + 0.5 * velocity if nesterov else velocity
        after = flatten(model) - 0.1 * (way + 0.2 * flatten(model))
        torch.nn.utils.vector_to_parameters(torch.from_numpy(after), model.parameters())
    ours, step = learner(), Local(3)
    ours.source.compute(Compute(1, step), sgd)
    assert (ours.store.model == before).all()
    assert close(kept(ours, step, sgd), before - flatten(model))


@pytest.mark.parametrize('weight_decay', [0.0, 0.2])
@pytest.mark.parametrize('nesterov', [True, False])
def test_one_local_step_is_one_gradient_of_a_worker_that_has_no_momentum_yet(nesterov,
                                                                             weight_decay):
    sgd, pushed = SgdConfig(0.1, 0.5, weight_decay, nesterov), []
    for step in (Local(1), Gradient()):
        ours = learner()
        ours.source.compute(Compute(1, step), sgd)
        pushed.append(kept(ours, step, sgd))
    assert close(*pushed)


def torch_steps(count, sgd):
    """Return the change that ``count`` steps of torch.optim.SGD make to the weights."""
    model, data = network(), Batches()
    before = flatten(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.learning_rate, momentum=sgd.momentum,
                                nesterov=sgd.nesterov)
    for _ in range(count):
        optimizer.zero_grad()
        data.loss(model, data.batch()).backward()
        optimizer.step()
    return before - flatten(model)


def begin(step, ours):
    return computation_of(step).begin(ours.store, 1, 0)


def phase(ours, step, sgd, ahead=0):
    """Compute a phase as a worker does, and keep its result; return the message that orders it."""
    order = computation_of(step).begin(ours.store, 1, ahead)
    ours.source.compute(order, sgd)
    kept(ours, order.step, sgd)
    return order


def test_phases_of_which_nothing_is_sent_are_one_long_training():
    """Several phases without a push equal one long training, and do not change the fleet's rows."""
    sgd, ours = SgdConfig(0.1, 0.9, 0.0, True), learner()
    before = ours.store.weights.copy()
    fresh = [phase(ours, Phase(count), sgd).fresh for count in (3, 1, 4)]
    assert fresh == [True, False, False]
    assert close(ours.store.pending, torch_steps(8, sgd))
    assert close(ours.store.drift, ours.store.pending)
    assert (ours.store.weights == before).all()


def test_what_the_server_takes_is_the_robots_own_no_more():
    sgd, ours = SgdConfig(0.1, 0.9, 0.0, True), learner()
    phase(ours, Phase(3), sgd)
    taken = np.array([1, 2])
    span = slice(ours.store.partition.offsets[1], ours.store.partition.offsets[3])
    ours.store.settle(taken)
    assert not ours.store.drift[span].any() and ours.store.drift.any()
    begin(Phase(3), ours)
    assert (ours.store.model[span] == ours.store.weights[span]).all()


def test_after_a_refusal_or_another_method_a_phase_begins_anew():
    sgd, ours = SgdConfig(0.1, 0.9, 0.0, True), learner()
    for end in (ours.store.reset, lambda: begin(Gradient(), ours)):
        phase(ours, Phase(3), sgd)
        assert not begin(Phase(3), ours).fresh
        end()
        assert begin(Phase(3), ours).fresh
        assert (ours.store.model == ours.store.weights).all()


def test_a_batch_that_fails_in_the_middle_leaves_the_model_as_it_was():
    ours = learner()
    before, batch = ours.store.model.copy(), copy.copy(ours.source.batch)

    def fails():
        if (number := batch()) == 2:
            raise OSError('the disk is gone')
        return number

    ours.source.batch = fails
    with pytest.raises(OSError, match='disk'):
        ours.source.compute(Compute(1, Local(5)), SGD)
    assert (ours.store.model == before).all()
