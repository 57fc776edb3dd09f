"""Codecs: encodings of the values of a set of segments; see `rog_core.codecs.base`.

This is the only place that lists the codecs of this package. Other packages register theirs, see
`rog_core.plugins`.
"""

from __future__ import annotations

from functools import cache

from .. import plugins
from ..cuda import at_once
from ..errors import ConfigError, RemoteProtocolError
from .base import Codec, Part, in_model_order
from .ids import decode_ids, encode_ids, split_into_chunks
from .onebit import OneBit
from .raw import Raw
from .sparse import SparseTernary
from .ternary import Ternary

__all__ = ['CODECS', 'RAW', 'SMALLER', 'Codec', 'Part', 'at_once', 'codec_names', 'codec_on_wire',
           'decode_ids', 'encode_ids', 'get_codec', 'in_model_order', 'split_into_chunks']

RAW = Raw()
CODECS: dict[str, Codec] = {codec.name: codec for codec in (RAW, OneBit(), Ternary())}
SMALLER = CODECS['ternary']  # replaces the fleet's codec on a link that is too slow for it
_WITH_ARGUMENT = {'ternary': SparseTernary.of}  # the function takes the text after the colon
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def codec_names() -> tuple[str, ...]:
    """Return one name of each codec, for tests and warm-up."""
    return (*CODECS, 'ternary:0.05', *plugins.codecs())


def get_codec(name: str) -> Codec:
    """Return the codec with this name; if there is none, raise `ConfigError` with all names."""
    family, colon, argument = name.partition(':')
    if name in CODECS:
        return CODECS[name]
    if colon and family in _WITH_ARGUMENT:
        return _WITH_ARGUMENT[family](argument)
    others = plugins.codecs()
    if name in others:
        return _plugged(name)
    raise ConfigError(f"codec '{name}' is unknown; choose one of "
                      f"{', '.join(sorted({*CODECS, *others}))} "
                      'or ternary:P with a sparsity P, as in ternary:0.05')


@cache
def _plugged(name: str) -> Codec:
    """Import and build a codec of another package."""
    codec: Codec = plugins.codecs()[name].load()()
    if codec.name != name or codec.number in (*_BY_NUMBER, SparseTernary.number):
        raise ConfigError(f"codec '{name}' of {type(codec).__module__} must have this name and a "
                          f"number of its own, got '{codec.name}' and {codec.number}")
    return codec


def codec_on_wire(number: int, own: Codec) -> Codec:
    """Return the codec with this number; raise `RemoteProtocolError` if there is none.

    ``own``: the codec of the receiver. It is needed because it may be from another package, or have
    a sparsity, which does not follow from the number.
    """
    if number == own.number:
        return own
    if number not in _BY_NUMBER:
        raise RemoteProtocolError(f'chunk has codec {number}, which is unknown or not the one of '
                                  f"this fleet, '{own.name}'")
    return _BY_NUMBER[number]
