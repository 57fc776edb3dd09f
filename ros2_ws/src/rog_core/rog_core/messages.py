"""The message types that methods of other packages need; see `rog_core.protocol.messages`."""

from .protocol.messages import Sending

__all__ = ['Sending']
