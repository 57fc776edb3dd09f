"""Codecs: encodings of the values of a set of segments; see `rog_core.codecs.base`.

This is the only place that lists the codecs of this package. Other packages register their codecs,
see `rog_core.plugins`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import EntryPoint

from .. import plugins
from ..cuda import at_once
from ..errors import ConfigError, RemoteProtocolError
from .base import Codec, Part, in_model_order
from .codec_check import try_codec
from .ids import decode_ids, encode_ids, split_into_chunks
from .kernels import LENGTH, OWN, SCALE
from .onebit import OneBit
from .raw import Raw
from .sparse import SparseTernary
from .ternary import Ternary

__all__ = ['CODECS', 'LENGTH', 'OWN', 'RAW', 'SCALE', 'SMALLER', 'Codec', 'Part', 'at_once',
           'codec_names', 'codec_on_wire', 'decode_ids', 'encode_ids', 'get_codec',
           'in_model_order', 'split_into_chunks']

RAW = Raw()
CODECS: dict[str, Codec] = {codec.name: codec for codec in (RAW, OneBit(), Ternary())}
SMALLER = CODECS['ternary']  # codec for a link that is too slow for the fleet's codec
# maps a codec's name to the function that makes the codec from the text after the colon
_WITH_ARGUMENT = {'ternary': SparseTernary.of}
_CLASS = re.compile(r'[A-Za-z_][\w.]*:[A-Za-z_]\w*')  # matches package.module:Class
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def codec_names() -> tuple[str, ...]:
    """Return one valid name for each codec; tests and the warm-up use these names."""
    return (*CODECS, 'ternary:0.05', *plugins.codecs())


def get_codec(name: str) -> Codec:
    """Return the codec with this name.

    :raises ConfigError: the name is unknown; the message lists all names.
    """
    family, colon, argument = name.partition(':')
    if name in CODECS:
        return CODECS[name]
    if colon and family in _WITH_ARGUMENT:
        return _WITH_ARGUMENT[family](argument)
    others = plugins.codecs()
    if name in others or _CLASS.fullmatch(name):
        return _plugged(name)
    raise ConfigError(f"codec '{name}' is unknown; choose one of "
                      f"{', '.join(sorted({*CODECS, *others}))}, ternary:P with a sparsity P, as "
                      'in ternary:0.05, or a class, package.module:Class')


@cache
def _plugged(name: str) -> Codec:
    """Import a codec of another package, create it, and test it with random values."""
    found = plugins.codecs().get(name, EntryPoint(name, name, 'rog.codecs'))
    try:
        codec: Codec = found.load()()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"codec '{name}' cannot be loaded: {type(error).__name__}: {error}; is "
                          'its module beside the fleet file or installed, on the server and on '
                          'every robot?') from error
    if not isinstance(codec, Codec) or codec.number in (*_BY_NUMBER, SparseTernary.number):
        raise ConfigError(f"codec '{name}' must be a subclass of rog_core.codecs.Codec with a "
                          f"number that is free, got {codec!r} with "
                          f"{getattr(codec, 'number', None)}")
    codec.name = name
    try_codec(codec)
    return codec


def codec_on_wire(number: int, own: Codec) -> Codec:
    """Return the codec for a number in a message; raise `RemoteProtocolError` if there is none.

    ``own``: the receiver's codec, which is returned if it has this number. The number alone is
    not enough: codecs of other packages may have equal numbers, and `SparseTernary` has one number
    for all sparsities.
    """
    if number == own.number:
        return own
    if number not in _BY_NUMBER:
        raise RemoteProtocolError(f'chunk has codec {number}, which is unknown or not the one of '
                                  f"this fleet, '{own.name}'")
    return _BY_NUMBER[number]
