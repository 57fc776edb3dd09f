"""Errors of this package. The type says who is at fault; the text says where, and what to do."""

TEXT = 300  # longest text from a peer that is shown, in characters


def shown(text: object, most: int = TEXT) -> str:
    """Return a peer's text in a form that is safe for a log: printable, on one line, not long."""
    line = str(text)[:most + 1]
    line = ''.join(c if c.isprintable() else '?' for c in line)
    return line if len(line) <= most else line[:most - 3] + '...'


class RogError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(RogError, ValueError):
    """The user's choice of method, codec, threshold or partition cannot work."""


class LocalProtocolError(RogError):
    """The program called a machine in an order that the protocol does not allow."""


class RemoteProtocolError(RogError):
    """The peer sent something that the protocol does not allow; nothing of it was applied.

    The text may hold what the peer has sent; `shown` makes it safe for a log.
    """

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


class StaleMessageError(RemoteProtocolError):
    """A message of another robot, or a message sent before the peer restarted; it is dropped."""


class PartitionMismatchError(RemoteProtocolError):
    """Worker and server do not train the same model; the text names the first difference."""


class GradientError(RogError):
    """The task produced a gradient that is unfit for training; nothing of it was applied."""
