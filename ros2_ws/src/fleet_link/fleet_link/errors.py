"""The errors of this package."""


class PeerError(ValueError):
    """The peer sent or acknowledged something that cannot be true; nothing has changed."""


class SealError(ValueError):
    """A message carries no seal that our key opens, so no part of it was used."""


class KeyFileError(ValueError):
    """A key cannot be read, written or used for this purpose; the message says what to do."""
