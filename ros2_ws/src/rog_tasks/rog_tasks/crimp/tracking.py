"""Finds the pose from which a frame fits the map: least squares on distances and colours.

The points of a frame lie on surfaces. So the residuals of a point are the map's distance at the
point (Bylow et al., 2013), and the differences between the map's colours and the colours of the
point. Gauss-Newton iterations find the six numbers of a rigid motion.
"""

import torch
from torch import Tensor

from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap

COLOUR = 0.3   # distance in metres; a colour difference of 1 weighs as much as this distance
ROBUST = 0.05  # metres; a larger residual has the influence of a residual of this size
ITERATIONS = 8
FAR = 0.5      # metres; a pose at least this far from the given pose is rejected
_STEP = 0.05   # step of the numerical derivatives, in metres
_LEAST = 30    # minimum number of points whose distance in the map is below 0.8 * TRUNCATION


def align(model: ImplicitMap, points: Tensor, colours: Tensor, rotation: Tensor, position: Tensor
          ) -> tuple[Tensor, Tensor]:
    """Return the camera pose that fits the map best: rotation (3, 3) and position (3,).

    The search begins at the given pose. It ends early if fewer than `_LEAST` points are near
    a surface of the map. If the search ends `FAR` or farther from the given position, return
    the given pose.

    :param points: the points (n, 3) that the camera sees, in camera axes, in metres.
    :param colours: the colours (n, 3) of these points, 0 to 1.
    :param rotation, position: the given pose.
    """
    target = torch.cat((points.new_zeros(len(points), 1), COLOUR * colours), 1)
    given = rotation, position
    offsets = torch.cat((points.new_zeros(1, 3), _STEP * torch.eye(3), -_STEP * torch.eye(3)))
    for _ in range(ITERATIONS):
        turned = points @ rotation.T
        around = (turned + position)[:, None] + offsets
        distance, colour = model(around.reshape(-1, 3))
        values = torch.cat((TRUNCATION * distance[:, None], COLOUR * colour), 1).view(-1, 7, 4)
        # shape (n, 3, 4); the second axis is x, y, z
        slope = (values[:, 1:4] - values[:, 4:]) / (2 * _STEP)
        residual = values[:, 0] - target
        known = values[:, 0, 0].abs() < 0.8 * TRUNCATION
        if int(known.sum()) < _LEAST:
            break
        weight = known[:, None] / residual.abs().clamp(min=ROBUST) * ROBUST
        moment = torch.linalg.cross(turned[:, None].expand(-1, 4, -1), slope.transpose(1, 2))
        jacobian = torch.cat((moment, slope.transpose(1, 2)), 2)  # shape (n, 4, 6)
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
    """Return the rotation (3, 3) about ``vector``, whose length is the angle in radians."""
    x, y, z = vector.tolist()
    return torch.matrix_exp(torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]],
                                         dtype=vector.dtype))
