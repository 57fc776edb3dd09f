"""Codecs for the tensors that cross a link, and the choice among them.

A codec works on a tensor's elements in the order of memory, as unsigned integers of the same size,
so every bit comes back: the payload of a NaN, the sign of a zero. What is encoded says how
(`_HEADER`), and has fewer bytes than the elements; so elements that no codec makes smaller are sent
as they are, and their number of bytes says that they are.

- `table`: at most 256 different values in each plane, such as a normalised picture: a table of
  them, and their places in it as a `picture`.
- `picture`: bytes; the differences between colours and between neighbours in a row, ZSTD.
- `sparse`: many zeros, such as after a ReLU: a bit for each element, and the others as `planes`.
- `planes`: bytes of the same significance together, ZSTD where it helps.
- `file`: a picture, by the file of which both sides decode it (`pictures`). A checksum of its
  pixels proves that they do so alike; then the next ones of its kind come without it (`alike`), so
  that the robot need not decode them.
- `change`: a picture in bytes, by the differences from the one before, such as of a still camera.
- `rounded`: not lossless, and only by request: float32 as bfloat16, each within 2^-8 of its value.
"""

from __future__ import annotations

import math
import struct
import sys
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fleet_env.errors import PictureError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .pictures import File

TABLE, PICTURE, SPARSE, PLANES, FILE, ROUNDED, CHANGE, ALIKE = range(1, 9)
# those that encode any elements
NAMES = {TABLE: 'table', PICTURE: 'picture', SPARSE: 'sparse', PLANES: 'planes'}

LEAST = 512           # elements of fewer bytes are sent as they are; so are those that take
SHORTEST = 3e-4       # fewer seconds on the link, and all on a link of so many bytes/s: there even
FASTEST = 4e8         # to compare the codecs would take longer
# Planes have a table each if there are at most so many, and so many elements in each.
MOST_PLANES, LEAST_PLANE = 64, 1024
SAMPLED = 1 / 8       # share of the elements by which codecs are compared, and
SAMPLE = 16 << 10     # least bytes of it, in
RANGES = 7            # places of the tensor
AGAIN = 32            # transfers of an inlet after which its codecs are compared again, if
TAX = 0.01            # comparing takes at most this share of the time on the link
# seconds that decoding takes for each second of encoding, about, by codec
DECODING = {TABLE: 0.75, PICTURE: 2.5, SPARSE: 1.0, PLANES: 1.0}
KEPT = 2              # requests whose pictures are kept for changes
MOST = 256            # inlets of a link; those that were not used for longest are forgotten
WORTH = 0.98          # a codec is used if the time is at most this share of the time without it

# by the bytes of an element
UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {
    1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

# codec, bytes of an element, the layout, number of elements
_HEADER = struct.Struct('<BBBxIIIQ')
_COUNT = struct.Struct('<I')
_CHANGE = struct.Struct('<QI')       # number of the former picture, checksum of this one
_PART = struct.Struct('<BQ')         # whether compressed, bytes
_SLOTS = 17                          # bits of a place in the hash table of a `table`
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93,
            0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 0x2545F4914F6CDD1D, 0xA0761D6478BD642F)

Buffer = bytes | bytearray | memoryview
Base = Callable[[int], 'NDArray[np.uint8] | None']


class CodecError(ValueError):
    """Encoded bytes must be whole and fit the elements that are expected."""


class OtherPixels(CodecError):
    """A file must be decoded, and to the pixels with which the robot computes."""


class Layout(NamedTuple):
    """How elements lie in memory: ``planes`` of rows of ``width`` elements.

    ``colours``: so many planes that follow each other show the same. ``mixed``: the colours of a
    point lie side by side; then a row has width * colours elements.
    """

    planes: int
    colours: int
    width: int
    mixed: bool


def layout_of(shape: Sequence[int], channels_last: bool = False) -> Layout:
    """Return the layout of a tensor that is contiguous, or has PyTorch's `channels_last`."""
    if 0 in shape or not shape:
        return Layout(1, 1, 1, False)
    if channels_last and shape[1] > 1:      # N, C, H, W in memory as N, H, W, C
        return Layout(shape[1], shape[1], shape[-1], True)
    if len(shape) > 2 and 1 < shape[-1] <= 4 < shape[-2]:
        return Layout(shape[-1], shape[-1], shape[-2], True)
    if len(shape) < 3:
        return Layout(1, 1, shape[-1], False)
    return Layout(math.prod(shape[:-2]), 3 if shape[-3] == 3 else 1, shape[-1], False)


def elements_of(data: Any, itemsize: int) -> NDArray[Any]:
    """Return bytes as the unsigned integers that are encoded; one of 16 bytes is two of 8."""
    return np.frombuffer(data, UNSIGNED[min(itemsize, 8)])


def encode(codec: int, elements: NDArray[Any], layout: Layout) -> bytes | None:
    """Return the elements, (n,) unsigned integers, in fewer bytes; None if the codec cannot."""
    body = None
    if elements.nbytes >= LEAST and _fits(elements, layout):
        body = _ENCODE[codec](elements, layout)
    if body is None:
        return None
    whole = b''.join([_header(codec, elements, layout), *body])
    return whole if len(whole) < elements.nbytes else None


def _header(codec: int, elements: NDArray[Any], layout: Layout) -> bytes:
    return _HEADER.pack(codec, elements.itemsize, layout.mixed, layout.planes, layout.colours,
                        layout.width, elements.size)


def _fits(elements: NDArray[Any], layout: Layout) -> bool:
    return elements.size % (layout.planes * layout.width) == 0


def decode(data: Buffer, nbytes: int, base: Base = lambda number: None
           ) -> NDArray[np.uint8]:
    """Return the ``nbytes`` bytes of the elements that were encoded.

    ``base``: returns the picture of a number that a `CHANGE` is of; None: it is not here.

    :raises CodecError: the data is damaged, or of another number of bytes; little memory is used.
    :raises OtherPixels: it is the file of a picture that is decoded differently here, or not.
    """
    view = memoryview(data).cast('B')
    if len(view) < _HEADER.size:
        raise CodecError(f'encoded elements must have a header of {_HEADER.size} bytes, got '
                         f'{len(view)}')
    codec, item, mixed, planes, colours, width, count = _HEADER.unpack_from(view)
    layout = Layout(planes, colours, width, bool(mixed))
    known = codec in _DECODE or codec == CHANGE
    if not known or item not in UNSIGNED or not count or count * item != nbytes:
        raise CodecError(f'encoded elements must have a known codec, elements of '
                         f'{list(UNSIGNED)} bytes and {nbytes} bytes in all, got codec {codec}, '
                         f'{count} of {item} bytes')
    if mixed > 1 or not planes * colours * width or count % (planes * width) \
            or (mixed and planes != colours):
        raise CodecError(f'{count} elements cannot have the layout {layout}')
    try:
        reader = _Reader(view[_HEADER.size:])
        found = _decode_change(reader, item, count, base) if codec == CHANGE else \
            _DECODE[codec](reader, item, count, layout)
    except OtherPixels:
        raise
    except (struct.error, ValueError, IndexError, OverflowError, zstd.ZstdError) as error:
        raise CodecError(f'encoded elements are damaged: {error}') from None
    return found.view(np.uint8).reshape(-1)


class _Reader:
    """Reads a body from its beginning to its end."""

    def __init__(self, view: memoryview) -> None:
        self._view, self._at = view, 0

    def take(self, nbytes: int) -> memoryview:
        end = self._at + nbytes
        if end > len(self._view):
            raise CodecError(f'{nbytes} bytes must follow, there are {len(self._view) - self._at}')
        part, self._at = self._view[self._at:end], end
        return part

    def number(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.take(form.size))

    def rest(self) -> memoryview:
        return self.take(len(self._view) - self._at)

    def end(self) -> None:
        if self._at != len(self._view):
            raise CodecError(f'nothing must follow, there are {len(self._view) - self._at} bytes')


# -- parts of a body: bytes, compressed if that is shorter -----------------------------------------

def _packed(data: NDArray[Any]) -> list[bytes]:
    raw = data.reshape(-1).view(np.uint8)
    if raw.size > 4 * SAMPLE:       # a quick look first: most bytes of mantissas are random
        look = raw[raw.size // 2:][:SAMPLE]
        if len(zstd.compress(look.data, level=1)) > 0.97 * look.size:
            return [_PART.pack(0, raw.size), raw.tobytes()]
    short = zstd.compress(raw.data, level=1)
    if len(short) < raw.size:
        return [_PART.pack(1, len(short)), short]
    return [_PART.pack(0, raw.size), raw.tobytes()]


def _unpacked(reader: _Reader, nbytes: int) -> NDArray[np.uint8]:
    """Return the next part of a body, which must have ``nbytes`` bytes; it may not be written."""
    compressed, size = reader.number(_PART)
    part = reader.take(size)
    if not compressed:
        if size != nbytes:
            raise CodecError(f'a part must have {nbytes} bytes, got {size}')
        return np.frombuffer(part, np.uint8)
    if zstd.get_frame_info(part).decompressed_size != nbytes:
        raise CodecError(f'a part must have {nbytes} bytes')
    # the window of a frame is memory that is taken before anything else is known of it
    log = min(max(20, nbytes.bit_length()), 31)     # the library takes no more
    window = {int(zstd.DecompressionParameter.window_log_max): log}
    reading = zstd.ZstdDecompressor(options=window)
    found = reading.decompress(part, max_length=nbytes)
    if len(found) != nbytes or not reading.eof or reading.unused_data:
        raise CodecError(f'a part must have {nbytes} bytes')
    return np.frombuffer(found, np.uint8)


# -- picture ---------------------------------------------------------------------------------------

def _split(data: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return elements as (planes, rows, width)."""
    if layout.mixed:
        points = data.reshape(-1, layout.width, layout.colours)
        return np.ascontiguousarray(points.transpose(2, 0, 1))
    return data.reshape(layout.planes, -1, layout.width)


def _joined(planes: NDArray[Any], layout: Layout) -> NDArray[Any]:
    """Return what `_split` has split, as (n,)."""
    return (np.ascontiguousarray(planes.transpose(1, 2, 0)) if layout.mixed else planes).reshape(-1)


def _green(planes: NDArray[np.uint8], layout: Layout) -> NDArray[np.uint8] | None:
    """Return a view (pictures, 3, rows, width) of planes that show three colours."""
    if layout.colours != 3 or len(planes) % 3:
        return None
    return planes.reshape(-1, 3, *planes.shape[1:])


def _picture(data: NDArray[np.uint8], layout: Layout) -> list[bytes]:
    planes = _split(data, layout)
    if (of := _green(planes, layout)) is not None:
        planes = planes.copy()
        of = _green(planes, layout)
        assert of is not None
        of[:, ::2] -= of[:, 1:2]
    rest = planes.copy()
    rest[..., 1:] -= planes[..., :-1]
    return _packed(rest)


def _encode_picture(elements: NDArray[Any], layout: Layout) -> list[bytes] | None:
    return _picture(elements, layout) if elements.itemsize == 1 else None


def _decode_picture(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[np.uint8]:
    if item != 1:
        raise CodecError(f'elements of a picture must have 1 byte, got {item}')
    found = _unpicture(reader, count, layout)
    reader.end()
    return found


def _unpicture(reader: _Reader, count: int, layout: Layout) -> NDArray[np.uint8]:
    rest = _unpacked(reader, count)
    planes = np.cumsum(rest.reshape(layout.planes, -1, layout.width), axis=2, dtype=np.uint8)
    if (of := _green(planes, layout)) is not None:
        of[:, ::2] += of[:, 1:2]
    return _joined(planes, layout)


# -- table -----------------------------------------------------------------------------------------

def _encode_table(elements: NDArray[Any], layout: Layout) -> list[bytes] | None:
    if elements.itemsize == 1:
        return None
    planes = _split(elements, layout)
    own = planes.reshape(_tables(elements.size, layout), -1)
    places = np.empty(own.shape, np.uint8)
    tables = []
    for plane, place in zip(own, places, strict=True):
        values = _table(plane, place)
        if values is None:
            return None
        tables += [_COUNT.pack(len(values)), values.tobytes()]
    return [*tables, *_picture(places.reshape(-1), layout._replace(mixed=False))]


def _tables(count: int, layout: Layout) -> int:
    """Return the number of tables: one for each plane if they are few and large, else 1."""
    large = count >= LEAST_PLANE * layout.planes
    return layout.planes if large and layout.planes <= MOST_PLANES else 1


def _table(plane: NDArray[Any], place: NDArray[np.uint8]) -> NDArray[Any] | None:
    """Fill ``place`` with the place of each element among the values, which are returned.

    None: there are more than 256 values.
    """
    values = np.unique(plane[::max(1, plane.size >> 10)])
    for _ in range(8):
        if len(values) > 256:
            return None
        values = values[np.argsort(_ordered(values))]
        found = _looked_up(values, plane, place)
        if found is None:
            return None
        if not len(found):
            return values
        values = np.union1d(values, found[:1 << 14])
    return None


def _looked_up(values: NDArray[Any], plane: NDArray[Any], place: NDArray[np.uint8]
               ) -> NDArray[Any] | None:
    """Fill ``place`` as `_table` does; return the elements that are none of the values.

    A place is looked up by a product whose upper bits differ for all values; None: none was found.
    """
    bits = 8 * plane.itemsize
    for factor in _FACTORS:
        factor = plane.dtype.type(factor & ((1 << bits) - 1) | 1)
        shift = plane.dtype.type(max(bits - _SLOTS, 0))
        slots = (values * factor) >> shift
        if len(np.unique(slots)) == len(values):
            lookup = np.zeros(1 << min(bits, _SLOTS), np.uint8)
            lookup[slots] = np.arange(len(values), dtype=np.uint8)
            np.take(lookup, (plane * factor) >> shift, out=place)
            return plane[values[place] != plane]
    return None


def _ordered(values: NDArray[Any]) -> NDArray[Any]:
    """Return numbers that are ordered as the floating-point numbers with these bits."""
    top = values.dtype.type(1 << (8 * values.itemsize - 1))
    return np.where(values & top, ~values, values | top)


def _decode_table(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[Any]:
    dtype = UNSIGNED[item]
    tables = []
    for _ in range(_tables(count, layout)):
        number, = reader.number(_COUNT)
        if not 0 < number <= 256:
            raise CodecError(f'a table must have 1 to 256 values, got {number}')
        tables.append(np.frombuffer(reader.take(number * item), dtype))
    places = _unpicture(reader, count, layout._replace(mixed=False)).reshape(len(tables), -1)
    reader.end()
    found = np.empty(places.shape, dtype)
    for values, place, out in zip(tables, places, found, strict=True):
        np.take(values, place, out=out)     # raises IndexError for a place outside
    return _joined(found.reshape(layout.planes, -1, layout.width), layout)


# -- sparse and planes -----------------------------------------------------------------------------

def _encode_sparse(elements: NDArray[Any], layout: Layout) -> list[bytes] | None:
    there = elements != 0
    number = int(np.count_nonzero(there))
    if number > 0.9 * elements.size:
        return None
    return [_PART.pack(0, number), np.packbits(there).tobytes(),
            *_encode_planes(elements[there], layout)]


def _decode_sparse(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[Any]:
    _, number = reader.number(_PART)
    bits = np.frombuffer(reader.take(-(-count // 8)), np.uint8)
    there = np.unpackbits(bits, count=count).view(bool)
    if number != np.count_nonzero(there):
        raise CodecError(f'{number} elements must be there, {np.count_nonzero(there)} bits are set')
    found = np.zeros(count, UNSIGNED[item])
    found[there] = _decode_planes(reader, item, number, layout)
    return found


def _encode_planes(elements: NDArray[Any], layout: Layout) -> list[bytes]:
    by = elements.view(np.uint8).reshape(-1, elements.itemsize)
    return [part for k in range(elements.itemsize)
            for part in _packed(np.ascontiguousarray(by[:, k]))]


def _decode_planes(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[Any]:
    parts = [_unpacked(reader, count) for _ in range(item)]
    reader.end()
    return np.stack(parts, axis=1).reshape(-1).view(UNSIGNED[item])


# -- file ------------------------------------------------------------------------------------------

def _of_file(file: File, count: int, mixed: bool, pixels: Buffer | None) -> bytes | None:
    """Return what stands for a picture of ``count`` bytes; None if it would not be shorter.

    ``pixels``: proved by a checksum; None: not proved.
    """
    checksum = b'' if pixels is None else _COUNT.pack(zlib.crc32(pixels))
    facts = _HEADER.pack(ALIKE if pixels is None else FILE, 1, mixed, file.channels,
                         file.channels, file.columns, count)
    whole = b''.join([facts, checksum, file.body])
    return whole if len(whole) < count else None


def _decode_file(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[np.uint8]:
    checksum, = reader.number(_COUNT)
    try:
        pixels = _decode_alike(reader, item, count, layout)
    except PictureError as error:   # with the robot's library and settings it can
        raise OtherPixels(f'a file that the robot decodes must be decoded here, too; until then it '
                          f'sends pixels: {error}') from None
    if zlib.crc32(pixels.data) != checksum:
        raise OtherPixels('the pixels differ from those of the robot, as with another version of '
                          'Pillow: pip install the same on both; until then it sends pixels')
    return pixels


def _decode_alike(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[np.uint8]:
    shape = layout.colours, count // (layout.planes * layout.width), layout.width
    if item != 1 or layout.planes != layout.colours:
        raise CodecError(f'a file must be of one picture of bytes, got {layout} of {item} bytes')
    from .pictures import pixels_of  # here, as most of those that send tensors send no pictures
    pixels = pixels_of(reader.rest(), shape)
    return np.ascontiguousarray(
        pixels.transpose(1, 2, 0) if layout.mixed else pixels).reshape(-1)


# -- change ----------------------------------------------------------------------------------------

def _changed(number: int, elements: NDArray[np.uint8], layout: Layout, change: Buffer
             ) -> bytes | None:
    """Return what stands for elements, from how they ``change`` since picture ``number``."""
    whole = b''.join([_header(CHANGE, elements, layout),
                      _CHANGE.pack(number, zlib.crc32(elements.data)), change])
    return whole if len(whole) < elements.nbytes else None


def _decode_change(reader: _Reader, item: int, count: int, base: Base) -> NDArray[np.uint8]:
    number, checksum = reader.number(_CHANGE)
    former, data = base(number), reader.rest()
    if item != 1 or former is None or former.size != count:
        raise CodecError(f'a change must be of {count} bytes that are here; those of request '
                         f'{number} are not')
    found = former + (np.frombuffer(data, np.uint8) if len(data) == count else decode(data, count))
    if zlib.crc32(found.data) != checksum:
        raise CodecError('a change must be of the picture that is here')
    return found


class Frames:
    """The pictures of the last `KEPT` requests that have come, for changes."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[Hashable, NDArray[np.uint8]]] = {}

    def keep(self, number: int, key: Hashable, picture: Buffer) -> None:
        """Keep a copy of the bytes of a picture of request ``number``."""
        if number not in self._kept:
            self._kept = dict([*self._kept.items()][1 - KEPT:]) | {number: {}}
        self._kept[number][key] = np.frombuffer(picture, np.uint8).copy()

    def base(self, key: Hashable, number: int) -> NDArray[np.uint8] | None:
        """Return the bytes of a picture; None: they are not here."""
        return self._kept.get(number, {}).get(key)


# -- rounded ---------------------------------------------------------------------------------------

def _rounded(elements: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the bfloat16 that are nearest to float32, both as integers; of two, the even one.

    A finite number stays finite: models mark what they ignore by the lowest float32.
    """
    up = elements + (np.uint32(0x7FFF) + ((elements >> np.uint32(16)) & np.uint32(1)))
    largest = np.flatnonzero((elements & np.uint32(0x7FFFFFFF)) >= np.uint32(0x7F7F0000))
    if largest.size:    # not rounded up; NaN stays NaN, whatever its payload is
        those = elements[largest]
        nan = (those & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        up[largest] = np.where(nan, those | np.uint32(0x400000), those)
    return (up >> np.uint32(16)).astype(np.uint16)


def _decode_rounded(reader: _Reader, item: int, count: int, layout: Layout) -> NDArray[Any]:
    data = reader.rest()
    if item != 4:
        raise CodecError(f'rounded elements must have 4 bytes, got {item}')
    half = np.frombuffer(data, np.uint8) if len(data) == 2 * count else decode(data, 2 * count)
    return half.view(np.uint16).astype(np.uint32) << np.uint32(16)


_ENCODE: dict[int, Any] = {TABLE: _encode_table, PICTURE: _encode_picture, SPARSE: _encode_sparse,
                           PLANES: _encode_planes}
_DECODE: dict[int, Any] = {TABLE: _decode_table, PICTURE: _decode_picture, SPARSE: _decode_sparse,
                           PLANES: _decode_planes, FILE: _decode_file, ROUNDED: _decode_rounded,
                           ALIKE: _decode_alike}


# -- the choice ------------------------------------------------------------------------------------

_called: set[int] = set()     # the codecs that this process has used


class Inlet:
    """Chooses the codec of one tensor that crosses a link again and again.

    Codecs are compared on a part of the elements: by the seconds that encoding, the bytes on the
    link, and decoding take, as measured for this tensor. If the whole then differs from its part,
    it counts as long as the part stays alike. Comparing takes at most `TAX` of the time that the
    tensor takes on the link.

    ``ratio``: bytes sent for each byte of elements, of the last transfer. ``expected``: the same
    that is expected of the next one. ``codec``: the codec that is used; 0: none.
    """

    def __init__(self) -> None:
        self.ratio = 1.0
        self.codec, self.expected = 0, 1.0
        # whether codecs have been compared, and with the elements that are encoded next
        self._compared = self._fresh = False
        self._left, self._rate = 0, 1.0     # transfers until the next comparison, rate at the last
        # seconds of comparisons, and of encoding in vain, that transfers have not made up for yet
        self._owed = 0.0
        self._seconds: dict[int, float] = {}    # that a codec takes for each byte of elements
        # bytes for each byte by codec, infinite if it cannot: as expected, of the part, and of a
        # part and the whole that it belonged to
        self._ratios: dict[int, float] = {}
        self._parts: dict[int, float] = {}
        self._whole: dict[int, tuple[float, float]] = {}

    def expects(self, elements: NDArray[Any], layout: Layout, rate: float) -> float:
        """Return the seconds for each byte of elements until it is decoded, as expected.

        Codecs are compared now if the last comparison is old.
        """
        due = self.is_due(elements.nbytes, rate)
        self._owed = max(0.0, self._owed - TAX * elements.nbytes / rate)
        self._fresh = False
        if due:
            self.compare(elements, layout, rate)
        self._left -= 1
        return self._choose(rate)

    def is_due(self, nbytes: int, rate: float) -> bool:
        """Return whether codecs are compared at the next transfer, which has ``nbytes`` bytes."""
        old = self._left <= 0 or rate > 2 * self._rate or rate < self._rate / 2
        return not self._compared or (old and self._owed <= TAX * nbytes / rate)

    def without(self, nbytes: int, rate: float) -> float:
        """Return what `expects` returns, for a transfer that may need no codec."""
        self._owed = max(0.0, self._owed - TAX * nbytes / rate)
        self._left -= 1
        return self._choose(rate)

    def encoded(self, elements: NDArray[Any], layout: Layout, rate: float) -> Buffer:
        """Return the elements, (n,) unsigned integers, as they are sent at ``rate`` bytes/s.

        By the codec of the last `expects`.
        """
        codec, raw = self.codec, _raw(elements)
        self.ratio = 1.0
        if not codec:
            return raw
        began = time.thread_time()
        data = encode(codec, elements, layout)
        took = (time.thread_time() - began) / elements.nbytes
        # a machine that was busy for a moment counts little; it was busy for all codecs
        times = 0.75 + 0.25 * min(2.0, took / max(self._seconds[codec], 1e-15))
        self._seconds = {other: times * seconds for other, seconds in self._seconds.items()}
        ratio = math.inf if data is None else len(data) / elements.nbytes
        if self._fresh:     # of what has been compared: what the parts said did not hold
            self._whole[codec] = self._parts[codec], ratio
        elif not 0.7 * self.expected < ratio < 1.4 * self.expected:
            self._left = 0      # the tensor is not what it was
        if self._fresh or data is not None:
            self._ratios[codec] = ratio
        self._fresh = False
        if data is None:
            self._owed += took * elements.nbytes
            return raw
        self.ratio = ratio
        self._owed += max(0.0, self._lasts(codec, rate) - 1 / rate) * elements.nbytes
        return data

    def _lasts(self, codec: int, rate: float) -> float:
        """Return the seconds for each byte of elements until it is decoded."""
        return self._seconds[codec] * (1 + DECODING[codec]) + self._ratios[codec] / rate

    def compare(self, elements: NDArray[Any], layout: Layout, rate: float) -> bool:
        """Compare the codecs on a part of the elements, for a link of ``rate`` bytes/s.

        Return whether what is chosen is also what sends the fewest bytes.
        """
        part, own = _sample(elements, layout)
        self._compared = self._fresh = True
        self._left, self._rate, ratios = AGAIN, rate, {}
        for codec in NAMES:
            if codec not in _called:    # the first call of a process takes many times as long
                _called.add(codec)
                encode(codec, part, own)
            began = time.thread_time()
            data = encode(codec, part, own)
            took = (time.thread_time() - began) / part.nbytes
            # neither takes less than it must: the machine may have been busy, the part is small
            took = min(took, self._seconds.get(codec, took))
            self._owed += took * part.nbytes
            if data is not None:
                self._seconds[codec] = took
                self._parts[codec] = of_part = len(data) / part.nbytes
                before, whole = self._whole.get(codec, (0.0, 0.0))
                ratios[codec] = whole if 0.7 * before < of_part < 1.4 * before else of_part
        self._ratios = ratios
        self._choose(rate)
        return self.expected <= min(ratios.values(), default=1.0)

    def _choose(self, rate: float) -> float:
        """Choose by what was measured; return what `expects` returns."""
        self.codec, self.expected, best = 0, 1.0, WORTH / rate
        for codec, ratio in self._ratios.items():
            seconds = self._lasts(codec, rate)
            if seconds < best:
                self.codec, self.expected, best = codec, ratio, seconds
        return best if self.codec else 1 / rate


class Inlets:
    """The inlets of all tensors that cross one link in one direction, by any key.

    :param rate: returns the rate of the link in bytes/s.
    :param rounded: whether float32 may be rounded, see `ROUNDED`.
    :param changes: whether the other side keeps `Frames`, and `note` is called.

    ``files``: whether the other side decodes files to the same pixels.
    """

    def __init__(self, rate: Callable[[], float], rounded: bool = False, changes: bool = False
                 ) -> None:
        self._rate, self._rounded, self._changes = rate, rounded, changes
        self.files = True
        # what decoding takes, in seconds, by the kinds of files that the other side decodes alike;
        # by those of this request, which the answer proves; and kinds that this request trusts in
        self._alike: dict[Hashable, float] = {}
        self._proofs: dict[Hashable, float] = {}
        self._trusted: set[Hashable] = set()
        self._inlets: OrderedDict[Hashable, Inlet] = OrderedDict()
        # by key, pictures of this request, and of the one before, `_number`, if it was answered
        self._sent: dict[Hashable, NDArray[np.uint8]] = {}
        self._bases: dict[Hashable, NDArray[np.uint8]] = {}
        self._number = 0

    def note(self, answered: int) -> None:
        """Note the end of a request; ``answered``: its number, or 0 if it has no answer.

        With an answer, its pictures are at the other side, and the next ones may be changes.
        """
        self._number, self._bases, self._sent = answered, self._sent if answered else {}, {}
        if answered:
            self._alike |= self._proofs
        for kind in [*self._alike][:-MOST] if answered else self._trusted & self._alike.keys():
            del self._alike[kind]   # without an answer, the next one of the kind is proved again
        self._proofs, self._trusted = {}, set()

    def restart(self) -> None:
        """Forget what the other side has and can do: it is another one."""
        self.files, self._alike = True, {}
        self.note(0)

    def file(self, key: Hashable, file: File, count: int, mixed: bool) -> Buffer | None:
        """Return what is sent for a picture of ``count`` bytes that need not be decoded here.

        None: decode it, and call `encoded`; so it is each time that codecs are to be compared,
        which also proves again that both sides decode alike.
        """
        seconds, rate, inlet = self._alike.get(file.kind), self._rate(), self._inlet(key)
        if seconds is None or not self.files or not 0 < rate < FASTEST \
                or inlet.is_due(count, rate) or count < max(LEAST, SHORTEST * rate):
            return None
        data = _of_file(file, count, mixed, None)
        if data is None or seconds + len(data) / rate >= count * inlet.without(count, rate):
            return None
        self._trusted.add(file.kind)
        return data

    def encoded(self, key: Hashable, elements: NDArray[Any], layout: Layout,
                file: File | None = None, floats: bool = False) -> Buffer:
        """Return the (n,) elements of one tensor, unsigned integers, as they are sent.

        ``floats``: whether they are float32. ``file``: of the picture that they are; None: of none.
        """
        if floats and self._rounded and elements.nbytes >= LEAST:
            return _header(ROUNDED, elements, layout) + self.encoded(
                key, _rounded(elements), layout)
        rate = self._rate()
        if not 0 < rate < FASTEST or elements.nbytes < max(LEAST, SHORTEST * rate):
            return _raw(elements)
        if elements.itemsize == 1 and self._changes:
            self._sent[key] = elements.copy()   # their memory may be the camera's
        inlet = self._inlet(key)
        seconds = inlet.expects(elements, layout, rate)
        if file is not None and self.files \
                and (data := _of_file(file, elements.size, layout.mixed, elements.data)) \
                and file.seconds + len(data) / rate < seconds * elements.nbytes:
            self._proofs[file.kind] = file.seconds
            return data
        base = self._bases.get(key)
        if base is not None and base.size == elements.size:
            change, other = elements - base, self._inlet((CHANGE, key))
            if other.expects(change, layout, rate) < seconds:
                data = _changed(self._number, elements, layout,
                                other.encoded(change, layout, rate))
                if data is not None and len(data) / rate < seconds * elements.nbytes:
                    return data     # else more has changed than was expected
        return inlet.encoded(elements, layout, rate)

    def _inlet(self, key: Hashable) -> Inlet:
        inlet = self._inlets.setdefault(key, Inlet())
        self._inlets.move_to_end(key)
        if len(self._inlets) > MOST:
            self._inlets.popitem(last=False)
        return inlet


def _raw(elements: NDArray[Any]) -> memoryview:
    return elements.view(np.uint8).reshape(-1).data


def _sample(elements: NDArray[Any], layout: Layout) -> tuple[NDArray[Any], Layout]:
    """Return about `SAMPLED` of the elements, from all over the tensor, and their layout."""
    wanted = max(SAMPLED, SAMPLE / elements.nbytes)
    if wanted >= 1 or not _fits(elements, layout):
        return elements, layout
    rows = elements.reshape(-1, layout.width * layout.colours) if layout.mixed else \
        elements.reshape(layout.planes, -1, layout.width)
    if rows.ndim == 3 and rows.shape[1] < 8:    # many planes of few rows
        pictures = rows[:len(rows) // layout.colours * layout.colours].reshape(
            -1, layout.colours, *rows.shape[1:])
        part = pictures[_spread(len(pictures), wanted)]
        return part.reshape(-1), layout._replace(planes=part.shape[0] * layout.colours)
    return rows[..., _spread(rows.shape[-2], wanted), :].reshape(-1), layout


def _spread(count: int, share: float) -> NDArray[np.intp]:
    """Return ``share`` of the numbers below ``count``, in order, as some ranges of equal distance.

    The middle of a picture, say, often differs from its edges.
    """
    number = min(count, math.ceil(count * share))
    found = [np.arange(number * k // RANGES, number * (k + 1) // RANGES)
             + (count - number) * (2 * k + 1) // (2 * RANGES) for k in range(RANGES)]
    return np.concatenate(found)


def shortened(data: Buffer) -> Buffer:
    """Return bytes, such as those of weights, in fewer ones if they look like float32."""
    found = None if len(data) % 4 else encode(PLANES, elements_of(data, 4), Layout(
        1, 1, max(1, len(data) // 4), False))
    return data if found is None else found


def lengthened(data: Buffer, nbytes: int) -> Buffer:
    """Return the ``nbytes`` bytes of which `shortened` has made these.

    :raises CodecError: see `decode`.
    """
    if len(data) == nbytes:
        return data
    if bytes(data[:1]) != bytes([PLANES]):   # a file, say, could take long
        raise CodecError(f'weights must be encoded as {NAMES[PLANES]}')
    return decode(data, nbytes).data


def share(elements: NDArray[Any], layout: Layout, rate: float, file: File | None = None) -> float:
    """Return the bytes that would be sent for each byte of these elements, by a part of them."""
    inlet = Inlet()
    if elements.nbytes >= LEAST and not inlet.compare(elements, layout, rate):
        inlet.compare(elements, layout, rate)   # the machine may have been busy for a moment
    shares = [inlet.expected]
    if file is not None and (data := _of_file(file, elements.size, layout.mixed, elements.data)):
        shares.append(len(data) / elements.nbytes)
    return min(shares)
