"""Emulate a robot that is slower than this machine: for the demo, benches and tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from .execution import AnyProgram, AnyRun, AnyStep, Form
from .wire import Buffer

SHORTEST = 1e-3   # seconds; shorter pauses are added up, because every sleep has an overhead


def computing_time() -> float:
    """Return the time, in seconds, of a clock that measures how long this program computes.

    If PyTorch computes with one thread, the clock is the processor time of the calling
    thread. Other processes do not advance this clock, so they do not make the pauses longer. If
    several threads compute, the clock is the wall clock, because the calling thread only waits
    for the others.
    """
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Pause:
    """Sleeps so that computing takes ``factor`` times as long; combines short pauses."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._owed = 0.0

    def after(self, seconds: float, at_once: bool = False) -> None:
        """Add the pause for ``seconds`` of computing; sleep when the due pauses exceed `SHORTEST`.

        ``at_once``: sleep now, even if the due pauses are shorter.
        """
        self._owed += seconds * (self._factor - 1)
        if self._owed > (0 if at_once else SHORTEST):
            start = time.perf_counter()
            time.sleep(self._owed)
            self._owed -= time.perf_counter() - start


class SlowProgram:
    """Wraps a program: its computations then take ``factor`` times as long."""

    def __init__(self, program: AnyProgram, factor: float) -> None:
        self.program, self.factor = program, factor

    @property
    def steps(self) -> Sequence[AnyStep]:
        """Return the steps of the program."""
        return self.program.steps

    @property
    def forms(self) -> Sequence[Form]:
        """Return what each transfer of the plan consists of."""
        return self.program.forms

    def start(self, inputs: Any) -> AnyRun:
        """Begin an inference."""
        return _SlowRun(self.program.start(inputs), self.factor, self.steps)

    def compute_together(self, runs: Sequence[Any], steps: range) -> bool:
        """Return False: only a server computes for several robots."""
        return False


class _SlowRun:
    """A run of a `SlowProgram`: it sleeps after computations.

    Short pauses are combined. Before the run sends a result or ends, it sleeps for all remaining
    pauses.
    """

    def __init__(self, run: AnyRun, factor: float, steps: Sequence[AnyStep]) -> None:
        self.deliver, self.outputs = run.deliver, run.outputs
        self._run, self._steps = run, steps
        self._pause = Pause(factor)

    def compute(self, steps: range) -> None:
        for position in steps:
            last = position == len(self._steps) - 1 or bool(self._steps[position].sends)
            self._slow(partial(self._run.compute, range(position, position + 1)), last)

    def piece(self, transfer: int) -> Buffer:
        return self._slow(partial(self._run.piece, transfer), True)

    def form(self, transfer: int) -> Form:
        return self._run.form(transfer)

    def finish_alone(self) -> Any:
        return self._slow(self._run.finish_alone, True)

    def _slow(self, compute: Callable[[], Any], at_once: bool) -> Any:
        start = computing_time()
        result = compute()
        self._pause.after(computing_time() - start, at_once)
        return result


def slowed(program: AnyProgram, factor: float) -> AnyProgram:
    """Return a program that is `factor` times slower; for factor 1, return the program itself."""
    return program if factor == 1 else SlowProgram(program, factor)
