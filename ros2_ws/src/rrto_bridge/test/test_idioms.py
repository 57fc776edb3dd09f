"""Idioms of real programs that no other test covers; the results equal those of plain PyTorch."""

import copy
import importlib.util
import pickle

import pytest
import remote
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CASES = {}


def case(build):
    CASES[build.__name__] = build
    return build


def seeded(k, *shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(k))


@case
def recurrent_layers_of_images(device):
    """Run batch-first layers; on a CPU, PyTorch rounds differently if weights need gradients."""
    torch.manual_seed(0)
    layers = [nn.GRU(4, 6, 2, batch_first=True), nn.RNN(4, 6, batch_first=True),
              nn.LSTM(4, 6, batch_first=True, proj_size=3)]
    layers += [nn.GRU(4, 6, batch_first=True).requires_grad_(False)]
    for layer in layers:
        layer.eval().to(device)

    def infer(k):
        with torch.no_grad():
            return [layer(seeded(k, *shape).to(device))[0] for layer in layers
                    for shape in ((3, 5, 4), (8, 7, 4))]
    return infer


@case
def without_no_grad(device):
    """Run operators that a CPU rounds differently when tensors may need gradients."""
    torch.manual_seed(0)
    layers = [nn.LSTM(4, 6, batch_first=first).eval().to(device) for first in (False, True)]
    matrix = torch.rand(5, 5).to(device).requires_grad_()

    def infer(k):
        found = []
        for around in (torch.no_grad, torch.enable_grad, torch.inference_mode):
            with around():
                found += [layer(seeded(k, 3, 2, 4).to(device))[0] for layer in layers]
                found += [torch.linalg.svdvals(matrix + k), torch.linalg.eigvalsh(matrix + k),
                          torch.linalg.eigvalsh(matrix + k, UPLO='U')]
        return [t.detach() for t in found]
    return infer


@case
def encoder_with_padding(device):
    """Run an encoder whose fast path uses nested tensors."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2,
                                  norm=nn.LayerNorm(8)).eval().to(device)

    def infer(k):
        mask = torch.arange(5) >= torch.tensor([[5], [2 + k % 3], [4]])
        with torch.no_grad():
            return [model(seeded(k, 3, 5, 8).to(device), src_key_padding_mask=mask.to(device))]
    return infer


@case
def attention_with_a_kernel_of_its_choice(device):
    def infer(k):
        q = seeded(k, 1, 2, 6, 4).to(device)
        with sdpa_kernel(SDPBackend.MATH):
            return [F.scaled_dot_product_attention(q, q, q, is_causal=True)]
    return infer


@case
def parts_of_complex_numbers(device):
    def infer(k):
        x = torch.fft.rfft(seeded(k, 3, 8)).to(device)
        x.conj().imag[0] = 7
        x.mH.real[:, 1] *= 2
        y = x.conj()
        return [x, y.imag, y.real.sum(), x.mT.conj().imag, y.imag.abs(),
                seeded(k, 2).to(device).real]
    return infer


@case
def classes_as_vectors(device):
    def infer(k):
        classes = torch.tensor([[0, k % 3], [2, 1]]).to(device)
        with pytest.raises(RuntimeError, match='smaller than num_classes'):
            F.one_hot(classes, 2).cpu()
        return [F.one_hot(classes, 5), F.one_hot(classes)]
    return infer


@case
def types_of_older_programs(device):
    space = torch.cuda if device == 'cuda' else torch
    name = 'torch.cuda' if device == 'cuda' else 'torch'

    def infer(k):
        floats, longs = space.FloatTensor, space.LongTensor
        x = seeded(k, 3, 4).double().type(floats)
        assert isinstance(x, floats) and not isinstance(x, longs)
        assert x.type() == f'{name}.FloatTensor' and x.device.type == device
        assert x.type(torch.FloatTensor).device.type == 'cpu' and floats().shape == (0,)
        torch.set_default_tensor_type(f'{name}.DoubleTensor')
        try:
            y = torch.arange(3.) + torch.ones(3)
        finally:
            torch.set_default_tensor_type(torch.FloatTensor)
        assert y.device.type == device and torch.ones(1).device.type == 'cpu'
        return [x, y, floats([1, 2]), longs(2, 3).fill_(k), x.type(f'{name}.HalfTensor')]
    return infer


@case
def which_memory_a_tensor_has(device):
    def infer(k):
        x = seeded(k, 4, 4).to(device)
        row, other = x[1:], x.clone()
        assert x.untyped_storage().nbytes() == row.untyped_storage().size() == 64
        assert row.data_ptr() - x.data_ptr() == 16 and torch.empty(0, device=device).data_ptr() == 0
        assert x.data_ptr() == x.detach().data_ptr() == x.view(-1).data_ptr() != other.data_ptr()
        assert x.untyped_storage().data_ptr() == row.untyped_storage().data_ptr()
        assert x.untyped_storage().device.type == device
        return [row, other]
    return infer


@case
def devices_by_number(device):
    def scripted(x: torch.Tensor, to: torch.device):
        return x + torch.empty(1, device=torch.device('cpu')).fill_(2), to.type == 'cpu'

    script = torch.jit.script(scripted)

    def infer(k):
        place = torch.device(0) if device == 'cuda' else torch.device('cpu')
        with place:
            x = torch.arange(3)
        assert pickle.loads(pickle.dumps(place)) == place == x.device
        assert isinstance(place, torch.device) and issubclass(type(place), torch.device)
        assert script(seeded(k, 1), torch.device('cpu'))[1]
        made = torch.empty(2, pin_memory=device == 'cuda').fill_(k)
        return [x, made, torch.empty(3, device=0 if device == 'cuda' else 'cpu').fill_(1)]
    return infer


@case
def numbers_of_the_device_in_lists(device):
    def infer(k):
        x = seeded(k, 3).to(device)
        made = [torch.tensor([x.sum(), x[0]]), torch.tensor([[x.max()], [k]], device=device),
                torch.as_tensor((x[0].int(), 3)), torch.Tensor([x[1], 2]),
                torch.tensor([x[0] > .5]), torch.tensor([torch.complex(x[0], x[1])]),
                x.new_tensor([x[0], x[2]])]
        with pytest.raises(ValueError, match='only one element'):
            torch.tensor([x, x])
        return made
    return infer


@case
def indices_of_triangles(device):
    return lambda k: (torch.tril_indices(3, k + 2, device=device),
                      torch.triu_indices(3, 4, 1, device=device))


@case
def derivatives_by_forward_differentiation(device):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(device)

    def infer(k):
        x = seeded(k, 3).to(device)
        return torch.func.jvp(lambda x: layer(x).tanh(), (x,), (torch.ones_like(x),))
    return infer


@case
def another_default_type(device):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(device)

    def infer(k):
        count = torch.tensor([k, 2, 3]).to(device)
        left = torch.empty(2, device=device)
        torch.set_default_dtype((torch.float32, torch.float64, torch.float16)[k // 3])
        try:
            made = [count / 3, count * 1.5, count.sqrt(), torch.zeros(2, device=device).add_(.1),
                    torch.fft.fftfreq(3, device=device), torch.full((1,), .1, device=device),
                    torch.empty(1, device=device).fill_(.1), left.fill_(.1),
                    torch.where(count > 2, .1, .2), torch.scalar_tensor(.1, device=device)]
            made.append(layer(seeded(k, 2, 3).float().to(device)).double() / count)
            made.append(torch.ones(k % 3, 2, device=device) / count[1:])
        finally:
            torch.set_default_dtype(torch.float32)
        return [*made, count / 7]
    return infer


class Named(torch.Tensor):
    """A tensor with attributes besides its values, like those of MONAI and torchvision."""

    name = ''

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs)
        if isinstance(result, Named):
            vars(result).update(vars(next(t for t in args if isinstance(t, Named))))
        return result


class Plain(torch.Tensor):
    pass


@case
def tensors_of_a_class_of_the_program(device):
    torch.manual_seed(0)
    layer = nn.Linear(3, 3).to(device)

    def infer(k):
        x = seeded(k, 3, 3).as_subclass(Named)
        x.name = k
        x = x.to(device)
        y = layer(x)
        y.add_(x[0])    # the result needs a gradient
        y = y.detach()
        copies = [copy.copy(y), pickle.loads(pickle.dumps(y)), y.cpu()]
        parts = [y[0], *y.unbind(), *copies]
        plain = seeded(k, 3).to(device).as_subclass(Plain) * seeded(k, 3).to(device)
        twin = torch.Tensor._make_subclass(Plain, plain).add_(1)
        memo = copy.deepcopy(plain) if device == 'cuda' else plain.clone()
        assert all(type(t).__name__ == 'Named' and isinstance(t, Named) for t in (x, y, *parts))
        assert all(isinstance(t, Plain) for t in (plain, twin, memo))
        assert [t.name for t in (y, y[0], copies[1], copies[2])] == [k] * 4
        assert type(copies[2]) is Named and x.device.type == copies[1].device.type == device
        found = [t.as_subclass(torch.Tensor) for t in (x, y, *parts, plain, twin, memo)]
        assert not any(isinstance(t, (Named, Plain)) for t in found)
        return found
    return infer


# Cases that the server rounds differently.
ROUNDED = {'recurrent_layers_of_images', 'without_no_grad', 'attention_with_a_kernel_of_its_choice'}


@pytest.mark.parametrize('name', CASES)
def test_it_is_what_plain_pytorch_gives(mode, name):
    expected = CASES[name]('cpu')
    values = [expected(k) for k in range(9)]
    remote.start(mode)
    infer = CASES[name]('cuda')
    for k, wanted in enumerate(values):
        for mine, its in zip(infer(k), wanted, strict=True):
            found, its = mine.cpu(), its.resolve_conj()
            if name in ROUNDED:
                torch.testing.assert_close(found, its)
            else:
                assert found.dtype == its.dtype and torch.equal(found, its), k


def test_a_nested_tensor_that_leaves_its_layers_is_refused():
    remote.start('replay')
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1).eval().cuda()
    model.layers[0].register_forward_hook(lambda module, given, result: result + 1)
    mask = torch.tensor([[False, True]]).cuda()
    with torch.no_grad(), pytest.raises(RuntimeError, match='enable_nested_tensor=False'):
        model(torch.rand(1, 2, 8).cuda(), src_key_padding_mask=mask)


def test_a_storage_says_that_it_is_not_here():
    remote.start('replay')
    storage = torch.ones(2).cuda().untyped_storage()
    for use in (storage.cpu, storage.tolist, lambda: storage.resize_(0), lambda: storage[0]):
        with pytest.raises(RuntimeError, match='use tensor.cpu'):
            use()


def test_integers_are_counted_where_a_program_sees_cuda():
    remote.start('replay')
    experts = torch.tensor([0, 2, 2, 3], dtype=torch.int32)
    counts = torch.histc(experts.cuda(), bins=4, min=0, max=3).cpu()
    assert counts.dtype == torch.int32 and counts.tolist() == [1, 0, 2, 1]


@pytest.mark.parametrize('function', [torch.softmax, torch.log_softmax])
def test_half_precision_is_normalised_in_single_precision(function):
    """Softmax with `dtype=float32` converts a half-precision tensor before it computes.

    The attention of the library transformers calls softmax in this way. On CUDA, one operator does
    the conversion and the normalisation.
    """
    remote.start('replay')
    scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).half()
    expected = function(scores, -1, dtype=torch.float32)
    for _ in range(5):
        assert torch.equal(function(scores.cuda(), -1, dtype=torch.float32).cpu(), expected)


@pytest.mark.skipif(importlib.util.find_spec('safetensors') is None, reason='no safetensors')
def test_files_of_safetensors(tmp_path):
    from safetensors import torch as files
    remote.start('replay')
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).cuda()
    model[1].weight = model[0].weight
    files.save_model(model, tmp_path / 'model')
    # The file contains a weight only once, even if two parameters share it.
    assert len(files.load_file(tmp_path / 'model')) == 3
    for name, value in files.load_file(tmp_path / 'model', device='cuda').items():
        assert value.is_cuda and torch.equal(value.cpu(), model.state_dict()[name].cpu())
