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


@contextmanager
def runs_progress(runs: int) -> Iterator[Callable[[str, int, float], None]]:
    """Give a function that is told label, seed and share, 0 to 1, of a run.

    It shows a bar on a terminal, else one line per finished run.
    """
    shares: dict[tuple[str, int], float] = {}

    def note(label: str, seed: int, share: float) -> str:
        shares[label, seed] = share
        finished = sum(value == 1 for value in shares.values())
        return f'{finished} of {runs} runs'

    if not sys.stdout.isatty():
        def line(label: str, seed: int, share: float) -> None:
            text = note(label, seed, share)
            if share == 1:
                print(f'{label}, seed {seed}: done ({text})', flush=True)

        yield line
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn('{task.description}'), BarColumn(),
                  TextColumn('{task.percentage:.0f} %'), TimeRemainingColumn(),
                  transient=True) as bar:
        task = bar.add_task(f'0 of {runs} runs', total=runs)

        def advance(label: str, seed: int, share: float) -> None:
            text = note(label, seed, share)
            bar.update(task, completed=sum(shares.values()), description=text)

        yield advance
