"""What a method of another package imports of the messages; see `rog_core.protocol.messages`."""

from .protocol.messages import Sending

__all__ = ['Sending']
