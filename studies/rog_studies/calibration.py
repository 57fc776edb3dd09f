"""Simulates ROG's outdoor runs and compares the results with the published numbers.

The inputs come from the authors: the record that they replayed to four robots; the seconds per
iteration for computing, for compressing and for the sleep that equalises the robots; and the bytes
of their model. Only one number is fitted here: `EFFICIENCY`, the share of a link's configured rate
that a transfer reaches. The authors measured .97 at 1 to 10 Mbit/s, where transfers spend most of
their time, and .78 at 30 to 60 Mbit/s; the fitted value lies between these two values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from fleet_env.links.trace import LinkTrace, write_trace
from fleet_env.records.summary import read_summary
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import (
    ChannelConfig,
    FleetConfig,
    LinkConfig,
    RobotConfig,
    TrainingConfig,
)
from rog_sim.jobs import Job, run_jobs

from .replay import PUBLISHED_OVERHEAD, PUBLISHED_STARTS, replay

EFFICIENCY = 0.87


@dataclass(frozen=True)
class Published:
    """A row of the table in facts.md (outdoor record, 4 workers, ConvMLP-M, first 3600 s).

    Times are in seconds per iteration. ``fixed`` is the sum of the times for computing, compressing
    and decompressing, and of the sleep that equalises the robots. ``tolerance``: largest allowed
    relative deviation of the simulated number of iterations.
    """

    sync: str
    iterations: int
    fixed: float
    transfer: float
    stall: float
    tolerance: float


TABLE = (Published('bsp', 186, .97 + .67 + .85, 6.5, 10.1, .15),
         Published('ssp:4', 223, .95 + .72 + .79, 6.0, 7.4, .15),
         Published('ssp:20', 299, .92 + .72 + .77, 5.0, 4.8, .15),
         Published('rsp:4+second', 435, .92 + .33 + .33, 4.2, 2.8, .20),
         Published('rsp:20+second', 629, .90 + .36 + .37, 3.4, 1.1, .20))


@dataclass(frozen=True)
class Measured:
    """The simulator's results for one row of `TABLE`.

    ``iterations``: for each seed, the mean number of iterations of a robot. ``transfer``,
    ``stall``: mean seconds per iteration.
    """

    published: Published
    iterations: tuple[float, ...]
    transfer: float
    stall: float

    @property
    def mean(self) -> float:
        """Mean number of iterations over all seeds."""
        return fmean(self.iterations)

    @property
    def spread(self) -> float:
        """Standard deviation of the number of iterations over all seeds; 0 for one seed."""
        return stdev(self.iterations) if len(self.iterations) > 1 else 0.0

    @property
    def deviation(self) -> float:
        """Relative deviation of the mean number of iterations from the published number."""
        return self.mean / self.published.iterations - 1


def published_fleet(record: LinkTrace, seed: int, directory: Path, minutes: float = 60.0,
                    workers: int = 4) -> FleetConfig:
    """Return the fleet of the published runs; write its links' traces into ``directory``.

    :param seed: seed of the training, and of the random times by which `replay` prolongs some
        samples of the record. Seed 0 gives the links that all published runs had.
    :param workers: 1 to 8. Workers 5 to 8 begin the record halfway between the published starting
        points.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # With this learning rate, BSP needs about as many iterations as in the published curve.
    training = TrainingConfig(pace=.92, codec_pace=.33, traffic='convmlp-m', evaluate_every=5,
                              learning_rate=2e-5)
    fleet = FleetConfig(
        name='published', robots=(), seed=seed, minutes=minutes, training=training,
        channel=ChannelConfig(shared=False))
    fleet = changed(fleet, network={'chunk_bytes': 65000, 'chunk_time': .02},
                    server={'patience': math.inf})
    robots = []
    between = [start + PUBLISHED_STARTS[1] // 2 for start in PUBLISHED_STARTS]
    for worker, start in enumerate([*PUBLISHED_STARTS, *between][:workers], start=1):
        path = directory / f'seed{seed}-worker{worker}.txt'
        write_trace(path, replay(record, worker, seed, 60 * minutes + 100, start=start,
                                 overhead=PUBLISHED_OVERHEAD))
        link = LinkConfig(trace=str(path.absolute()), scale=EFFICIENCY)
        robots.append(RobotConfig(name=f'robot{worker}', link=link, pace=training.pace,
                                  codec_pace=.33))
    return changed(fleet, robots=tuple(robots))


def measure(record: LinkTrace, seeds: int, directory: Path, rows: Sequence[Published] = TABLE,
            **options: Any) -> list[Measured]:
    """Run the methods of ``rows`` for a virtual hour with the seeds 0 to ``seeds`` - 1.

    :param directory: directory below which the runs and their links are written.
    :param options: parameters of `rog_sim.jobs.run_jobs`, which also describes the errors.
    """
    jobs = {row: [_job(row, record, seed, directory) for seed in range(seeds)] for row in rows}
    run_jobs([job for ours in jobs.values() for job in ours], **options)
    found = []
    for row, ours in jobs.items():
        runs = [read_summary(job.directory).robots.values() for job in ours]
        counts = [fmean(r.iterations for r in robots) for robots in runs]
        transfer, stall = (
            fmean(fmean(getattr(r, name) for r in robots) / count
                  for robots, count in zip(runs, counts, strict=True))
            for name in ('communicate_s', 'stall_s'))
        found.append(Measured(row, tuple(counts), transfer, stall))
    return found


def _job(row: Published, record: LinkTrace, seed: int, directory: Path) -> Job:
    fleet = published_fleet(record, seed, directory / 'links')
    training = {'sync': row.sync, 'evaluate_every': 0, 'task': 'rog_studies.tasks:Noise',
                'pace': row.fixed, 'codec_pace': 0.0}
    fleet = changed(fleet, training=training, robots=tuple(
        changed(robot, pace=row.fixed, codec_pace=0.0) for robot in fleet.robots))
    return Job(row.sync, fleet, directory / row.sync / f'seed{seed}')
