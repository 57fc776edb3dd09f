"""A generated flat (apartment) of four textured rooms, and the robots' path through the rooms.

Rays are cast analytically, all at once. The flat is the inside of a box; furniture and walls
are boxes. World axes: x and y along the walls, z up, metres. Camera axes: x right, y down,
z forward.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rog_tasks.crimp.frames import Camera, Frames, Poses

HEIGHT = 2.4   # height of a room, in metres
DOOR = 1.2     # width of a door, in metres
WALL = 0.4     # thickness of a wall, in metres
EYES = 1.1     # height of the cameras, in metres
STEP = 0.07    # distance between two frames, in metres


@dataclass(frozen=True)
class Scene:
    """The K boxes of a flat: ``boxes`` (K, 2, 3) are their lowest and highest corners.

    The first box is the flat, seen from inside. ``tints`` (K, 3) and ``waves`` (K, 3, 4): colour of
    each box and parameters of its pattern.
    """

    boxes: Tensor
    tints: Tensor
    waves: Tensor

    @property
    def bounds(self) -> Tensor:
        """Lowest and highest corner of the flat, (2, 3)."""
        return self.boxes[0]

    def cast(self, origins: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """Return distance and colour of the first surface along each ray.

        Distances are (n,), in units of the length of ``directions`` (n, 3); colours are (n, 3), 0
        to 1.
        """
        inverse = 1 / torch.where(directions.abs() < 1e-9, 1e-9, directions)
        low, high = ((self.boxes[:, end] - origins[:, None]) * inverse[:, None] for end in (0, 1))
        enter = torch.minimum(low, high).amax(2)  # shape (n, K)
        leave = torch.maximum(low, high).amin(2)
        distance = torch.where((enter < leave) & (enter > 0), enter, torch.inf)
        distance[:, 0] = leave[:, 0]
        nearest, box = distance.min(1)
        return nearest, self._colour(origins + nearest[:, None] * directions, box)

    def _colour(self, points: Tensor, box: Tensor) -> Tensor:
        """Return the colours (n, 3) of points (n, 3); ``box`` (n,): box of each point."""
        wave = self.waves[box]
        pattern = torch.sin(torch.einsum('nk,nck->nc', points, wave[..., :3]) + wave[..., 3])
        return (self.tints[box] + 0.22 * pattern).clamp(0, 1)


def flat(width: float, depth: float, furniture: int, seed: int) -> Scene:
    """Return a flat (apartment) of four rooms; equal arguments give equal flats.

    :param width, depth: size of the whole flat, in metres.
    :param furniture: number of pieces of furniture in each room, along its walls.
    """
    rng = np.random.default_rng([seed % 2**63, *b'flat'])
    x, y = width / 2, depth / 2
    boxes: list[Any] = [((0, 0, 0), (width, depth, HEIGHT))]
    # the wall between the left and the right rooms, with two doors
    for middle in (y / 2, 3 * y / 2):
        boxes += [((x - WALL / 2, middle - y / 2, 0), (x + WALL / 2, middle - DOOR / 2, HEIGHT)),
                  ((x - WALL / 2, middle + DOOR / 2, 0), (x + WALL / 2, middle + y / 2, HEIGHT))]
    for middle in (x / 2, 3 * x / 2):
        boxes += [((middle - x / 2, y - WALL / 2, 0), (middle - DOOR / 2, y + WALL / 2, HEIGHT)),
                  ((middle + DOOR / 2, y - WALL / 2, 0), (middle + x / 2, y + WALL / 2, HEIGHT))]
    for corner in ((0, 0), (1, 0), (1, 1), (0, 1)):
        for _ in range(furniture):
            size = rng.uniform((.3, .3, .4), (.8, .6, 1.6))
            along = rng.uniform(.15, .85)
            outer = np.array([corner[0] * (width - size[0]), corner[1] * (depth - size[1])])
            side = int(rng.integers(2))  # 0: at the outer wall in x; 1: at the outer wall in y
            inner = (np.array(corner) * (x, y)) + along * (np.array((x, y)) - size[:2])
            low = np.where(np.arange(2) == side, outer, inner)
            boxes.append(((*low, 0), (*(low + size[:2]), size[2])))
    count = len(boxes)
    tints = rng.uniform(.3, .7, (count, 3))
    waves = np.concatenate([rng.uniform(2, 5, (count, 3, 3)) * rng.choice([-1, 1], (count, 3, 3)),
                            rng.uniform(0, 2 * np.pi, (count, 3, 1))], 2)
    return Scene(*(torch.tensor(np.asarray(part), dtype=torch.float32)
                   for part in (boxes, tints, waves)))


def way(width: float, depth: float, part: int, parts: int) -> Poses:
    """Return the true poses of one robot on its part of a closed path through all rooms.

    If there are several parts, the robot continues into the next part, so that the views of two
    robots overlap. Robots look around while they drive.
    """
    turn = np.linspace(0, 2 * np.pi, 4000)
    rounded = [np.sign(f) * np.abs(f) ** .6 for f in (np.cos(turn), np.sin(turn))]
    x, y = width / 2 + width / 4 * rounded[0], depth / 2 + depth / 4 * rounded[1]
    driven = np.concatenate([[0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    whole = driven[-1]
    at = (part / parts + .02) * whole + STEP * np.arange(
        int((1 / parts + (.2 if parts > 1 else 0)) * whole / STEP))
    x, y = (np.interp(at % whole, driven, line) for line in (x, y))
    ahead = [np.interp((at + .4) % whole, driven, np.asarray(line)) for line in (
        width / 2 + width / 4 * rounded[0], depth / 2 + depth / 4 * rounded[1])]
    yaw = np.unwrap(np.arctan2(ahead[1] - y, ahead[0] - x)) + .7 * np.sin(at * 1.1)
    pitch = .12 * np.sin(at * .7)  # with a positive pitch, the camera looks below the horizon
    forward = np.stack([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch),
                        -np.sin(pitch)], 1)
    right = np.stack([np.sin(yaw), -np.cos(yaw), np.zeros_like(yaw)], 1)
    down = np.cross(forward, right)
    positions = np.stack([x, y, EYES + .1 * np.sin(at * .9)], 1)
    return Poses(torch.tensor(np.stack([right, down, forward], 2), dtype=torch.float32),
                 torch.tensor(positions, dtype=torch.float32))


def film(scene: Scene, camera: Camera, poses: Poses, noise: float, seed: int) -> Frames:
    """Return the frames that ``camera`` takes at ``poses``.

    :param noise: standard deviation, in metres, of the measured depth of a point at a depth of 1 m.
        The deviation grows with the square of the depth. The standard deviation of the colours is
        twice this number.
    """
    rays = camera.rays()
    directions = torch.einsum('nij,pj->npi', poses.rotations, rays)
    origins = poses.positions[:, None].expand_as(directions)
    depth, colours = scene.cast(origins.reshape(-1, 3), directions.reshape(-1, 3))
    shape = len(poses), len(rays)
    depth, colours = depth.view(shape), colours.view(*shape, 3)
    generator = torch.Generator().manual_seed(seed % 2**63)
    depth = depth + noise * depth ** 2 * torch.randn(shape, generator=generator)
    colours = colours + 2 * noise * torch.randn(*shape, 3, generator=generator)
    return Frames(camera, colours.clamp(0, 1), depth.clamp(min=.01), poses)
