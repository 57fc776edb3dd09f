"""The implicit map: feature grids of several resolutions and a small decoder.

For a point of the world, the map returns a colour and the distance to the nearest surface. The
distance is in units of `TRUNCATION` and at most about 1. A grid is a parameter with one row per
block of cells, so that a robot's view changes few rows.
"""

from typing import Any

import torch
from torch import Tensor, nn

FEATURES = 6
"""Features of a cell. The first four are added to distance and colour; the decoder uses all."""

TRUNCATION = 0.3
"""Space counts as free if it is farther than this number of metres from every surface."""


class ImplicitMap(nn.Module):
    """A map of distances and colours in the box between two corners of the world.

    :param low, high: the two corners (3,), in metres.
    :param cells: for each level, the side of a cell in metres.
    :param blocks: for each level, the number of cells along each side of a block. The cells of a
        block are one row of the level's parameter.
    :param hidden: width of the decoder.
    """

    def __init__(self, low: Tensor, high: Tensor, cells: tuple[float, ...] = (0.4, 0.1),
                 blocks: tuple[int, ...] = (2, 4), hidden: int = 16):
        super().__init__()
        self._low, self._cells = low.double().tolist(), cells
        self.grids = nn.ParameterList()
        self._shapes: list[tuple[tuple[int, ...], int]] = []
        for cell, block in zip(cells, blocks, strict=True):
            shape = tuple(-(-int(torch.ceil(length / cell) + 1) // block) for length in high - low)
            self._shapes.append((shape, block))
            self.grids.append(nn.Parameter(torch.zeros(shape[0] * shape[1] * shape[2],
                                                       block ** 3 * FEATURES)))
        self.rise = nn.Linear(len(cells) * FEATURES, hidden)
        self.fall = nn.Linear(hidden, 4)
        nn.init.zeros_(self.fall.weight)
        nn.init.zeros_(self.fall.bias)

    def forward(self, points: Tensor, gain: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return distances (n,) and colours (n, 3) at ``points`` (n, 3).

        The loss is the mean over all points. For a cell, the backward pass does not return the
        gradient of this mean. It returns approximately the gradient of the mean over the points
        around the cell. So the map learns a distant wall as fast as a wall that fills the image.

        :param gain: additional factor on the gradient of the grids.
        """
        found = [_Interpolate.apply(grid.view(-1, FEATURES), *self._around(level, points),
                                    gain * len(points))
                 for level, grid in enumerate(self.grids)]
        out = self.fall(torch.relu(self.rise(torch.cat(found, 1))))
        for level in found:
            out = out + level[:, :4]
        return 1 + out[:, 0], 0.5 + out[:, 1:]

    def cast(self, origins: Tensor, directions: Tensor, far: float = 8.0, step: float = 0.1
             ) -> Tensor:
        """Return the distance (n,) along each ray to the first surface of the map.

        The unit is the length of the ray's direction. The distance is infinite if there is no
        surface within ``far``.
        """
        at = torch.arange(0.1, far, step, device=origins.device)
        points = origins[:, None] + at[:, None] * directions[:, None]
        values = torch.cat([self(part)[0] for part in points.reshape(-1, 3).split(2**16)])
        before, after = values.view(len(origins), -1)[:, :-1], values.view(len(origins), -1)[:, 1:]
        inside = (before > 0) & (after <= 0)
        first = inside.int().argmax(1, keepdim=True)
        share = (before / (before - after)).gather(1, first)[:, 0]
        return torch.where(inside.any(1), at[first[:, 0]] + step * share, torch.inf)

    def _around(self, level: int, points: Tensor) -> tuple[Tensor, Tensor]:
        """Return the eight cells around each point, (n, 8), and their weights, (n, 8)."""
        shape, block = self._shapes[level]
        most = torch.tensor(shape, device=points.device) * block
        place = (points - points.new_tensor(self._low)) / self._cells[level]
        place = torch.minimum(place.clamp(min=0), most - 1.001)
        first = place.floor()
        share = place - first
        corner = (first.long()[:, None] + _corners(points.device))  # shape (n, 8, 3)
        weight = torch.where(_corners(points.device).bool(), share[:, None], 1 - share[:, None])
        outer, inner = corner // block, corner % block
        row = (outer[..., 0] * shape[1] + outer[..., 1]) * shape[2] + outer[..., 2]
        cell = (inner[..., 0] * block + inner[..., 1]) * block + inner[..., 2]
        return row * block ** 3 + cell, weight.prod(2)


def _corners(device: torch.device) -> Tensor:
    return torch.tensor([[i >> 2, i >> 1 & 1, i & 1] for i in range(8)], device=device)


class _Interpolate(torch.autograd.Function):
    """Weighted means of cells; the backward pass does not return the true gradient.

    The gradient of a cell is ``gain`` times the weighted sum of the gradients of its points,
    divided by 1 plus the sum of the weights of these points.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, index: Tensor, weight: Tensor, gain: float) -> Tensor:
        ctx.save_for_backward(index, weight)
        ctx.count, ctx.gain = len(cells), gain
        return torch.einsum('nkf,nk->nf', cells[index], weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        index, weight = ctx.saved_tensors
        # After `index_add_`, the last column of `total` is the sum of the weights.
        given = torch.cat((gradient, torch.ones_like(gradient[:, :1])), 1)
        total = gradient.new_zeros(ctx.count, given.shape[1])
        total.index_add_(0, index.reshape(-1), (weight[..., None] * given[:, None]).flatten(0, 1))
        return ctx.gain * total[:, :-1] / (total[:, -1:] + 1), None, None, None
