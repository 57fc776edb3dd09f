"""The training data of one robot; implements `rog_core.worker.gradient.Data`."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rog_tasks.errors import TaskError
from rog_tasks.task import Task, endless, next_of

MOST = 100_000
"""Maximum number of batches of a shard; the limit stops a shard that never ends."""
OPEN = 256
"""Maximum number of shards whose position is remembered; the least recently used one goes first."""


class RobotData:
    """The data of one robot in a task: robot ``rank`` of ``world`` robots."""

    def __init__(self, task: Task, rank: int, world: int):
        self._task, self._rank, self._world = task, rank, world
        self._batches = endless(task, rank, world)
        self._shards: dict[int, ShardBatches] = {}
        self.loss = task.loss

    def batch(self) -> Any:
        """Return the next batch of this robot."""
        return next_of(self._batches)

    def shard(self) -> Iterable[Any]:
        """Return the batches of the robot's whole shard, each of them once."""
        count = 0
        for batch in self._task.shard(self._rank, self._world):
            count += 1
            if count > MOST:
                break
            yield batch
        if not 0 < count <= MOST:
            raise TaskError(f'shard({self._rank}, {self._world}) yields '
                            f"{f'more than {MOST} batches' if count else 'nothing'}; it must "
                            'yield what the robot learns from, once')

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return batch number ``iteration`` of shard ``shard``; the data have ``shards`` shards.

        All robots get the same batch for the same arguments.
        """
        if shards not in self._shards:
            self._shards = {shards: ShardBatches(self._task, shards)}
        return self._shards[shards].get(shard, iteration)


@dataclass
class _Place:
    batches: Iterator[Any]
    taken: int = 0


class ShardBatches:
    """Gives access to the batches of all shards by number; a batch is the same on every robot.

    Gradient coding needs this: several robots have copies of one shard.
    Batches may be requested in any order. A request for a later batch skips the batches in between.
    If the iterator that ``batches`` returns has a method ``skip(count)``, this method skips them;
    otherwise they are made and dropped. A request for an earlier batch starts again at the first
    batch of the shard.

    :param task: its method ``batches(shard, shards)`` returns the batches of a shard.
    :param shards: number of shards of the data.
    """

    def __init__(self, task: Task, shards: int):
        self._task, self._shards = task, shards
        self._places: OrderedDict[int, _Place] = OrderedDict()

    def get(self, shard: int, iteration: int) -> Any:
        """Return batch ``iteration``, counted from 1, of shard ``shard``, counted from 0.

        :raises ValueError: the iteration is below 1.
        :raises TaskError: the task refuses the shard, or its batches end.
        """
        if iteration < 1:
            raise ValueError(f'iteration is {iteration}; the first is 1')
        place = self._places.get(shard)
        if place is None or place.taken >= iteration:
            place = _Place(endless(self._task, shard, self._shards))
        self._places[shard] = place
        self._places.move_to_end(shard)
        if len(self._places) > OPEN:
            self._places.popitem(last=False)
        _skip(place.batches, iteration - 1 - place.taken)
        place.taken = iteration
        return next_of(place.batches)


def _skip(batches: Iterator[Any], count: int) -> None:
    if hasattr(batches, 'skip'):
        batches.skip(count)
    else:
        next(islice(batches, count, count), None)
