"""The result of a run, computed from journals, snapshots and counters.

``result.json`` of a run:

    schema        rog-peer-run/1
    program       name of the program; versions: name of a package -> version
    scenario, seed
    settings      the settings on which the result depends
    events        a list of [t_s, what happened, name of the robot or ``server``]
    started       whether every robot trained a batch within the start limit; if not, the fields
                  below are missing, except ``outcome`` (why it did not start) and ``start_s``
    outcome       how the run ended, as a text for people
    start_s       seconds from the start of the processes until every robot has trained a batch
    duration_s    duration of the run in seconds, from the beginning of the links' records
    last_batch_s  time of the last batch of any robot
    last_version_s  time of the last new version of the shared model
    ended         name -> [t_s, how it ended], for the processes that ended by themselves
    robots        name -> samples, compute_s, waiting (share of the run in which the robot did not
                  compute), up_bytes, down_bytes (counters of its interface), air_s (seconds in
                  which its link was busy), energy_j, last_batch_s
    server        up_bytes, down_bytes of its interface
    curve         a list of [t_s, accuracy] of the shared model on spoilt test images
    targets       a list of [accuracy, t_s]: time at which the curve first reached this accuracy;
                  null if it never did
    accuracy_end  last accuracy of the curve
    late_s        longest time in seconds that the emulated radio was late with a frame; a long
                  time means that the machine was too slow for the run

Times count from the beginning of the links' records. The energy of a robot is computed with a
power model. While the robot computes, it needs the power for computing. At other times it needs
the power for communicating while its link is busy, and the power of a stalled robot while its link
is idle. The curve is the accuracy of the server's model. If the server has no model, the curve is
the mean of the newest accuracies of all processes that hold a model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.settings.power_model import PowerModel

from .adapters.task import SERVER, Task

SCHEMA = 'rog-peer-run/1'
RESULT_FILE = 'result.json'
# The last part of a run, as a share of the run. A program that trains nothing in this part may have
# stopped.
IDLE = 0.1
Curve = list[tuple[float, float]]


def journal(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of a process's journal, except a line that was not written to its end."""
    path = folder / 'journals' / f'{name}.jsonl'
    if not path.exists():
        return []
    return [line for text in path.read_bytes().split(b'\n')[:-1] if (line := _parsed(text))]


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(text)
        return found
    # a killed process wrote half a line, and the restarted process continued the line
    except ValueError:
        return None


def has_trained(folder: Path, name: str) -> bool:
    """Return whether a robot has trained a batch."""
    return any(line['kind'] == 'batch' for line in journal(folder, name))


def robot_measures(lines: Sequence[Mapping[str, Any]], start: float, end: float,
                   counters: tuple[int, int], air_s: float, power: PowerModel) -> dict[str, Any]:
    """Return the fields of a robot in ``result.json``.

    :param lines: journal of the robot.
    :param start, end: beginning and end of the run, by the clock of the journal.
    :param counters: bytes that the robot received and sent in the run.
    :param air_s: seconds in which the robot's link was busy, the sum of both directions.
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
    """Return the accuracy of the shared model over time: [(t, accuracy)].

    This is the accuracy of the server's model. If the server has no model, each measurement gives
    the mean of the newest accuracies of all processes that hold a model.

    :param found: name -> [(t, accuracy)] with ascending times.
    :param first: accuracy of the model at time 0.
    """
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
    """Return how a run ended, as a text for people.

    A run counts as stopped if two conditions hold. First, no robot trained in the last part of the
    run; `IDLE` is the share of the run that this part takes. Second, the time since the last batch
    is more than twice as long as every earlier pause before a batch. The second condition is for
    programs that communicate after every batch. Over a slow link such a program pauses for a long
    time after each batch, and without this condition it could count as stopped.

    :param batches: times of the batches of all robots in seconds, in order.
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
    """Measure the accuracy of every snapshot of a run.

    Returns name -> curve, and the accuracy of the model with which the run began.
    """
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
    """Return the fields of ``result.json`` that describe a run that has started.

    The docstring of this module explains these fields.

    :param counters: name -> bytes received and sent in the run.
    :param air: robot -> seconds in which its link was busy in the run.
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
    """Return the `MEASURES` of a run for the tables.

    If each robot has its own value of a measure, return the mean over the robots. A measure is NaN
    if it has no value, for example the time to an accuracy that the run did not reach.
    """
    if not result['started']:
        return dict.fromkeys(MEASURES, math.nan)
    robots = list(result['robots'].values())
    means = {name: sum(robot[name] for robot in robots) / len(robots)
             for name in ('samples', 'up_bytes', 'down_bytes', 'waiting', 'energy_j')}
    times = {f'target_{k}_s': math.nan if t is None else t
             for k, (_, t) in enumerate(result['targets'])}
    return {**means, **times, 'accuracy_end': result['accuracy_end']}
