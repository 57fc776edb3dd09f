"""Small fleets for tests in virtual time: a task that computes fast, and links with traces."""

import itertools
import math
from pathlib import Path

import torch
from fleet_env.settings.fleet import FleetConfig, LinkConfig, RobotConfig, TrainingConfig

METHODS = ['bsp', 'ssp:4', 'dssp:3:15', 'flown', 'asp', 'rsp:4', 'rsp:20', 'rsp:auto',
           'rsp:4+pipeline', 'rsp:4+sparse', 'ssp:4+early', 'rsp:4-order',
           'rsp:auto+pipeline+sparse']
GOOD_LINK = '0 80\n7 30\n11 120\n20 80\n'


class Linear:
    """Fits 64 linear functions of 20 inputs: 65 rows, 1344 elements."""

    batch_size = 8

    def __init__(self, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self._inputs = torch.randn(256, 20, generator=generator)
        self._outputs = self._inputs @ torch.randn(20, 64, generator=generator) / 4

    def model(self):
        torch.manual_seed(5)
        return torch.nn.Linear(20, 64)

    def batches(self, rank, world):
        for start in itertools.count(rank, world):
            at = torch.arange(start * self.batch_size, (start + 1) * self.batch_size) % 256
            yield self._inputs[at], self._outputs[at]

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    def evaluate_clean(self, model):
        return 0.75

    def evaluate(self, model):
        return 1 / (1 + float(self.loss(model, (self._inputs, self._outputs)).detach()))


class WrongNumbers(Linear):
    """Multiplies the loss of the robots below rank ``bad`` by ``factor``, from batch ``first`` on.

    ``zero``: whether all weights are zero at the start.
    """

    def __init__(self, factor, bad=1, first=1, zero=False, seed=0):
        super().__init__(seed)
        self._factor, self._bad, self._first, self._zero = factor, bad, first, zero

    def model(self):
        model = super().model()
        if self._zero:
            for parameter in model.parameters():
                torch.nn.init.zeros_(parameter)
        return model

    def batches(self, rank, world):
        for count, (inputs, outputs) in enumerate(super().batches(rank, world), start=1):
            wrong = rank < self._bad and count >= self._first
            yield inputs, outputs, float(self._factor) if wrong else 1.0

    def loss(self, model, batch):
        return (model(batch[0]) - batch[1]).square().mean() * (batch[2] if len(batch) > 2 else 1.0)


class Checking(WrongNumbers):
    """Raises an error at wrong numbers."""

    def loss(self, model, batch):
        if len(batch) > 2 and not math.isfinite(batch[2]):
            raise ValueError('wrong numbers')
        return super().loss(model, batch)


def fleet_of(folder, sync='rsp:4', minutes=1.0, links=(GOOD_LINK,) * 3, paces=(0.5, 0.8, 1.1),
             seed=3, task='virtual_fleet:Linear', **training):
    """Return a fleet with one robot per link; a link is a text of lines "seconds Mbit/s"."""
    robots = []
    for number, (text, pace) in enumerate(zip(links, paces, strict=True), start=1):
        path = Path(folder) / f'link{number}.txt'
        path.write_text(text)
        robots.append(RobotConfig(name=f'robot{number}', pace=pace,
                                  link=LinkConfig(trace=str(path), latency=0.002)))
    settings = {'learning_rate': 0.02, 'evaluate_every': 20, 'batch_size': 8,
                'traffic': 'convmlp-m', **training}
    return FleetConfig(name='toy', robots=tuple(robots), seed=seed, minutes=minutes,
                       training=TrainingConfig(task=task, sync=sync, **settings))
