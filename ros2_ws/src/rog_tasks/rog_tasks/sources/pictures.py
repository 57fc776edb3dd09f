"""Encoded images, from messages and files, and their decoding.

The size that an image states is checked before anything is allocated or decoded.
"""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from rog_tasks.errors import DataError

LARGEST = 64 * 2**20
"""Largest number of bytes of an encoded image, and of pixels of a decoded image."""

FORMATS = ('JPEG', 'PNG')
SUFFIXES = ('.jpg', '.jpeg', '.png')

# Maps an EXIF orientation to the operation that sets the image upright. A camera that is held
# sideways does not rotate the image; it only stores the orientation.
_UPRIGHT = {2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180,
            4: Image.Transpose.FLIP_TOP_BOTTOM, 5: Image.Transpose.TRANSPOSE,
            6: Image.Transpose.ROTATE_270, 7: Image.Transpose.TRANSVERSE,
            8: Image.Transpose.ROTATE_90}
_ORIENTATION = 0x0112

# Maps each encoding of sensor_msgs/Image to the number of bytes of a pixel, Pillow's mode, and
# Pillow's raw mode.
ENCODINGS = {'rgb8': (3, 'RGB', 'RGB'), 'bgr8': (3, 'RGB', 'BGR'), 'mono8': (1, 'L', 'L'),
             'rgba8': (4, 'RGB', 'RGBX'), 'bgra8': (4, 'RGB', 'BGRX')}


@dataclass(frozen=True)
class Picture:
    """An encoded image: ``data`` is a JPEG or PNG file, or rows of pixels described by ``raw``."""

    name: str
    """Its name in messages: its file or its topic."""
    data: Any
    """The bytes: any object with the buffer interface."""
    raw: tuple[str, int, int, int] | None = None
    """Encoding, width, height, and bytes from the start of a row to the start of the next."""

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return memoryview(self.data).nbytes


def from_message(message: Any, name: str) -> Picture:
    """Check a ``sensor_msgs`` Image or CompressedImage and return its image, still encoded.

    :raises DataError: a field is invalid; the message says which.
    """
    size = memoryview(message.data).nbytes
    if not 0 < size <= LARGEST:
        raise DataError(f'{name}: an image must have 1 to {LARGEST} bytes, got {size}')
    if hasattr(message, 'format'):
        return Picture(name, message.data)
    width, height, step = int(message.width), int(message.height), int(message.step)
    if message.encoding not in ENCODINGS:
        raise DataError(f'{name}: encoding {message.encoding[:40]!r} is not one of '
                        f'{", ".join(ENCODINGS)}')
    if not (width > 0 and height > 0 and step >= width * ENCODINGS[message.encoding][0]
            and step * height == size):
        raise DataError(f'{name}: {width} x {height} pixels of {message.encoding} in rows of '
                        f'{step} bytes do not fit {size} bytes')
    return Picture(name, message.data, (message.encoding, width, height, step))


def decode(picture: Picture, size: int, channels: int) -> NDArray[np.uint8]:
    """Return the pixels, (channels, size, size); the image is squeezed to a square.

    The image is set upright according to its EXIF data. Only the higher 8 bits of 16-bit grey
    values are used; transparency is ignored.

    :param channels: 3: red, green and blue; 1: grey.
    :raises DataError: the image is not a JPEG or PNG, is damaged or is too large; the
        message names the image.
    """
    mode = 'RGB' if channels == 3 else 'L'
    try:
        with _unwarned():
            image = _opened(picture, mode, size)
            turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
            small = _in_8_bits(image).convert(mode).resize((size, size),
                                                           Image.Resampling.BILINEAR)
            small = small if turn is None else small.transpose(turn)
    # for damaged data, Pillow's decoders raise errors of almost any type
    except Exception as error:
        raise _undecodable(picture, error) from error
    return np.asarray(small, np.uint8).reshape(size, size, channels).transpose(2, 0, 1)


def as_stored(picture: Picture) -> NDArray[Any]:
    """Return the pixels as a JPEG or PNG file stores them: (height, width[, channels]).

    :raises DataError: the image is not a JPEG or PNG, is damaged or is too large; the
        message names the image.
    """
    try:
        with _unwarned():
            return np.asarray(_opened(picture, '', 0))
    except Exception as error:
        raise _undecodable(picture, error) from error


@contextmanager
def _unwarned() -> Iterator[None]:
    """Turn Pillow's warning about a too large image into an error; silence all other warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        warnings.simplefilter('error', Image.DecompressionBombWarning)
        yield


def _in_8_bits(image: Image.Image) -> Image.Image:
    """Reduce 16-bit grey to its higher 8 bits; Pillow would make nearly all pixels white."""
    if not image.mode.startswith('I'):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def _undecodable(picture: Picture, error: Exception) -> DataError:
    # For an unknown kind of image, Pillow's text contains only an address in memory.
    why = 'it is not an image of a known kind' if isinstance(error, UnidentifiedImageError) \
        else str(error)[:200]
    return DataError(f'{picture.name}: cannot be decoded: {why}')


def _opened(picture: Picture, mode: str, size: int) -> Image.Image:
    if picture.raw:
        encoding, width, height, step = picture.raw
        _, raw_mode, order = ENCODINGS[encoding]
        return Image.frombuffer(raw_mode, (width, height), bytes(picture.data), 'raw', order,
                                step, 1)
    image = Image.open(io.BytesIO(picture.data), formats=FORMATS)
    if image.width * image.height > LARGEST:
        raise ValueError(f'{image.width} x {image.height} pixels; at most {LARGEST} are accepted')
    if size:
        # decode a large JPEG at a reduced size, with at least `size` pixels per side
        image.draft(mode, (size, size))
    return image
