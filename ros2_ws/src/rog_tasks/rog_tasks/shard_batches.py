"""Returns batches by number, so that robots with the same shard get the same batch.

Gradient coding needs this: several robots have copies of one shard.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rog_tasks.task import Task, endless, next_of

OPEN = 256
"""Maximum number of shards whose position is remembered; the least recently used one goes first."""


@dataclass
class _Place:
    batches: Iterator[Any]
    taken: int = 0


class ShardBatches:
    """Gives access to the batches of all shards by number; a batch is the same on every robot.

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
