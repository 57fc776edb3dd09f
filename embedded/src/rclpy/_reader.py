"""What subscriptions, services and clients share: a DDS reader that an executor drains."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from rclpy import _dds
from rclpy._cdr import CdrError
from rclpy.logging import get_logger
from rclpy.qos import HistoryPolicy, QoSProfile

MAX_BATCH = 64


class Entity:
    """Something whose callback an executor runs."""

    callback_group: Any = None
    _node: weakref.ref[Any]
    _destroyed = False

    def _wake(self) -> None:
        """Tell the node's executor that there may be work."""
        node = self._node()
        executor = None if node is None else node.executor
        if executor is not None:
            executor.wake()


class ReaderEntity(Entity):
    """Takes samples in batches; the executor hands them to `_invoke` one at a time.

    A batch is never larger than the history depth, so a slow callback still works on recent data.
    """

    def __init__(self, reader: int, qos: QoSProfile) -> None:
        self._reader = reader
        keep_all = qos.history == HistoryPolicy.KEEP_ALL
        self._batch = MAX_BATCH if keep_all else max(1, min(qos.depth or 1, MAX_BATCH))
        self._pending: deque[tuple[bytes, Any]] = deque()
        self._fresh = True  # DDS may hold samples that have not been taken
        self._queued = False  # the executor has it in its list of readers with work

    def _fill(self) -> bool:
        """Take a batch when there is none left; whether there is work."""
        if self._pending:
            return True
        while self._fresh and not self._destroyed:
            self._fresh = False  # first: an event that comes meanwhile makes it true again
            samples = _dds.take(self._reader, self._batch)
            if len(samples) >= self._batch:
                self._fresh = True
            self._pending.extend(s for s in samples if s[1].valid_data)
            if self._pending:
                return True
        return False

    def _invoke(self, sample: tuple[bytes, Any]) -> Any:
        """Work on one sample; may return a coroutine."""
        raise NotImplementedError

    def _on_event(self, status: int) -> None:
        """Note an event of the reader."""
        if status & _dds.DATA_AVAILABLE:
            self._fresh = True

    def _decode(self, cls: Any, data: bytes, what: str) -> Any:
        """Deserialise; malformed data gives None and a line in the log."""
        try:
            return cls._DESERIALIZE(data)
        except CdrError as error:
            node = self._node()
            logger = node.get_logger() if node is not None else get_logger("rclpy")
            logger.error(f"{what}: sample dropped: {error}", throttle_duration_sec=1.0)
            return None
