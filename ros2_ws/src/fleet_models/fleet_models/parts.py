"""A version's file as parts: its header and its tensors, each known by its SHA-256.

The file is of safetensors: 8 bytes with the length of the header, the header in JSON, then the
tensors. A reader that has some of the tensors needs only the others to make the same file again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .errors import FollowError

DIGEST = 32                # bytes of a SHA-256
MOST_HEADER = 16 << 20     # maximum bytes of a header; some 100,000 tensors
_LENGTH = struct.Struct('<Q')


class Index(NamedTuple):
    """What a file consists of.

    ``header``: the first bytes of the file, with their length. ``sizes``, ``digests``: bytes and
    SHA-256 of each tensor, in the order of the file.
    """

    header: bytes
    sizes: tuple[int, ...]
    digests: tuple[bytes, ...]

    def encoded(self) -> bytes:
        """Return the index as bytes."""
        return self.header + b''.join(self.digests)


def split(content: memoryview) -> tuple[Index, list[memoryview]]:
    """Return the index of a file and its tensors.

    :raises FollowError: it is not a safetensors file.
    """
    header, sizes = _header(content)
    tensors, at = [], len(header)
    for size in sizes:
        tensors.append(content[at:at + size])
        at += size
    if at != len(content):
        raise FollowError(f'the file has {len(content)} bytes, its header says {at}')
    return Index(header, sizes, tuple(hashlib.sha256(t).digest() for t in tensors)), tensors


def read_index(data: bytes) -> Index:
    """Return the index that `Index.encoded` has made.

    :raises FollowError: it is not one.
    """
    header, sizes = _header(memoryview(data))
    rest = data[len(header):]
    if len(rest) != DIGEST * len(sizes):
        raise FollowError(f'an index of {len(sizes)} tensors must end with {DIGEST * len(sizes)} '
                          f'bytes of digests, got {len(rest)}')
    return Index(header, sizes, tuple(rest[k:k + DIGEST] for k in range(0, len(rest), DIGEST)))


def join(index: Index, tensors: Mapping[bytes, Any], digest: str) -> bytes:
    """Return the file with these tensors, which ``tensors`` maps from their digests.

    :param digest: SHA-256 of the file, hexadecimal.
    :raises FollowError: the file is another one.
    """
    content = b''.join([index.header, *(tensors[d] for d in index.digests)])
    if hashlib.sha256(content).hexdigest() != digest:
        raise FollowError('the parts of a version must make the file that was announced, but its '
                          'SHA-256 is another')
    return content


def _header(content: memoryview) -> tuple[bytes, tuple[int, ...]]:
    """Return the header of a file, with its length, and the bytes of each tensor."""
    if len(content) < _LENGTH.size:
        raise FollowError('a safetensors file must have a header')
    length, = _LENGTH.unpack_from(content)
    if length > min(MOST_HEADER, len(content) - _LENGTH.size):
        raise FollowError(f'the header of a file must have at most {MOST_HEADER} bytes and be '
                          f'whole, got {length} of {len(content)}')
    header = bytes(content[:_LENGTH.size + length])
    try:
        entries = json.loads(header[_LENGTH.size:])
        spans = sorted(_span(entry) for name, entry in entries.items() if name != '__metadata__')
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise FollowError(f'the header of a file is not that of safetensors: {error}') from None
    ends: Sequence[int] = [0, *(end for _, end in spans)]
    if any(begin != before or end < begin for before, (begin, end) in zip(ends, spans,
                                                                       strict=False)):
        raise FollowError('the tensors of a file must follow each other without gaps')
    return header, tuple(end - begin for begin, end in spans)


def _span(entry: Any) -> tuple[int, int]:
    begin, end = entry['data_offsets']
    if type(begin) is not int or type(end) is not int:
        raise ValueError('data_offsets must be integers')
    return begin, end
