"""The error of this package."""


class PeerError(ValueError):
    """The peer acknowledged something that cannot be true; nothing has changed."""
