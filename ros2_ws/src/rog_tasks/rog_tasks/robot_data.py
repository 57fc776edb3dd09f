"""The training data of one robot; implements `rog_core.worker.gradient.Data`."""

from collections.abc import Iterable
from typing import Any

from rog_tasks.errors import TaskError
from rog_tasks.shard_batches import ShardBatches
from rog_tasks.task import Task, endless, next_of

MOST = 100_000
"""Maximum number of batches of a shard; the limit stops a shard that never ends."""


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
