"""Counts the round trips of an inference after some inferences, in the modes async and replay.

A replay that stops would need more, and would write to stderr. clients.py has programs that use
libraries from PyPI.
"""

import pytest
import remote
import torch
from torch import nn


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(),
                         nn.Linear(16, 4)).eval().requires_grad_(False)


def seeded(k):
    return torch.Generator().manual_seed(k)


def shifts(device):
    packed = torch.randint(0, 255, (16, 8), dtype=torch.uint8, generator=seeded(1)).to(device)

    def infer(k):
        x = torch.rand(2, 16, generator=seeded(k)).to(device)
        low, high = packed & 15, packed >> 4
        high <<= 1
        return (x @ torch.cat([low, high], 1).float()).cpu()
    return infer


def experts(device):
    weights = torch.randn(3, 16, 8, generator=seeded(1)).bfloat16().to(device)

    def infer(k):
        x = torch.rand(12, 16, generator=seeded(k)).bfloat16().to(device)
        ends = torch.tensor([4, 8, 12], dtype=torch.int32).to(device)
        return torch._grouped_mm(x, weights, offs=ends).relu().cpu()
    return infer


def offloaded(device):
    """Move weights as accelerate's `cpu_offload` does.

    Before each layer runs, its weights are copied to the device. After the layer, they are freed.
    """
    model = layers()
    values = {name: p.data for name, p in model.named_parameters()}

    def infer(k):
        x = torch.rand(2, 8, generator=seeded(k)).to(device)
        for at, layer in enumerate(model):
            for name, p in [*layer.named_parameters()]:
                value = values[f'{at}.{name}'].to(device)
                layer._parameters[name] = type(p)(value, requires_grad=False)
            x = layer(x)
            for name, p in [*layer.named_parameters()]:
                layer._parameters[name] = type(p)(p.to('meta'), requires_grad=False)
        return x.cpu()
    return infer


def growing(device):
    """Run inferences with a cache that grows with each inference."""
    query, key, value, out = [nn.Linear(8, 8).eval().requires_grad_(False).to(device)
                              for _ in range(4)]
    kept = []

    def infer(k):
        x = torch.rand(1, 1, 8, generator=seeded(k)).to(device)
        new = [key(x), value(x)]
        kept[:] = [torch.cat(pair, 1) for pair in zip(kept, new, strict=True)] if kept else new
        return out(nn.functional.scaled_dot_product_attention(query(x), *kept)).cpu()
    return infer


def sizes(device):
    """Run inferences whose inputs differ in size."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
    model.requires_grad_(False).to(device)

    def infer(k):
        return model(torch.rand(1, 3, 20 + k, 30 - k, generator=seeded(k)).to(device)).cpu()
    return infer


def library(device):
    """Use an operator that a library implements in Python for all devices."""
    model = layers().to(device)

    def infer(k):
        x = torch.rand(2, 8, generator=seeded(k)).to(device)
        return model[2:](torch.ops.rrto_trips.doubled(model[:2](x))).cpu()
    return infer


@torch.library.custom_op('rrto_trips::doubled', mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:, :8], x[:, 8:] * 2], 1)


def speech(device):
    """Run `istft`, which itself reads a value from the device to check the window."""
    window = torch.hann_window(64).to(device)

    def infer(k):
        x = torch.randn(2, 256, generator=seeded(k)).to(device)
        spectrum = torch.stft(x, 64, 16, window=window, return_complex=True)
        return torch.istft(spectrum * 2, 64, 16, window=window, length=256).cpu()
    return infer


def seeds(device):
    """Set one seed at the beginning of each inference, and three further seeds during it.

    The seeds differ in each inference.
    """
    model = layers().to(device)
    seed = torch.cuda.manual_seed if device == 'cuda' else torch.manual_seed

    def infer(k):
        torch.manual_seed(k - 3)
        y = model[0](torch.rand(2, 8, generator=seeded(k)).to(device))
        for step in range(3):
            seed((1 << 64) - 1 - k - step)
            y = model[2](torch.relu(y + torch.randn_like(y)))
        return (y + torch.randn_like(y)).cpu()
    return infer


@pytest.mark.parametrize('program', [
    shifts, pytest.param(experts, marks=remote.GROUPED), offloaded, growing, sizes, pytest.param(
        library, marks=remote.since((2, 8), 'test for aliases that asks for no storage')), speech,
    seeds])
@pytest.mark.parametrize('mode', ['async', 'replay'])
def test_an_inference_waits_for_the_values_that_it_reads(mode, program, capsys):
    def results(device):
        torch.manual_seed(1)
        infer = program(device)
        for k in range(8):
            yield infer(k)

    expected = list(results('cpu'))
    engine = remote.start(mode)
    for mine, its in zip(results('cuda'), expected, strict=True):
        assert torch.equal(mine, its)
        trips, engine.machine.round_trips = engine.machine.round_trips, 0
    assert trips == (2 if (mode, program) == ('async', speech) else 1)
    assert capsys.readouterr().err == ''


@pytest.mark.parametrize('journal', [False, True])
def test_seeds_are_replayed_and_a_mismatch_leaves_the_numbers_right(journal):
    def results(device):
        torch.manual_seed(1)
        infer = seeds(device)
        for k in range(30):
            yield infer(k)
            if k % 9 == 8:
                torch.manual_seed(k)
                x = torch.ones(2, device=device)
                yield (x + torch.randn(2, device=device)).cpu()
                torch.manual_seed(k)  # an inference begins with this call, but none begins here
                yield torch.rand(3, device=device).cpu()

    expected = list(results('cpu'))
    engine = remote.start('replay', journal=journal)
    assert all(map(torch.equal, results('cuda'), expected))
    assert engine.inferences >= 20
