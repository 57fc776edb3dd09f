"""Pictures that a robot and a server decode alike, so that a link carries the file of a camera.

The tensor of a picture remembers its file as long as it is not changed. A robot that only sends the
file need not decode it: the tensor is `Undecoded` until something uses its elements.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import Picture, Stated, decode, stated
from numpy.typing import NDArray
from PIL import Image
from torch.utils import _pytree as pytree

# A file that crosses a link has at most so many pixels, and at most so many times those that are
# made of it. Else decoding few bytes could take long.
MOST, TIMES = 16 << 20, 64

REVERSED, SCALED = 1, 2     # how a picture has been decoded


@dataclass(frozen=True)
class File:
    """What a link carries instead of pixels (channels, rows, columns).

    ``kind``: files of one kind are decoded by the same means. ``seconds``: what decoding took; 0 if
    it is not decoded. ``version``: of the tensor, which counts changes.
    """

    body: bytes
    channels: int
    columns: int
    kind: Hashable
    seconds: float = 0.0
    version: int = 0


# what may be asked of a picture without decoding it
_FACTS = {getattr(torch.Tensor, name).__get__ for name in (
    'shape', 'dtype', 'device', 'layout', 'ndim', 'requires_grad', 'is_cuda', 'is_sparse')}
_FACTS |= {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.element_size,
           torch.Tensor.is_floating_point, torch.Tensor.is_inference}


class Undecoded(torch.Tensor):
    """The picture of a file: a tensor that has no elements until something uses them.

    Whatever PyTorch does with it is done with the decoded tensor, `decoded`.
    """

    file: File
    _make: Callable[[], torch.Tensor]
    _made: torch.Tensor | None

    @staticmethod
    def of(file: File, shape: tuple[int, ...], make: Callable[[], torch.Tensor]) -> Undecoded:
        """Return the picture of a file; ``make``: decodes it, to uint8 of this shape."""
        one: Any = torch.Tensor._make_wrapper_subclass(Undecoded, shape, dtype=torch.uint8)
        one.file, one._make, one._made = file, make, None
        return cast('Undecoded', one)

    @property
    def decoded(self) -> torch.Tensor:
        """The tensor with its elements.

        :raises PictureError: the file is damaged.
        """
        if self._made is None:
            with torch.inference_mode(False):   # as if it had been decoded at once
                self._made = self._make()
        return self._made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch with the decoded picture."""
        if func in _FACTS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs or {})
        return func(*decoded(args), **decoded(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator with the decoded picture."""
        return func(*decoded(args), **decoded(kwargs or {}))


def decoded(tree: Any) -> Any:
    """Return ``tree``, any nested containers, with all its pictures decoded.

    :raises PictureError: a file is damaged.
    """
    return pytree.tree_map_only(Undecoded, lambda one: one.decoded, tree)


def picture_of(picture: Picture, size: tuple[int, int] | None = None, channels: int = 3,
               reverse: bool = False) -> torch.Tensor:
    """Return what `tensor_of` does; it is `Undecoded` where its file may cross a link.

    A file that is damaged within is noticed when it is decoded.
    """
    if picture.raw is not None:
        return tensor_of(picture, size, channels, reverse)
    facts = stated(picture)
    rows, columns = size or (facts.rows, facts.columns)
    if not facts.whole or not _may_cross(facts, rows, columns) or channels not in (1, 3):
        return tensor_of(picture, size, channels, reverse)
    file = _file(picture, facts, size, channels, columns, reverse)
    picture = replace(picture, data=memoryview(file.body)[1:])      # its own may be used again
    return Undecoded.of(file, (1, channels, rows, columns),
                        lambda: tensor_of(picture, size, channels, reverse))


def placed(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; a picture that is not decoded stays so on the CPU."""
    if isinstance(tensor, Undecoded) and device.type == 'cpu':
        return tensor
    return same(tensor, tensor.to(device))


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
            and _may_cross(facts := stated(picture), *pixels.shape[1:]):
        _remember(tensor, replace(
            _file(picture, facts, size, channels, pixels.shape[2], reverse), seconds=seconds))
    return tensor


def _file(picture: Picture, facts: Stated, size: tuple[int, int] | None, channels: int,
          columns: int, reverse: bool) -> File:
    how = REVERSED * reverse | SCALED * (size is not None)
    return File(bytes([how]) + bytes(picture.data), channels, columns,
                (facts.kind, how, size, channels))


def file_of(tensor: torch.Tensor) -> File | None:
    """Return the file of which the tensor has been decoded; None if there is none."""
    if isinstance(tensor, Undecoded):
        return tensor.file if tensor._made is None else file_of(tensor._made)
    file: File | None = getattr(tensor, '_fleet_file', None)
    return file if file is not None and file.version == tensor._version else None


def same(tensor: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Return ``made``, a tensor with the elements of another; it remembers that one's file."""
    if (file := file_of(tensor)) is not None and not made.is_inference():
        _remember(made, file)
    return made


def _remember(tensor: torch.Tensor, file: File) -> None:
    tensor._fleet_file = replace(  # type: ignore[attr-defined]
        file, version=tensor._version)


def _most(rows: int, columns: int) -> int:
    return min(MOST, TIMES * rows * columns)


def _may_cross(facts: Stated, rows: int, columns: int) -> bool:
    return facts.rows * facts.columns <= _most(rows, columns)


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
