"""Codecs: encodings of the values of a set of segments; see `rog_core.codecs.base`.

This is the only place that lists all codecs.
"""

from __future__ import annotations

from ..errors import ConfigError, RemoteProtocolError
from .base import Codec, Part, in_model_order
from .cuda import at_once
from .e3m0 import E3M0
from .ids import decode_ids, encode_ids, split_into_chunks
from .onebit import OneBit
from .raw import Raw
from .sparse import SparseTernary
from .sparseloco import SparseLoCo
from .ternary import Ternary

__all__ = ['CODECS', 'EXAMPLES', 'RAW', 'SMALLER', 'Codec', 'Part', 'at_once', 'codec_on_wire',
           'decode_ids', 'encode_ids', 'get_codec', 'in_model_order', 'split_into_chunks']

RAW = Raw()
CODECS: dict[str, Codec] = {codec.name: codec for codec in (
    RAW, OneBit(), Ternary(), E3M0(), SparseLoCo())}
SMALLER = CODECS['ternary']  # replaces the fleet's codec on a link that is too slow for it
_WITH_ARGUMENT = {'ternary': SparseTernary.of}  # the function takes the text after the colon
EXAMPLES = (*CODECS, 'ternary:0.05')  # one name of each codec, for tests and warm-up
_BY_NUMBER = {codec.number: codec for codec in CODECS.values()}


def get_codec(name: str) -> Codec:
    """Return the codec with this name; if there is none, `ConfigError` lists the known names."""
    family, colon, argument = name.partition(':')
    if name in CODECS:
        return CODECS[name]
    if colon and family in _WITH_ARGUMENT:
        return _WITH_ARGUMENT[family](argument)
    raise ConfigError(f"codec '{name}' is unknown; choose one of {', '.join(sorted(CODECS))} "
                      'or ternary:P with a sparsity P, as in ternary:0.05')


def codec_on_wire(number: int, own: Codec) -> Codec:
    """Return the codec with this number; raise `RemoteProtocolError` if there is none.

    ``own``: the codec of the receiver; it has the sparsity of `SparseTernary`, which the number
    does not tell.
    """
    if number == own.number:
        return own
    if number not in _BY_NUMBER:
        raise RemoteProtocolError(f'chunk has codec {number}, which is unknown or not the one of '
                                  f"this fleet, '{own.name}'")
    return _BY_NUMBER[number]
