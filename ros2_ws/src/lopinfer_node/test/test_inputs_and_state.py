"""Tests of the inputs and of the state of a model.

The result of a call must depend only on the inputs of that call. Two inputs that share memory
still count as two inputs.
"""

import dataclasses

import pytest
import torch
from lopinfer_node.errors import ModelError
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, Plan
from lopinfer_node.runtime.program import Program
from pair import run_both
from torch import nn
from torch.utils import _pytree as pytree

X = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Two(nn.Module):
    """Takes two images, or a dictionary of two images."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.anchor = nn.Parameter(torch.rand(1, 3, 8, 8))
        self.register_buffer('grid', torch.rand(1, 3, 8, 8))

    def forward(self, a, b=None):
        left, right = (a['left'], a['right']) if b is None else (a, b)
        return self.conv(left) - 2 * self.conv(right) + (self.anchor + self.grid).sum()


def sequences(model, kind):
    return {'the same tensor twice': (X, X),
            'a dictionary of the same': ({'left': X, 'right': X},),
            'two views of the same memory': (X, X.view(1, 3, 8, 8)),
            'views that overlap': tuple(torch.rand(1, 3, 9, 8)[:, :, i:i + 8] for i in (0, 1)),
            'one element, expanded': (X, torch.zeros(1).expand(1, 3, 8, 8)),
            'a parameter of the model': (X, model.anchor),
            'a buffer of the model': (model.grid, X),
            'the memory of a parameter': (model.anchor.detach(), model.anchor.data)}[kind]


@pytest.mark.parametrize('kind', ['the same tensor twice', 'a dictionary of the same',
                                  'two views of the same memory', 'views that overlap',
                                  'one element, expanded', 'a parameter of the model',
                                  'a buffer of the model', 'the memory of a parameter'])
def test_inputs_of_the_example_that_share_memory_are_different_inputs(kind):
    model = Two().eval()
    args = sequences(model, kind)
    traced = trace(model, *args)
    leaves, structure = pytree.tree_flatten(args)
    others = [torch.rand(leaf.shape, generator=torch.Generator().manual_seed(i))
              for i, leaf in enumerate(leaves)]
    plan = Plan.device_only(traced.graph)
    with torch.no_grad():
        want = model(*pytree.tree_unflatten(others, structure))
    torch.testing.assert_close(run_both(traced, plan, others)[0], want)


def test_a_model_that_asks_whether_its_inputs_are_one_is_that_of_two():
    class Asks(nn.Module):
        def forward(self, a, b):
            return a * 2 if a is b else a - b
    traced = trace(Asks().eval(), X, X.clone())
    run = Program(traced, Plan.device_only(traced.graph), DEVICE).start([X, X + 1])
    torch.testing.assert_close(run.finish_alone()[0], torch.full_like(X, -1))
    with pytest.raises(ModelError, match='same tensor'):
        trace(Asks().eval(), X, X)


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 4, 3)


class SmallCount(Base):
    """Multiplies its result by 1e-5 and by the number of calls so far."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return self.conv(x) * 1e-5 * self.count


class Drifts(Base):
    """Adds an offset that grows by 1e-5 with each call."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def forward(self, x):
        self.count += 1
        return self.conv(x) + 1e-5 * self.count


class Mean(Base):
    """Keeps a slowly changing mean of the convolution's results in an attribute."""

    def __init__(self):
        super().__init__()
        self.mean = None

    def forward(self, x):
        y = self.conv(x)
        self.mean = y if self.mean is None else 0.9999 * self.mean + 0.0001 * y
        return y - self.mean


class MeanInDict(Base):
    def __init__(self):
        super().__init__()
        self.state = {}

    def forward(self, x):
        y = self.conv(x)
        self.state['mean'] = y + 0.0001 * (self.state.get('mean', y) - y)
        return y + self.state['mean']


class MeanInList(Base):
    def __init__(self):
        super().__init__()
        self.last = []

    def forward(self, x):
        y = self.conv(x)
        self.last.append(y)
        return y + 1e-4 * self.last[-2 if len(self.last) > 1 else -1]


SEEN = {'calls': 0}


class Elsewhere(Base):
    """Counts its calls in a global variable."""

    def forward(self, x):
        SEEN['calls'] += 1
        return self.conv(x) + 1e-5 * SEEN['calls']


class FirstCall(Base):
    """In its first call, computes values from the input and keeps them for later calls."""

    def __init__(self):
        super().__init__()
        self.scale = None

    def forward(self, x):
        if self.scale is None:
            self.scale = x.abs().mean()
        return self.conv(x) / self.scale


@pytest.mark.parametrize('kind', [SmallCount, Drifts, Mean, MeanInDict, MeanInList, Elsewhere,
                                  FirstCall])
def test_a_model_whose_state_changes_little_is_refused(kind):
    # the others are what PyTorch 2.8 and 2.4 say of two of them
    with pytest.raises(ModelError, match='something besides its inputs|data-dependent|Node arity'):
        trace(kind().eval(), X)


class TinyOffset(nn.Module):
    """Returns values so small that an absolute tolerance would hide any error."""

    def forward(self, x):
        return x * 1e-6


def test_results_that_are_small_are_compared_by_their_own_size(monkeypatch):
    from lopinfer_node.model import traced as module
    of = module.Traced.run
    monkeypatch.setattr(module.Traced, 'run', lambda self, known: tuple(
        y * 1.5 for y in of(self, known)))
    with pytest.raises(ModelError, match="model's result"):
        trace(TinyOffset().eval(), X)


def test_a_model_that_accepts_only_inputs_like_its_example_is_traced():
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(2, 4)

        def forward(self, steps):
            return self.table(steps.cumsum(0))
    model = Steps().eval()
    with pytest.raises(IndexError):
        model(torch.tensor([1, 1, 0, -1]))
    assert len(trace(model, torch.tensor([0, 1, -1, 1])).inputs) == 1


class Thirds(nn.Module):
    """Multiplies its input by a sum of quotients: the input's integer parts, divided by 3.

    The quotients have the type ``dtype``, or PyTorch's default dtype if ``dtype`` is None.
    """

    def __init__(self, dtype=None):
        super().__init__()
        self.dtype = dtype

    def forward(self, x):
        whole = x.long() if self.dtype is None else x.long().to(self.dtype)
        return x * (whole / 3).sum()


def test_a_model_whose_results_depend_on_the_default_dtype_is_not_that_of_a_server():
    x = 9 * torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ModelError, match='torch.float64 here and torch.float32 on a server'):
            trace(Thirds().eval(), x)
        assert torch.get_default_dtype() is torch.float64
        traced = trace(Thirds(torch.float64).eval(), x)
    finally:
        torch.set_default_dtype(torch.float32)
    want = Thirds(torch.float64)(x)
    torch.testing.assert_close(run_both(traced, Plan.server_only(traced.graph), [x])[0], want,
                               rtol=1e-14, atol=0)
    trace(Thirds().eval(), x)


def test_an_item_of_a_constant_is_a_number():
    class Strides(nn.Module):   # YOLO makes its anchors this way in its first call
        def __init__(self):
            super().__init__()
            self.register_buffer('strides', torch.tensor([2.0, 4.0]))

        def forward(self, x):
            return x * torch.cat([torch.full((4,), self.strides[i], dtype=x.dtype)
                                  for i in range(len(x) + 1)])   # torch.fx cannot trace len
    model = Strides().eval()
    traced = trace(model, X)
    assert torch.equal(run_both(traced, Plan.server_only(traced.graph), [X])[0], model(X))


@dataclasses.dataclass
class Results:
    """A result type that PyTorch cannot split into its tensors."""

    mean: torch.Tensor


def returns(result):
    class Returns(nn.Module):
        def forward(self, x):
            return result(x)
    return Returns().eval()


@pytest.mark.parametrize(('result', 'why'), [
    (lambda x: Results(x.mean()), 'the model returns a Results; it must return tensors, or tuples'),
    # PyTorch 2.8 and 2.4 fail while they trace it
    (lambda x: torch.func.vmap(torch.sin)(x), 'is not an operator on tensors, so a server cannot|'
                                              'cannot be traced: (AssertionError|RuntimeError)'),
    (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), 'depends on data cannot be')])
def test_what_is_no_operator_is_refused_with_what_it_is(result, why):
    with pytest.raises(ModelError, match=why):
        trace(returns(result), X)
