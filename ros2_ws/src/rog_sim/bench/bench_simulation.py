"""Measures the computing time of simulations, per virtual hour and per chunk of rows.

Most events of a simulation are chunks of rows. The time per chunk includes the
acknowledgement of the chunk and a share of all other events. The time to prepare the
task (pretraining) is not counted. The bench runs some minutes of virtual time and
extrapolates to an hour. For comparison, the bench also measures how long a gradient takes
without the simulation, in one thread. The result `gradients_alone_share` is the time of
all iterations' gradients, measured in this way, divided by the time of the simulation.
"""

import json
import sys
import time
from pathlib import Path

import torch
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig, LinkConfig, RobotConfig, TrainingConfig
from fleet_env.settings.fleet_file import load_fleet, with_overrides, with_robots
from rog_bringup import FLEETS
from rog_core.warm_up import warm_up
from rog_sim.simulation import Simulation
from rog_tasks.task import load_task

ELEMENTS = 1_344_000
BENCH = 'bench_simulation'


class Wide:
    """A task whose model has ``rows`` rows of equal length.

    A gradient costs one pass over the model.
    """

    batch_size = 1

    def __init__(self, seed: int = 0, rows: int = 336) -> None:
        self.shape = rows, ELEMENTS // rows
        self._noise = torch.randn(self.shape, generator=torch.Generator().manual_seed(seed))

    def model(self) -> torch.nn.Module:
        model = torch.nn.Module()
        model.register_parameter('rows', torch.nn.Parameter(torch.zeros(self.shape)))
        return model

    def batches(self, rank: int, world: int):
        while True:
            yield self._noise

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return (model.rows * batch).sum()

    def evaluate(self, model: torch.nn.Module) -> float:
        return 0.5


def measure(fleet: FleetConfig) -> dict[str, float]:
    simulation, chunks = Simulation(fleet), 0
    offer = simulation.channel.offer

    def counted(*arguments):
        nonlocal chunks
        chunks += 1
        return offer(*arguments)

    simulation.channel.offer = counted
    begin = time.perf_counter()
    summary = simulation.run(lambda done: None)
    wall = time.perf_counter() - begin
    iterations = sum(robot.iterations for robot in summary.robots.values())
    alone = iterations * gradient_seconds(fleet)
    return {'virtual_minutes': fleet.minutes, 'iterations': iterations, 'chunks': chunks,
            'wall_s_per_virtual_hour': round(wall * 60 / fleet.minutes, 1),
            'us_per_chunk': round(wall / chunks * 1e6, 1),
            'us_per_chunk_without_gradients': round((wall - alone) / chunks * 1e6, 1),
            'gradients_alone_share': round(alone / wall, 3)}


def gradient_seconds(fleet: FleetConfig, times: int = 20) -> float:
    training = fleet.training
    task = load_task(training.task, training.task_options, fleet.seed, training.batch_size)
    model = task.model()
    batches = iter(task.batches(0, len(fleet.robots)))
    task.loss(model, next(batches)).backward()
    begin = time.perf_counter()
    for _ in range(times):
        model.zero_grad(set_to_none=False)
        task.loss(model, next(batches)).backward()
    return (time.perf_counter() - begin) / times


def digits(robots: int, sync: str, minutes: float) -> FleetConfig:
    fleet = load_fleet('outdoor', [FLEETS])
    return with_robots(with_overrides(fleet, {'training.sync': sync, 'minutes': minutes}), robots)


def wide(rows: int, minutes: float) -> FleetConfig:
    """Return a fleet of two robots whose model has ``rows`` rows.

    Its transfers use as many bytes on the air as those of the published model ConvMLP-M
    (`training.traffic`).
    """
    link = LinkConfig(trace='indoor', latency=0.002)
    training = TrainingConfig(task=f'{BENCH}:Wide', task_options={'rows': rows}, sync='rsp:4',
                              learning_rate=1e-3, evaluate_every=0, traffic='convmlp-m')
    robots = tuple(RobotConfig(name=f'robot{n}', link=changed(link, offset=50.0 * n), pace=1.0)
                   for n in (1, 2))
    return FleetConfig(name='wide', robots=robots, seed=1, minutes=minutes, training=training,
                       link=link)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    warm_up()
    fleets = {f'{robots} robots {sync}': measure(digits(robots, sync, minutes))
              for robots, minutes in ((4, 3.0), (64, 0.3)) for sync in ('bsp', 'rsp:4')}
    print(json.dumps({'bench': 'virtual_time', 'task': 'CRUDA on digits', **fleets}), flush=True)
    rows = {f'{rows} rows': measure(wide(rows, 2.0)) for rows in (336, 3360, 33600)}
    print(json.dumps({'bench': 'virtual_time_rows', 'elements': ELEMENTS, **rows}))


if __name__ == '__main__':
    main()
