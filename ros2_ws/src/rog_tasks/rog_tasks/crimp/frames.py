"""The data of a robot's RGB-D camera: frames, poses and the camera itself."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Poses:
    """Poses of a camera in the world.

    ``rotations`` (n, 3, 3): each rotation turns camera axes to world axes. Camera axes are x right,
    y down, z forward. ``positions`` (n, 3): in metres.
    """

    rotations: Tensor
    positions: Tensor

    def __len__(self) -> int:
        """Return the number of poses."""
        return len(self.positions)

    def __getitem__(self, part: slice | Tensor) -> 'Poses':
        """Return the poses that a slice or an index tensor selects."""
        return Poses(self.rotations[part], self.positions[part])


@dataclass(frozen=True)
class Camera:
    """A pinhole camera: size, focal lengths and centre, in pixels."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def rays(self) -> Tensor:
        """Return the directions (height * width, 3) of all pixels, row by row, each of depth 1."""
        v, u = torch.meshgrid(torch.arange(self.height), torch.arange(self.width), indexing='ij')
        return torch.stack([(u - self.cx) / self.fx, (v - self.cy) / self.fy,
                            torch.ones_like(u, dtype=torch.float32)], 2).reshape(-1, 3).float()


@dataclass(frozen=True)
class Frames:
    """The images of a camera: n images of p pixels.

    ``colours`` (n, p, 3): values from 0 to 1. ``depths`` (n, p): in metres; 0 means unknown.
    ``truth``: the true poses; the robot is given only the first pose.
    """

    camera: Camera
    colours: Tensor
    depths: Tensor
    truth: Poses

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.depths)

    def __getitem__(self, part: slice) -> 'Frames':
        """Return the frames that a slice selects."""
        return Frames(self.camera, self.colours[part], self.depths[part], self.truth[part])

    def points(self) -> Tensor:
        """Return the world points (k, 3) of all pixels with known depth."""
        rays = torch.einsum('nij,pj->npi', self.truth.rotations, self.camera.rays())
        points = self.truth.positions[:, None] + self.depths[..., None] * rays
        return points[self.depths > 0]


def trajectory_error(estimate: Tensor, truth: Tensor) -> float:
    """Return the root mean square distance, in metres, of two paths after rigid alignment.

    Each path consists of positions (n, 3).
    """
    estimate, truth = estimate.double(), truth.double()
    a, b = estimate - estimate.mean(0), truth - truth.mean(0)
    u, _, vt = torch.linalg.svd(a.T @ b)
    flip = torch.ones(3, dtype=torch.float64)
    flip[2] = torch.sign(torch.linalg.det(u @ vt)) or 1.0
    return float(((a @ (u * flip) @ vt - b) ** 2).sum(1).mean().sqrt())


def corners(seen: list[Frames], margin: float) -> Tensor:
    """Return the lowest and the highest corner, (2, 3), of a box around cameras and points.

    Along each axis, the lowest and the highest 0.1 % of the points are left out, because some
    depths are badly wrong. The corners are rounded outwards to decimetres, so that machines with
    different rounding errors agree.

    :param margin: distance in metres that is added at every side of the box.
    """
    points = torch.cat([frames.points() for frames in seen]).numpy()
    cameras = torch.cat([frames.truth.positions for frames in seen]).numpy()
    if len(points):
        cameras = np.concatenate((cameras, np.quantile(points, (.001, .999), 0)))
    low = np.floor(10 * (cameras.min(0) - margin))
    high = np.ceil(10 * (cameras.max(0) + margin))
    return torch.tensor(np.stack((low, high)) / 10, dtype=torch.float32)


def upright(seen: list[Frames]) -> Tensor:
    """Return the rotation (3, 3) from world axes to axes whose third axis points up.

    The axes of the world differ between recordings. Cameras are usually held upright, so up is the
    world axis nearest to the mean upward direction of the cameras.
    """
    up = -torch.cat([frames.truth.rotations for frames in seen])[:, :, 1].mean(0)
    axis = int(up.abs().argmax())
    z = torch.eye(3)[axis] * up[axis].sign()
    x = torch.eye(3)[1 if axis == 0 else 0]
    return torch.stack((x, torch.linalg.cross(z, x), z))
