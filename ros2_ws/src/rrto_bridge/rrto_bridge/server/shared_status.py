"""Memory in which a program's process on the server shares its status with the supervisor.

The supervisor can read the status even after the process has ended. The supervisor may also read
while the process writes. Therefore the status contains only two kinds of values: numbers of one
machine word, which are never half written, and texts that only people read.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

SIZE = 4096   # size of the page in bytes
_NAME = slice(64, 192)   # bytes of the page that hold the name of the last operator
_REASON = slice(192, 2048)
_BEGUN, _BUSY, _USED, _MESSAGES, _SPENT, _TOLD = range(6)   # indices of the numbers in `_words`


class SharedStatus:
    """Status of one process. The supervisor creates the file (`make`); the process opens it."""

    def __init__(self, path: Path) -> None:
        with path.open('r+b') as file:
            self._page = mmap.mmap(file.fileno(), SIZE)
        self._words = memoryview(self._page).cast('q')
        self._names: dict[str, bytes] = {}

    @classmethod
    def make(cls, path: Path) -> SharedStatus:
        """Create a status file filled with zeros; return the opened status."""
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), 'wb', 0) as file:
            try:
                file.write(bytes(SIZE))
            except OSError as error:   # the error does not name the file, so add the name
                path.unlink()
                raise OSError(error.errno, error.strerror, str(path)) from None
        return cls(path)

    # -- methods that the program's process calls ------------------------------------------------

    def note(self, name: str) -> None:
        """Record that the operator `name` begins."""
        padded = self._names.get(name)
        if padded is None:
            padded = self._names[name] = _padded(name, _NAME)
        self._page[_NAME] = padded
        self._words[_BEGUN] += 1

    def begin(self) -> None:
        """Record that the execution of a message begins."""
        self.note('a message')
        self._words[_BUSY] = 1

    def end(self, used: int, seconds: float) -> None:
        """Record that the execution of a message has ended.

        `used`: number of bytes of the program's tensors. `seconds`: duration of the execution.
        """
        words = self._words
        words[_BUSY] = 0
        words[_USED] = used
        words[_MESSAGES] += 1
        words[_SPENT] += int(seconds * 1e6)

    def leave(self, reason: str, told: bool) -> None:
        """Record why the process ends, and whether it has told the program this reason."""
        self._page[_REASON] = _padded(reason, _REASON)
        self._words[_TOLD] = told

    # -- methods that the supervisor calls -------------------------------------------------------

    @property
    def begun(self) -> int:
        """Number of operators and messages that have begun."""
        return self._words[_BEGUN]

    @property
    def busy(self) -> bool:
        """Whether the process is executing a message."""
        return bool(self._words[_BUSY])

    @property
    def used(self) -> int:
        """Number of bytes of the program's tensors after its last message."""
        return self._words[_USED]

    @property
    def messages(self) -> int:
        """Number of executed messages."""
        return self._words[_MESSAGES]

    @property
    def spent(self) -> float:
        """Seconds spent on the execution of messages so far."""
        return self._words[_SPENT] / 1e6

    @property
    def name(self) -> str:
        """Name of the operator that began last; 'a message' if a message began after it."""
        return _text(self._page[_NAME])

    @property
    def reason(self) -> str:
        """Reason why the process has ended; '' if it is unknown."""
        return _text(self._page[_REASON])

    @property
    def told(self) -> bool:
        """Whether the process has told the program the reason."""
        return bool(self._words[_TOLD])


def _padded(text: str, place: slice) -> bytes:
    size = place.stop - place.start
    return text.encode(errors='replace')[:size].ljust(size, b'\0')


def _text(data: bytes) -> str:
    return data.rstrip(b'\0').decode(errors='replace')
