"""Tries out the task of a fleet before any process starts, and says what it takes here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import with_overrides
from rog_core.codecs import get_codec
from rog_core.model.flat import contents_of
from rog_core.model.partition import RowPartition
from rog_tasks.apart import Ended, NoAnswer, call_apart
from rog_tasks.errors import TaskError, TaskFailed
from rog_tasks.task import Task, load_task
from rog_tasks.task_check import TaskCheck, live_topic, try_out

LIMIT = 120.0    # seconds that the check may take
# PyTorch says this in a forked process if the first one has a GPU and has computed gradients.
FORKED = 'autograd\'s threading in combination with fork'
ID_BYTES = 1.2   # bytes of a row's number in a push, as `rog_core/bench/wire_size.py` measures
NAMED = 3        # number of tensors that stay on each robot which the notes name
YOUNG = 0.997    # share of a BatchNorm's statistics that the run's batches should make up


@dataclass(frozen=True)
class Findings:
    """The check of a fleet's task: what a user should see, and the duration of a gradient.

    ``seconds``: NaN if the task was not checked; then ``lines`` say why.
    """

    lines: tuple[str, ...]
    seconds: float = math.nan


def loaded(fleet: FleetConfig) -> Task:
    """Return the task of a fleet; while it is made, PyTorch uses one thread, as in a run."""
    training, threads = fleet.training, torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return load_task(training.task, training.task_options, fleet.seed, training.batch_size)
    finally:
        torch.set_num_threads(threads)


def checked(fleet: FleetConfig, task: Task | None = None, robot: str = '') -> Findings:
    """Try out the task of a fleet with one batch of a robot.

    The check runs in a process of its own, so ``task`` and all random states stay as they are.

    :param task: the fleet's task; None: the other process makes it.
    :param robot: the robot whose data is used; empty: the first one.
    :raises TaskError: the task cannot be trained; the message says why.
    """
    def check() -> Findings:
        return _check(fleet, task or loaded(fleet), robot)

    gpu = _device(fleet) != 'cpu'
    try:
        # A GPU cannot be used in a forked process.
        return _check(fleet, loaded(fleet), robot) if gpu else call_apart(check, LIMIT)
    except TaskFailed as error:
        if FORKED not in str(error):
            raise
        return _check(fleet, loaded(fleet), robot)
    except NoAnswer:
        return Findings((f'the task is not checked: no gradient within {LIMIT:g} s',))
    except Ended:
        raise TaskFailed('the process that tried out the task was killed or has ended; is there '
                         'enough memory?') from None


def _device(fleet: FleetConfig) -> str:
    wanted = fleet.training.device
    return 'cpu' if wanted == 'cpu' or not torch.cuda.is_available() else wanted


def _check(fleet: FleetConfig, task: Task, robot: str) -> Findings:
    if topic := live_topic(task):
        return Findings((f'the task is not checked: it waits for images of {topic}',))
    training, name = fleet.training, robot or fleet.robots[0].name
    model = task.model().to(_device(fleet))
    contents = contents_of(model)
    found = try_out(task, model, *fleet.share(name))
    for buffer in contents.buffers:
        buffer.tensor()  # raises an error if the pass has changed its shape
    for key, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            what = type(value).__name__ if not isinstance(value, torch.Tensor) else value.layout
            raise TaskError(f'{key!r} in the state_dict of the model is of type {what}; the '
                            'versions of a model hold only dense tensors: keep it out of the '
                            'state_dict (persistent=False, or without get_extra_state)')
    text = _text(found, contents.partition(training.granularity, training.codec), training.codec)
    return Findings((text, *_notes(fleet, found, contents.left_out)), found.seconds)


def _text(found: TaskCheck, partition: RowPartition, codec: str) -> str:
    frozen = f' ({_count(found.frozen)} frozen)' if found.frozen else ''
    buffers = f', {found.buffers} buffers' if found.buffers else ''
    sizes = partition.sizes(get_codec(codec)) + ID_BYTES
    whole, push = sizes.sum(), sizes[:partition.buffer_segments.start].sum()
    with_buffers = f' ({_bytes(whole)} with buffers)' if whole > push else ''
    return (f'{found.model}: {_count(found.parameters)} parameters{frozen} in '
            f'{partition.buffer_rows.start:,} rows{buffers}, {_seconds(found.seconds)} a gradient, '
            f'{_bytes(push)} a push{with_buffers}, {_bytes(found.memory)} of memory')


def _notes(fleet: FleetConfig, found: TaskCheck, left_out: Mapping[str, str]) -> list[str]:
    odd = [*found.odd, *(f'{name} stays on each robot: {why}'
                         for name, why in list(left_out.items())[:NAMED])]
    if len(left_out) > NAMED:
        odd.append(f'so do {len(left_out) - NAMED} more tensors')
    each = fleet.training.pace or found.seconds
    if fleet.minutes and not math.isnan(found.momentum):
        batches = 60 * fleet.minutes / each  # of one robot: the fleet has the mean of its robots
        share = 1 - (1 - found.momentum) ** batches if found.momentum < 1 else 1.0
        if share < YOUNG:
            odd.append(f'with a momentum of {found.momentum:g} and at most {batches:.0f} batches '
                       f'of a robot, {1 - share:.0%} of the statistics of a BatchNorm will still '
                       'be those of the start; a larger momentum is quicker')
    return [f'note: {text}' for text in odd]


def rounded(seconds: float) -> float:
    """Return a duration with two significant digits."""
    return float(f'{seconds:.1e}')


def _seconds(number: float) -> str:
    return f'{rounded(number):g} s' if number >= 0.1 else f'{rounded(1e3 * number):g} ms'


def _count(number: float) -> str:
    return _scaled(number, (('', 1), ('k', 1e3), ('M', 1e6), ('G', 1e9)))


def _bytes(number: float) -> str:
    return _scaled(number, (('B', 1), ('kB', 1e3), ('MB', 1e6), ('GB', 1e9)))


def _scaled(number: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, size = next((u for u in reversed(units) if number >= u[1]), units[0])
    value = number / size
    return f'{value:.{0 if value >= 100 or size == 1 else 1}f} {unit}'.rstrip()


def with_pace(fleet: FleetConfig, measure: Callable[[], float]) -> tuple[FleetConfig, str]:
    """Return the fleet with a duration of a gradient for every robot, and what to say about it.

    :param measure: returns the seconds of a gradient; it is called if a robot has no pace.
    """
    if all(robot.fleet or robot.pace + robot.codec_pace > 0 for robot in fleet.robots):
        return fleet, ''
    seconds = measure()
    if math.isnan(seconds):
        return fleet, ''
    pace = rounded(seconds)
    return with_overrides(fleet, {'training.pace': pace}), (
        f'training.pace is 0, so a gradient takes {pace:g} s in virtual time, as on this machine; '
        f'to repeat the run: --set training.pace={pace:g}')
