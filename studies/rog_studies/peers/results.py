"""What a run gave, computed from journals, snapshots and counters.

``result.json`` of a run:

    schema        rog-peer-run/1
    program       name of the program; versions: name of a package -> version
    scenario, seed
    settings      what the run depends on; a run with other settings is another run
    events        what happened: a list of [t_s, what, whom]
    started       whether every robot trained a batch within the start limit; if not, the fields
                  below are missing, and ``outcome`` says what the processes said
    outcome       how it ended, for people
    start_s       from the start of the processes to the first batch of the last robot, s
    duration_s    of the run, from the beginning of the links' records
    last_batch_s  last batch of any robot; last_version_s: last new version of the shared model
    ended         name -> [t_s, how]: processes that ended by themselves
    robots        name -> samples, compute_s, waiting (share of the run in which the robot did not
                  compute), up_bytes, down_bytes (counters of its interface), air_s (time in which
                  its link was busy), energy_j, last_batch_s
    server        up_bytes, down_bytes of its interface
    curve         a list of [t_s, accuracy] of the shared model on spoilt test images
    targets       a list of [accuracy, t_s]: when the curve first reached it; null if never
    accuracy_end  accuracy of the last snapshot
    late_s        the longest that the radio was late, which says whether the machine kept up

Times count from the beginning of the links' records. Energy is that of the power model: computing,
and else communicating while the link is busy, and else stalled. Where several processes hold a
model, the curve is the mean of their newest ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.power import PowerModel

from .adapters.task import SERVER, Task

SCHEMA = 'rog-peer-run/1'
RESULT_FILE = 'result.json'
IDLE = 0.1        # of the run; who trained nothing in this last share of it may have stopped
Curve = list[tuple[float, float]]


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a process's journal, without a last one that was cut off."""
    path = folder / 'journals' / f'{name}.jsonl'
    if not path.exists():
        return []
    return [line for text in path.read_bytes().split(b'\n')[:-1] if (line := _parsed(text))]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(text)
        return found
    except ValueError:  # a process that was killed while it wrote, and the next one, share a line
        return None


def has_trained(folder: Path, name: str) -> bool:
    """Return whether a robot has trained a batch."""
    return any(line['kind'] == 'batch' for line in journal(folder, name))


def robot_measures(lines: Sequence[Mapping[str, Any]], start: float, end: float,
                   counters: tuple[int, int], air_s: float, power: PowerModel) -> dict[str, Any]:
    """Return what ``result.json`` says of a robot.

    :param lines: its journal; ``start``, ``end``: of the run, by the clock of the journal.
    :param counters: bytes received and sent in the run.
    :param air_s: time in which its link was busy, both directions, s.
    """
    batches = [line for line in lines if line['kind'] == 'batch' and start < line['t'] <= end]
    duration = end - start
    compute = min(sum(line['compute_s'] for line in batches), duration)
    air = min(air_s, duration - compute)
    return {
        'samples': sum(line['samples'] for line in batches), 'compute_s': compute,
        'waiting': 1 - compute / duration, 'down_bytes': counters[0], 'up_bytes': counters[1],
        'air_s': air_s, 'energy_j': compute * power.computing + air * power.communicating
        + (duration - compute - air) * power.stalled,
        'last_batch_s': batches[-1]['t'] - start if batches else None}


def curve_of(found: Mapping[str, Curve], first: float, duration: float) -> Curve:
    """Return the mean of the newest accuracies of all that hold a model, at each measurement.

    :param found: name -> [(t, accuracy)] with ascending times.
    :param first: accuracy of the model at time 0.
    """
    # The server's model is that of the fleet, where a server has one.
    holders = {SERVER: found[SERVER]} if found.get(SERVER) else found
    events = sorted((t, name, accuracy) for name, curve in holders.items()
                    for t, accuracy in curve if t <= duration)
    newest: dict[str, float] = {}
    curve = [(0.0, first)]
    for t, name, accuracy in events:
        newest[name] = accuracy
        if t > 0:
            curve.append((t, sum(newest.values()) / len(newest)))
    return curve


def time_to(curve: Curve, target: float) -> float | None:
    """Return the time at which a curve first reaches an accuracy; None if it never does."""
    return next((t for t, accuracy in curve if accuracy >= target), None)


def outcome_of(duration: float, batches: Sequence[float], ended: Mapping[str, Sequence[Any]]
               ) -> str:
    """Return how a run ended, for people.

    It has stopped if its robots trained nothing in the last `IDLE` of it, and never before paused
    half as long: a program that exchanges every batch over a slow link pauses after each.

    :param batches: times of the batches of all robots, s, in order.
    :param ended: name -> (time, how) of the processes that ended by themselves.
    """
    causes = '; '.join(f'at {t:.0f} s {how}' for t, how in ended.values())
    if not batches:
        return f'trained nothing{f": {causes}" if causes else ""}'
    idle = duration - batches[-1]
    longest = max((later - one for one, later in zip((0.0, *batches), batches, strict=False)),
                  default=0.0)
    if idle > max(IDLE * duration, 2 * longest):
        return f'stopped at {batches[-1]:.0f} s: {causes or "its processes wait"}'
    return f'went on to the end, but {causes}' if causes else 'went on to the end'


def accuracies(folder: Path, start: float) -> tuple[dict[str, Curve], float]:
    """Measure the snapshots of a run; return name -> curve, and the accuracy of the first model."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = Task(folder)
        model = task.model()
        first = task.accuracy(model)
        found: dict[str, Curve] = {}
        for place in sorted((folder / 'snapshots').glob('*')):
            curve = []
            for path in sorted(place.glob('*.npz'), key=lambda path: float(path.stem)):
                with np.load(path) as tensors, torch.no_grad():
                    for name, parameter in model.named_parameters():
                        parameter.copy_(torch.from_numpy(tensors[name]))
                curve.append((float(path.stem) - start, task.accuracy(model)))
            if curve:
                found[place.name] = curve
        return found, first
    finally:
        torch.set_num_threads(threads)


def measured(folder: Path, robots: Sequence[str], start: float, end: float,
             counters: Mapping[str, tuple[int, int]], air: Mapping[str, float],
             ended: Mapping[str, Sequence[Any]], targets: Sequence[float], power: PowerModel
             ) -> dict[str, Any]:
    """Return the measures of a run that has started, see the fields above.

    :param counters: name -> bytes received and sent; ``air``: robot -> s; both of the run.
    """
    lines = {name: journal(folder, name) for name in (SERVER, *robots)}
    found, first = accuracies(folder, start)
    duration = end - start
    curve = curve_of(found, first, duration)
    of_robots = {name: robot_measures(lines[name], start, end, counters[name], air[name], power)
                 for name in robots}
    batches = sorted(line['t'] - start for name in robots for line in lines[name]
                     if line['kind'] == 'batch' and start < line['t'] <= end)
    versions = [line['t'] - start for own in lines.values() for line in own
                if line['kind'] == 'version' and start < line['t'] <= end]
    down, up = counters[SERVER]
    return {'duration_s': duration, 'outcome': outcome_of(duration, batches, ended),
            'last_batch_s': batches[-1] if batches else None,
            'last_version_s': max(versions, default=None),
            'ended': dict(ended), 'robots': of_robots,
            'server': {'down_bytes': down, 'up_bytes': up}, 'curve': curve,
            'targets': [[target, time_to(curve, target)] for target in targets],
            'accuracy_end': curve[-1][1]}


MEASURES = ('samples', 'accuracy_end', 'target_0_s', 'target_1_s', 'target_2_s', 'up_bytes',
            'down_bytes', 'waiting', 'energy_j')


def measures(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a run for the tables; those per robot are means over the robots.

    A number that there is not is NaN.
    """
    if not result['started']:
        return dict.fromkeys(MEASURES, math.nan)
    robots = list(result['robots'].values())
    means = {name: sum(robot[name] for robot in robots) / len(robots)
             for name in ('samples', 'up_bytes', 'down_bytes', 'waiting', 'energy_j')}
    times = {f'target_{k}_s': math.nan if t is None else t
             for k, (_, t) in enumerate(result['targets'])}
    return {**means, **times, 'accuracy_end': result['accuracy_end']}
