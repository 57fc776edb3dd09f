"""Reads RGB-D recordings: TUM RGB-D, Replica (NICE-SLAM's version), ScanNet and 7-Scenes.

The content of a file is checked before it is used; a DataError names the file and the fault.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import LARGEST, Picture, decode, decode_depth
from numpy.typing import NDArray

from rog_tasks.crimp.frames import Camera, Frames, Poses
from rog_tasks.errors import DataError

MOST = 20_000
"""Maximum number of frames of a recording."""

FARTHEST = 10.0
"""Depths of at least this number of metres count as unknown. No such camera measures so far, and a
pixel of 65535 also means unknown."""

_LATE = 0.02
"""Maximum seconds between an image and its frame's depth image or pose, as in TUM's own tool."""


@dataclass(frozen=True)
class _Frame:
    colour: Path
    depth: Path
    pose: NDArray[np.float64]  # (4, 4), from camera axes to world axes


@dataclass(frozen=True)
class Layout:
    """How a kind of recording stores its frames.

    ``frames``: function that lists the frames in a folder. ``scale``: value of a depth
    pixel at 1 m. ``camera``: the camera of the depth images, if the folder has no file of
    intrinsics. ``alike``: whether colour images have the size of depth images.
    ``intrinsics``: name of the file of intrinsics, and number of rows and columns of its
    matrix.

    ``aside``: None if one camera takes depths and colours. Otherwise a second camera takes
    the colours, and ``aside`` holds two numbers of this second camera. The first is its
    focal length in pixels, for images as wide as the images of ``camera``. The second is its
    distance in metres to the right of ``camera``.
    """

    frames: Callable[[Path], list[_Frame]]
    scale: float
    camera: Camera
    alike: bool
    intrinsics: tuple[str, int] = ('camera-intrinsics.txt', 3)
    aside: tuple[float, float] | None = None


def open_sequence(kind: str, path: str, share: tuple[int, int], stride: int, width: int,
                  most: int = MOST) -> Frames:
    """Divide a recording into ``share[1]`` successive parts; return part ``share[0]``.

    The parts are counted from 0.

    :param kind: a key of `LAYOUTS`.
    :param stride: use one of every ``stride`` frames.
    :param width: width in pixels to which images are reduced; their proportions stay the
        same.
    :param most: largest number of frames; if there are more, evenly spread frames are
        chosen.
    :raises DataError: something is missing, damaged or does not fit, such as a depth image
        of another size or a pose that is not a number. The message names it.
    """
    layout, root = LAYOUTS[kind], Path(path)
    if not root.is_dir():
        raise DataError(f'{root.absolute()} is not there; name the folder of a {kind} recording')
    listed = layout.frames(root)
    if len(listed) > MOST:
        raise DataError(f'{root} has {len(listed)} frames; at most {MOST} are accepted')
    part, parts = share
    numbers = np.array_split(np.arange(0, len(listed), stride), parts)[part]
    frames = [listed[i] for i in numbers[::max(1, -(-len(numbers) // most))]]
    if len(frames) < 2:
        raise DataError(f'{root} has {len(listed)} frames: too few for part {part} of {parts} with '
                        f'stride {stride}')
    first = _depth(frames[0].depth)
    height = max(1, round(width * first.shape[0] / first.shape[1]))
    row = ((np.arange(height) + .5) * first.shape[0] / height).astype(int)
    column = ((np.arange(width) + .5) * first.shape[1] / width).astype(int)
    camera = _camera(layout, root, first.shape)
    depths = np.empty((len(frames), height * width), np.float32)
    colours = np.empty((len(frames), height * width, 3), np.float32)
    for index, frame in enumerate(frames):
        depth, colour = _depth(frame.depth), _colour(frame.colour)
        if depth.shape != first.shape:
            raise DataError(f'{frame.depth} is {_size(depth)}, the first depth image of the '
                            f'recording is {_size(first)}; all must be alike')
        if layout.alike and colour.shape[:2] != depth.shape:
            raise DataError(f'{frame.depth} is {_size(depth)}, its image {frame.colour.name} '
                            f'{_size(colour)}; they must be alike')
        metres = depth.astype(np.float32)[row][:, column] / np.float32(layout.scale)
        depths[index] = np.where(metres < FARTHEST, metres, 0).reshape(-1)
        colours[index] = _looked_up(layout, camera, colour, metres, row, column).reshape(-1, 3)
    if not depths.any():
        raise DataError(f'{root}: no depth is known in any of {len(frames)} frames, '
                        f'{frames[0].depth} and later; it is 0, or {FARTHEST:g} m and more')
    poses = np.stack([frame.pose for frame in frames]).astype(np.float32)
    return Frames(_reduced(camera, width, height), torch.from_numpy(colours),
                  torch.from_numpy(depths),
                  Poses(torch.from_numpy(poses[:, :3, :3]), torch.from_numpy(poses[:, :3, 3])))


def _camera(layout: Layout, root: Path, shape: tuple[int, ...]) -> Camera:
    """Return the camera that took depth images of this ``shape``, (height, width)."""
    if (file := root / layout.intrinsics[0]).is_file():
        k = _numbers(file, _text(file), (layout.intrinsics[1],) * 2)
        size = np.array([shape[1], shape[0]])
        focal, middle = k[(0, 1), (0, 1)], k[:2, 2]
        if not ((focal > size / 100) & (focal < size * 100) & (middle >= 0) & (middle <= size)
                ).all() or k[1, 0] or k[2, 0] or k[2, 1] or k[2, 2] != 1 \
                or abs(k[0, 1]) > focal[0] / 100:
            raise DataError(f'{file} does not fit the {shape[1]} x {shape[0]} pixels of the depth '
                            'images: its rows must be fx 0 cx, 0 fy cy, 0 0 1, in pixels')
        return Camera(shape[1], shape[0], k[0, 0], k[1, 1], k[0, 2], k[1, 2])
    return _reduced(layout.camera, shape[1], shape[0])


def _reduced(camera: Camera, width: int, height: int) -> Camera:
    """Return ``camera`` for images that are scaled to ``width`` x ``height`` pixels."""
    x, y = width / camera.width, height / camera.height
    return Camera(width, height, camera.fx * x, camera.fy * y,
                  (camera.cx + .5) * x - .5, (camera.cy + .5) * y - .5)


def _looked_up(layout: Layout, camera: Camera, colour: NDArray[np.generic],
               metres: NDArray[np.float32], row: NDArray[np.int_], column: NDArray[np.int_]
               ) -> NDArray[np.float32]:
    """Return the colours, 0 to 1, of the pixels at ``row`` and ``column`` of a depth image.

    ``colour``: the colour image. ``metres``: the depths of these pixels, in metres.
    """
    height, width = colour.shape[:2]
    if layout.aside is None:
        y = (row * (height / camera.height))[:, None]
        x = (column * (width / camera.width))[None]
    else:
        focal, right = layout.aside[0] * width / layout.camera.width, layout.aside[1]
        away = np.where(metres > 0, metres, np.inf)
        y = (height / 2 + focal * (row - camera.cy) / camera.fy)[:, None]
        x = width / 2 + focal * ((column - camera.cx) / camera.fx - right / away)
    found = colour[y.astype(int).clip(0, height - 1), x.astype(int).clip(0, width - 1)]
    return found.astype(np.float32) / np.float32(255)


def _tum(root: Path) -> list[_Frame]:
    lists = {name: _stamped(root / f'{name}.txt') for name in ('rgb', 'depth', 'groundtruth')}
    times = {name: np.array([time for time, _ in rows]) for name, rows in lists.items()}
    found = []
    for number, (time, words) in enumerate(lists['rgb']):
        near = {name: int(np.abs(times[name] - time).argmin()) for name in ('depth', 'groundtruth')}
        if any(abs(times[name][index] - time) > _LATE for name, index in near.items()):
            continue
        # If the depth image of a frame is missing, the depth image of another frame may be near
        # enough in time to be used by mistake. So use a depth image only with the colour image that
        # is nearest to it.
        if np.abs(times['rgb'] - times['depth'][near['depth']]).argmin() != number:
            continue
        seven = lists['groundtruth'][near['groundtruth']][1]
        where = f'{root / "groundtruth.txt"} at {times["groundtruth"][near["groundtruth"]]:.4f} s'
        found.append(_Frame(root / words[0], root / lists['depth'][near['depth']][1][0],
                            _of_quaternion(_numbers(where, ' '.join(seven), (7,)), where)))
    if not found:
        raise DataError(f'{root}: no image has a depth image and a pose within {_LATE} s')
    return found


def _stamped(file: Path) -> list[tuple[float, list[str]]]:
    rows = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        if not line.strip() or line.startswith('#'):
            continue
        first, *words = line.split()
        time = float(_numbers(f'{file}, line {number}', first, (1,))[0])
        if not words or words[0].startswith('/') or '..' in Path(words[0]).parts:
            raise DataError(f'{file}, line {number}: no file below the folder is named')
        rows.append((time, words))
    if not rows:
        raise DataError(f'{file} lists nothing')
    return rows


def _replica(root: Path) -> list[_Frame]:
    poses = _text(root / 'traj.txt').splitlines()
    images = sorted((root / 'results').glob('frame*.jpg'))
    depths = sorted((root / 'results').glob('depth*.png'))
    if not images or not len(images) == len(depths) == len(poses):
        raise DataError(f'{root} holds {len(images)} images (results/frame*.jpg), {len(depths)} '
                        f'depth images (results/depth*.png) and {len(poses)} poses (traj.txt); '
                        'there must be as many of each')
    return [_Frame(image, depth, _rigid(f'{root / "traj.txt"}, line {number}', line))
            for number, (image, depth, line) in enumerate(
                zip(images, depths, poses, strict=True), 1)]


def _scannet(root: Path) -> list[_Frame]:
    depths = sorted((root / 'depth').glob('*.png'), key=lambda path: (len(path.stem), path.stem))
    if not depths:
        raise DataError(f'{root / "depth"} holds no depth images (*.png)')
    found = []
    for depth in depths:
        image = root / 'color' / f'{depth.stem}.jpg'
        pose = root / 'pose' / f'{depth.stem}.txt'
        found.append(_Frame(image, depth, _rigid(str(pose), _text(pose))))
    return found


def _seven_scenes(root: Path) -> list[_Frame]:
    depths = sorted(root.glob('frame-*.depth.png'))
    if not depths:
        raise DataError(f'{root} holds no depth images (frame-*.depth.png)')
    found = []
    numbers = [_number_of(depth) for depth in depths]
    for number, after in pairwise(numbers):
        if after != number + 1:
            raise DataError(f'{root} has no frame-{number + 1:06}.depth.png, but later ones; '
                            'a recording has no gaps')
    for depth in depths:
        name = depth.name.removesuffix('.depth.png')
        image = root / f'{name}.color.png'
        if not image.exists() and (smaller := root / f'{name}.color.jpg').exists():
            image = smaller
        pose = root / f'{name}.pose.txt'
        found.append(_Frame(image, depth, _rigid(str(pose), _text(pose))))
    return found


def _number_of(depth: Path) -> int:
    number = depth.name[len('frame-'):-len('.depth.png')]
    if not number.isdecimal():
        raise DataError(f'{depth} has no number; frames are called frame-000000.depth.png')
    return int(number)


LAYOUTS = {
    'tum': Layout(_tum, 5000.0, Camera(640, 480, 525.0, 525.0, 319.5, 239.5), True),
    'replica': Layout(_replica, 6553.5, Camera(1200, 680, 600.0, 600.0, 599.5, 339.5), True),
    'scannet': Layout(_scannet, 1000.0, Camera(640, 480, 577.9, 578.7, 318.9, 242.7), False,
                      ('intrinsic/intrinsic_depth.txt', 4)),
    '7scenes': Layout(_seven_scenes, 1000.0, Camera(640, 480, 585.0, 585.0, 320.0, 240.0), True,
                      aside=(525.0, .025))}
"""Kinds of recordings; the cameras are the published defaults."""


def _rigid(where: str, text: str) -> NDArray[np.float64]:
    pose = _numbers(where, text, (4, 4))
    turned = pose[:3, :3] @ pose[:3, :3].T
    if np.abs(turned - np.eye(3)).max() > 1e-2 or np.linalg.det(pose[:3, :3]) < 0:
        raise DataError(f'{where}: the pose is not a rotation and a position')
    return pose


def _of_quaternion(seven: NDArray[np.float64], where: str) -> NDArray[np.float64]:
    length = np.linalg.norm(seven[3:])
    if abs(length - 1) > 1e-2:
        raise DataError(f'{where}: the quaternion has length {length:.3g}, not 1')
    x, y, z, w = seven[3:] / length
    pose = np.eye(4)
    pose[:3, :3] = ((1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
                    (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
                    (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)))
    pose[:3, 3] = seven[:3]
    return pose


def _numbers(where: str | Path, text: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the numbers in ``text`` as an array of this ``shape``; all must be finite."""
    words = text.split()
    try:
        values = np.array([float(word) for word in words])
    except ValueError as error:
        raise DataError(f'{where}: {str(error)[:100]}') from error
    if len(values) != math.prod(shape):
        raise DataError(f'{where}: {len(values)} numbers; {math.prod(shape)} are needed')
    if not np.isfinite(values).all():
        bad = words[int(np.flatnonzero(~np.isfinite(values))[0])]
        raise DataError(f'{where}: {bad} is not a number; cut the recording where its poses are '
                        'known')
    return values.reshape(shape)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > LARGEST:
            raise DataError(f'{file} has {file.stat().st_size} bytes; at most {LARGEST} are read')
        return file.read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f'{file} cannot be read: {error}') from error


def _pixels(file: Path, decoder: Callable[[Picture], NDArray[Any]]) -> NDArray[Any]:
    try:
        size = file.stat().st_size
        if not 0 < size <= LARGEST:
            raise DataError(f'{file}: {size} bytes; an image has 1 to {LARGEST}')
        return decoder(Picture(str(file), file.read_bytes()))
    except OSError as error:
        raise DataError(f'{file} cannot be read: {error}') from error
    except PictureError as error:
        raise DataError(str(error)) from error


def _colour(file: Path) -> NDArray[np.uint8]:
    return _pixels(file, lambda picture: decode(picture, None, 3)).transpose(1, 2, 0)


def _depth(file: Path) -> NDArray[Any]:
    return _pixels(file, decode_depth)


def _size(pixels: NDArray[np.generic]) -> str:
    return f'{pixels.shape[1]} x {pixels.shape[0]} pixels'


