"""The studies of GSGM, Section V: learners that each have one or a few classes of the data.

As in the paper, all methods have the same learning rate; without momentum, this rate is ten times
as high. The paper's rate applies to one push. Our rate applies to the averaged gradient, so it is
the number of learners times `ETA`, the rate for one push. A learner takes 1 to 2 times `PACE` for
a gradient; fast learners are spread over the ranks. One gradient in ten takes `LATE` seconds
longer. Without these differences no learner would be faster than the others.
"""

from __future__ import annotations

import math
from typing import Any

from fleet_env.settings.base import changed
from fleet_env.settings.fleet import (
    ChannelConfig,
    FleetConfig,
    LinkConfig,
    NetworkConfig,
    RobotConfig,
    StragglerConfig,
    TrainingConfig,
)
from rog_sim.comparison import MethodResult
from rog_sim.table import spread

from .study import Case, Cell, Study, Table, with_training

LEARNERS = (10, 20, 30)
# seconds for a gradient of the fastest learner; additional seconds of a late gradient
PACE, LATE = 0.1, 0.1
ROUND_S = 2 * PACE + 0.1 * LATE + 0.005  # mean seconds per round of the slowest learner
SVRG_EVERY = 20         # iterations between full gradients
# A run with SVRG lasts this many times as long as a run without SVRG, because with SVRG the
# learners spend half of their work on corrections.
SVRG_LONGER = 4
MOMENTUM = 0.9
ETA = {'mnistnet': 0.001, 'lenet5': 0.002}  # learning rates for one push, twice the paper's
# a run has at least about 2000 gradients, and at least about 100 rounds
LEAST_GRADIENTS, LEAST_ROUNDS = 2000, 100
# Number of learners -> rounds of a run with noise. With more rounds, the accuracy of gsgm no longer
# rises.
NOISY_ROUNDS = {10: 1200, 20: 600, 30: 600}
LINK = LinkConfig(trace='steady', scale=10.0)  # 1 Gbit/s
FADING = LinkConfig(trace='outdoor_fades', scale=0.05, offset=40.0)
NETWORK = NetworkConfig(chunk_bytes=65000, chunk_time=0.05)
DIGITS = {'data': 'rog_studies.images:large_digits', 'split': 'sorted'}


def learners(count: int, model: str, link: LinkConfig = LINK) -> FleetConfig:
    """Return a fleet of ``count`` learners that train ``model``."""
    training = TrainingConfig(
        task='rog_tasks.classify:Classification', task_options={**DIGITS, 'model': model},
        sync='gsgm', codec='raw', granularity='layer', learning_rate=count * ETA[model],
        momentum=MOMENTUM, nesterov=False, evaluate_every=0, pace=PACE)
    late = StragglerConfig(probability=0.1, time=LATE)
    step = next(n for n in (7, 11, 13) if math.gcd(n, count) == 1)
    robots = tuple(RobotConfig(
        name=f'robot{rank + 1}', link=changed(link, offset=link.offset * rank),
        pace=PACE * (1 + rank * step % count / (count - 1)), stragglers=late)
        for rank in range(count))
    rounds = max(LEAST_GRADIENTS / count, LEAST_ROUNDS)
    return FleetConfig(
        name=f'learners-{count}', robots=robots, seed=1,
        description='Learners that each see one or a few classes.', minutes=rounds * ROUND_S / 60,
        training=training, link=link, stragglers=late, channel=ChannelConfig(shared=False),
        network=NETWORK)


def variants(fleet: FleetConfig, suffix: str = '') -> dict[str, FleetConfig]:
    """Return the fleet with GSGM and with each method that the paper compares.

    A label that ends in ``lm`` means local momentum. ``suffix`` is appended to every method.
    """
    found = {f'gsgm{suffix}': with_method(fleet, f'gsgm{suffix}')}
    for sync in ('ssp:1', 'ssp:2', 'asp'):
        found[sync + suffix] = with_method(fleet, sync + suffix, momentum=0.0)
        found[f'{sync}{suffix} lm'] = with_method(fleet, sync + suffix)
    return found


def with_method(fleet: FleetConfig, sync: str, momentum: float = MOMENTUM,
                **changes: Any) -> FleetConfig:
    """Return the fleet with a method; without momentum, its learning rate is ten times as high."""
    rate = fleet.training.learning_rate * (1 if momentum else 10)
    return with_training(fleet, sync=sync, momentum=momentum, learning_rate=rate, **changes)


def _long(count: int) -> dict[str, FleetConfig]:
    """Return the three steadiest variants, with runs of twice the usual duration.

    A fleet with many learners still improves after 100 rounds.
    """
    fleet = learners(count, 'mnistnet')
    found = variants(changed(fleet, minutes=2 * fleet.minutes))
    return {label: found[label] for label in ('gsgm', 'ssp:1 lm', 'ssp:2 lm')}


def _noisy(count: int) -> dict[str, FleetConfig]:
    """Return GSGM and SSP on noisy images, where error and gradients do not fall to zero."""
    fleet = learners(count, 'mnistnet')
    options = {**fleet.training.task_options, 'data': 'rog_studies.images:noisy_digits'}
    fleet = changed(with_training(fleet, task_options=options),
                                minutes=NOISY_ROUNDS[count] * ROUND_S / 60)
    return {label: one for label, one in variants(fleet).items() if 'asp' not in label}


def _svrg(count: int) -> dict[str, FleetConfig]:
    fleet = learners(count, 'mnistnet')
    return variants(changed(fleet, minutes=SVRG_LONGER * fleet.minutes),
                    f'+svrg={SVRG_EVERY}')


def _fading() -> dict[str, FleetConfig]:
    fleet = learners(10, 'mnistnet', FADING)
    # These links fade, so the robots spend most of the 10 minutes waiting.
    fleet = changed(fleet, minutes=10.0)
    methods = ('gsgm:4', 'gsgm', 'rsp:4', 'ssp:4')
    return {sync if sync.startswith('gsgm') else f'{sync} lm':
            with_method(fleet, sync, granularity='row') for sync in methods}


def peak(method: MethodResult, first: MethodResult) -> str:
    """Return the peak accuracy in %, as a cell of a `Table`."""
    return spread(method.accuracy_peak, 100, 1)


def settled(method: MethodResult, first: MethodResult) -> str:
    """Return the accuracy in the second half of the runs, in %, as a cell of a `Table`.

    If runs have diverged, the cell also contains their number.
    """
    lost = f' ({method.diverged} diverged)' if method.diverged else ''
    return spread(method.accuracy_settled, 100, 1) + lost


def accuracy_gain(method: MethodResult, first: MethodResult) -> str:
    """Return by how many points the first variant's peak accuracy exceeds this variant's."""
    return f'{100 * (first.accuracy_peak.mean - method.accuracy_peak.mean):+.2f}'


def deviation(measure: str) -> Cell:
    """Return the function that formats the measure ``stability`` or ``fluctuation``."""
    return lambda method, first: spread(getattr(method, measure), 1, 2)


def steadier(measure: str) -> Cell:
    """Return a function that compares the first variant with another variant.

    The function returns, as text, the improvement of ``measure`` by the first variant, in
    percent of the other variant's value. ``measure`` is 'stability' or 'fluctuation'; both are
    better if smaller.
    """
    def cell(method: MethodResult, first: MethodResult) -> str:
        own, best = getattr(method, measure).mean, getattr(first, measure).mean
        return f'{100 * (own - best) / abs(own):+.1f} %'
    return cell


def _tables(models: tuple[str, ...]) -> tuple[Table, ...]:
    found = []
    for model in models:
        found += [Table('Peak accuracy, %', model, peak),
                  Table('Accuracy in the second half, %', model, settled),
                  Table('Peak accuracy of GSGM above that of, in points', model, accuracy_gain,
                        first=False)]
        for measure, text in (('stability', 'ln of the deviation of the accuracy in the second '
                               'half'), ('fluctuation', 'the same of its differences')):
            title = measure.capitalize()
            found += [Table(f'{title}: {text}', model, deviation(measure)),
                      Table(f'{title} of GSGM better than that of', model, steadier(measure),
                            first=False)]
    return tuple(found)


gsgm = Study('gsgm', {
    **{f'{model}-{count}': Case(variants(learners(count, model)))
       for model in ('mnistnet', 'lenet5') for count in LEARNERS},
    **{f'long-{count}': Case(_long(count)) for count in (20, 30)},
    **{f'noisy-{count}': Case(_noisy(count)) for count in LEARNERS},
    'fading': Case(_fading())},
    _tables(('mnistnet', 'lenet5', 'long', 'noisy', 'fading')), server_every=0.2)

gsgm_svrg = Study('gsgm-svrg', {
    f'mnistnet-{count}': Case(_svrg(count)) for count in LEARNERS},
    _tables(('mnistnet',)), server_every=0.2)
