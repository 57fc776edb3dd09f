"""The data of a robot's RGB-D camera: frames, poses and the camera itself."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Poses:
    """Poses of a camera: ``rotations`` (n, 3, 3) to the world, ``positions`` (n, 3) in it, m.

    The axes of a camera are x right, y down, z forward.
    """

    rotations: Tensor
    positions: Tensor

    def __len__(self) -> int:
        """Return n."""
        return len(self.positions)

    def __getitem__(self, part: slice | Tensor) -> 'Poses':
        """Return some of them."""
        return Poses(self.rotations[part], self.positions[part])


@dataclass(frozen=True)
class Camera:
    """A pinhole: size, focal lengths and centre, in pixels."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float

    def rays(self) -> Tensor:
        """Return the direction of each pixel, (height * width, 3), of depth 1, row by row."""
        v, u = torch.meshgrid(torch.arange(self.height), torch.arange(self.width), indexing='ij')
        return torch.stack([(u - self.cx) / self.fx, (v - self.cy) / self.fy,
                            torch.ones_like(u, dtype=torch.float32)], 2).reshape(-1, 3).float()


@dataclass(frozen=True)
class Frames:
    """n images of p pixels: ``colours`` (n, p, 3), 0 to 1, ``depths`` (n, p), m, 0: not known.

    ``truth``: the true poses; the robot is given only the first.
    """

    camera: Camera
    colours: Tensor
    depths: Tensor
    truth: Poses

    def __len__(self) -> int:
        """Return n."""
        return len(self.depths)

    def __getitem__(self, part: slice) -> 'Frames':
        """Return some of them."""
        return Frames(self.camera, self.colours[part], self.depths[part], self.truth[part])

    def points(self) -> Tensor:
        """Return the points in the world of all pixels with known depth, (k, 3)."""
        rays = torch.einsum('nij,pj->npi', self.truth.rotations, self.camera.rays())
        points = self.truth.positions[:, None] + self.depths[..., None] * rays
        return points[self.depths > 0]


def trajectory_error(estimate: Tensor, truth: Tensor) -> float:
    """Return the root mean square distance of positions (n, 3) after the best rigid motion, m."""
    estimate, truth = estimate.double(), truth.double()
    a, b = estimate - estimate.mean(0), truth - truth.mean(0)
    u, _, vt = torch.linalg.svd(a.T @ b)
    flip = torch.ones(3, dtype=torch.float64)
    flip[2] = torch.sign(torch.linalg.det(u @ vt)) or 1.0
    return float(((a @ (u * flip) @ vt - b) ** 2).sum(1).mean().sqrt())


def corners(seen: list[Frames], margin: float) -> Tensor:
    """Return the lowest and the highest corner, (2, 3), of the cameras and what they saw.

    The outermost 0.1 % of points at each end do not count, since a depth may be far off. Rounded to
    decimetres, so that machines with different rounding errors agree.
    """
    points = torch.cat([frames.points() for frames in seen]).numpy()
    cameras = torch.cat([frames.truth.positions for frames in seen]).numpy()
    if len(points):
        cameras = np.concatenate((cameras, np.quantile(points, (.001, .999), 0)))
    low = np.floor(10 * (cameras.min(0) - margin))
    high = np.ceil(10 * (cameras.max(0) + margin))
    return torch.tensor(np.stack((low, high)) / 10, dtype=torch.float32)


def upright(seen: list[Frames]) -> Tensor:
    """Return the rotation (3, 3) to axes whose third points up, as cameras are usually held.

    Recordings differ in their axes; up is the axis of the world nearest to the cameras' up.
    """
    up = -torch.cat([frames.truth.rotations for frames in seen])[:, :, 1].mean(0)
    axis = int(up.abs().argmax())
    z = torch.eye(3)[axis] * up[axis].sign()
    x = torch.eye(3)[1 if axis == 0 else 0]
    return torch.stack((x, torch.linalg.cross(z, x), z))
