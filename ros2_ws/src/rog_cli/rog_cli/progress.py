"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Give a function that is told the share that is done, 0 to 1."""
    if not sys.stdout.isatty():
        shown = 0

        def line(share: float) -> None:
            nonlocal shown
            if share * 4 >= shown + 1:
                shown = int(share * 4)
                print(f'{text}: {shown * 25} %', flush=True)

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(text), BarColumn(), TextColumn('{task.percentage:.0f} %'),
                  TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda share: bar.update(task, completed=share)
