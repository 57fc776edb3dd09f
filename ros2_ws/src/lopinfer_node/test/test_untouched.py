"""Tracing leaves the user's model unchanged.

If a line cannot be traced, the error names this line.
"""

import builtins
import functools
from collections import defaultdict, deque

import pytest
import torch
from lopinfer_node.errors import ModelError
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, Plan
from lopinfer_node.runtime.program import Program
from numba.core.compiler_lock import global_compiler_lock
from torch import nn


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)


class Keeps(Base):
    """Stores results in attributes and containers, as caches and debugging code do."""

    def __init__(self):
        super().__init__()
        self.history, self.features, self.last = [], {'deep': {}}, None

    def forward(self, x):
        y = self.norm(self.conv(x))
        self.last, self.size = y, y.shape
        self.history.append(y)
        self.features['deep']['y'] = y
        return y


class Counts(Base):
    """Changes a buffer and a plain tensor in place, and replaces another buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer('count', torch.zeros(()))
        self.register_buffer('scale', torch.ones(4, 1, 1))
        self.plain, self.act, self.last = torch.zeros(2), nn.functional.relu, None

    def forward(self, x):
        self.count += 1
        self.plain += 1
        self.scale = self.scale * 2
        return self.act(self.conv(x)) * self.scale + self.count


class Decides(Base):
    """Stores a result, then executes code that cannot be traced."""

    def __init__(self):
        super().__init__()
        self.register_buffer('mean', torch.zeros(1, 4, 1, 1))

    def forward(self, x):
        y = self.conv(x)
        self.mean = y.mean((0, 2, 3), keepdim=True)
        if y.sum() > 0:  # the test expects this line in the error
            y = y * 2
        return y


class Selects(Base):
    """Returns a result whose shape depends on the data."""

    def forward(self, x):
        y = self.conv(x)
        return y[y > 0]  # the test expects this line in the error


def contents(model):
    """Return the attributes of all modules of a model, with copies of the tensors' values."""
    def of(value):
        if isinstance(value, torch.Tensor):
            return type(value), id(value), value.detach().clone().tolist()
        if isinstance(value, dict):
            return {k: of(v) for k, v in value.items()}
        return [of(v) for v in value] if isinstance(value, (list, tuple)) else value
    return [of(vars(m)) for m in model.modules()]


def line_of(model, text):
    import inspect
    source, first = inspect.getsourcelines(type(model).forward)
    return first + next(i for i, line in enumerate(source) if text in line)


@pytest.mark.parametrize('kind', [Keeps, Counts, Decides, Selects])
def test_the_model_is_left_as_it_was_whether_it_can_be_traced_or_not(kind):
    torch.manual_seed(3)
    model, x = kind().eval(), torch.randn(1, 3, 8, 8)
    before, drawn = contents(model), torch.get_rng_state()
    try:
        trace(model, x)
    except ModelError:
        assert kind is not Keeps
    assert contents(model) == before
    assert torch.equal(torch.get_rng_state(), drawn)
    assert type(model(x)) is torch.Tensor


class Renormalises(nn.Module):
    """An embedding with `max_norm`, which shortens a row of its weight whenever the row is used.

    The linear layer uses the same weight as the embedding.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(6, 4, max_norm=0.5)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, x):
        return self.tied(self.table(x))


class Estimates(nn.Module):
    """Calls batch_norm with parameters as its running statistics.

    The operator writes to these parameters, although its schema does not say so.
    """

    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.var = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.var, training=True)


@pytest.mark.parametrize(('kind', 'x'), [(Renormalises, torch.tensor([[1, 3, 3]])),
                                         (Estimates, torch.rand(2, 3, 4, 4) + 1)])
def test_parameters_that_the_model_itself_writes_to_have_their_values_again(kind, x):
    torch.manual_seed(3)
    model = kind().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ModelError, match='a request would depend on the previous one'):
        trace(model, x)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(x)
    assert not all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Memory:
    def __init__(self):
        self.last, self.runs = None, 0


class Remembers(Base):
    """Stores results in an object, a deque and a defaultdict."""

    def __init__(self):
        super().__init__()
        self.memory, self.recent = (Memory(), 1), deque([1, 2], maxlen=3)
        self.by_size = defaultdict(list)

    def forward(self, x):
        y = self.norm(self.conv(x))
        self.memory[0].last = y
        self.memory[0].runs += 1
        self.recent.append(y)
        self.by_size[y.shape].append(y)
        return y


def test_objects_and_containers_of_other_kinds_are_left_as_they_were():
    model, x = Remembers().eval(), torch.randn(1, 3, 8, 8)
    trace(model, x)
    assert vars(model.memory[0]) == {'last': None, 'runs': 0}
    assert model.recent == deque([1, 2], maxlen=3) and not model.by_size
    assert type(model(x)) is torch.Tensor and type(model.memory[0].last) is torch.Tensor


def test_a_cache_outside_the_model_holds_no_tensor_of_the_tracer():
    @functools.lru_cache
    def grid(size):
        return torch.arange(size) * 0.5

    class Cached(Base):
        def forward(self, x):
            return self.conv(x) + grid(x.shape[-1] - 2)
    model, x = Cached().eval(), torch.randn(1, 3, 8, 8)
    assert len(trace(model, x).calls) == 2
    assert type(grid(6)) is torch.Tensor and type(model(x)) is torch.Tensor


def test_numba_compiles_nothing_while_builtins_are_replaced():
    """On another thread it would fail, and at every later time: a robot without plans."""
    smallest, seen = min, []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append((builtins.min is smallest, global_compiler_lock.is_locked()))
            return x.relu()

    trace(Looks().eval(), torch.zeros(1, 3))
    assert seen and all(kept or locked for kept, locked in seen)
    assert not global_compiler_lock.is_locked()


def test_inputs_that_have_no_dense_memory_are_refused():
    with pytest.raises(ModelError, match='cannot be traced'):
        trace(nn.Identity().eval(), torch.eye(3).to_sparse())


def test_a_model_that_counts_in_a_list_is_refused():
    class Grows(Base):
        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, x):
            self.seen.append(x.shape)
            return self.conv(x) * len(self.seen)

    model = Grows().eval()
    with pytest.raises(ModelError, match='something besides its inputs'):
        trace(model, torch.randn(1, 3, 8, 8))
    assert model.seen == []


@pytest.mark.parametrize('kind', [Decides, Selects])
def test_a_model_that_depends_on_data_is_refused_with_the_line(kind):
    model = kind().eval()
    line = line_of(model, '# the test expects this line')
    with pytest.raises(ModelError, match=f'test_untouched.py:{line}, in'):
        trace(model, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize('kind', ['forward_hook', 'forward_pre_hook'])
def test_a_forward_hook_is_refused_by_name_because_it_would_not_be_called(kind):
    model = Keeps().eval()
    seen = []
    getattr(model.conv, f'register_{kind}')(lambda *a: seen.append(a))
    with pytest.raises(ModelError, match='conv has the forward hook'):
        trace(model, torch.randn(1, 3, 8, 8))
    assert not seen


def test_results_may_be_written_into_and_do_not_share_memory_with_the_model():
    class Constant(Base):
        def forward(self, x):
            return self.conv(x), self.norm.weight
    model, x = Constant().eval(), torch.randn(1, 3, 8, 8)
    traced = trace(model, x)
    run = Program(traced, Plan.device_only(traced.graph), DEVICE).start([x])
    for results in run.finish_alone(), run.finish_alone():
        results[0].add_(1)
        results[1].zero_()
    assert (model.norm.weight == 1).all()


class Drops(Base):
    """Has a dropout that is active even in eval mode, and that zeroes only few values."""

    def forward(self, x):
        return nn.functional.dropout(self.conv(x), 1e-6)


class Types(Base):
    """Returns a tensor whose dtype has no comparison in PyTorch."""

    def forward(self, x):
        return self.conv(x).to(torch.float8_e4m3fn)


@pytest.mark.parametrize('kind, why', [(Drops, 'is random'), (Types, 'cannot be traced')])
def test_a_model_that_cannot_be_shared_is_refused_with_a_reason(kind, why):
    with pytest.raises(ModelError, match=why):
        trace(kind().eval(), torch.randn(1, 3, 8, 8))


def test_hooks_of_libraries_are_no_reason():
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Conv2d(3, 4, 3)).eval()
    trace(model, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize('kind', ['forward_hook', 'forward_pre_hook'])
def test_a_hook_of_all_modules_is_refused(kind):
    hook = getattr(nn.modules.module, f'register_module_{kind}')(lambda *a: None)
    try:
        with pytest.raises(ModelError, match='every module has the forward hook'):
            trace(Keeps().eval(), torch.randn(1, 3, 8, 8))
    finally:
        hook.remove()
