"""The studies of GSGM, Section V: learners that each see one corner of the data.

Learning rates are the paper's way: without momentum ten times as high, and otherwise the same for
all methods. Ours are of the averaged gradient: `ETA`, of one push as in the paper, times the number
of learners. Learners take 1 to 2 times `PACE` for a gradient, the fast ones scattered over the
ranks, and one gradient in ten takes `LATE` longer: without such differences nobody is ahead.
"""

from __future__ import annotations

import math
from typing import Any

from fleet_env.fleet import (
    ChannelConfig,
    FleetConfig,
    LinkConfig,
    NetworkConfig,
    RobotConfig,
    StragglerConfig,
    TrainingConfig,
)
from fleet_env.settings import changed
from rog_sim.comparison import MethodResult
from rog_sim.table import spread

from .study import Case, Cell, Study, Table, with_training

LEARNERS = (10, 20, 30)
PACE, LATE = 0.1, 0.1   # s
ROUND_S = 2 * PACE + 0.1 * LATE + 0.005  # of the slowest, which is late now and then
SVRG_EVERY = 20         # iterations between full gradients
SVRG_LONGER = 4         # times as long: half of the computing is for the corrections
MOMENTUM = 0.9
ETA = {'mnistnet': 0.001, 'lenet5': 0.002}  # of one push: twice the paper's
LEAST_GRADIENTS, LEAST_ROUNDS = 2000, 100    # of a run of gsgm, in about
NOISY_ROUNDS = {10: 1200, 20: 600, 30: 600}  # until nothing rises any more, of gsgm
LINK = LinkConfig(trace='steady', scale=10.0)  # 1 Gbit/s
FADING = LinkConfig(trace='outdoor_fades', scale=0.05, offset=40.0)
NETWORK = NetworkConfig(chunk_bytes=65000, chunk_time=0.05)
DIGITS = {'data': 'rog_studies.images:large_digits', 'split': 'sorted'}


def learners(count: int, model: str, link: LinkConfig = LINK) -> FleetConfig:
    """Return a fleet of so many learners that trains a model."""
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
    """Return GSGM and what the paper compares it with; `lm` is with local momentum."""
    found = {f'gsgm{suffix}': with_method(fleet, f'gsgm{suffix}')}
    for sync in ('ssp:1', 'ssp:2', 'asp'):
        found[sync + suffix] = with_method(fleet, sync + suffix, momentum=0.0)
        found[f'{sync}{suffix} lm'] = with_method(fleet, sync + suffix)
    return found


def with_method(fleet: FleetConfig, sync: str, momentum: float = MOMENTUM,
                **changes: Any) -> FleetConfig:
    """Return the fleet with a method; without momentum at ten times the learning rate."""
    rate = fleet.training.learning_rate * (1 if momentum else 10)
    return with_training(fleet, sync=sync, momentum=momentum, learning_rate=rate, **changes)


def _long(count: int) -> dict[str, FleetConfig]:
    """Return the steadiest for twice as long: many learners still learn after 100 rounds."""
    fleet = learners(count, 'mnistnet')
    found = variants(changed(fleet, minutes=2 * fleet.minutes))
    return {label: found[label] for label in ('gsgm', 'ssp:1 lm', 'ssp:2 lm')}


def _noisy(count: int) -> dict[str, FleetConfig]:
    """Return GSGM and SSP on images that leave an error, and thus gradients, for good."""
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
    fleet = changed(fleet, minutes=10.0)  # most of it is waiting
    methods = ('gsgm:4', 'gsgm', 'rsp:4', 'ssp:4')
    return {sync if sync.startswith('gsgm') else f'{sync} lm':
            with_method(fleet, sync, granularity='row') for sync in methods}


def peak(method: MethodResult, first: MethodResult) -> str:
    """Return the peak accuracy in %."""
    return spread(method.accuracy_peak, 100, 1)


def settled(method: MethodResult, first: MethodResult) -> str:
    """Return the mean accuracy of the second half in %, and how many runs diverged."""
    lost = f' ({method.diverged} diverged)' if method.diverged else ''
    return spread(method.accuracy_settled, 100, 1) + lost


def accuracy_gain(method: MethodResult, first: MethodResult) -> str:
    """Return by how many points the first variant's peak accuracy is above this one's."""
    return f'{100 * (first.accuracy_peak.mean - method.accuracy_peak.mean):+.2f}'


def deviation(measure: str) -> Cell:
    """Return what shows ``stability`` or ``fluctuation``."""
    return lambda method, first: spread(getattr(method, measure), 1, 2)


def steadier(measure: str) -> Cell:
    """Return what shows by how much that of the first variant is better, in % of this one's."""
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
