"""Exports the message types for synchronisation methods of other packages.

See `rog_core.protocol.messages`.
"""

from .protocol.messages import Sending

__all__ = ['Sending']
