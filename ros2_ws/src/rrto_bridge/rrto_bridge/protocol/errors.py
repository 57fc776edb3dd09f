"""The package's errors, and the form in which a message carries an error: a name and a text."""

from __future__ import annotations

from typing import NoReturn

MAX_TEXT = 2000   # maximum number of characters of an error's text in a message


class RrtoError(RuntimeError):
    """Base class of this package's errors. It is a RuntimeError, like CUDA's errors."""


class ConfigError(RrtoError):
    """The user's request is impossible; the message says what to change."""


class LinkError(RrtoError):
    """The server, or the link to it, is lost."""


class RemoteError(RrtoError):
    """The peer has sent invalid data."""


class Missing(RemoteError):
    """The tensor does not exist.

    The call that should have created it has possibly failed.
    """


class Failed(Missing):
    """The tensor does not exist, because the call that creates it has failed.

    `kind`: name of the error of that call.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Refused(RrtoError):
    """The server does not execute this operator; the message begins with the operator's name."""


class UnknownOperator(Refused):
    """The server's PyTorch does not have this operator in the form that the program's has."""


class Unsendable(TypeError):
    """The argument cannot be sent in a message; the operator can still run on this machine."""


class OutOfMemory(RrtoError):
    """The server has no memory left for this client."""


_KINDS: tuple[type[Exception], ...] = (
    UnknownOperator, Refused, OutOfMemory, RemoteError, RuntimeError, IndexError, ValueError,
    TypeError, NotImplementedError)
# Maps the name of an error in a message to its class. PyTorch's own error for a lack of memory is
# called OutOfMemoryError.
_NAMED = {kind.__name__: kind for kind in _KINDS} | {'OutOfMemoryError': OutOfMemory}


def described(error: Exception) -> tuple[str, str]:
    """Return the name and the text of an error, to send them to the peer."""
    if isinstance(error, Failed):
        return error.kind, error.text
    if isinstance(error, MemoryError) or 'DefaultCPUAllocator: ' in str(error):
        return 'OutOfMemory', f'the server has no memory left for this program: {error}'[:MAX_TEXT]
    for kind in type(error).__mro__:
        if kind.__name__ in _NAMED:
            return kind.__name__, str(error)[:MAX_TEXT]
    return 'RuntimeError', f'{type(error).__name__}: {error}'[:MAX_TEXT]


def raise_named(name: str, text: str) -> NoReturn:
    """Raise the error with the name and text that `described` returned."""
    raise _NAMED.get(name, RrtoError)(text)
