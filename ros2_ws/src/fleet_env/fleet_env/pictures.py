"""Encoded images, from messages and files, and the one way in which the suite decodes them.

What a model was trained on and what it sees later must be decoded alike. The size that an image
states is checked before anything is allocated or decoded.
"""

import io
import re
import threading
import warnings
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from fleet_env.errors import PictureError

LARGEST = 64 * 2**20
"""Largest number of bytes of an encoded image, and of pixels of a decoded image."""

MOST_SCANS = 100
"""Largest number of scans of a JPEG; usual are 1 to 20. Each takes as long as any other, and may
have only some bytes."""

FORMATS = ('JPEG', 'PNG')
_ENDS = {'JPEG': b'\xff\xd9', 'PNG': b'IEND\xaeB`\x82'}
SUFFIXES = ('.jpg', '.jpeg', '.png')

# Maps an EXIF orientation to the operation that sets the image upright. A camera that is held
# sideways does not rotate the image; it only stores the orientation.
_UPRIGHT = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_90}
_ORIENTATION = 0x0112
# a marker of a JPEG that has a length: none of those within a scan
_MARKER = re.compile(rb'\xff([^\x00\x01\xff\xd0-\xd8])')
_SIDEWAYS = (5, 6, 7, 8)   # orientations whose operation swaps rows and columns

# Maps each encoding of sensor_msgs/Image to the channels of a pixel in memory, and the bytes of a
# channel. 8UC1, 8UC3 and 8UC4 do not name their channels; they are those of OpenCV, as in rviz.
ENCODINGS = {'rgb8': ('RGB', 1), 'bgr8': ('BGR', 1), 'mono8': ('L', 1), 'rgba8': ('RGBA', 1),
             'bgra8': ('BGRA', 1), 'rgb16': ('RGB', 2), 'bgr16': ('BGR', 2), 'mono16': ('L', 2),
             'rgba16': ('RGBA', 2), 'bgra16': ('BGRA', 2), '8UC1': ('L', 1), '8UC3': ('BGR', 1),
             '8UC4': ('BGRA', 1)}


@dataclass(frozen=True)
class Raw:
    """How the bytes of a ``sensor_msgs`` Image are laid out; the fields are those of the message.

    ``step``: bytes from the start of a row to the start of the next.
    """

    encoding: str
    width: int
    height: int
    step: int
    is_bigendian: bool


@dataclass(frozen=True)
class Picture:
    """An encoded image: ``data`` is a JPEG or PNG file, or rows of pixels described by ``raw``."""

    name: str
    """Its name in messages: its file or its topic."""
    data: Any
    """The bytes: any object with the buffer interface."""
    raw: Raw | None = None

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return memoryview(self.data).nbytes


def from_message(message: Any, name: str) -> Picture:
    """Check a ``sensor_msgs`` Image or CompressedImage and return its image, still encoded.

    :raises PictureError: a field is invalid; the message says which.
    """
    size = memoryview(message.data).nbytes
    if not 0 < size <= LARGEST:
        raise PictureError(f'{name}: an image must have 1 to {LARGEST} bytes, got {size}')
    if hasattr(message, 'format'):
        return Picture(name, message.data)
    raw = Raw(message.encoding, int(message.width), int(message.height), int(message.step),
              bool(message.is_bigendian))
    if raw.encoding not in ENCODINGS:
        raise PictureError(f'{name}: encoding {raw.encoding[:40]!r} is not one of '
                           f'{", ".join(ENCODINGS)}')
    channels, depth = ENCODINGS[raw.encoding]
    if not (raw.width > 0 and raw.height > 0 and raw.step >= raw.width * len(channels) * depth
            and raw.step * raw.height == size):
        raise PictureError(f'{name}: {raw.width} x {raw.height} pixels of {raw.encoding} in rows '
                           f'of {raw.step} bytes do not fit {size} bytes')
    return Picture(name, message.data, raw)


def decode(picture: Picture, size: tuple[int, int] | None, channels: int, most: int = LARGEST
           ) -> NDArray[np.uint8]:
    """Return the pixels, (channels, rows, columns), scaled to ``size``, (rows, columns).

    The image is set upright according to its EXIF data. Only the higher 8 bits of 16-bit values
    are used; transparency is ignored. ``size`` None: the image keeps its size.

    :param channels: 3: red, green and blue; 1: grey.
    :param most: number of pixels that the image may have.
    :raises PictureError: the image is not a JPEG or PNG, is damaged or is too large; the
        message names the image.
    """
    mode = 'RGB' if channels == 3 else 'L'
    with _named(picture):
        image = _opened(picture, most)
        orientation = image.getexif().get(_ORIENTATION, 1)
        if size:
            # Pillow's (width, height), of the image before it is set upright
            stored = size if orientation in _SIDEWAYS else size[::-1]
            # decode a large JPEG at a reduced size that is not below `stored`
            image.draft(mode, stored)
        image = _in_8_bits(image).convert(mode)
        if size:
            image = image.resize(stored, Image.Resampling.BILINEAR)
        if orientation in _UPRIGHT:
            image = image.transpose(_UPRIGHT[orientation])
    pixels = np.array(image, np.uint8).reshape(image.height, image.width, channels)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True)
class Stated:
    """What the header of an image states.

    ``rows``, ``columns``: once it is set upright. ``kind``: what says how it is decoded: format,
    mode, size, order of scans, sampling of colours, orientation. ``whole``: whether it ends as its
    format does.
    """

    rows: int
    columns: int
    kind: Hashable
    whole: bool


def stated(picture: Picture) -> Stated:
    """Return what the header of a JPEG or PNG states.

    :raises PictureError: see `decode`.
    """
    with _named(picture):
        image = _opened(picture)
        orientation = image.getexif().get(_ORIENTATION, 1)
        kind = (image.format, image.mode, image.size, bool(image.info.get('progressive')),
                repr(getattr(image, 'layer', '')), orientation)
    rows, columns = image.size if orientation in _SIDEWAYS else image.size[::-1]
    end = bytes(memoryview(picture.data)[-len(_ENDS[image.format or '']):])
    return Stated(rows, columns, kind, end == _ENDS[image.format or ''])


def decode_depth(picture: Picture) -> NDArray[Any]:
    """Return the values of a grey PNG of 16 bits as they are stored, (rows, columns).

    :raises PictureError: the image is not one, is damaged or is too large; the message names it.
    """
    with _named(picture):
        values = np.asarray(_opened(picture))
    if values.ndim != 2 or values.dtype.itemsize < 2:
        raise PictureError(f'{picture.name} is not a depth image, a grey PNG of 16 bits')
    return values


class _Quiet:
    """Ignores Pillow's warnings.

    Unlike `warnings.catch_warnings` alone, several threads may do so at a time: else the process
    would ignore warnings for good.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.filterwarnings('ignore', module=r'PIL\.')
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._caught.__exit__(None, None, None)


_quiet = _Quiet()


@contextmanager
def _named(picture: Picture) -> Iterator[None]:
    """Name the picture in any error."""
    try:
        with _quiet:
            yield
    # for damaged data, Pillow's decoders raise errors of almost any type
    except Exception as error:
        # For an unknown kind of image, Pillow's text contains only an address in memory.
        why = 'it is not an image of a known kind' if isinstance(error, UnidentifiedImageError) \
            else str(error)[:200]
        raise PictureError(f'{picture.name}: cannot be decoded: {why}') from error


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Reduce 16-bit grey to its higher 8 bits; Pillow would make nearly all pixels white."""
    if not image.mode.startswith('I'):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _opened(picture: Picture, most: int = LARGEST) -> Image.Image:
    if picture.raw:
        return Image.fromarray(_unpacked(picture.raw, picture.data))
    file = io.BytesIO(picture.data)
    image = Image.open(file, formats=FORMATS)
    if image.width * image.height > most:
        raise ValueError(f'{image.width} x {image.height} pixels; at most {most} are accepted')
    if image.format != 'PNG' and _scans(file.getbuffer()) > MOST_SCANS:
        raise ValueError(f'a JPEG with more than {MOST_SCANS} scans')
    return image


def _scans(data: memoryview) -> int:
    """Return the number of scans of a JPEG until its end, or at least `MOST_SCANS` + 1."""
    at, scans = 2, 0
    while scans <= MOST_SCANS and (found := _MARKER.search(data, at)) and found[1] != b'\xd9':
        scans += found[1] == b'\xda'
        at = found.end() + int.from_bytes(data[found.end():found.end() + 2], 'big')
    return scans


def _unpacked(raw: Raw, data: Any) -> NDArray[np.uint8]:
    """Return the pixels (height, width, 3) of red, green and blue, or (height, width) of grey."""
    channels, depth = ENCODINGS[raw.encoding]
    rows = np.frombuffer(data, np.uint8).reshape(raw.height, raw.step)
    values = rows[:, :raw.width * len(channels) * depth].reshape(
        raw.height, raw.width, len(channels), depth)[..., 0 if raw.is_bigendian else -1]
    if channels == 'L':
        return np.ascontiguousarray(values[..., 0])
    return np.ascontiguousarray(values[..., [channels.index(c) for c in 'RGB']])
