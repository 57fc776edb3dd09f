"""The study of bounds: when does a method without one, ASP, do harm.

One robot of the fleet is `SLOWER` times as slow as the others, by its computer or by its link, and
is the only one that sees its classes (``sorted``), or sees what all see (``iid``). Learning rates
rise to where training ends to be stable. Time is the same for all methods, so that who waits makes
fewer iterations.
"""

from __future__ import annotations

from fleet_env.fleet import ChannelConfig, FleetConfig, LinkConfig, RobotConfig, TrainingConfig
from rog_sim.comparison import MethodResult
from rog_sim.table import spread

from .gsgm import settled
from .study import Case, Study, Table, with_training

METHODS = ('bsp', 'ssp:4', 'asp', 'rsp:4', 'rsp:20')
RATES = (0.005, 0.02, 0.05)     # that of the task, and up to the edge
COUNTS = (4, 16)
PACE = 0.4                      # s
SLOWER = 10.0
PUSH_MBIT = 0.17                # of one whole push of DigitNet with one bit per element
MINUTES = 5.0


def fleet_of(slow: str, count: int, split: str, rate: float) -> FleetConfig:
    """Return so many robots, the last of them slow by its ``computer`` or its ``link``."""
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
    """Return the iterations of a robot, the mean of all."""
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
