"""Errors of this package. The type says whose fault it is, the text where and what to do."""


class RogError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(RogError, ValueError):
    """The user's choice of method, codec, threshold or partition cannot work."""


class LocalProtocolError(RogError):
    """The program called a machine in an order that the protocol does not allow."""


class RemoteProtocolError(RogError):
    """The peer sent something that the protocol does not allow; nothing of it was applied."""


class StaleMessageError(RemoteProtocolError):
    """A message from before a restart of the peer, or from another robot; it is dropped."""


class PartitionMismatchError(RemoteProtocolError):
    """Worker and server do not train the same model; the text names the first difference."""


class GradientError(RogError):
    """The task produced a gradient that cannot be trained on; nothing of it was applied."""
