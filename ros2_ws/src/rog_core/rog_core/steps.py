"""Exports the steps for synchronisation methods of other packages.

See `rog_core.protocol.steps`.
"""

from .protocol.steps import Full, Gradient, Local, Phase, Shards, Step

__all__ = ['Full', 'Gradient', 'Local', 'Phase', 'Shards', 'Step']
