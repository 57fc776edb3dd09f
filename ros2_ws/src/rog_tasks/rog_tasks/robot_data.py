"""The training data of one robot; implements `rog_core.gradient.Data`."""

from collections.abc import Iterable
from typing import Any

from rog_tasks.shard_batches import ShardBatches
from rog_tasks.task import Task


class RobotData:
    """The data of robot ``rank`` of ``world`` in a task."""

    def __init__(self, task: Task, rank: int, world: int):
        self._task, self._rank, self._world = task, rank, world
        self._batches = iter(task.batches(rank, world))
        self._shards: dict[int, ShardBatches] = {}
        self.loss = task.loss

    def batch(self) -> Any:
        """Return the robot's own next batch."""
        return next(self._batches)

    def shard(self) -> Iterable[Any]:
        """Return the batches of the robot's whole shard, once."""
        return self._task.shard(self._rank, self._world)

    def batch_of(self, shards: int, shard: int, iteration: int) -> Any:
        """Return the batch of an iteration of one of ``shards`` shards, the same on every robot."""
        if shards not in self._shards:
            self._shards = {shards: ShardBatches(self._task, shards)}
        return self._shards[shards].get(shard, iteration)
