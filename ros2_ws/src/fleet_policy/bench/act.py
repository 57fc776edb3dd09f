"""An ACT-like policy with random weights: two cameras, 7 joints, a chunk of 100 actions at 30 Hz.

The policy follows the paper (Zhao et al. 2023, Action Chunking with Transformers), with the sizes
of the paper's public code: ResNet18 for each image, 4 encoder layers and 1 decoder layer of width
512 with 8 heads and 3200 hidden units. The latent style variable is zero, as at inference.
"""

from __future__ import annotations

import math

import torch
from fleet_policy.policy import Policy
from torch import nn

JOINTS, CHUNK, RATE = 7, 100, 30.0
HEIGHT, WIDTH = 480, 640
CAMERAS = ('top', 'wrist')
CONTRACT = {
    'rate': RATE,
    'observations': {
        **{f'image.{name}': {'topic': f'camera_{name}/image_raw', 'type': 'sensor_msgs/msg/Image',
                             'height': HEIGHT, 'width': WIDTH} for name in CAMERAS},
        'state': {'topic': 'joint_states', 'type': 'sensor_msgs/msg/JointState',
                  'names': [f'joint{k + 1}' for k in range(JOINTS)]}},
    'actions': {'joints': {'topic': 'joint_commands', 'type': 'std_msgs/msg/Float64MultiArray',
                           'size': JOINTS}}}


class Block(nn.Module):
    """A residual block of ResNet18, with the batch norm folded into the convolutions."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inner, outer, 3, stride, 1)
        self.two = nn.Conv2d(outer, outer, 3, 1, 1)
        self.skip = nn.Conv2d(inner, outer, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.two(self.one(x).relu()) + self.skip(x)).relu()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(2, (self.heads, -1)).transpose(1, 2)
        seen = nn.functional.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(memory)), split(self.value(memory)))
        return self.out(seen.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of the encoder or, with ``cross``, of the decoder."""

    def __init__(self, width: int, heads: int, hidden: int, cross: bool) -> None:
        super().__init__()
        self.own, self.norm = Attention(width, heads), nn.LayerNorm(width)
        self.other = Attention(width, heads) if cross else None
        self.other_norm = nn.LayerNorm(width) if cross else None
        self.one, self.two = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.last = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.own(x, x))
        if self.other is not None and self.other_norm is not None:
            x = self.other_norm(x + self.other(x, memory))
        return self.last(x + self.two(self.one(x).relu()))


class Act(nn.Module):
    """Maps images, uint8 (n, 3, height, width), and joints, (n, 7), to actions, (n, 100, 7)."""

    def __init__(self, width: int = 512, heads: int = 8, hidden: int = 3200) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = [64, 64, 128, 256, 512]
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
            *(Block(a if k == 0 else b, b, 2 if k == 0 and b > 64 else 1)
              for a, b in zip(sizes, sizes[1:], strict=False) for k in range(2)))
        self.project = nn.Conv2d(512, width, 1)
        self.state = nn.Linear(JOINTS, width)
        self.latent = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        tokens = 2 + len(CAMERAS) * math.ceil(HEIGHT / 32) * math.ceil(WIDTH / 32)
        self.places = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
        self.queries = nn.Parameter(torch.randn(1, CHUNK, width) * 0.02)
        self.encoder = nn.ModuleList(Layer(width, heads, hidden, False) for _ in range(4))
        self.decoder = Layer(width, heads, hidden, True)
        self.head = nn.Linear(width, JOINTS)
        self.register_buffer('mean', torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1))
        self.register_buffer('std', torch.tensor([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1))

    def forward(self, top: torch.Tensor, wrist: torch.Tensor, state: torch.Tensor
                ) -> torch.Tensor:
        seen = [self.project(self.backbone((image.float() / 255 - self.mean) / self.std))
                .flatten(2).transpose(1, 2) for image in (top, wrist)]
        latent, queries = (x.expand(len(state), -1, -1) for x in (self.latent, self.queries))
        x = torch.cat([latent, self.state(state)[:, None], *seen], 1) + self.places
        for layer in self.encoder:
            x = layer(x, x)
        return self.head(self.decoder(queries, x)).tanh()


class ActPolicy(Policy):
    """The ACT-like policy that the benches run."""

    contract = CONTRACT

    def model(self) -> nn.Module:
        return Act().eval()

    def observe(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return batch['image.top'], batch['image.wrist'], batch['state']

    def actions(self, output: torch.Tensor) -> torch.Tensor:
        return output
