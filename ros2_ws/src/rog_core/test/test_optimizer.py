"""RogOptimizer equals SGD with Nesterov momentum, however the program handles its gradients."""

import inspect
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from configs import transfer_config
from inproc import InProcessLink
from rog_core.errors import ConfigError, GradientError, LocalProtocolError
from rog_core.model.flat import contents_of, flatten, unflatten
from rog_core.protocol.config import SgdConfig
from rog_core.worker.optimizer import RogOptimizer

SGD = SgdConfig(0.05, 0.9, 0.0, True)


def model(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 100), torch.nn.Tanh(), torch.nn.Linear(100, 3))


def batches(count=20):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 12, generator=generator), torch.randint(3, (16,), generator=generator))
            for _ in range(count)]


def optimizer(network, link=None, codec='raw', **changes):
    link = link or InProcessLink(codec=codec)
    sgd = replace(SGD, **{name: changes.pop(name) for name in list(changes) if hasattr(SGD, name)})
    return RogOptimizer(network, link, robot='r', incarnation=77,
                        config=transfer_config(codec, **changes), sgd=sgd)


def train(network, optim, before_step=lambda network: None, set_to_none=True):
    losses = []
    for inputs, targets in batches():
        optim.zero_grad(set_to_none)
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        before_step(network)
        optim.step()
        losses.append(loss.item())
    return losses


def test_a_robot_trains_without_torch_dynamo_whose_import_takes_seconds(monkeypatch):
    add = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    monkeypatch.delattr(add, '__dynamo_disable', raising=False)  # where PyTorch keeps the import
    monkeypatch.setitem(sys.modules, 'torch._dynamo', None)
    network = model()
    train(network, optimizer(network))



def reference():
    network = model()
    train(network, torch.optim.SGD(network.parameters(), nesterov=True, lr=0.05, momentum=0.9))
    return flatten(network)


def replace_gradients(network):
    for parameter in network.parameters():
        parameter.grad = parameter.grad.clone()


@pytest.mark.parametrize('set_to_none', [True, False])
@pytest.mark.parametrize('before_step', [lambda network: None, replace_gradients])
def test_one_worker_with_raw_rows_is_torch_sgd_with_nesterov(set_to_none, before_step):
    network = model()
    optim = optimizer(network)
    assert optim.iteration == 1
    train(network, optim, before_step, set_to_none)
    assert optim.iteration == 21
    assert np.allclose(flatten(network), reference(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(flatten(network), flatten(model()), atol=1e-3)


def test_the_module_s_own_zero_grad_is_handled():
    network = model()
    optim = optimizer(network)
    for inputs, targets in batches():
        network.zero_grad()
        assert all(p.grad is None for p in network.parameters())
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optim.step()
    assert np.allclose(flatten(network), reference(), rtol=1e-4, atol=1e-5)


def test_a_parameter_without_a_gradient_gets_no_step_from_an_old_one():
    network = model()
    optim = optimizer(network, momentum=0.0)
    network(torch.randn(4, 12)).sum().backward()
    optim.step()
    before = flatten(network)
    network.zero_grad()
    optim.step()
    assert np.allclose(flatten(network), before, atol=1e-6)


@pytest.mark.parametrize('sync', ['bsp', 'rsp:4', 'rsp:8+pipeline', 'rsp:8+pipeline+sparse'])
def test_one_bit_rows_train_as_well(sync):
    network = model()
    inputs, targets = batches()[0]
    optim = optimizer(network, InProcessLink(sync, 'onebit'), codec='onebit')
    first = torch.nn.functional.cross_entropy(network(inputs), targets).item()
    for _ in range(100):
        optim.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        optim.step()
    assert loss.item() < first / 5


def test_pipelining_moves_the_model_between_steps_only():
    """While the program computes, the parameters keep their addresses and their values."""
    network = model()
    optim = optimizer(network, InProcessLink('rsp:8+pipeline'))
    memory = [p.data_ptr() for p in network.parameters()]
    for inputs, targets in batches():
        optim.zero_grad()
        torch.nn.functional.cross_entropy(network(inputs), targets).backward()
        optim.step()
        assert [p.data_ptr() for p in network.parameters()] == memory
    store = optim.accumulator
    assert (flatten(network) == store.model).all()
    # The store already has the result of the last step; the model receives it at the next step.
    assert (store.weights != store.model).any()


@pytest.mark.parametrize('method', ['rsp:4', 'rsp:8+pipeline'])
def test_a_program_that_changes_weights_itself_is_warned_and_only_then(method):
    network = model()
    optim = optimizer(network, InProcessLink(method))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        train(network, optim)
        kept = {name: values.clone() for name, values in network.state_dict().items()}
    network.load_state_dict(kept)
    with pytest.warns(UserWarning, match='changed parameter 0.weight in place'):
        optim.step()
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        optim.step()


@pytest.mark.parametrize('method', ['rsp:8', 'rsp:8+pipeline'])
@pytest.mark.parametrize('size, rate', [(1e12, 0.05), (1e30, 0.05), (3e38, 0.05), (3e38, 50.0)])
def test_a_gradient_that_is_finite_but_absurd_is_of_no_consequence(method, size, rate):
    """Check that a very large gradient does not harm later gradients.

    Without a limit, the model that pipelining predicts from such a gradient would make all later
    gradients wrong. If values exceeded float32, the worker would send NaN for ever, and the server
    would drop its pushes.
    """
    network = model()
    network[1] = torch.nn.ReLU()  # ReLU does not bound its output
    optim = optimizer(network, InProcessLink(method, codec='onebit'), codec='onebit')
    for number, (inputs, targets) in enumerate(batches(30)):
        optim.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        absurd = number == 15
        optim.param_groups[0]['lr'] = rate if absurd else SGD.learning_rate
        if absurd:
            network[0].weight.grad[:] = size
        optim.step()
    assert loss.item() < 2 and optim.machine.statistics.refused <= 1
    assert np.isfinite(optim.accumulator.weights).all()
    assert np.isfinite(optim.accumulator.pending).all()


def test_a_gradient_that_is_not_finite_changes_nothing_and_names_its_row():
    network = model()
    link = InProcessLink()
    optim = optimizer(network, link)
    train(network, optim)
    weights, store = flatten(network).copy(), optim.accumulator
    before = store.momentum.copy(), store.pending.copy(), store.magnitude.copy()
    for bad in (float('nan'), float('inf')):
        optim.zero_grad()
        list(network.parameters())[0].grad[3, 4] = bad
        with pytest.raises(GradientError, match=r'row 3 of 0.weight \(100x12\)'):
            optim.step()
    assert (flatten(network) == weights).all()
    for ours, then in zip((store.momentum, store.pending, store.magnitude), before):
        assert (ours == then).all()
    assert optim.iteration == 21
    optim.zero_grad()
    optim.step()
    assert optim.iteration == 22


def test_learning_rate_schedules_work():
    network = model()
    optim = optimizer(network)
    schedule = torch.optim.lr_scheduler.LambdaLR(optim, lambda step: 0.0)
    before = flatten(network)
    train(network, optim)
    schedule.step()
    assert np.allclose(flatten(network), before, atol=1e-6)


def test_a_closure_is_called_with_gradients_enabled():
    network = model()
    optim = optimizer(network)
    inputs, targets = batches()[0]

    def closure():
        optim.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(inputs), targets)
        loss.backward()
        return loss

    assert optim.step(closure).item() > 0


def test_after_the_run_steps_do_nothing():
    network = model()
    link = InProcessLink()
    optim = optimizer(network, link)
    train(network, optim)
    optim.zero_grad()
    assert link.server.stop(0.0) == []
    optim.step()
    assert optim.stopped
    final = flatten(network)
    assert (final == link.server.master).all()
    train(network, optim)
    assert (flatten(network) == final).all()


@pytest.mark.parametrize(('changes', 'text'), [
    ({'learning_rate': -1.0}, 'lr is -1.0'), ({'momentum': float('nan')}, 'momentum is nan'),
    ({'weight_decay': float('inf')}, 'weight_decay is inf'), ({'granularity': 'tile'}, "'tile'")])
def test_settings_out_of_range_are_refused(changes, text):
    with pytest.raises(ConfigError, match=text):
        optimizer(model(), **changes)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match='0.weight is torch.float64'):
        contents_of(model().double())
    with pytest.raises(ConfigError, match='no parameters'):
        contents_of(model().requires_grad_(False))


@pytest.mark.parametrize('change, text', [
    (lambda network: network.to('meta'), 'has no values yet'),
    (lambda network: network.append(torch.nn.LazyLinear(2)), '3.weight has no values yet'),
    (lambda network: network.append(tied_by_memory(network)), '0.weight and 3.weight share'),
    (lambda network: None, 'of type NoneType')])
def test_a_model_that_cannot_be_flat_is_refused(change, text):
    with pytest.raises(ConfigError, match=text):
        contents_of(change(model()))


def tied_by_memory(network):
    layer = torch.nn.Linear(12, 100)
    layer.weight.data = network[0].weight.data
    return layer


def test_weights_of_another_size_are_refused():
    with pytest.raises(ConfigError, match='has 1603 elements; 1602 are given'):
        unflatten(model(), flatten(model())[1:])


@pytest.mark.parametrize('change', [
    lambda network: network.double().float(),
    lambda network: network.load_state_dict(model(3).state_dict(), assign=True),
    lambda network: optimizer(network)])
def test_a_model_that_would_not_be_trained_any_more_is_refused(change):
    network = model()
    optim = optimizer(network)
    train(network, optim)
    change(network)
    with pytest.raises(LocalProtocolError, match='0.weight is not where the optimizer has put it'):
        train(network, optim)


def test_parameters_that_come_later_are_refused():
    optim = optimizer(model())
    with pytest.raises(ConfigError, match='must consist of parameters that the model had'):
        optim.add_param_group({'params': [torch.nn.Parameter(torch.zeros(3))]})


@pytest.mark.parametrize('rate', [float('nan'), float('inf'), -0.1])
def test_a_learning_rate_that_a_schedule_has_spoilt_changes_nothing(rate):
    network = model()
    optim = optimizer(network)
    before = flatten(network)
    optim.param_groups[0]['lr'] = rate
    with pytest.raises(ConfigError, match=f'lr is {rate}'):
        train(network, optim)
    assert (flatten(network) == before).all() and not optim.accumulator.pending.any()
    optim.param_groups[0]['lr'] = 0.05
    train(network, optim)
    assert np.isfinite(flatten(network)).all()


def test_sparse_gradients_of_an_embedding_are_taken_whoever_clears_them():
    network = torch.nn.Embedding(10, 3, sparse=True)
    optim = optimizer(network, momentum=0.0, learning_rate=1.0)
    before = network.weight.detach().clone()
    network.zero_grad()  # so that PyTorch makes a new, sparse gradient
    network(torch.tensor([2, 2, 5])).sum().backward()
    assert network.weight.grad.is_sparse
    optim.step()
    expected = torch.zeros(10, 3)
    expected[2], expected[5] = 2, 1
    assert torch.allclose(before - network.weight, expected, atol=1e-6)


class Batch:
    """Batches of data whose losses are NaN while ``spoilt`` is set."""

    spoilt = False

    def batch(self):
        return batches(1)[0]

    def shard(self):
        return []

    batch_of = None

    def loss(self, network, batch):
        loss = torch.nn.functional.cross_entropy(network(batch[0]), batch[1])
        return loss * float('nan') if self.spoilt else loss


@pytest.mark.parametrize('sync', ['bsp', 'local:2', 'rsp:4+local=2', 'diloco:2'])
def test_a_batch_without_a_finite_gradient_can_be_left_out(sync):
    """Check that a batch whose loss is NaN leaves no NaN in the momentum of later local steps."""
    data = Batch()
    optim = RogOptimizer(model(), InProcessLink(sync), robot='r', incarnation=77, sgd=SGD,
                         config=transfer_config('raw'), data=data)
    for data.spoilt in (False, True, True, False, False):
        optim.compute()
        if data.spoilt:
            with pytest.raises(GradientError):
                optim.step()
        else:
            optim.step()
    assert optim.iteration == 4


@pytest.mark.parametrize('loss, text', [
    (lambda value: None, 'of type NoneType'), (lambda value: value.item(), 'of type float'),
    (lambda value: value.expand(3), r'a tensor of shape \(3,\)'),
    (lambda value: value.detach(), 'needs no gradient')])
def test_a_loss_that_cannot_be_differentiated_is_refused(loss, text):
    data = Batch()
    original = data.loss
    data.loss = lambda network, batch: loss(original(network, batch))
    optim = RogOptimizer(model(), InProcessLink(), robot='r', incarnation=77, sgd=SGD,
                         config=transfer_config('raw'), data=data)
    with pytest.raises(LocalProtocolError, match=text):
        optim.compute()


def test_flatten_and_unflatten_are_inverse():
    first, second = model(0), model(1)
    unflatten(second, flatten(first))
    assert (flatten(second) == flatten(first)).all()
