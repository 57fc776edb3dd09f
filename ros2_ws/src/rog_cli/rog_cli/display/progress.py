"""Display the progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fleet_env.command import duration
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import child_fleets

FIRST = 2.0  # seconds after which the first line shows; each further one takes twice as long
LATEST = 60.0  # longest time between two lines, in seconds
# What a run in virtual time computes for a gradient, its push and its pull: gradients, and seconds.
GRADIENTS, OVERHEAD = 1.5, 0.01
AT_ONCE = 0.1  # seconds in which no run can finish: runs that were done before are told at once


class ProgressLines:
    """Prints the progress of work as lines: at each quarter, and sooner while that takes long.

    :param seconds: duration of the work in virtual time; 0: it has none.
    """

    def __init__(self, text: str, seconds: float = 0.0,
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._text, self._seconds, self._clock = text, seconds, clock
        self._quarters, self._began = 0, clock()
        self._wait, self._due = FIRST, self._began + FIRST

    def __call__(self, share: float) -> None:
        """Take the finished share, from 0 to 1, and print a line if one is due."""
        now, quarters = self._clock(), int(share * 4)
        if quarters > self._quarters:
            self._quarters = quarters
            self._print(f'{quarters * 25} %', share, now)
        elif now >= self._due and 0 < share < 1:
            virtual = f', virtual {share * self._seconds:.0f} s of {self._seconds:.0f}' \
                if self._seconds else ''
            self._print(f'{100 * share:.1f} %{virtual}', share, now)

    def _print(self, done: str, share: float, now: float) -> None:
        if now >= self._due:
            self._wait = min(2 * self._wait, LATEST)
        self._due = now + self._wait
        left = (now - self._began) * (1 - share) / share
        print(f'{self._text}: {done}' + f', about {duration(left)} left' * (share < 1), flush=True)


def longest(fleet: FleetConfig, gradient: float, runs: int = 1, jobs: int | None = None) -> str:
    """Say how long runs in virtual time take here if no robot ever waits, without evaluations.

    The result is '' if this is unknown.

    :param gradient: seconds that a gradient takes on this machine; NaN: unknown.
    :param jobs: runs at a time; default: one per core.
    """
    if math.isnan(gradient):
        return ''
    fleets = (fleet, *child_fleets(fleet).values())
    paces = [robot.pace / robot.capacity + robot.codec_pace
             for one in fleets for robot in one.robots if not robot.fleet]
    if not paces or min(paces) <= 0:
        return ''
    gradients = runs * sum(60 * fleet.minutes / pace for pace in paces)
    cores = len(os.sched_getaffinity(0))
    if runs > 1:
        seconds = (GRADIENTS * gradient + OVERHEAD) * gradients / min(jobs or cores, runs)
    else:  # the robots' gradients are computed in parallel
        seconds = (GRADIENTS * gradient / min(cores, len(paces)) + OVERHEAD) * gradients
    return (f'the training takes at most about {duration(max(1.0, seconds))} on this machine, '
            'without its evaluations')


@contextmanager
def progress_bar(text: str, seconds: float = 0.0) -> Iterator[Callable[[float], None]]:
    """Show the progress of work; yield a function that takes the finished share, from 0 to 1.

    :param seconds: duration of the work in virtual time; 0: it has none.
    """
    if not sys.stdout.isatty():
        yield ProgressLines(text, seconds)
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(text), BarColumn(), TextColumn('{task.percentage:.0f} %'),
                  TimeRemainingColumn(), transient=True) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda share: bar.update(task, completed=share)


@contextmanager
def runs_progress(runs: int) -> Iterator[Callable[[str, int], None]]:
    """Yield a function to call with label and seed of each finished run.

    On a terminal, the function shows a bar. Otherwise it prints one line for each finished run.
    Both say about how long the others take.
    """
    finished, before, began = 0, 0, time.monotonic()
    if not sys.stdout.isatty():
        def line(label: str, seed: int) -> None:
            nonlocal finished, before
            finished += 1
            passed = time.monotonic() - began
            if passed < AT_ONCE:
                before = finished
            left = passed * (runs - finished) / max(1, finished - before)
            print(f'{label}, seed {seed}: done ({finished} of {runs} runs)'
                  + f', about {duration(left)} left' * (before < finished < runs), flush=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(MofNCompleteColumn(), 'runs', BarColumn(), TimeRemainingColumn(), 'left',
                  transient=True) as bar:
        task = bar.add_task('', total=runs)
        yield lambda label, seed: bar.advance(task)
