"""Models for tests and benches: models of torchvision, a U-Net with skips, and random models."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from lopinfer_node.model.zoo import load
from torch import nn

# Model name -> height and width of the input in tests. The sizes are small, but large enough for
# all feature maps; vit_b_16 accepts no other size than 224.
SIDES = {'vgg19_bn': 64, 'resnet152': 64, 'densenet121': 64, 'convnext_large': 64,
         'regnet_x_16gf': 64, 'resnext101_32x8d': 64, 'mobilenet_v3_large': 64, 'vit_b_16': 224,
         'fcn_resnet50': 64, 'deeplabv3_resnet50': 64, 'unet': 64}


def named(name: str) -> nn.Module:
    """Return a model in which every part has weights that influence the result."""
    torch.manual_seed(0)
    model = UNet() if name == 'unet' else load(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # The initial weights of heads and layer scales are zero or nearly zero, so these parts
        # would have no influence on the result.
        for p in model.parameters():
            if float(p.abs().max()) < 1e-3:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model.eval()


class UNet(nn.Module):
    """An encoder and a decoder with skip connections and transposed convolutions."""

    def __init__(self, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        sizes = [3] + [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(self.block(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2)
                                for a, b in zip(sizes[1:], sizes[2:], strict=False))
        self.merge = nn.ModuleList(self.block(2 * a, a) for a in sizes[1:-1])
        self.head = nn.Conv2d(width, 4, 1)

    @staticmethod
    def block(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            skips.append(x)
        for up, merge, skip in zip(reversed(self.up), reversed(self.merge), reversed(skips[:-1]),
                                   strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.head(x)


class RandomNet(nn.Module):
    """A random DAG of 4 to 14 operators of all kinds on images, with residuals and branches."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.side = int(self.rng.integers(9, 24))
        self.steps: list[tuple[object, list[int]]] = []
        self.parts = nn.ModuleList()
        tensors = [torch.zeros(1, 4, self.side, self.side + 1)]
        for _ in range(int(self.rng.integers(4, 15))):
            self._grow(tensors)
        self.results = sorted({len(tensors) - 1, int(self.rng.integers(1, len(tensors)))})
        self.eval()

    def _grow(self, tensors: list[torch.Tensor]) -> None:
        images = [i for i, t in enumerate(tensors) if t.dim() == 4 and min(t.shape[2:]) >= 2]
        at = int(self.rng.choice(images[-4:]))
        options = self._options(tensors, at, images)
        operation, sources = options[int(self.rng.integers(len(options)))]
        if isinstance(operation, nn.Module):
            operation.eval()
        try:
            with torch.no_grad():
                made = operation(*(tensors[i] for i in sources))
        except RuntimeError:   # at this point of the model, the kernel is larger than the image
            return
        if 0 < made.numel() <= 60_000 and min(made.shape) > 0:
            if isinstance(operation, nn.Module):
                self.parts.append(operation)
            self.steps.append((operation, sources))
            tensors.append(made)

    def _options(self, tensors: list[torch.Tensor], at: int, images: list[int]
                 ) -> list[tuple[object, list[int]]]:
        pick = self.rng.integers
        x = tensors[at]
        c, h, w = x.shape[1:]
        k, s, d = int(pick(1, 6)), int(pick(1, 4)), int(pick(1, 4))
        ceil, count = bool(pick(2)), bool(pick(2))
        same = [i for i in images if tensors[i].shape == x.shape and i != at] or [at]
        beside = [i for i in images if tensors[i].shape[2:] == x.shape[2:]]
        other, near = int(self.rng.choice(same)), int(self.rng.choice(beside))
        modules = [
            nn.Conv2d(c, 4, k, s, int(pick(0, 4)), d), nn.Conv2d(c, c, 3, 1, 1, groups=c),
            nn.Conv2d(c, 6, k, padding='same'), nn.Conv2d(c, 4, 1),
            nn.ConvTranspose2d(c, 4, k, s, 0, dilation=d), nn.BatchNorm2d(c),
            nn.GroupNorm(1, c), nn.ReLU(True), nn.Hardswish(), nn.PReLU(c), nn.LayerNorm(w),
            nn.MaxPool2d(k, s, k // 2, ceil_mode=ceil), nn.Linear(w, int(pick(3, 9))),
            nn.AvgPool2d(k, s, k // 2, ceil_mode=ceil, count_include_pad=count),
            nn.AdaptiveAvgPool2d((int(pick(1, 9)), int(pick(2, 9)))), nn.Softmax(int(pick(1, 4))),
        ]
        size, low = (int(pick(2, 30)), int(pick(2, 30))), int(pick(0, h))
        functions = [
            (lambda a, b: a + b, [at, other]), (lambda a, b: a * b.sigmoid(), [at, other]),
            (lambda a, b: torch.cat([a, b], 1), [at, near]),
            (lambda a, b: torch.cat([a, b], 2), [at, other]),
            (lambda a: a * a.mean((2, 3), keepdim=True), [at]),
            (lambda a: F.interpolate(a, size), [at]),
            (lambda a: F.interpolate(a, size, mode='bilinear', align_corners=ceil), [at]),
            (lambda a: F.interpolate(a, scale_factor=1.7, mode='bilinear'), [at]),
            (lambda a: F.pad(a, (1, 0, s, d)), [at]),
            (lambda a: a[:, :, low:], [at]), (lambda a: a[:, :, ::s], [at]),
            (lambda a: torch.cat(a.chunk(2, 1)[::-1], 1), [at]),
            (lambda a: a.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2), [at]),
            (lambda a: a.flatten(2).transpose(1, 2).softmax(-1).transpose(1, 2)
             .reshape(1, c, h, w), [at]),
            (lambda a: _attend(a), [at]), (lambda a: a.flip(2) + a, [at]),
        ]
        return [(m, [at]) for m in modules] + functions

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        tensors = [x]
        for operation, sources in self.steps:
            tensors.append(operation(*(tensors[i] for i in sources)))  # type: ignore[operator]
        return [tensors[i] if i < len(tensors) else tensors[-1] for i in self.results]


def _attend(a: torch.Tensor) -> torch.Tensor:
    tokens = a.flatten(2).transpose(1, 2)
    return F.scaled_dot_product_attention(tokens, tokens, tokens).transpose(1, 2).reshape(a.shape)
