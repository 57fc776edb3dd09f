"""A link trace: the rate of a link over time, piecewise constant and repeated for ever.

A trace file has two columns, seconds and Mbit/s; ``#`` starts a comment. The rate of a sample
applies until the next sample. A rate of 0 means no link, never "no limit".
"""

import math
from bisect import bisect_left, bisect_right
from os import PathLike, fspath
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fleet_env.errors import TraceError, why_unread

MOST_SAMPLES = 10_000_000  # limits the memory of a trace; enough for eleven days in steps of 0.1 s

Floats = NDArray[np.float64]


class LinkTrace:
    """Rate of a link over time: piecewise constant, repeated after ``period``.

    :param times: (n,) seconds, strictly increasing; all are shifted so that the first is 0.
    :param rates: (n,) Mbit/s, finite and at least 0; 0 means no link.
    :param period: seconds after which the trace repeats; by default the last sample lasts as long
        as the sample before it, and a single sample lasts 1 s.
    :raises TraceError: samples are missing, not finite, negative or out of order.
    """

    def __init__(self, times: ArrayLike, rates: ArrayLike, period: float | None = None):
        t = np.array(times, dtype=np.float64)
        r = np.array(rates, dtype=np.float64)
        if t.ndim != 1 or t.shape != r.shape:
            raise TraceError(f'times {t.shape} and rates {r.shape} must be equally long lists')
        if not len(t):
            raise TraceError('the trace has no samples; give at least one "seconds Mbit/s" line')
        if not (np.isfinite(t).all() and np.isfinite(r).all()):
            raise TraceError('times and rates must be finite')
        if (r < 0).any():
            raise TraceError('a rate is negative; 0 means no link')
        if (np.diff(t) <= 0).any():
            raise TraceError('times must increase from sample to sample')
        t -= t[0]
        if period is None:
            period = float(t[-1] + (t[-1] - t[-2])) if len(t) > 1 else 1.0
        if not (math.isfinite(period) and period > t[-1]):
            raise TraceError(f'period {period} s must be finite and beyond the last sample')
        self.times: Floats = t
        self.rates: Floats = r
        self.period = float(period)
        self._ends: Floats = np.append(t[1:], self.period)
        # Mbit carried from time 0 to the start of each sample. The last element is the amount up to
        # the end of the period.
        self._carried: Floats = np.concatenate(([0.0], np.cumsum(r * (self._ends - t))))
        for array in (self.times, self.rates, self._ends, self._carried):
            array.setflags(write=False)
        # A scalar lookup in a list is several times faster than in an array.
        self._lists = tuple(a.tolist() for a in (t, r, self._ends, self._carried))

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f'LinkTrace({len(self)} samples, {self.period:g} s, mean {self.mean:.4g} Mbit/s)'

    @property
    def mean(self) -> float:
        """Return the mean rate over one period, Mbit/s."""
        return float(self._carried[-1] / self.period)

    def rate_at(self, t: ArrayLike) -> Floats:
        """Return the rates in Mbit/s at the times ``t``, in the shape of ``t``.

        ``t`` is an array of any shape; its times are in seconds and may be negative.
        """
        phase = np.mod(np.asarray(t, dtype=np.float64), self.period)
        return self.rates[np.searchsorted(self.times, phase, side='right') - 1]

    def rate(self, t: float) -> float:
        """Return the rate in Mbit/s at one time ``t`` (s); this is faster than :meth:`rate_at`."""
        times, rates, _, _ = self._lists
        return rates[bisect_right(times, t % self.period) - 1]

    def carried(self, t: float) -> float:
        """Return the Mbit that the link carries from time 0 to ``t`` (s); O(log n)."""
        times, rates, _, carried = self._lists
        cycles, phase = divmod(t, self.period)
        i = bisect_right(times, phase) - 1
        return cycles * carried[-1] + (carried[i] + rates[i] * (phase - times[i]))

    def time_to_carry(self, mbit: float) -> float:
        """Return the earliest time in s by which the link has carried ``mbit`` Mbit since time 0.

        The time is infinite if the link is dead for ever. Inverse of :meth:`carried`; O(log n).
        """
        times, rates, ends, carried = self._lists
        per_period = carried[-1]
        if mbit <= 0:
            return 0.0
        if per_period == 0 or not math.isfinite(mbit):
            return math.inf
        cycles = math.ceil(mbit / per_period) - 1
        rest = min(mbit - cycles * per_period, per_period)
        # Find the sample i in which the amount `rest`, in Mbit since the start of the period, is
        # reached. The rate of this sample is positive.
        i = max(bisect_left(carried, rest) - 1, 0)
        missing = rest - carried[i]
        within = min(missing / rates[i], ends[i] - times[i]) if missing > 0 else 0.0
        return cycles * self.period + times[i] + within

    def scaled(self, factor: float) -> 'LinkTrace':
        """Return this trace with every rate multiplied by ``factor`` (0 or more)."""
        if not (math.isfinite(factor) and factor >= 0):
            raise TraceError(f'scale factor {factor} must be finite and at least 0')
        return LinkTrace(self.times, self.rates * factor, self.period)

    def shifted(self, offset: float) -> 'LinkTrace':
        """Return this trace from time ``offset`` (s) on; the part before it moves to the end."""
        if not math.isfinite(offset):
            raise TraceError(f'offset {offset} s must be finite')
        offset %= self.period
        if offset in (0.0, self.period):  # `%` rounds a tiny negative offset up to the period
            return self
        first = int(np.searchsorted(self.times, offset, side='right')) - 1
        starts = np.concatenate(([0.0], self.times[first + 1:] - offset,
                                 self.times[:first + 1] + (self.period - offset)))
        rates = np.concatenate((self.rates[first:], self.rates[:first + 1]))
        keep = starts < self.period
        keep[1:] &= np.diff(starts) > 0
        return LinkTrace(starts[keep], rates[keep], self.period)


def read_trace(path: str | PathLike[str]) -> LinkTrace:
    """Read a trace file of ``seconds Mbit/s`` lines.

    :raises TraceError: the file is unreadable or empty; or a line does not consist of two finite
        numbers, has a negative rate, or is not in order of time. The message names file and line.
    """
    name = fspath(path)
    try:
        # This encoding skips the byte order mark with which some editors begin a file.
        text = Path(path).read_text(encoding='utf-8-sig')
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f'cannot be read: {why_unread(error, name)}', name) from error
    times: list[float] = []
    rates: list[float] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        fields = raw.split('#', 1)[0].split()
        if fields:
            t, rate = _sample(fields, name, number)
            if times and t <= times[-1]:
                raise TraceError(f'time {t:g} s does not come after {times[-1]:g} s; sort the '
                                 'lines by time', name, number)
            times.append(t)
            rates.append(rate)
    if not times:
        raise TraceError('holds no samples; write lines of "seconds Mbit/s"', name)
    return LinkTrace(times, rates)


def format_trace(trace: LinkTrace, comment: str = '') -> str:
    """Return the text of a trace file; the lines of ``comment`` are at its top."""
    lines = [f'# {line}' for line in comment.splitlines()]
    lines += [f'{t!r} {rate!r}' for t, rate in
              zip(trace.times.tolist(), trace.rates.tolist(), strict=True)]
    return '\n'.join(lines) + '\n'


def write_trace(path: str | PathLike[str], trace: LinkTrace, comment: str = '') -> None:
    """Write a trace file, which :func:`read_trace` reads; the lines of ``comment`` are at its top.

    :raises TraceError: the file cannot be written.
    """
    try:
        Path(path).write_text(format_trace(trace, comment), encoding='utf-8')
    except OSError as error:
        raise TraceError(f'cannot be written: {error.strerror}', fspath(path)) from error


def _sample(fields: list[str], name: str, number: int) -> tuple[float, float]:
    if len(fields) != 2:
        raise TraceError(f'{len(fields)} columns where "seconds Mbit/s" is expected', name, number)
    values = []
    for what, field in zip(('time', 'rate'), fields, strict=True):
        try:
            value = float(field)
        except ValueError:
            raise TraceError(f'{what} {field!r} is not a number', name, number) from None
        if not math.isfinite(value):
            raise TraceError(f'{what} {field!r} is not finite', name, number)
        values.append(value)
    if values[1] < 0:
        raise TraceError(f'rate {fields[1]} is negative; 0 means no link', name, number)
    return values[0], values[1]
