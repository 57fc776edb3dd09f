"""Errors of this package.

The type of an error says whether the user, the program or the peer caused it. The text of the
error says what is wrong and what to do.
"""

TEXT = 300  # maximum number of characters of a peer's text that an error shows


def shown(text: object, most: int = TEXT) -> str:
    """Make a peer's text safe for a log: printable, on one line, at most ``most`` characters."""
    line = str(text)[:most + 1]
    line = ''.join(c if c.isprintable() else '?' for c in line)
    return line if len(line) <= most else line[:most - 3] + '...'


class RogError(Exception):
    """Base of every error that this package raises on purpose."""


class ConfigError(RogError, ValueError):
    """The user has chosen a method, codec, threshold or partition that cannot work."""


class LocalProtocolError(RogError):
    """The program called a state machine in an order that the protocol does not allow."""


class RemoteProtocolError(RogError):
    """The peer sent a message that the protocol does not allow; no part of it was applied.

    The text of the error may contain text of the peer; `shown` makes this text safe for a log.
    """

    def __init__(self, text: str) -> None:
        super().__init__(shown(text))


class StaleMessageError(RemoteProtocolError):
    """A message comes from another robot, or from before a restart; the receiver drops it."""


class PartitionMismatchError(RemoteProtocolError):
    """Worker and server do not train the same model; the text names the first difference."""


class GradientError(RogError):
    """The task produced a gradient with NaN or infinite values; no part of it was applied."""
