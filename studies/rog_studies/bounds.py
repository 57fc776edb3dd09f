"""The study of bounds: when ASP, a method without a bound on the staleness, does harm.

One robot has a slow computer or a slow link. With the slow computer, its gradients take `SLOWER`
times as long as those of the other robots. With the slow link, a push and a pull of all rows
together take as long as such a slow gradient. With the split ``sorted``, only this robot has the
data of its classes; with ``iid``, all robots have data of all classes. The highest learning rate is
near the limit at which training becomes unstable. All methods train for the same time, so a method
that waits makes fewer iterations.
"""

from __future__ import annotations

from fleet_env.settings.fleet import (
    ChannelConfig,
    FleetConfig,
    LinkConfig,
    RobotConfig,
    TrainingConfig,
)
from rog_sim.comparison import MethodResult
from rog_sim.table import spread

from .gsgm import settled
from .study import Case, Study, Table, with_training

METHODS = ('bsp', 'ssp:4', 'asp', 'rsp:4', 'rsp:20')
RATES = (0.005, 0.02, 0.05)     # learning rates, from the default of a fleet up to nearly unstable
COUNTS = (4, 16)                # numbers of robots in a fleet
PACE = 0.4                      # seconds for one gradient
SLOWER = 10.0                   # slow robot's gradient time or transfer time, in units of PACE
PUSH_MBIT = 0.17                # Mbit in a push of all rows of DigitNet with one bit per element
MINUTES = 5.0


def fleet_of(slow: str, count: int, split: str, rate: float) -> FleetConfig:
    """Return a fleet of ``count`` robots; the last one has a slow computer or a slow link.

    ``slow``: which of the two is slow, 'computer' or 'link'.
    """
    training = TrainingConfig(task_options={'split': split}, learning_rate=rate, pace=PACE,
                              evaluate_every=0)
    good = LinkConfig(trace='steady')
    robots = tuple(RobotConfig(name=f'robot{rank + 1}', pace=PACE, link=good)
                   for rank in range(count - 1))
    last = RobotConfig(
        name=f'robot{count}', pace=PACE * (SLOWER if slow == 'computer' else 1),
        link=LinkConfig(rate=2 * PUSH_MBIT / (SLOWER * PACE)) if slow == 'link' else good)
    return FleetConfig(name='bounds', robots=(*robots, last), seed=1, minutes=MINUTES,
                       training=training, channel=ChannelConfig(shared=False))


def iterations(method: MethodResult, first: MethodResult) -> str:
    """Return the mean number of iterations of a robot, as a cell of a `Table`."""
    return spread(method.iterations, 1, 0)


bounds = Study('bounds', {
    f'{slow}-{split}-{count}-{rate:g}': Case(
        {sync: with_training(fleet_of(slow, count, split, rate), sync=sync) for sync in METHODS}, 3)
    for slow in ('computer', 'link') for split in ('sorted', 'iid') for count in COUNTS
    for rate in RATES}, tuple(
        Table(f'{title}: {what}', slow, cell)
        for slow, title in (('computer', 'One slow computer'), ('link', 'One slow link'))
        for what, cell in (('accuracy in the second half, %', settled),
                           ('iterations of a robot', iterations))), server_every=5.0)
