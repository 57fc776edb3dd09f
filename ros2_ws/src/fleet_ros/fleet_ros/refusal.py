"""Refusals in a user's own program: Python prints them without a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from fleet_env.errors import FleetEnvError
from fleet_link.errors import KeyFileError


@contextmanager
def without_traceback(who: str) -> Iterator[None]:
    """Let a refusal that is raised in this context end the program as text, if nobody catches it.

    It is raised as always. Only if it reaches the end of the program, Python prints ``who`` and its
    text: what to do is in the text, and a traceback would hide it.
    """
    try:
        yield
    except (FleetEnvError, KeyFileError) as refusal:
        former, refused = sys.excepthook, refusal

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None
                 ) -> None:
            if error is refused:
                print(f'{who}: {error}', file=sys.stderr)
            else:
                former(kind, error, trace)

        sys.excepthook = hook
        raise
