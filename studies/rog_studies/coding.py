"""The study of gradient coding: DGH-GC, Section 6, tables 3 to 5 and figures 6 to 10.

The robots of groups A and B are from Table 2. For group B, Table 2 lists 19 nodes, but the text has
20, including 5 at 3 GHz. This study uses 20. A capacity is the clock rate divided by 600 MHz. Links
have 3 to 5 MB/s, and each part of the data is on two robots (r = 2). The paper does not say how
often nodes are late. In the cases that measure time, a third of the robots, drawn by the seed, are
late with 3 of 10 gradients, and the others with 3 of 100. A late gradient takes `LATE` seconds
longer.
"""

from __future__ import annotations

import numpy as np
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import (
    ChannelConfig,
    FleetConfig,
    LinkConfig,
    RobotConfig,
    StragglerConfig,
    TrainingConfig,
)
from rog_sim.comparison import MethodResult
from rog_sim.table import spread

from .gsgm import MOMENTUM, NETWORK
from .study import Case, Study, Table, with_training

CAPACITIES = {'a': [1] * 5 + [3] * 3 + [4] * 2 + [5] * 2,
              'b': [1] * 5 + [2] * 3 + [3] * 3 + [4] * 4 + [5] * 5}
SCHEMES = ('dgh-gc', 'gc', 'hgc', 'gcc', 'dcgc')
PACE = 0.15  # seconds that a computer of 600 MHz takes for the gradient of a shard's batch
LATE = 1.0               # additional seconds of a late gradient
OFTEN, SELDOM = 0.3, 0.03  # probabilities that a gradient is late
SPARSITIES = (0.05, 0.01, 0.005, 0.002, 0.001)  # shares of the elements that a push sends
PERIODS = (100, 50, 30, 20, 10)  # rounds between two regroupings of the robots by `dgh-gc`
# Maps a group of robots in Table 2 to the numbers of code groups into which a method divides these
# robots.
GROUPS = {'a': (3, 2), 'b': (5, 4, 2)}
MODELS = ('mnistnet', 'lenet5')
ROUNDS = 100             # rounds after which the study reports accuracies
# `PLAIN` has no momentum, because momentum would amplify the changes that error feedback sends
# late.
PLAIN = {'learning_rate': 0.1, 'momentum': 0.0}
# The unit of transmission is the layer, not the row. A codec sends at least one element of each
# unit, so with rows a push could not be sparse enough.
ACCURACY = {'learning_rate': 0.01, 'momentum': MOMENTUM, 'nesterov': False, 'batch_size': 8,
            'granularity': 'layer'}


def fleet_of(group: str, model: str, minutes: float, seed: int = 1) -> FleetConfig:
    """Return the fleet of a group, without stragglers; its task needs almost no computing."""
    training = TrainingConfig(
        task='rog_studies.tasks:ZeroCost', task_options={'model': model}, sync='dgh-gc',
        codec='raw', learning_rate=0.01, momentum=0.0, evaluate_every=0, pace=PACE)
    robots = tuple(RobotConfig(name=f'robot{rank + 1}', pace=PACE, capacity=capacity,
                               link=LinkConfig(trace='edge', offset=50.0 * rank))
                   for rank, capacity in enumerate(CAPACITIES[group]))
    return FleetConfig(name=f'group-{group}', robots=robots, seed=seed,
                       description=f'Group {group.upper()} of Table 2 of DGH-GC.',
                       minutes=minutes, training=training,
                       link=LinkConfig(trace='edge', offset=50.0),
                       channel=ChannelConfig(shared=False), network=NETWORK)


def with_stragglers(fleet: FleetConfig) -> FleetConfig:
    """Return the fleet with late gradients.

    A third of the robots is often late; the seed of the fleet decides which. The
    probability of a late gradient is `OFTEN` for these robots and `SELDOM` for the others.
    """
    count = len(fleet.robots)
    often = np.random.default_rng(fleet.seed).permutation(count)[:count // 3]
    return changed(fleet, robots=tuple(
        changed(robot, stragglers=StragglerConfig(
            probability=OFTEN if rank in often else SELDOM, time=LATE))
        for rank, robot in enumerate(fleet.robots)))


def times(group: str, model: str, methods: dict[str, tuple[str, str]], minutes: float = 1.0,
          seeds: int = 3) -> Case:
    """Return a case that measures time; ``methods``: label -> (method, codec)."""
    fleet = fleet_of(group, model, minutes)
    return Case({label: with_training(fleet, sync=sync, codec=codec)
                 for label, (sync, codec) in methods.items()}, seeds, with_stragglers)


def accuracies(group: str, model: str, methods: dict[str, tuple[str, str]],
               **changes: object) -> Case:
    """Return a case that measures accuracy; a run lasts about as long as `ROUNDS` rounds.

    :param methods: label -> (method, codec).
    :param changes: other values for the training settings in `ACCURACY`.
    """
    options = {'data': 'rog_studies.images:large_digits', 'model': model}
    found = {}
    for label, (sync, codec) in methods.items():
        round_s = 1.1 if sync in ('gc', 'gcc', 'dcgc') else 0.45
        found[label] = with_training(
            fleet_of(group, model, ROUNDS * round_s / 60), sync=sync, codec=codec,
            task='rog_tasks.classify:Classification', task_options=options,
            **{**ACCURACY, **changes})
    return Case(found, seeds=2)


def round_time(method: MethodResult, first: MethodResult) -> str:
    """Return a cell of a `Table`: mean time between two decodings, in seconds."""
    return spread(method.round_s, 1, 3)


def speed_up(method: MethodResult, first: MethodResult) -> str:
    """Return the round time of this variant divided by the round time of the first variant."""
    return f'{method.round_s.mean / first.round_s.mean:.2f}'


def accuracy(method: MethodResult, first: MethodResult) -> str:
    """Return a cell of a `Table`: accuracy in % after as many rounds as the shortest run has."""
    return spread(method.accuracy_after, 100, 1)


def _cases() -> dict[str, Case]:
    raw = {name: (name, 'raw') for name in SCHEMES}
    ternary = {'dgh-gc ternary': ('dgh-gc', 'ternary:0.05')}
    sparse = {'raw': ('dgh-gc:1:2', 'raw')}
    for share in SPARSITIES:
        sparse[f'{share:g}'] = ('dgh-gc:1:2', f'ternary:{share:g}')
        sparse[f'{share:g} no feedback'] = ('dgh-gc:1:2-feedback', f'ternary:{share:g}')
    cases = {}
    for group in CAPACITIES:
        for model in MODELS:
            cases[f'time-{group}-{model}'] = times(group, model, {**raw, **ternary}, seeds=5)
        cases[f'period-{group}'] = times(group, 'lenet5', {
            f'b = {every}': (f'dgh-gc:1:0:{every}', 'raw') for every in PERIODS},
            minutes=2.5)
        cases[f'groups-{group}'] = times(group, 'lenet5', {
            f'k = {k}{text}': (f'dgh-gc:1:{k}', codec) for k in GROUPS[group]
            for text, codec in (('', 'raw'), (' ternary', 'ternary:0.05'))})
        cases[f'accuracy-{group}-mnistnet'] = accuracies(group, 'mnistnet', raw)
        cases[f'sparsity-{group}-mnistnet'] = accuracies(group, 'mnistnet', sparse, **PLAIN)
    cases['accuracy-a-lenet5'] = accuracies('a', 'lenet5', raw)
    cases['sparsity-a-lenet5'] = accuracies('a', 'lenet5', sparse, **PLAIN)
    return cases


coding = Study('coding', _cases(), (
    Table('Average iteration time, s', 'time', round_time),
    Table('Times as long as dgh-gc', 'time', speed_up, first=False),
    Table('Average iteration time by rounds between two looks at who straggles, s', 'period',
          round_time),
    Table('Average iteration time by groups, s', 'groups', round_time),
    Table('Accuracy after the same number of rounds, %', 'accuracy', accuracy),
    Table('Accuracy by sparsity, after the same number of rounds, %', 'sparsity', accuracy)),
    server_every=1.0)
