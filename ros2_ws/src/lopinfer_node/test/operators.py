"""Small modules, one for each kind of operator, with inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Apply(nn.Module):
    """A function as a module; `parts` are submodules or parameters that the function uses."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(self, *inputs)


def fn(function: Callable[..., Any], **parts: Any) -> nn.Module:
    return Apply(lambda self, *x: function(*x), **parts)


IMAGE = (1, 6, 17, 19)


def _inverse_functions(x):
    y = x.tanh() * 0.9
    whole = (y * 9).long().bitwise_xor(torch.tensor(3)).float()
    return (y.asin() + y.acos() + y.atanh() + (y + 2).acosh() + torch.fmin(y, -y) + whole
            + torch.float_power(y + 2, 2).float())


def cases() -> dict[str, tuple[nn.Module, list[tuple[int, ...]]]]:
    """Return a mapping from the name of each case to its module and the shapes of its inputs."""
    one: dict[str, nn.Module] = {
        'no rule': fn(lambda x: torch.special.bessel_j0(x) + torch.searchsorted(
            torch.arange(5.0), x) + torch.linalg.inv(x[0, 0, :9, :9] + 9 * torch.eye(9)).sum()),
        'relu in place': nn.Sequential(nn.ReLU(inplace=True)),
        'conv 3x3': nn.Conv2d(6, 4, 3, padding=1),
        'conv no padding': nn.Conv2d(6, 4, 5),
        'conv 7x7 stride 2': nn.Conv2d(6, 4, 7, 2, 3),
        'conv 1x1 stride 2': nn.Conv2d(6, 4, 1, 2),
        'conv stride over kernel': nn.Conv2d(6, 4, 2, 5),
        'conv dilated': nn.Conv2d(6, 4, 3, padding=4, dilation=4),
        'conv dilated far': nn.Conv2d(6, 4, 3, padding=12, dilation=12),
        'conv grouped': nn.Conv2d(6, 4, 3, padding=1, groups=2),
        'conv depthwise': nn.Conv2d(6, 6, 5, padding=2, groups=6),
        'conv same': nn.Conv2d(6, 4, 3, padding='same', dilation=2),
        'conv valid': nn.Conv2d(6, 4, 3, padding='valid', stride=2),
        'conv reflect': nn.Conv2d(6, 4, 3, padding=1, padding_mode='reflect'),
        'transposed': nn.ConvTranspose2d(6, 4, 3, 2, 1, output_padding=1),
        'transposed gaps': nn.ConvTranspose2d(6, 4, 2, 4, output_padding=2),
        'transposed dilated': nn.ConvTranspose2d(6, 4, 3, 2, dilation=2, groups=2, bias=False),
        'max pool': nn.MaxPool2d(3, 2, 1),
        'max pool ceil': nn.MaxPool2d(3, 2, ceil_mode=True),
        'max pool dilated': nn.MaxPool2d(2, 1, dilation=3),
        'avg pool': nn.AvgPool2d(2),
        'avg pool padded': nn.AvgPool2d(3, 2, 1),
        'avg pool without padding': nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        'avg pool ceil': nn.AvgPool2d(3, 2, 1, ceil_mode=True),
        'avg pool ceil without padding': nn.AvgPool2d(4, 3, 2, ceil_mode=True,
                                                      count_include_pad=False),
        'avg pool divisor': nn.AvgPool2d(3, divisor_override=2),
        'adaptive avg 5': nn.AdaptiveAvgPool2d(5),
        'adaptive avg 1': nn.AdaptiveAvgPool2d(1),
        'adaptive max 7x3': nn.AdaptiveMaxPool2d((7, 3)),
        'batch norm': nn.BatchNorm2d(6),
        'group norm': nn.GroupNorm(2, 6),
        'layer norm last': nn.LayerNorm(19),
        'layer norm two': nn.LayerNorm((17, 19)),
        'linear rows': nn.Linear(19, 7),
        'prelu': nn.PReLU(6),
        'glu': nn.GLU(1),
        'softmax last': nn.Softmax(-1),
        'softmax rows': nn.Softmax(2),
        'mean over space': fn(lambda x: x.mean((2, 3))),
        'mean over columns': fn(lambda x: x.mean(3)),
        'sum keep': fn(lambda x: x.sum(1, keepdim=True)),
        'max over columns': fn(lambda x: x.max(3).values),
        'permute': fn(lambda x: x.permute(0, 2, 3, 1)),
        'transpose flatten': fn(lambda x: x.transpose(1, 2).flatten(2)),
        'rows to tokens': fn(lambda x: x.flatten(2).transpose(1, 2)),
        'tokens to rows': fn(lambda x: x.flatten(2).reshape(1, 6, 17, 19)),
        'slice rows': fn(lambda x: x[:, :, 3:-2]),
        'slice step': fn(lambda x: x[:, :, 1::3]),
        'focus': fn(lambda x: torch.cat([x[..., ::2, 1:], x[..., 1:9:1, :18]
                                         .repeat(1, 1, 2, 1)[..., :9, :]], 1)),
        'select row': fn(lambda x: x[:, :, 4] * 2),
        'select channel': fn(lambda x: x[:, 2] + 1),
        'chunk': fn(lambda x: x.chunk(2, 1)[1] * x.chunk(2, 1)[0]),
        'split rows': fn(lambda x: x.split([5, 12], 2)[1] + 1),
        'unbind': fn(lambda x: sum(x.unbind(1))),
        'cat channels': fn(lambda x: torch.cat([x, x.relu()], 1)),
        'cat rows': fn(lambda x: torch.cat([x.relu(), x.sigmoid()], 2)),
        'cat with pooled': fn(lambda x: torch.cat(
            [x, F.interpolate(F.adaptive_avg_pool2d(x, 1), (17, 19))], 1)),
        'stack': fn(lambda x: torch.stack([x, x.tanh()], 2)),
        'broadcast_tensors': fn(lambda x: sum(torch.broadcast_tensors(
            x, x.mean(1, keepdim=True), torch.arange(6.0).view(6, 1, 1)))),
        'pad': fn(lambda x: F.pad(x, (1, 0, 3, 2), value=2.5)),
        'crop by pad': fn(lambda x: F.pad(x, (0, 0, -3, -2))),
        'pad reflect': fn(lambda x: F.pad(x, (1, 1, 2, 2), mode='reflect')),
        'nearest size': fn(lambda x: F.interpolate(x, (40, 40))),
        'nearest factor': fn(lambda x: F.interpolate(x, scale_factor=2)),
        'nearest down': fn(lambda x: F.interpolate(x, (7, 9))),
        'bilinear size': fn(lambda x: F.interpolate(x, (40, 30), mode='bilinear')),
        'bilinear factor': fn(lambda x: F.interpolate(x, scale_factor=2.5, mode='bilinear')),
        'bilinear corners': fn(lambda x: F.interpolate(x, (33, 10), mode='bilinear',
                                                       align_corners=True)),
        'bicubic': fn(lambda x: F.interpolate(x, (20, 20), mode='bicubic')),
        'pixel shuffle': nn.Sequential(nn.Conv2d(6, 8, 1), nn.PixelShuffle(2)),
        'pixel unshuffle': fn(lambda x: F.pixel_unshuffle(x[:, :, :16, :18], 2)),
        'squeeze and excite': Apply(lambda s, x: x * s.c(x.mean((2, 3), keepdim=True)).sigmoid(),
                                    c=nn.Conv2d(6, 6, 1)),
        'position': Apply(lambda s, x: x + s.p, p=torch.randn(1, 1, 17, 1)),
        'in place on a view': fn(_write_through_view),
        'in place then used': fn(lambda x: _in_place_twice(x.clone())),
        'dropout': nn.Dropout(),
        'dropout in place': nn.Sequential(nn.Conv2d(6, 4, 3), nn.Dropout2d(inplace=True),
                                          nn.FeatureAlphaDropout(inplace=True)),
        'to a device': fn(lambda x: x.to(torch.zeros(()).device, torch.float64) * 2),
        'where': fn(lambda x: torch.where(x > 0, x, x * 0.1).clamp(max=1.5)),
        'two outputs': fn(lambda x: {'a': x.relu(), 'b': (x.mean((2, 3)), x)}),
        'unknown to us: flip': fn(lambda x: x.flip(2) + x),
        'cumsum rows': fn(lambda x: x.cumsum(2)),
        'batch norm of the batch': nn.BatchNorm2d(6, track_running_stats=False),
        'cat of two types': fn(lambda x: torch.cat([x.half(), x], 2) * 3),
        'read as another type': fn(lambda x: (x * 2).view(torch.int32) // 2),
        'read as bytes': fn(lambda x: (x * 2).view(torch.uint8) // 2),
        'laid out otherwise': nn.Sequential(
            nn.Conv2d(6, 4, 3), fn(lambda x: x.permute(0, 2, 3, 1).view(1, 15, -1)),
            nn.Linear(68, 3)).to(memory_format=torch.channels_last),
        'length one': fn(lambda x: F.normalize(x, dim=1)),
        'max pool of integers': fn(lambda x: F.max_pool2d((x * 9).long(), 3, 2, 1)),
        'avg pool of integers': fn(lambda x: F.avg_pool2d((x * 9).long(), 3, 2, 1,
                                                          count_include_pad=False)),
        'bilinear bytes': fn(lambda x: F.interpolate((x * 9).byte(), (40, 30), mode='bilinear')),
        'nearest as large': fn(lambda x: F.interpolate(x, scale_factor=(1.05, 1.5))),
        'nearest twice as large': fn(lambda x: F.interpolate(x, scale_factor=(1.5, 2.01))),
        'bilinear as large': fn(lambda x: F.interpolate(x, scale_factor=(1.05, 1.5),
                                                        mode='bilinear')),
        'nearest double': fn(lambda x: F.interpolate(x.double(), (66, 69))),
        'constants made and written': fn(_with_constants),
        'rows written': fn(_with_rows_written),
        'swapped dimensions': fn(lambda x: x.mT + x.swapdims(2, 3)),
        'variance and mean': fn(lambda x: torch.add(*torch.var_mean(x, (1, 3)))),
        'deviation and mean': fn(lambda x: torch.add(*torch.std_mean(x, 3, keepdim=True))),
        'least and most': fn(lambda x: torch.sub(*torch.aminmax(x, dim=1))),
        'more functions': fn(lambda x: x.exp2().log10().sinh().asinh().cosh().frac().clip(-1, 1)
                             + x.erfc().absolute().negative() * x.sinc()),
        'functions of two': fn(lambda x: torch.logaddexp(x, x * 2) + torch.hypot(x, x + 1)
                               + torch.copysign(x, x - 1) + torch.fmax(x, -x)
                               + torch.xlogy(x.abs(), x.abs() + 1)),
        'inverse functions': fn(_inverse_functions),
        'spectra': fn(lambda x: torch.fft.ifft(torch.fft.fft(x)).real
                      + torch.fft.irfft(torch.fft.rfft(x), n=x.shape[3])
                      + torch.fft.ifft2(torch.fft.fft2(x)).real
                      + torch.fft.ifftn(torch.fft.fftn(x)).imag
                      + torch.fft.irfftn(torch.fft.ifftshift(torch.fft.fftshift(
                          torch.fft.rfftn(x, dim=(2, 3)), dim=2), dim=2), s=x.shape[2:])),
        'one hot': fn(lambda x: F.one_hot(x.abs().mul(3).long().clamp(max=3), 4).float()),
        'scatter reduce': fn(lambda x: x.scatter_reduce(
            3, x[..., :4].abs().mul(3).long().clamp(max=9), x[..., :4], 'amax')),
        'spectrum': fn(lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * 2, s=(17, 19))),
        'least so far': fn(lambda x: x.cummin(3).values),
        'buckets': Apply(lambda s, x: torch.bucketize(x, s.b) * x, b=torch.linspace(-1, 1, 5)),
    }
    found: dict[str, tuple[nn.Module, list[tuple[int, ...]]]] = {
        name: (module, [IMAGE]) for name, module in one.items()}
    found.update(_more())
    return found


def _write_through_view(x: torch.Tensor) -> torch.Tensor:
    y = x.relu()
    y[:, :, 2:5].add_(1)
    return y * 2


def _with_constants(x: torch.Tensor) -> torch.Tensor:
    mask = x.new_zeros(17, 19)
    mask[2:5] = 1
    return x * mask + torch.tensor([0.5]).add_(1)


def _with_rows_written(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, :, 3:6] = x[:, :, 8:11]
    y[:, 1] = 0.5
    return y * ((x > 0) | (y < 1) & (y > -1))


def _in_place_twice(x: torch.Tensor) -> torch.Tensor:
    a = x.mul_(2)
    x.add_(1)
    return a + x


def _more() -> dict[str, tuple[nn.Module, list[tuple[int, ...]]]]:
    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    return {
        'broadcast two inputs': (fn(lambda a, b: a * b), [(1, 3, 9, 8), (9, 1)]),
        'matmul of two inputs': (fn(lambda a, b: a @ b), [(2, 7, 5), (2, 5, 6)]),
        'matmul of one input twice': (fn(lambda a: torch.mm(a, a)), [(6, 6)]),
        'bmm of one input twice': (fn(lambda a: torch.bmm(a, a)), [(3, 6, 6)]),
        'linear, its own weight': (fn(lambda a: nn.functional.linear(a, a)), [(6, 6)]),
        'prelu, its own weight': (fn(lambda a: nn.functional.prelu(a, a[0])), [(6, 6)]),
        'batch norm, its own statistics': (fn(
            lambda a: nn.functional.batch_norm(a, a[0], a[1].abs())), [(6, 5)]),
        'matmul transposed': (fn(lambda a: a @ a.transpose(1, 2)), [(1, 7, 5)]),
        'batched linear': (nn.Linear(5, 3), [(8, 5)]),
        'batch of images': (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)),
                            [(6, 3, 6, 6)]),
        'conv1d': (nn.Conv1d(3, 5, 5, 2, 2), [(1, 3, 30)]),
        'conv3d': (nn.Conv3d(2, 3, 3, padding=1), [(1, 2, 8, 6, 5)]),
        'avg pool 1d': (nn.AvgPool1d(3, 2), [(1, 3, 20)]),
        'max pool 3d': (nn.MaxPool3d(2), [(1, 2, 8, 6, 4)]),
        'trilinear': (fn(lambda x: F.interpolate(x, scale_factor=2, mode='trilinear')),
                      [(1, 2, 5, 4, 3)]),
        'lstm': (Apply(lambda s, x: s.r(x.relu())[0], r=nn.LSTM(6, 5, batch_first=True)),
                 [(1, 12, 6)]),
        'rnn': (Apply(lambda s, x: s.r(x.relu())[0], r=nn.RNN(6, 5, batch_first=True)),
                [(1, 12, 6)]),
        'rnn of relu': (Apply(lambda s, x: s.r(x)[0], r=nn.RNN(
            6, 5, nonlinearity='relu', batch_first=True)), [(1, 12, 6)]),
        'cells': (Apply(lambda s, x: s.a(x, s.b(x)[0]) + s.c(x), a=nn.GRUCell(6, 5),
                        b=nn.LSTMCell(6, 5), c=nn.RNNCell(6, 5)), [(4, 6)]),
        'matrix and vector': (Apply(lambda s, x: x.T.mv(s.v) @ torch.outer(s.v, s.v)[:5]
                                    + x[0].dot(x[1]), v=torch.randn(7)), [(7, 5)]),
        'bilinear layer': (nn.Bilinear(5, 4, 3), [(7, 5), (7, 4)]),
        'sound': (Apply(lambda s, x: torch.view_as_real(torch.stft(
            x, 16, window=s.w, return_complex=True)).square().sum(-1), w=torch.ones(16)),
            [(2, 120)]),
        'gru': (Apply(lambda s, x: s.r(x.relu())[0], r=nn.GRU(6, 5, 2, dropout=0.5)),
                [(12, 1, 6)]),
        'unbatched conv': (nn.Conv2d(3, 4, 3, padding=1), [(3, 9, 8)]),
        'embedding': (Apply(lambda s, x: s.e(x.abs().mul(3).long().clamp(max=9)),
                            e=nn.Embedding(10, 6)), [(1, 12)]),
        'self attention': (Apply(lambda s, x: s.a(x, x, x)[0], a=attention), [(1, 11, 16)]),
        'causal attention': (fn(lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, is_causal=True)), [(1, 2, 9, 4)] * 3),
        'masked attention': (fn(lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(9, 9).tril().bool())), [(1, 2, 9, 4)] * 3),
        'attention over learned keys': (Apply(lambda s, q: F.scaled_dot_product_attention(
            q, s.k, s.k, is_causal=True), k=torch.randn(1, 2, 7, 4)), [(1, 2, 9, 4)]),
        'attention over learned values': (Apply(lambda s, q: F.scaled_dot_product_attention(
            q, q * 2, s.v, is_causal=True), v=torch.randn(1, 2, 9, 4)), [(1, 2, 9, 4)]),
        'attention of constants': (Apply(lambda s, x: F.scaled_dot_product_attention(
            s.q, s.q, s.q) + x, q=torch.randn(1, 2, 7, 4)), [(1, 2, 7, 4)]),
        'attention by rank': (fn(lambda q, k: F.scaled_dot_product_attention(q, k, k)),
                              [(2, 9, 9, 4), (9, 9, 4)]),
        'type of a larger tensor': (fn(lambda x, y: (x * 3).type_as(y.int()) // 2),
                                    [(1, 3, 9, 8), (2, 1, 3, 9, 8)]),
        'unbatched transposed gaps': (nn.ConvTranspose2d(3, 4, 2, 4, output_padding=2),
                                      [(3, 5, 6)]),
        'nearest double 3d': (fn(lambda x: F.interpolate(x.double(), (46, 5, 5))),
                              [(1, 2, 14, 4, 3)]),
        'encoder layer': (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
                          [(1, 10, 16)]),
    }
