"""Says in one line that a fleet's task has failed, and keeps the traceback in a file."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from rog_tasks.errors import TaskFailed

TRACEBACK = 'traceback.txt'


def say_failure(error: TaskFailed, out: Path) -> int:
    """Write the traceback of ``error``, which was just caught, to ``out``; return the exit code."""
    out.mkdir(parents=True, exist_ok=True)
    (out / TRACEBACK).write_text(traceback.format_exc(), encoding='utf-8')
    print(f'rog: {error}; {out / TRACEBACK} has the traceback', file=sys.stderr)
    return 1
