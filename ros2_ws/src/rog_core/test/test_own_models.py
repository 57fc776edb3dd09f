"""PyTorch models as users have them: BatchNorm, frozen layers, half precision, unused heads."""

import numpy as np
import pytest
import torch
from configs import server_config, transfer_config
from inproc import InProcessLink
from rog_core.errors import ConfigError, LocalProtocolError
from rog_core.loopback import Loopback
from rog_core.method_check import check_named
from rog_core.methods import Team
from rog_core.model.flat import contents_of, flatten, frozen_values, unflatten
from rog_core.protocol.config import SgdConfig
from rog_core.protocol.messages import Compute
from rog_core.server.server import Server
from rog_core.upstream import AS_IT_IS, Upstream, worker_above
from rog_core.worker import learner as learner_module
from rog_core.worker.learner import Learner
from rog_core.worker.optimizer import RogOptimizer
from torch import nn
from torch.nn.functional import cross_entropy

SGD = SgdConfig(0.05, 0.9, 0.0, True)
METHODS = ['bsp', 'ssp:2', 'asp', 'dssp:1:4', 'flown', 'rsp:4', 'rsp:20+pipeline+sparse', 'gsgm',
           'gsgm+svrg=3', 'local:4', 'diloco:4', 'diloco:6:3', 'rsp:4+pipeline+sparse+local=4',
           'trimmed:1', 'gc:1', 'dgh-gc']


class Net(nn.Module):
    """Two layers with BatchNorm, an integer and a constant buffer, and a frozen layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm = nn.Linear(8, 40), nn.BatchNorm1d(40)
        self.frozen = nn.Linear(40, 40).requires_grad_(False)
        self.last = nn.Linear(40, 3)
        self.register_buffer('scale', torch.full((40,), 0.5))
        self.register_buffer('ids', torch.arange(5))
        self.register_buffer('mask', torch.ones(4, dtype=torch.bool))
        self.register_buffer('cache', torch.zeros(2), persistent=False)

    def forward(self, x):
        hidden = self.norm(self.first(x)).relu()
        return self.last(self.frozen(hidden) * self.scale)


class Data:
    """Batches of a robot, whose inputs have a mean of their own."""

    def __init__(self, rank, change=None):
        self.random, self.rank, self.count = torch.Generator().manual_seed(rank), rank, 0
        self.change = change or (lambda model, count: None)

    def batch(self):
        return self.of(self.random)

    def of(self, random):
        x = torch.randn(12, 8, generator=random) + 3 * self.rank
        return x, torch.randint(3, (12,), generator=random)

    def shard(self):
        return [self.of(torch.Generator().manual_seed(k)) for k in range(2)]

    def batch_of(self, shards, shard, iteration):
        return self.of(torch.Generator().manual_seed(1000 * shard + iteration))

    def loss(self, model, batch):
        self.count += 1
        self.change(model, self.count)
        return cross_entropy(model(batch[0]), batch[1])


class Robots:
    """Robots and a server in one process; every message arrives at once."""

    def __init__(self, make=Net, robots=0, sync='bsp', codec='raw', change=None, **transfer):
        robots = robots or (4 if sync in ('dgh-gc', 'trimmed:1') else 2)
        team = Team({f'robot{k}': 1.0 for k in range(robots)}, codec)
        check_named(sync, team)
        self.learners = {name: Learner(make(), name, 100 + rank, transfer_config(codec, **transfer),
                                       Data(rank, change))
                         for rank, name in enumerate(team.capacities)}
        self.model = make()
        config = server_config(sync, codec, capacities=team.capacities)
        self.server = Server(contents_of(self.model).partition('row', codec), flatten(self.model),
                             1, config, frozen_values(self.model))
        self.pair = Loopback(self.server, [one.machine for one in self.learners.values()])
        self.wanted = self.pair.start()

    @property
    def store(self):
        return self.learners['robot0'].store

    def run(self, iterations):
        while min(one.machine.iteration for one in self.learners.values()) <= iterations:
            assert self.wanted, 'the fleet stands still'
            for name, order in [w for w in self.wanted if isinstance(w[1], Compute)]:
                self.compute(name, order)
            self.wanted = self.pair.deliver()

    def compute(self, name, order):
        learner = self.learners[name]
        learner.load()
        learner.source.compute(order, SGD)
        gradient = learner.gradient()
        self.pair.want(name, learner.machine.on_gradient(gradient, SGD, self.pair.now))

    def end(self):
        """End the run: every robot computes the gradient that it was granted, then stops."""
        self.pair.want('', self.server.stop(self.pair.now))
        self.wanted += self.pair.deliver()
        while computes := [w for w in self.wanted if isinstance(w[1], Compute)]:
            self.wanted = []
            for name, order in computes:
                if self.learners[name].machine.state != 'stopped':
                    self.compute(name, order)
            self.wanted = self.pair.deliver()
        unflatten(self.model, self.server.master)
        for learner in self.learners.values():
            assert learner.machine.state == 'stopped'
            learner.load()

    def models(self):
        return [one.source._model for one in self.learners.values()]


def equal(one, other, besides=()):
    mine, theirs = one.state_dict(), other.state_dict()
    return [name for name in mine if name not in besides and not torch.equal(
        mine[name], theirs[name])] == []


@pytest.mark.parametrize('sync', METHODS)
def test_at_the_end_every_robot_and_the_server_have_one_whole_model(sync):
    codec = 'raw' if 'svrg' in sync else 'onebit'
    robots = Robots(sync=sync, codec=codec)
    robots.run(12)
    robots.end()
    new = Net()
    for model in robots.models():
        assert equal(model, robots.model)
    for name in ('norm.running_mean', 'norm.running_var', 'norm.num_batches_tracked', 'last.bias'):
        assert not torch.equal(robots.model.state_dict()[name], new.state_dict()[name]), name
    for name in ('scale', 'ids', 'frozen.weight'):
        assert torch.equal(robots.model.state_dict()[name], new.state_dict()[name]), name


@pytest.mark.parametrize('sync', METHODS)
def test_rows_on_the_host_beside_a_model_on_a_gpu_are_those_of_a_model_on_the_host(
        sync, monkeypatch):
    """A layer that is unfrozen meanwhile is trained from then on, in both."""
    def trained(robots):
        robots.run(12)
        robots.end()
        return robots
    svrg = 'svrg' in sync
    how = {'sync': sync, 'codec': 'raw' if svrg else 'onebit', 'change': None if svrg else unfreeze}
    beside = trained(Robots(**how))
    monkeypatch.setattr(learner_module, '_has_loops', lambda values, codec: False)
    robots = trained(Robots(**how))
    one = robots.learners['robot0']
    assert not np.shares_memory(one.store.model, one.flat.weights.numpy())
    assert np.array_equal(robots.server.master, beside.server.master)
    new = Net().state_dict()
    for model in robots.models():
        assert equal(model, robots.model)
    unfrozen = [] if svrg else ['frozen.weight', 'frozen.bias']
    for name in ['norm.running_var', 'norm.num_batches_tracked', *unfrozen]:
        assert not torch.equal(robots.model.state_dict()[name], new[name]), name


def test_in_lock_step_the_statistics_are_the_mean_of_those_of_the_robots():
    robots, alone = Robots(robots=3, sync='bsp'), []
    for rank in range(3):
        net, data = Net(), Data(rank)
        net(data.batch()[0])
        alone.append(net.norm.running_mean)
    robots.run(1)
    unflatten(robots.model, robots.server.master)
    torch.testing.assert_close(robots.model.norm.running_mean, torch.stack(alone).mean(0))
    assert robots.model.norm.num_batches_tracked == 1


def test_one_robot_trains_a_batchnorm_as_torch_does():
    torch.manual_seed(0)
    mine, theirs, data = Net(), Net(), Data(0)
    trained = [p for p in theirs.parameters() if p.requires_grad]
    reference = torch.optim.SGD(trained, lr=0.05, momentum=0.9, nesterov=True)
    optimizer = RogOptimizer(mine, InProcessLink(), robot='r', incarnation=7,
                             config=transfer_config('raw'), sgd=SGD)
    for _ in range(20):
        batch = data.batch()
        for model, optim in ((mine, optimizer), (theirs, reference)):
            optim.zero_grad()
            data.loss(model, batch).backward()
            optim.step()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(mine.state_dict()[name], value, rtol=1e-4, atol=1e-5)
    assert mine.norm.num_batches_tracked == 20


def test_local_buffers_stay_on_each_robot_and_the_server_has_their_mean():
    robots = Robots(sync='bsp', codec='onebit', buffers='local')
    robots.server.config = server_config('bsp', 'onebit')
    object.__setattr__(robots.server.config, 'transfer', transfer_config('onebit', buffers='local'))
    robots.run(20)
    robots.end()
    first, second = robots.models()
    assert (second.norm.running_mean - first.norm.running_mean).abs().max() > 0.5
    assert robots.model.norm.num_batches_tracked >= 20
    mean = (first.norm.running_mean + second.norm.running_mean) / 2
    torch.testing.assert_close(robots.model.norm.running_mean, mean, rtol=1e-3, atol=1e-4)
    assert equal(first, second, ('norm.running_mean', 'norm.running_var'))


# -- frozen parameters -------------------------------------------------------------------------


def unfreeze(model, count):
    if count == 5:
        model.frozen.requires_grad_(True)


def test_a_layer_that_one_robot_unfreezes_is_trained_for_all():
    def change(model, count):
        if count == 4 and not hasattr(Robots, 'one'):
            Robots.one = model.frozen.requires_grad_(True)
    try:
        robots = Robots(sync='rsp:4', change=change)
        robots.run(12)
        robots.end()
    finally:
        del Robots.one
    assert sum(model.frozen.weight.requires_grad for model in robots.models()) == 1
    for model in robots.models():
        assert equal(model, robots.model)
    assert not torch.equal(robots.model.frozen.weight, Net().frozen.weight)


@pytest.mark.parametrize('sync', [m for m in METHODS if 'svrg' not in m])
def test_a_layer_that_is_frozen_stands_still_at_once(sync):
    before = {}

    def freeze(model, count):
        if count == 5:  # the first of the local steps of an iteration
            model.first.requires_grad_(False)
            before[id(model)] = model.first.weight.detach().clone()
        elif count > 5:
            assert torch.equal(model.first.weight, before[id(model)]), count
    codec = 'raw' if 'svrg' in sync else 'onebit'
    robots = Robots(sync=sync, codec=codec, change=freeze)
    robots.run(15)
    robots.end()
    assert len(before) == len(robots.models())
    for model in robots.models():
        assert equal(model, robots.model)


def test_a_layer_that_is_frozen_on_a_robot_stands_still_whoever_trains_it():
    def change(model, count):
        if count == 4 and not hasattr(Robots, 'one'):
            Robots.one = model.frozen.requires_grad_(True)
        if not model.frozen.weight.requires_grad:
            assert torch.equal(model.frozen.weight, Net().frozen.weight)
    try:
        robots = Robots(sync='rsp:4', change=change)
        robots.run(12)
    finally:
        del Robots.one


@pytest.mark.parametrize('sync', ['bsp', 'gsgm', 'gsgm:3', 'diloco:4', 'gc:1'])
def test_nothing_moves_on_the_server_what_no_robot_trains(sync):
    robots = Robots(sync=sync, codec='raw', change=lambda model, count: count == 5
                    and model.first.requires_grad_(False))
    robots.run(8)
    first = slice(0, Net().first.weight.numel())
    before = robots.server.master[first].copy()
    robots.run(16)
    assert np.array_equal(robots.server.master[first], before)


def test_svrg_says_at_once_which_parameter_it_cannot_train():
    robots = Robots(sync='gsgm+svrg=3', change=unfreeze)
    with pytest.raises(ConfigError, match='frozen.weight was unfrozen .* svrg'):
        robots.run(20)


def test_a_new_group_of_the_optimizer_unfreezes_its_parameters():
    net, data = Net(), Data(0)
    optimizer = RogOptimizer(net, InProcessLink(), robot='r', incarnation=7,
                             config=transfer_config('raw'), sgd=SGD)
    with pytest.raises(ConfigError, match='lr of a new group must be .* 0.05, got 0.1'):
        optimizer.add_param_group({'params': net.frozen.parameters(), 'lr': 0.1})
    assert not net.frozen.weight.requires_grad
    optimizer.add_param_group({'params': net.frozen.parameters()})
    before = net.frozen.weight.detach().clone()
    optimizer.zero_grad()
    data.loss(net, data.batch()).backward()
    optimizer.step()
    assert not torch.equal(net.frozen.weight, before)


def test_a_layer_that_was_added_is_refused_by_name():
    net, data = Net(), Data(0)
    optimizer = RogOptimizer(net, InProcessLink(), robot='r', incarnation=7,
                             config=transfer_config('raw'), sgd=SGD)
    net.more = nn.Linear(3, 3)
    data.loss(net, data.batch()).backward()
    with pytest.raises(LocalProtocolError, match='more.weight was added'):
        optimizer.step()


# -- types, and what cannot be trained ---------------------------------------------------------


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('sync', ['bsp', 'rsp:4+pipeline', 'rsp:4+local=3', 'gsgm+svrg=3'])
def test_a_model_of_half_precision_trains_with_float32_rows(dtype, sync):
    class Half(Net):
        def __init__(self):
            super().__init__()
            self.to(dtype)

        def forward(self, x):
            return super().forward(x.to(dtype)).float()
    robots = Robots(Half, sync=sync, change=unfreeze if 'svrg' not in sync else None)
    robots.run(12)
    robots.end()
    assert robots.server.master.dtype == np.float32
    for model in robots.models():
        assert model.first.weight.dtype == dtype
        assert equal(model, robots.model)
    assert not torch.equal(robots.model.first.weight, Half().first.weight)


def test_a_parameter_without_a_gradient_on_some_robots_is_trained_by_the_others():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

        def forward(self, x):
            return self.heads[int(x.mean() > 1.5)](x)
    robots = Robots(Heads, sync='rsp:3', codec='onebit')
    robots.run(8)
    robots.end()
    new = Heads()
    for k in range(2):
        assert not torch.equal(robots.model.heads[k].weight, new.heads[k].weight)
    for model in robots.models():
        assert equal(model, robots.model)


@pytest.mark.parametrize('loss', [
    lambda net, x: net.last.weight.detach().sum().requires_grad_(),
    lambda net, x: nn.Linear(8, 1)(x).sum()])
def test_a_loss_that_reaches_no_parameter_is_an_error_at_the_first_batch(loss):
    net = Net()
    optimizer = RogOptimizer(net, InProcessLink(), robot='r', incarnation=7,
                             config=transfer_config('raw'), sgd=SGD)
    optimizer.zero_grad()
    loss(net, torch.ones(4, 8)).backward()
    with pytest.raises(LocalProtocolError, match='first batch must depend on a parameter'):
        optimizer.step()


def test_a_buffer_that_grows_is_named():
    robots = Robots(change=lambda model, count: setattr(model, 'scale', torch.ones(1, 40)))
    with pytest.raises(LocalProtocolError, match=r'buffer scale must keep its shape \(40,\)'):
        robots.run(2)


def test_integers_that_become_smaller_stay_on_their_robot():
    def turn(model, count):
        with torch.no_grad():
            model.ids.copy_(torch.full((5,), count % 3))
    robots = Robots(change=turn)
    with pytest.warns(UserWarning, match='buffer ids have become smaller'):
        robots.run(7)
    assert [int(model.ids[0]) for model in robots.models()] == [7 % 3] * 2


def test_a_buffer_of_double_precision_keeps_its_values_unless_it_changes():
    class Double(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer('third', torch.tensor([1 / 3], dtype=torch.float64))
    robots = Robots(Double)
    robots.run(3)
    robots.end()
    assert all(model.third == torch.tensor(1 / 3, dtype=torch.float64)
               for model in (*robots.models(), robots.model))


def test_what_the_server_s_copy_is_frozen_for_does_not_move_its_rows():
    robots = Robots()
    robots.run(4)
    contents = contents_of(robots.model)
    contents.store(robots.server.master)
    before = {name: value.clone() for name, value in robots.model.state_dict().items()}
    robots.model.requires_grad_(False)   # an evaluation may do so
    robots.model.frozen.requires_grad_(True)
    contents.store(robots.server.master)
    assert all(torch.equal(value, before[name])
               for name, value in robots.model.state_dict().items())


@pytest.mark.parametrize('buffer, reason', [
    (torch.full((3, 3), -torch.inf), 'NaN or infinite'), (torch.tensor([torch.nan]), 'NaN or'),
    (torch.arange(8.).expand(4, -1), 'cannot be changed in place'),
    (torch.eye(3).to_sparse(), 'sparse_coo'), (torch.ones(2, dtype=torch.complex64), 'complex64')])
def test_a_buffer_that_cannot_be_averaged_stays_on_each_robot(buffer, reason):
    class With(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer('more', buffer.clone() if buffer.is_contiguous() else buffer)
    assert reason in contents_of(With()).left_out['more']
    robots = Robots(With)
    robots.run(3)


def test_a_buffer_of_unsigned_integers_is_exchanged():
    class With(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer('more', torch.tensor([7], dtype=torch.uint16))
    assert 'more' in [buffer.name for buffer in contents_of(With()).buffers]


def test_what_is_not_exchanged_is_named():
    assert contents_of(Net()).left_out == {'mask': 'it is a buffer of type torch.bool'}
    big = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    big.register_buffer('seeds', torch.tensor([1 << 40]))
    big[1].double()
    assert contents_of(big).left_out == {
        'seeds': 'it is a buffer with integers of 16777216 or more',
        '1.weight': 'it is frozen, and torch.float64 on cpu',
        '1.bias': 'it is frozen, and torch.float64 on cpu'}


def test_fleets_of_fleets_have_one_whole_model():
    fleets = {name: Robots(sync='rsp:3', change=unfreeze) for name in ('blue', 'red')}
    check_named('local:2', Team())
    parent = Server(contents_of(Net()).partition('row', 'onebit'), flatten(Net()), 1,
                    server_config('local:2', 'onebit'), frozen_values(Net()))
    above = {name: Upstream(fleet.server, worker_above(fleet.server, name, 200 + k,
                                                       transfer_config('onebit')))
             for k, (name, fleet) in enumerate(fleets.items())}
    pair = Loopback(parent, [one.worker for one in above.values()])
    wanted = pair.start()
    for round in range(1, 9):
        for name, order in [w for w in wanted if isinstance(w[1], Compute)]:
            above[name].go_on(order)
            fleets[name].run(2 * round)
            assert above[name].due
            change = above[name].account()
            pair.want(name, above[name].worker.on_gradient(change, AS_IT_IS, pair.now))
        wanted = pair.deliver()
    for name, order in wanted:
        above[name].go_on(order)
    new = Net()
    unflatten(new, parent.master)
    assert new.norm.num_batches_tracked >= 16 and (new.norm.running_var > 0).all()
    assert not torch.equal(new.frozen.weight, Net().frozen.weight)
    for fleet in fleets.values():
        unflatten(fleet.model, fleet.server.master)
        for part in ('norm.running_mean', 'norm.running_var', 'frozen.weight'):
            torch.testing.assert_close(fleet.model.state_dict()[part], new.state_dict()[part],
                                       rtol=0.1, atol=0.05)
