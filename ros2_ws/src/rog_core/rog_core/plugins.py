"""Finds methods and codecs of other packages, which register them as entry points.

The name of an entry point of the group ``rog.methods`` or ``rog.codecs`` is the name that users
write. Its value, ``package.module:Class``, names a subclass of `Method` or `Codec`. The package
`rog_methods_local` is an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points


@cache
def methods() -> Mapping[str, EntryPoint]:
    """Return a map from the name of each registered method to its entry point; import nothing."""
    return {found.name: found for found in entry_points(group='rog.methods')}


@cache
def codecs() -> Mapping[str, EntryPoint]:
    """Return a map from the name of each registered codec to its entry point; import nothing."""
    return {found.name: found for found in entry_points(group='rog.codecs')}
