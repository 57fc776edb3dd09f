"""One robot of CRIMP: its frames, its estimated poses, and the samples that it learns from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rog_tasks.crimp.frames import Frames, Poses, trajectory_error
from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap
from rog_tasks.crimp.tracking import align

BEHIND = 0.15  # largest distance, in metres, of a sample behind a surface
_RECENT = 3    # half of the samples come from the newest `_RECENT` frames
_WARM_UP = 30  # number of steps on the first frame alone


@dataclass(frozen=True)
class Samples:
    """Points (n, 3) of the world, and the distances and colours that the map should learn there.

    ``distances`` (n,): targets of the map, in units of `TRUNCATION`. ``colours`` (m, 3): colours of
    the first m points, which lie on surfaces.
    """

    points: Tensor
    distances: Tensor
    colours: Tensor


class Explorer:
    """Takes new frames, finds the pose of each frame in the map, and draws samples to learn from.

    In the first `_WARM_UP` steps there is only the first frame.

    :param every: number of training steps from one new frame to the next.
    :param rays: number of pixels from which a step learns.
    :param gain: factor on the gradients of the map's grids, see `ImplicitMap.forward`.
    """

    def __init__(self, frames: Frames, every: int, rays: int, gain: float, seed: int) -> None:
        self.frames, self._every, self._rays, self.gain = frames, every, rays, gain
        self._directions = frames.camera.rays()
        self._facing = _facing(frames, self._directions)
        self._generator = torch.Generator().manual_seed(seed % 2**63)
        self.poses = Poses(frames.truth.rotations.clone(), frames.truth.positions.clone())
        self._stay(0)
        self.known, self._steps = 1, 0  # the first pose is given, so one pose is known

    def step(self, model: ImplicitMap) -> Samples:
        """Find the pose of the next frame, or correct an earlier pose.

        Return samples to learn from.
        """
        self._steps += 1
        with torch.no_grad():
            if self._steps > _WARM_UP and self._steps % self._every == 0 \
                    and self.known < len(self.frames):
                self._predict()
                self._track(model, self.known)
                self._stay(self.known)
                self.known += 1
            elif self.known > 1:
                self._track(model, 1 + int(self._draw(self.known - 1, 1)))
            return self._samples()

    def error(self) -> float:
        """Return the error of the whole trajectory in metres.

        After its last known pose, the robot counts as standing still.
        """
        return trajectory_error(self.poses.positions, self.frames.truth.positions)

    def worst(self) -> float:
        """Return the error in metres of a robot that does not move."""
        truth = self.frames.truth.positions
        return trajectory_error(truth[:1].expand_as(truth), truth)

    def _stay(self, last: int) -> None:
        self.poses.rotations[last:] = self.poses.rotations[last].clone()
        self.poses.positions[last:] = self.poses.positions[last].clone()

    def _predict(self) -> None:
        """Predict the next pose: the robot repeats its last motion."""
        new, poses = self.known, self.poses
        if new > 1:
            motion = poses.rotations[new - 1] @ poses.rotations[new - 2].T
            u, _, vt = torch.linalg.svd(motion @ poses.rotations[new - 1])
            # make the matrix orthogonal again, so that rounding errors do not add up
            poses.rotations[new] = u @ vt
            poses.positions[new] = 2 * poses.positions[new - 1] - poses.positions[new - 2]

    def _track(self, model: ImplicitMap, frame: int) -> None:
        pixels = self._draw(self._directions.shape[0], self._rays)
        depth = self.frames.depths[frame, pixels]
        there = depth > 0
        pixels, depth = pixels[there], depth[there]
        rotation, position = align(model, self._directions[pixels] * depth[:, None],
                                   self.frames.colours[frame, pixels],
                                   self.poses.rotations[frame], self.poses.positions[frame])
        self.poses.rotations[frame], self.poses.positions[frame] = rotation, position

    def _samples(self) -> Samples:
        half = self._rays // 2
        recent = self.known - 1 - self._draw(min(_RECENT, self.known), half)
        frame = torch.cat((recent, self._draw(self.known, self._rays - half)))
        pixel = self._draw(self._directions.shape[0], self._rays)
        depth, colour = self.frames.depths[frame, pixel], self.frames.colours[frame, pixel]
        there = depth > 0
        frame, pixel, depth, colour = frame[there], pixel[there], depth[there], colour[there]
        ray = torch.einsum('nij,nj->ni', self.poses.rotations[frame], self._directions[pixel])
        facing = self._facing[frame, pixel]
        origin, length = self.poses.positions[frame], ray.norm(dim=1)
        random = torch.rand(4, len(depth), generator=self._generator)
        near = (depth - (random[:3] * (TRUNCATION + BEHIND) - BEHIND) / length).clamp(min=.05)
        free = random[3] * (depth - TRUNCATION / length).clamp(min=0)
        at = torch.cat((depth[None], near, free[None]))  # shape (5, n)
        points = origin + at[..., None] * ray
        distances = ((depth - at) * length * facing / TRUNCATION).clamp(max=1)
        return Samples(points.reshape(-1, 3), distances.reshape(-1), colour)

    def _draw(self, below: int, count: int) -> Tensor:
        return torch.randint(below, (count,), generator=self._generator)


def _facing(frames: Frames, directions: Tensor) -> Tensor:
    """Return the cosine between the ray of each pixel and the surface normal, at least 0.2.

    The distance along the ray times the cosine is about the distance to the surface. The cosine is
    1 if the neighbours of a pixel are not known.
    """
    height, width = frames.camera.height, frames.camera.width
    points = (frames.depths[..., None] * directions).view(len(frames), height, width, 3)
    down, right = _slope(points, 1), _slope(points, 2)
    normal = torch.linalg.cross(down, right).flatten(1, 2)
    length = normal.norm(dim=2) * directions.norm(dim=1)
    cosine = (normal * directions).sum(2).abs() / (length + 1e-12)
    return torch.where(length > 0, cosine.clamp(min=0.2), 1.0)


def _slope(points: Tensor, axis: int) -> Tensor:
    """Return the slope of ``points`` (n, height, width, 3) along an axis; 0 where it is unknown.

    The slope is half the difference between the two neighbours of a pixel, or the difference
    between the pixel and one neighbour if the depth of the other neighbour is unknown.
    """
    after, before = points.roll(-1, axis), points.roll(1, axis)
    after.narrow(axis, points.shape[axis] - 1, 1).zero_()
    before.narrow(axis, 0, 1).zero_()
    known_after, known_before = after[..., 2:] > 0, before[..., 2:] > 0
    between = torch.where(known_after, after, points) - torch.where(known_before, before, points)
    return between / (known_after.int() + known_before.int()).clamp(min=1)
