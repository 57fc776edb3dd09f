"""The links of ROG's published outdoor runs.

The authors replayed a record to four robots. Their script sets the rate of the robot's
network card to each sample of the record in turn. With probability 1/2 it holds the
sample for 10 to 90 s. In any case it then waits for the time until the record's next
sample. (Sources: scripts/replay_bandwidth.py of hku-systems/ROG, and the Stop lines in
the logs of its runs.) So an hour of a run uses about 140 successive samples of the
record, and the rates change slowly. The random draws depend only on the worker: a
worker has the same link, sample by sample, in all published runs. Seed 0 with
`PUBLISHED_STARTS` reproduces these links.

The table describes the links of the four workers. The first two columns give the share
of the time with a rate below 5 and below 10 Mbit/s. The third column gives the share of
the time in which at least one of the four rates is below 10 Mbit/s. A sample of 0
counts as 59 Mbit/s. The numbers in brackets are standard deviations over the seeds.

                                  below 5    below 10   some of 4 below 10   mean, Mbit/s
    logs, first hour, every run   .34        .40        .96                  57.0
    logs, 24,300 s (BSP)          .33        .40        .87                  54.3
    seed 0, first hour            .34        .40        .96                  56.9
    seed 0, 24,290 s              .33        .40        .87                  54.3
    seeds 1 to 20, first hour     .33 (.02)  .37 (.02)  .93 (.06)            58.6 (2.5)
    the same, default `start`     .34 (.03)  .38 (.03)  .82 (.05)            58.5 (3.0)

In the logs, a share of .49 to .51 of the samples is held, for 50.3 s on average. In the
first hour, the mean rates of workers 1 to 4 are 28.7, 70.5, 48.2 and 80.6 Mbit/s.
"""

import math
import random

from fleet_env.errors import TraceError
from fleet_env.links.trace import LinkTrace

PUBLISHED_STARTS = (0, 433, 866, 1298)
"""Samples of rog_outdoors_record.txt at which workers 1 to 4 of the published runs began. This file
begins at 1/6 of the authors' longer record, where worker 1 began; worker k began at k/6 of it."""

PUBLISHED_OVERHEAD = 0.056
"""Seconds that each sample lasted longer than the record's step in the published runs (median)."""


def replay(record: LinkTrace, worker: int, seed: int, duration: float, factor: float = 0.7,
           hold_probability: float = 0.5, hold_low: float = 10.0, hold_high: float = 90.0,
           zero_as: float = 59.0, start: int | None = None, overhead: float = 0.0) -> LinkTrace:
    """Return the link of ``worker`` for ``duration`` seconds in which ``record`` is replayed.

    :param worker: number of the worker, from 1.
    :param seed: seed that draws the holds; 0 gives the holds of the published runs for workers 1
        to 4.
    :param factor: factor on every rate.
    :param hold_probability: probability that a sample is held.
    :param hold_low, hold_high: shortest and longest hold in whole seconds, both included.
    :param zero_as: rate in Mbit/s that replaces a sample of 0, not multiplied by ``factor``. In our
        traces 0 means no link. But for a sample of 0 the authors' shaper set no limit, and their
        cards reached 59 Mbit/s.
    :param start: index of the first sample; by default ``worker``/6 of the record's length.
    :param overhead: seconds that setting a sample takes, in addition to the record's step.
    :raises TraceError: a parameter is out of range, or the record has fewer than 3 samples.
    """
    if worker < 1 or not (duration > 0 and math.isfinite(duration)) or (start or 0) < 0:
        raise TraceError(f'worker is {worker}, start {start}, duration {duration} s; worker must '
                         'be at least 1, start at least 0 and duration greater than 0')
    if not (0 <= hold_probability <= 1 and 0 <= hold_low <= hold_high and overhead >= 0):
        raise TraceError(f'hold_probability is {hold_probability} (0 to 1), holds are {hold_low} '
                         f'to {hold_high} s, overhead is {overhead} s; all at least 0, in order')
    if len(record) < 3:
        raise TraceError(f'the record has {len(record)} samples; a replay needs at least 3')
    draw = random.Random(1000 * seed + worker + 2)  # the authors call random.seed(worker + 2)
    steps = [later - earlier for earlier, later in
             zip(record.times.tolist(), record.times.tolist()[1:], strict=False)]
    rates = record.rates.tolist()
    last = len(record) - 2                          # the authors never play the last two samples
    index = min(int(len(record) / 6 * worker) if start is None else start, last - 1)
    times, played, now = [], [], 0.0
    while now < duration:
        times.append(now)
        played.append(rates[index] * factor if rates[index] else zero_as)
        if draw.randint(1, 20) > 20 * (1 - hold_probability):
            now += draw.randint(int(hold_low), int(hold_high))
        now += steps[index] + overhead
        index = (index + 1) % last
    return LinkTrace(times, played, duration)
