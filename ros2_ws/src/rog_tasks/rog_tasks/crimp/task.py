"""CRIMP: robots map one place together while each robot finds its own pose (ROG, Section VI)."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count, repeat, takewhile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from rog_tasks.crimp.explorer import Explorer
from rog_tasks.crimp.frames import Camera, Frames, corners, upright
from rog_tasks.crimp.implicit_map import TRUNCATION, ImplicitMap
from rog_tasks.crimp.scene import HEIGHT, film, flat, way
from rog_tasks.crimp.sequences import LAYOUTS, open_sequence
from rog_tasks.errors import DataError, TaskError
from rog_tasks.sources.spec import parse
from rog_tasks.task import Task

COLOUR = 0.2
"""Weight of the squared error of the colours; the squared error of the distances has weight 1."""

FAR = 1.0
"""Largest depth error of a pixel, m; also the error of a pixel where the map has no surface."""

_CELLS = 1e8  # maximum number of cells in a map

# number of views with which a map's depth is compared, and number of pixels in each view
_VIEWS, _PIXELS = 24, 96
_SURVEY = 4 * _VIEWS      # number of frames from which the bounds of a recording's map are computed


class Crimp(Task):
    """Coordinated robotic implicit mapping and positioning.

    A robot is given its first pose. From then on, between training steps, it finds the pose
    of each new frame by fitting the frame to its map, and learns from all frames so far.

    The metric of a robot is 1 - e / e0, but at least 0. Here e is the error of its whole
    trajectory after rigid alignment, and e0 is this error for a robot that never moves. So 1
    means exact, and 0 means as wrong as a robot that never moves, or worse. If a robot has
    driven only a part of its trajectory, it counts as standing still for the rest.

    The server's model belongs to no robot. Its metric is 1 - e / `FAR`, where e is the
    error of the map's depth. So 1 means exact, and 0 means an empty map. With a recording,
    the server's model is measured only if the recording is also on the server's machine.

    :param seed: random seed of the generated flat (an apartment of four rooms), the noise of its
        frames, the decoder and the samples.
    :param frames: '' for the generated flat, or ``tum:PATH``, ``replica:PATH``,
        ``scannet:PATH``, ``7scenes:PATH``. Each robot has a part of the recording, or its
        own recording if the path contains ``{rank}``.
    :param bounds: lowest and highest corner of a recording's map, in metres. By default they
        are computed from the recording, which must then be the same on every machine. The map of
        the generated flat always has the bounds of the flat.
    :param size: width and depth of the generated flat, in metres.
    :param furniture: number of pieces of furniture in each of the four rooms of the flat.
    :param noise: standard deviation, in metres, of the measured depth of a point at a depth
        of 1 m. The deviation grows with the square of the depth.
    :param parts, first: the closed path through the flat (or the recording) is divided into
        ``parts`` parts, by default one for each robot. The first robot has part ``first``.
    :param width: pixels in a row of an image. Images of the generated flat have proportions
        4:3.
    :param every: number of training steps from one new frame to the next.
    :param stride: use one of every ``stride`` frames of a recording.
    :param rays: number of pixels from which a training step learns. The search for a pose uses
        the same number of pixels.
    :param cell: side of the finest cells of the map, in metres; the coarse cells are four
        times as long.
    :raises TaskError: an option is invalid; the message names it.
    """

    def __init__(self, seed: int = 0, frames: str = '',
                 bounds: Sequence[Sequence[float]] | None = None,
                 size: Sequence[float] = (8.0, 6.4), furniture: int = 2, noise: float = 0.004,
                 parts: int = 0, first: int = 0, width: int = 40, every: int = 3, stride: int = 1,
                 rays: int = 256, cell: float = 0.1):
        for name, value, least, most in (
                ('furniture', furniture, 0, 20), ('noise', noise, 0, 1), ('parts', parts, 0, 1000),
                ('first', first, 0, 1000), ('width', width, 8, 640), ('every', every, 1, 1000),
                ('stride', stride, 1, 1000), ('rays', rays, 16, 65536), ('cell', cell, .01, 1)):
            if not least <= value <= most:
                raise TaskError(f'{name} is {value}; it must lie between {least} and {most}')
        if len(size) != 2 or not all(3 <= length <= 100 for length in size):
            raise TaskError(f'size is {size}; it must be width and depth, 3 to 100 m each')
        self._seed, self._parts, self._first = seed, parts, first
        self._every, self._rays, self._noise = every, rays, noise
        self._size = size[0], size[1]
        self._width, self._stride, self._cell = width, stride, cell
        self._source = parse(frames, 'frames', {f'{kind}:': () for kind in LAYOUTS}) \
            if frames else None
        if not frames and size[0] * size[1] * HEIGHT > _CELLS * cell ** 3:
            raise TaskError(f'size is {size} and cell {cell}: that is more than 100 million cells')
        self._scene = flat(*self._size, furniture, seed)
        self._given = self._checked(bounds) if self._source and bounds is not None else None
        self._robots: WeakKeyDictionary[nn.Module, Explorer] = WeakKeyDictionary()

    def model(self) -> ImplicitMap:
        """Return an empty map; do not change the global random state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._number('model', 0))
            return ImplicitMap(self._bounds[0], self._bounds[1], (4 * self._cell, self._cell))

    def batches(self, rank: int, world: int) -> Iterator[Explorer]:
        """Yield the same `Explorer` for every step; the samples of a step depend on the map."""
        if not 0 <= rank < world:
            raise TaskError(f'rank {rank} must lie between 0 and {world - 1}')
        # If robots see different places, the mean of their gradients is too small by the factor
        # `world`, the number of robots. The gain `world` corrects this.
        return repeat(Explorer(self._frames(rank, world), self._every, self._rays, float(world),
                               self._number('samples', rank)))

    def loss(self, model: nn.Module, batch: Explorer) -> Tensor:
        """Find or correct a pose of the robot; return the map's error on samples of its frames."""
        assert isinstance(model, ImplicitMap)
        self._robots[model] = batch
        samples = batch.step(model)
        distances, colours = model(samples.points, batch.gain)
        seen = colours[:len(samples.colours)] - samples.colours
        # If no depth is known, there are no samples; `max` avoids a division by 0.
        return ((distances - samples.distances) ** 2).sum() / 2 / max(len(distances), 1) \
            + COLOUR * (seen ** 2).sum(1).sum() / 2 / max(len(seen), 1)

    def evaluate(self, model: nn.Module) -> float:
        """Return the metric of the robot that trains ``model``, or of the server; see `Crimp`."""
        robot = self._robots.get(model)
        if robot is None:
            return 1 - self.depth_error(model) / FAR
        return max(0.0, 1 - robot.error() / max(robot.worst(), 1e-9))

    def trajectory_error(self, model: nn.Module) -> float:
        """Return the trajectory error, in metres, of the robot that trains ``model``.

        The error is NaN if no robot trains this model.
        """
        robot = self._robots.get(model)
        return float('nan') if robot is None else robot.error()

    def depth_error(self, model: nn.Module) -> float:
        """Return the mean absolute error, in metres, of the map's depth.

        The error of a pixel counts as `FAR` if it is larger than `FAR`.

        With the generated flat, the map's depth is compared with views from all parts of the path.
        With a recording, it is compared with frames of the recording. The views and frames have
        their true poses, and only pixels of known depth are used. The error is NaN if the recording
        is not on this machine.
        """
        assert isinstance(model, ImplicitMap)
        errors = [_depth_errors(model, views) for views in self._views]
        return float(torch.cat(errors).mean()) if errors else float('nan')

    def portrait(self, model: nn.Module) -> dict[str, np.ndarray]:
        """Return the arrays of a figure: see :meth:`rog_tasks.task.Task.portrait`."""
        if model in self._robots:
            robot = self._robots[model]
            return {'truth': (robot.frames.truth.positions @ self._upright.T).numpy(),
                    'estimate': (robot.poses.positions[:robot.known] @ self._upright.T).numpy()}
        assert isinstance(model, ImplicitMap)
        low, high = (self._bounds @ self._upright.T).sort(0).values
        step = max(float((high - low)[:2].max()) / 160, self._cell / 2)
        x, y = (torch.arange(float(low[axis]), float(high[axis]), step) for axis in (0, 1))
        start = torch.stack([*torch.meshgrid(x, y, indexing='xy'),
                             torch.full((len(y), len(x)), float(high[2]) - TRUNCATION)], 2)
        start = start.reshape(-1, 3) @ self._upright
        down = -self._upright[2].expand_as(start)
        with torch.no_grad():
            depth = model.cast(start, down, float(high[2] - low[2]))
            there = depth.isfinite()
            ground = start + depth.where(there, 0.0)[:, None] * down
            colour = model(ground)[1].clamp(0, 1).where(there[:, None], 1.0)
        return {'top': colour.view(len(y), len(x), 3).numpy(),
                'height': (high[2] - TRUNCATION - depth).view(len(y), len(x)).numpy(),
                'extent': np.array([float(low[0]), float(high[0]), float(low[1]), float(high[1])])}

    def _frames(self, rank: int, world: int) -> Frames:
        part, parts = self._first + rank, max(self._parts, self._first + world)
        if self._source:
            own = '{rank}' in self._source.target
            return open_sequence(self._source.kind, str(self._folder(part)),
                                 (0, 1) if own else (part, parts), self._stride, self._width)
        return film(self._scene, self._camera(), way(*self._size, part, parts), self._noise,
                    self._number('noise', part))

    @cached_property
    def _bounds(self) -> Tensor:
        if not self._source:
            return self._scene.bounds
        if self._given is not None:
            return self._given
        if not self._survey:
            raise DataError(f'{self._folder(0).absolute()} is not there; copy the recording to '
                            'this machine, or give the bounds of the map: bounds: '
                            '[[x, y, z], [x, y, z]]')
        return self._checked(corners(self._survey, TRUNCATION).tolist(),
                             f'bounds of what {self._folder(0)} shows')

    @cached_property
    def _survey(self) -> list[Frames]:
        """Some frames of each recording; empty if no recording is on this machine."""
        assert self._source
        own = '{rank}' in self._source.target
        folders = [*takewhile(Path.is_dir, map(self._folder, count() if own else range(1)))]
        return [open_sequence(self._source.kind, str(folder), (0, 1), self._stride, self._width,
                              max(2, _SURVEY // len(folders))) for folder in folders]

    def _folder(self, part: int) -> Path:
        assert self._source
        return Path(self._source.target.replace('{rank}', str(part)))

    @cached_property
    def _views(self) -> list[Frames]:
        """The frames with which the depth of a map is compared."""
        if self._source:
            step = -(-sum(map(len, self._survey)) // _VIEWS)
            return [frames[::step] for frames in self._survey]
        ways = [way(*self._size, part, max(self._parts, 1)) for part in range(max(self._parts, 1))]
        chosen = _joined(ways)[::-(-sum(map(len, ways)) // _VIEWS)]
        return [film(self._scene, self._camera(), chosen, 0.0, 0)]

    @cached_property
    def _upright(self) -> Tensor:
        """The rotation (3, 3) from world axes to axes whose third axis points up."""
        return upright(self._survey) if self._source and self._survey else torch.eye(3)

    def _camera(self) -> Camera:
        width, height = self._width, 3 * self._width // 4
        return Camera(width, height, width / 2, width / 2, (width - 1) / 2, (height - 1) / 2)

    def _checked(self, bounds: Any, what: str = 'bounds') -> Tensor:
        try:
            ends = torch.tensor(bounds, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TaskError(f'{what} are {bounds!r}; they must be [[x, y, z], [x, y, z]], the '
                            'lowest and the highest corner of the map in m') from error
        if ends.shape != (2, 3) or not bool((ends[1] - ends[0] > 4 * self._cell).all()) \
                or float((ends[1] - ends[0]).prod()) > _CELLS * self._cell ** 3:
            raise TaskError(f'{what} are {bounds!r}; they must be the lowest and the highest '
                            'corner, with at most 100 million cells between them')
        return ends

    def _number(self, purpose: str, rank: int) -> int:
        entropy = [self._seed, rank, *purpose.encode()]
        return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def _depth_errors(model: ImplicitMap, views: Frames) -> Tensor:
    """Return the errors, in metres, of the map's depth in some pixels of all views.

    Each error is at most `FAR`.
    """
    pixels = torch.linspace(0, views.depths.shape[1] - 1, _PIXELS).long()
    known = views.depths[:, pixels] > 0
    depths = views.depths[:, pixels][known]
    rays = torch.einsum('nij,pj->npi', views.truth.rotations, views.camera.rays()[pixels])
    origins = views.truth.positions[:, None].expand_as(rays)
    if not len(depths):
        return depths
    with torch.no_grad():
        found = model.cast(origins[known], rays[known], float(depths.max()) + FAR)
    return (found - depths).abs().clamp(max=FAR)


def _joined(ways: list[Any]) -> Any:
    return type(ways[0])(torch.cat([w.rotations for w in ways]),
                         torch.cat([w.positions for w in ways]))
