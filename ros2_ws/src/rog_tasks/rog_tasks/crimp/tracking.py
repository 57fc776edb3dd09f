"""Finds the pose from which a frame fits the map: least squares on distances and colours.

The points of a frame lie on surfaces. So the map's distance at each is its residual (Bylow et al.,
2013), and so is the difference of the colours. Gauss-Newton on the six numbers of a rigid motion.
"""

import torch
from torch import Tensor

from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap

COLOUR = 0.3   # m; weight of a colour difference of 1
ROBUST = 0.05  # m; the influence of a larger residual is limited to this
ITERATIONS = 8
FAR = 0.5      # m from the given pose: a fit this far away is a false one
_STEP = 0.05   # m; step of the numerical derivatives
_LEAST = 30    # fewest points in known space to move a pose


def align(model: ImplicitMap, points: Tensor, colours: Tensor, rotation: Tensor, position: Tensor
          ) -> tuple[Tensor, Tensor]:
    """Return rotation (3, 3) and position (3,) of a camera, near the ones given.

    Returns the given ones if the map holds too little of the view, or the best fit is `FAR` away.

    :param points: (n, 3) that it sees, in its own axes, m; ``colours``: (n, 3) of them.
    """
    target = torch.cat((points.new_zeros(len(points), 1), COLOUR * colours), 1)
    given = rotation, position
    offsets = torch.cat((points.new_zeros(1, 3), _STEP * torch.eye(3), -_STEP * torch.eye(3)))
    for _ in range(ITERATIONS):
        turned = points @ rotation.T
        around = (turned + position)[:, None] + offsets
        distance, colour = model(around.reshape(-1, 3))
        values = torch.cat((TRUNCATION * distance[:, None], COLOUR * colour), 1).view(-1, 7, 4)
        slope = (values[:, 1:4] - values[:, 4:]) / (2 * _STEP)  # (n, 3, 4): by x, y, z
        residual = values[:, 0] - target
        known = values[:, 0, 0].abs() < 0.8 * TRUNCATION
        if int(known.sum()) < _LEAST:
            break
        weight = known[:, None] / residual.abs().clamp(min=ROBUST) * ROBUST
        moment = torch.linalg.cross(turned[:, None].expand(-1, 4, -1), slope.transpose(1, 2))
        jacobian = torch.cat((moment, slope.transpose(1, 2)), 2)  # (n, 4, 6)
        weighted = (weight[..., None] * jacobian).flatten(0, 1)
        square = weighted.T @ jacobian.flatten(0, 1)
        square += 1e-3 * int(known.sum()) * torch.eye(6)
        motion = torch.linalg.solve(square, -(weighted.T @ residual.flatten()))
        rotation = turn(motion[:3]) @ rotation
        position = position + motion[3:]
        if float(motion.abs().max()) < 1e-4:
            break
    return (rotation, position) if float((position - given[1]).norm()) < FAR else given


def turn(vector: Tensor) -> Tensor:
    """Return the rotation (3, 3) about an axis, by its length in radians."""
    x, y, z = vector.tolist()
    return torch.matrix_exp(torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]],
                                         dtype=vector.dtype))
