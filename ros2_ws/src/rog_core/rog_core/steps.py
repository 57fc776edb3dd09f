"""The steps that methods of other packages need; see `rog_core.protocol.steps`."""

from .protocol.steps import Full, Gradient, Local, Phase, Shards, Step

__all__ = ['Full', 'Gradient', 'Local', 'Phase', 'Shards', 'Step']
