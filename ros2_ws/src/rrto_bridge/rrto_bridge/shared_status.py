"""A page of memory that a program's process on the server shares with the supervisor.

The process notes what it does; the supervisor reads it, also when the process is dead. It may be
read while it is written: only numbers of one machine word and texts for people are in it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SIZE = 4096
_NAME = slice(64, 192)
_REASON = slice(192, 2048)
_BEGUN, _BUSY, _USED, _MESSAGES, _SPENT = range(5)   # words


class SharedStatus:
    """Opened by both sides; `make` creates it."""

    def __init__(self, path: Path) -> None:
        with path.open('r+b') as file:
            self._page = mmap.mmap(file.fileno(), SIZE)
        self._words = memoryview(self._page).cast('q')
        self._names: dict[str, bytes] = {}

    @classmethod
    def make(cls, path: Path) -> SharedStatus:
        """A new page, filled with zeros."""
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), 'wb', 0) as file:
            try:
                file.write(bytes(SIZE))
            except OSError as error:   # which names no file
                path.unlink()
                raise OSError(error.errno, error.strerror, str(path)) from None
        return cls(path)

    # -- of the process --------------------------------------------------------------------------

    def note(self, name: str) -> None:
        """An operator of this name begins."""
        padded = self._names.get(name)
        if padded is None:
            padded = self._names[name] = _padded(name, _NAME)
        self._page[_NAME] = padded
        self._words[_BEGUN] += 1

    def begin(self) -> None:
        """A message is taken up."""
        self.note('a message')
        self._words[_BUSY] = 1

    def end(self, used: int, seconds: float) -> None:
        """It is done, after so many seconds; the tensors have so many bytes."""
        words = self._words
        words[_BUSY] = 0
        words[_USED] = used
        words[_MESSAGES] += 1
        words[_SPENT] += int(seconds * 1e6)

    def leave(self, reason: str) -> None:
        """The process ends in order, for this reason."""
        self._page[_REASON] = _padded(reason, _REASON)

    # -- of the supervisor -----------------------------------------------------------------------

    @property
    def begun(self) -> int:
        """Operators and messages that have begun."""
        return self._words[_BEGUN]

    @property
    def busy(self) -> bool:
        """Whether a message is being executed."""
        return bool(self._words[_BUSY])

    @property
    def used(self) -> int:
        """Bytes of the program's tensors after its last message."""
        return self._words[_USED]

    @property
    def messages(self) -> int:
        """Messages that were executed."""
        return self._words[_MESSAGES]

    @property
    def spent(self) -> float:
        """Seconds of executing since the start."""
        return self._words[_SPENT] / 1e6

    @property
    def name(self) -> str:
        """What began last."""
        return _text(self._page[_NAME])

    @property
    def reason(self) -> str:
        """Why the process has ended; '' if it did not say."""
        return _text(self._page[_REASON])


def _padded(text: str, place: slice) -> bytes:
    size = place.stop - place.start
    return text.encode(errors='replace')[:size].ljust(size, b'\0')


def _text(data: bytes) -> str:
    return data.rstrip(b'\0').decode(errors='replace')
