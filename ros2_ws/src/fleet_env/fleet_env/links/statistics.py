"""Statistics of a link: its rate, how often it changes, and how long it stays bad.

The ROG paper and the records in facts.md use the same measures, so a generated trace, a recorded
trace and a published figure can be compared.
"""

from dataclasses import dataclass

import numpy as np

from fleet_env.errors import TraceError
from fleet_env.links.trace import MOST_SAMPLES, LinkTrace

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


@dataclass(frozen=True)
class TraceStatistics:
    """Statistics of a link: rates in Mbit/s, times in seconds, shares from 0 to 1."""

    mean: float
    std: float
    percentiles: dict[int, float]
    below_5: float
    below_10: float
    autocorrelation: dict[float, float]
    """Correlation of the rate with itself so many seconds later."""
    change_20: float
    """Mean time until the rate differs by 20 % from its value at the previous such change."""
    change_40: float
    spell_mean: float
    """Mean length of a spell below 10 Mbit/s; 0 when there is none."""
    spell_max: float


def describe(trace: LinkTrace, step: float = 0.1,
             lags: tuple[float, ...] = (0.5, 10.0)) -> TraceStatistics:
    """Measure one period of ``trace``, sampled every ``step`` seconds.

    Two results depend on ``step``: the time between changes, and the length of the intervals in
    which the rate stays below 10 Mbit/s. So compare traces only at the same step.

    :raises TraceError: the trace has more than `MOST_SAMPLES` steps; perhaps its times are not in
        seconds.
    """
    if trace.period / step > MOST_SAMPLES:
        raise TraceError(f'the trace lasts {trace.period:g} s, more than {MOST_SAMPLES} steps of '
                         f'{step:g} s; are its times in seconds? Else choose longer steps')
    rates = trace.rate_at((np.arange(max(round(trace.period / step), 1)) + 0.5) * step)
    starts, ends = _runs(rates < 10)
    spells = (ends - starts) * step
    return TraceStatistics(
        mean=float(rates.mean()), std=float(rates.std()),
        percentiles={p: float(np.percentile(rates, p)) for p in PERCENTILES},
        below_5=float((rates < 5).mean()), below_10=float((rates < 10).mean()),
        autocorrelation={lag: autocorrelation(rates, round(lag / step)) for lag in lags},
        change_20=change_interval(rates, 0.2, step), change_40=change_interval(rates, 0.4, step),
        spell_mean=float(spells.mean()) if len(spells) else 0.0,
        spell_max=float(spells.max()) if len(spells) else 0.0)


def autocorrelation(rates: np.ndarray, lag: int) -> float:
    """Return the correlation of ``rates`` (n,) with itself ``lag`` samples later.

    The result is NaN if it is undefined.
    """
    if not 0 < lag < len(rates) - 1 or rates[:-lag].std() == 0 or rates[lag:].std() == 0:
        return float('nan')
    return float(np.corrcoef(rates[:-lag], rates[lag:])[0, 1])


def change_interval(rates: np.ndarray, share: float, step: float) -> float:
    """Return the mean time in seconds between large changes of the rate.

    The result is infinite if there is no large change.

    Let r be the rate at the previous large change. A change is large when the new rate differs
    from r by more than ``share`` times r.
    """
    reference, last, changes = float(rates[0]), 0, 0
    for i, rate in enumerate(rates.tolist()):
        if abs(rate - reference) > share * reference:
            reference, last, changes = rate, i, changes + 1
    return last * step / changes if changes else float('inf')


def _runs(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return edges[::2], edges[1::2]
