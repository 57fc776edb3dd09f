"""Records a link trace from the suite's transfers, or from the output of `iw`. Sans-I/O."""

import math
import re

import numpy as np

from fleet_env.errors import TraceError
from fleet_env.links.trace import MOST_SAMPLES, LinkTrace

_MBIT_PER_BYTE = 8e-6


class TraceRecorder:
    """Compute the trace of one link from the transfers over it.

    The rate of a step is the amount that was carried in the step, divided by the time in the step
    during which a transfer was under way. A step without a transfer has the rate of the previous
    step. A transfer of 0 bytes means a dead link.

    :param step: duration of one sample of the trace, s.
    :raises TraceError: ``step`` is not a positive time.
    """

    def __init__(self, step: float = 0.5):
        if not (step > 0 and math.isfinite(step)):
            raise TraceError(f'step is {step} s; it must be greater than 0')
        self.step = step
        self._transfers: list[tuple[float, float, float]] = []

    def add(self, begin: float, end: float, nbytes: float) -> None:
        """Add a transfer of ``nbytes`` bytes from ``begin`` to ``end``, seconds on any clock.

        Transfers may come in any order and overlap. A transfer that took no time is ignored.

        :raises TraceError: the transfer ends before it begins, or a value is negative or not
            finite.
        """
        if not (math.isfinite(begin) and math.isfinite(end) and begin <= end
                and math.isfinite(nbytes) and nbytes >= 0):
            raise TraceError('a transfer must have finite times in order and at least 0 bytes, got '
                             f'{nbytes} bytes from {begin} s to {end} s')
        if begin < end:
            self._transfers.append((begin, end, nbytes * _MBIT_PER_BYTE))

    def trace(self) -> LinkTrace:
        """Return the trace recorded so far; it starts with the first transfer.

        :raises TraceError: no transfer was added, or the trace would have more than `MOST_SAMPLES`.
        """
        if not self._transfers:
            raise TraceError('nothing was recorded: no transfer took any time')
        begins, ends, mbit = np.array(self._transfers).T
        edges, where = np.unique(np.concatenate((begins, ends)), return_inverse=True)
        first, last = where[:len(begins)], where[len(begins):]
        spans = np.diff(edges)
        # `edges` are the times at which a transfer begins or ends. For each edge: change of the
        # total Mbit/s of all transfers under way, and change of the number of these transfers.
        speed, count = np.zeros(len(edges)), np.zeros(len(edges))
        for values, total in ((mbit / (ends - begins), speed), (np.ones(len(mbit)), count)):
            np.add.at(total, first, values)
            np.add.at(total, last, -values)
        busy = np.cumsum(count)[:-1] > 0.5
        carried = np.concatenate(([0.0], np.cumsum(np.cumsum(speed)[:-1] * spans * busy)))
        under_way = np.concatenate(([0.0], np.cumsum(spans * busy)))
        if (edges[-1] - edges[0]) / self.step > MOST_SAMPLES:
            raise TraceError(f'step is {self.step:g} s: the trace would have more than '
                             f'{MOST_SAMPLES} samples; choose longer steps')
        n = max(math.ceil((edges[-1] - edges[0]) / self.step - 1e-9), 1)
        grid = edges[0] + np.arange(n + 1) * self.step
        moved = np.diff(np.interp(grid, edges, carried))
        took = np.diff(np.interp(grid, edges, under_way))
        known = np.maximum.accumulate(np.where(took > 1e-9, np.arange(n), 0))
        rates = np.maximum(moved[known], 0) / took[known]
        return LinkTrace(np.arange(n) * self.step, rates, n * self.step)


def parse_iw(text: str) -> dict[str, float]:
    """Return station -> its tx bitrate in Mbit/s.

    The result is empty if there is no connection. The bitrate of a station to which nothing was
    sent yet is NaN. The bitrate is the coding rate of the card; programs get half to two thirds of
    it.

    :param text: output of ``iw dev X link`` or ``iw dev X station dump``.
    :raises TraceError: the text is not the output of one of these commands.
    """
    rates: dict[str, float] = {}
    station = ''
    for line in text.splitlines():
        if found := re.match(r'(?:Connected to|Station) ([0-9a-fA-F:]{17})\b', line):
            station = found[1].lower()
            rates[station] = math.nan
        elif station and (found := re.match(r'\s+tx bitrate:\s*([\d.]+) MBit/s', line)):
            rates[station] = float(found[1])
    if not rates and text.strip() not in ('', 'Not connected.'):
        raise TraceError(f'{text.strip().splitlines()[0]!r} is not what `iw dev ... link` or '
                         '`iw dev ... station dump` prints')
    return rates
