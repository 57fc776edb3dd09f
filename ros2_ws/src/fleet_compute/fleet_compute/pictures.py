"""Pictures that a robot and a server decode alike, so that a link carries the file of a camera.

The tensor of a decoded picture remembers its file as long as it is not changed.
"""

from __future__ import annotations

import io
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import Picture, decode, stored_size
from numpy.typing import NDArray
from PIL import Image

# A file that crosses a link has at most so many pixels, and at most so many times those that are
# made of it. Else decoding few bytes could take long.
MOST, TIMES = 16 << 20, 64

REVERSED, SCALED = 1, 2     # how a picture has been decoded


@dataclass(frozen=True)
class File:
    """What a link carries instead of pixels (channels, rows, columns).

    ``seconds``: what decoding took. ``version``: of the tensor, which counts changes.
    """

    body: bytes
    channels: int
    columns: int
    seconds: float
    version: int


def tensor_of(picture: Picture, size: tuple[int, int] | None = None, channels: int = 3,
              reverse: bool = False) -> torch.Tensor:
    """Decode a picture for a model.

    A link carries the file instead of the pixels if that takes less time and they are an input of
    the model as they are.

    :param size: rows and columns; None: as they are.
    :param channels: 3: red, green and blue; 1: grey.
    :param reverse: blue, green and red.
    :returns: uint8 (1, channels, rows, columns).
    :raises PictureError: see `fleet_env.pictures.decode`.
    """
    began = time.thread_time()
    pixels = _ordered(decode(picture, size, channels), reverse)
    seconds = time.thread_time() - began
    tensor = torch.from_numpy(pixels)[None]
    if picture.raw is None and not tensor.is_inference() \
            and math.prod(stored_size(picture)) <= _most(*pixels.shape[1:]):
        how = REVERSED * reverse | SCALED * (size is not None)
        body = bytes([how]) + bytes(picture.data)
        _remember(tensor, File(body, channels, pixels.shape[2], seconds, tensor._version))
    return tensor


def file_of(tensor: torch.Tensor) -> File | None:
    """Return the file of which the tensor has been decoded; None if there is none."""
    file: File | None = getattr(tensor, '_fleet_file', None)
    return file if file is not None and file.version == tensor._version else None


def same(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return ``made``, a tensor with the elements of another; it remembers that one's file."""
    if (file := file_of(tensor)) is not None and not made.is_inference():
        _remember(made, File(file.body, file.channels, file.columns, file.seconds, made._version))
    return made


def _remember(tensor: torch.Tensor, file: File) -> None:
    tensor._fleet_file = file   # type: ignore[attr-defined]


def _most(rows: int, columns: int) -> int:
    return min(MOST, TIMES * rows * columns)


def _ordered(pixels: NDArray[np.uint8], reverse: bool) -> NDArray[np.uint8]:
    return pixels[::-1].copy() if reverse else pixels


def pixels_of(body: Any, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Return the pixels (channels, rows, columns) of a `File`.

    :raises PictureError: the file is damaged, too large, or of another shape.
    """
    channels, rows, columns = shape
    view = memoryview(body)
    if channels not in (1, 3) or not len(view):
        raise PictureError(f'a file must follow, for 1 or 3 channels, got {len(view)} bytes for '
                           f'{channels}')
    how, size = view[0], (rows, columns) if view[0] & SCALED else None
    pixels = decode(Picture('a picture', view[1:]), size, channels,
                    _most(rows, columns))
    pixels = _ordered(pixels, bool(how & REVERSED))
    if pixels.shape != shape:
        raise PictureError(f'a picture of {shape} must follow, got {pixels.shape}')
    return pixels


def typical(rows: int, columns: int, as_file: bool = False) -> torch.Tensor:
    """Return a picture of about as many bytes as a camera's usually take when they are encoded.

    Plans that count bytes need one before the first picture has come. It is always the same.

    :param as_file: whether it comes as a JPEG.
    :returns: uint8 (1, 3, rows, columns).
    """
    random = np.random.default_rng(0)
    coarse = random.normal(128, 50, (6, 8, 3)) + random.normal(0, 20, (6, 8, 1))
    smooth = Image.fromarray(coarse.clip(0, 255).astype(np.uint8)).resize(
        (columns, rows), Image.Resampling.BICUBIC)
    edges = 40 * (random.normal(size=(-(-rows // 16), -(-columns // 16), 1)) > 0.8)
    noisy = np.asarray(smooth) + edges.repeat(16, 0).repeat(16, 1)[:rows, :columns] \
        + random.normal(0, 3, (rows, columns, 1))
    image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
    if not as_file:
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).copy())[None]
    data = io.BytesIO()
    image.save(data, 'JPEG', quality=90)
    return tensor_of(Picture('a typical picture', data.getvalue()), (rows, columns))
