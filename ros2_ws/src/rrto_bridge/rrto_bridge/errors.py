"""Errors, by whose fault they are."""


class RrtoError(RuntimeError):
    """Base of what this package raises. A RuntimeError, as what CUDA raises."""


class ConfigError(RrtoError):
    """The user asked for something that cannot be; the message says what to change."""


class LinkError(RrtoError):
    """The server or the link to it is gone."""


class RemoteError(RrtoError):
    """The peer sent something that it must not send."""


class Refused(RrtoError):
    """The server does not execute this operator; its name is the message's first word."""


class OutOfMemory(RrtoError):
    """The server has no memory left for this client."""
