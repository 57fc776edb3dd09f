"""Methods and codecs of other packages, which packages register as entry points when installed.

An entry point of the group ``rog.methods`` or ``rog.codecs`` has the name that users write, and
names a subclass of `Method` or `Codec`, ``package.module:Class``. The package `rog_methods_local`
is an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def methods() -> Mapping[str, EntryPoint]:
    """Return name -> entry point of each registered method; this imports none of them."""
    return {found.name: found for found in entry_points(group='rog.methods')}


@cache
def codecs() -> Mapping[str, EntryPoint]:
    """Return name -> entry point of each registered codec; this imports none of them."""
    return {found.name: found for found in entry_points(group='rog.codecs')}
