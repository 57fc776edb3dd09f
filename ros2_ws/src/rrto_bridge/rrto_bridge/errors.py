"""Errors, by whose fault they are, and how they travel."""

from __future__ import annotations

from typing import NoReturn

MAX_TEXT = 2000   # characters of an error that travel


class RrtoError(RuntimeError):
    """Base of what this package raises. A RuntimeError, as what CUDA raises."""


class ConfigError(RrtoError):
    """The user asked for something that cannot be; the message says what to change."""


class LinkError(RrtoError):
    """The server or the link to it is gone."""


class RemoteError(RrtoError):
    """The peer sent something that it must not send."""


class Missing(RemoteError):
    """There is no such tensor; the call that should have made it may have failed."""


class Failed(Missing):
    """There is no such tensor because its call failed: what went wrong there, as it travels."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind, self.text = kind, text


class Refused(RrtoError):
    """The server does not execute this operator; its name is the message's first word."""


class Unsendable(TypeError):
    """An argument that no message can hold; the operator can still run on this machine."""


class OutOfMemory(RrtoError):
    """The server has no memory left for this client."""


_KINDS: tuple[type[Exception], ...] = (Refused, OutOfMemory, RemoteError, RuntimeError, IndexError,
                                       ValueError, TypeError, NotImplementedError)
_NAMED = {kind.__name__: kind for kind in _KINDS} | {'OutOfMemoryError': OutOfMemory}  # CUDA's own


def described(error: Exception) -> tuple[str, str]:
    """Name and text of an error for the other side."""
    if isinstance(error, Failed):
        return error.kind, error.text
    if isinstance(error, MemoryError) or 'DefaultCPUAllocator: ' in str(error):
        return 'OutOfMemory', f'the server has no memory left for this program: {error}'[:MAX_TEXT]
    for kind in type(error).__mro__:
        if kind.__name__ in _NAMED:
            return kind.__name__, str(error)[:MAX_TEXT]
    return 'RuntimeError', f'{type(error).__name__}: {error}'[:MAX_TEXT]


def raise_named(name: str, text: str) -> NoReturn:
    """Raise what `described` named."""
    raise _NAMED.get(name, RrtoError)(text)
