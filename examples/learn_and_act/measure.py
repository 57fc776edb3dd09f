"""Measure the example beside two others: `python examples/learn_and_act/measure.py --out runs/m`.

The fleet runs in real time, run.py once for each seed. An arm that learns alone, and a server that
gets all episodes over the arms' links, are computed: with the same batches, optimizer and time for
a gradient, episodes that come at the same times, and the trace of the same link. The server trains
on what has come, and sends its model back at most every three seconds. What is printed stands in
docs/results/learn_and_act.md.
"""

import argparse
import json
import os
import subprocess
import sys
from collections import deque
from pathlib import Path

import arm
import numpy as np
import torch
from fleet_env.links.bucket import TokenBucket
from fleet_env.settings.fleet_file import link_trace, load_fleet
from fleet_env.weights import state_bytes
from fleet_policy.imitation import Imitation
from run import BEGIN, EVERY, HERE, PLACES, show

FLEET = load_fleet(str(HERE / 'fleet.yaml'), [])
SECONDS, STEP = 60 * FLEET.minutes, FLEET.server.checkpoint_every
TIMES = np.arange(10, SECONDS, 10)
PICTURE = 30_000      # bytes of a picture that an episode of a real arm has at each tick


class Learner:
    """A model that is trained as the fleet trains it, in virtual time, on folders of episodes."""

    def __init__(self, folder, seed, ranks):
        options = {**FLEET.training.task_options, 'episodes': str(folder / '{rank}'), 'test': ''}
        self.task, self.ranks = Imitation(**options, held_out=0.0, seed=seed), ranks
        self.task.batch_size = FLEET.training.batch_size
        self.model, self.steps = self.task.model(), 0
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), FLEET.training.learning_rate, FLEET.training.momentum,
            nesterov=FLEET.training.nesterov)
        self.places = arm.targets(np.random.default_rng(seed + 1000), PLACES)

    def train(self, begin, end):
        """Train from one time to another on what is there at the first."""
        batches = [self.task.batches(rank, 2) for rank in self.ranks]
        for _ in range(round((end - begin) / FLEET.training.pace)):
            self.optimizer.zero_grad()
            for each in batches:
                (self.task.loss(self.model, next(each)) / len(batches)).backward()
            self.optimizer.step()

    def success(self):
        """Return the share of the places that it reaches."""
        return arm.success(self.model, self.places)


def written(folder, seed, rank, number):
    """Record a demonstration, and return its bytes as the arm would send them, compressed."""
    import zlib
    show(folder, seed, rank, number)
    files = (folder / str(rank) / f'{number:04}').iterdir()
    return sum(len(zlib.compress(file.read_bytes(), 9)) for file in files)


def alone(folder, seed, rank):
    """Return the curve of an arm that learns from its own demonstrations."""
    for number in range(BEGIN):
        written(folder, seed, rank, number)
    learner, curve, number = Learner(folder, seed, [rank]), [], BEGIN
    for at in np.arange(0, SECONDS, STEP):
        curve.append((at, learner.success()))
        learner.train(at, at + STEP)
        while (number - BEGIN + 1) * EVERY <= at + STEP:
            written(folder, seed, rank, number)
            number += 1
    return curve


def sent(folder, seed, picture):
    """Return the curve of each arm, and the bytes, if all episodes go to the server.

    ``picture``: bytes that each tick of an episode has besides what the example records.
    """
    traces = [link_trace(robot.link) for robot in FLEET.robots]
    up, down = ([TokenBucket(trace) for trace in traces] for _ in range(2))
    coming, total = [], 0
    for rank in range(2):
        for number in range(BEGIN + int(SECONDS / EVERY)):
            size = written(folder / 'arms', seed, rank, number) + picture * arm.TICKS
            at = max(number - BEGIN + 1, 0) * EVERY
            arrives = up[rank].offer(size, at)
            total += size * (arrives <= SECONDS)
            coming.append((arrives, rank, number))
    coming, learner = deque(sorted(coming)), None
    curves, under_way = [[(0.0, 0.0)], [(0.0, 0.0)]], [0.0, 0.0]
    for at in np.arange(0, SECONDS, STEP):
        while coming and coming[0][0] <= at:
            _, rank, number = coming.popleft()
            place = folder / 'server' / str(rank)
            place.mkdir(parents=True, exist_ok=True)
            os.replace(folder / 'arms' / str(rank) / f'{number:04}', place / f'{number:04}')
        if not all((folder / 'server' / str(rank)).exists() for rank in range(2)):
            continue
        learner = learner or Learner(folder / 'server', seed, [0, 1])
        learner.train(at, at + STEP)
        size = len(state_bytes(learner.model))
        for rank in range(2):
            if under_way[rank] <= at + STEP:      # the one before has arrived
                under_way[rank] = down[rank].offer(size, at + STEP)
                curves[rank].append((under_way[rank], learner.success()))
                total += size * (under_way[rank] <= SECONDS)
    return curves, total


def at_times(curve):
    """Return the success at `TIMES` for a curve of (time, share)."""
    times, shares = zip(*curve, strict=True)
    return np.array(shares)[np.searchsorted(times, TIMES, 'right') - 1]


def until(rows, share):
    """Return when the mean success is first at least ``share``, as text."""
    mean = np.mean(rows, 0)
    return f'{TIMES[np.argmax(mean >= share)]:.0f} s' if (mean >= share).any() else 'never'


def main():
    """Measure, and print the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--out', type=Path, required=True, help='folder for the runs')
    parser.add_argument('--seeds', type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: ([], []) for name in (
        'the fleet', 'each arm alone', 'all episodes sent', 'all episodes sent, with pictures')}
    versions = []
    for seed in range(options.seeds):
        out = options.out.absolute() / str(seed)
        subprocess.run([sys.executable, str(HERE / 'run.py'), '--seed', str(seed), '--out',
                        str(out)], check=True, stdout=subprocess.DEVNULL)
        fleet = json.loads((out / 'results.json').read_text())
        rows, totals = found['the fleet']
        rows += [at_times([(t, s) for t, _, s in curve]) for curve in fleet['curves'].values()]
        size = (out / 'fleet/models/latest/model.safetensors').stat().st_size
        totals.append(fleet['sent_bytes'] + fleet['received_bytes']
                      + size * sum(fleet['versions'].values()))
        versions.append(fleet)
        for rank in range(2):
            found['each arm alone'][0].append(at_times(alone(out / 'alone', seed, rank)))
        found['each arm alone'][1].append(0)
        for name, picture in (('all episodes sent', 0),
                              ('all episodes sent, with pictures', PICTURE)):
            curves, total = sent(out / f'sent{picture}', seed, picture)
            found[name][0].extend(map(at_times, curves))
            found[name][1].append(total)
        print(f'seed {seed} done', file=sys.stderr, flush=True)
    print('| | ' + ' | '.join(f'{t:.0f} s' for t in TIMES) + ' | 80 % | MB |')
    print('|---|' + '---:|' * (len(TIMES) + 2))
    for name, (rows, totals) in found.items():
        mean, low, high = np.mean(rows, 0), np.min(rows, 0), np.max(rows, 0)
        cells = [f'{100 * a:.0f} ({100 * b:.0f}-{100 * c:.0f})'
                 for a, b, c in zip(mean, low, high, strict=True)]
        print(f'| {name} | ' + ' | '.join(cells) + f' | {until(rows, .8)} | '
              f'{np.mean(totals) / 1e6:.1f} |')
    print(json.dumps([{key: value for key, value in one.items() if key != 'curves'}
                      for one in versions]))


if __name__ == '__main__':
    main()
