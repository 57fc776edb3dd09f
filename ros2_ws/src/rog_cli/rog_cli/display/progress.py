"""Display the progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[float], None]]:
    """Show the progress of work; yield a function that takes the finished share, from 0 to 1."""
    if not sys.stdout.isatty():
        shown, began = 0, time.monotonic()

        def line(share: float) -> None:
            nonlocal shown
            if share * 4 >= shown + 1:
                shown = int(share * 4)
                left = (time.monotonic() - began) * (1 - share) / share
                print(f'{text}: {shown * 25} %' + f', about {left:.0f} s left' * (share < 1),
                      flush=True)

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(text), BarColumn(), TextColumn('{task.percentage:.0f} %'),
                  TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def runs_progress(runs: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function to call with label and seed of each finished run.

    On a terminal, the function shows a bar and the time passed. Otherwise it prints one line for
    each finished run.
    """
    finished = 0
    if not sys.stdout.isatty():
        def line(label: str, seed: int) -> None:
            nonlocal finished
            finished += 1
            print(f'{label}, seed {seed}: done ({finished} of {runs} runs)', flush=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(MofNCompleteColumn(), 'runs', BarColumn(), TimeElapsedColumn(),
                  transient=True) as bar:
        task = bar.add_task('', total=runs)
        yield lambda label, seed: bar.advance(task)
