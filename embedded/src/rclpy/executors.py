"""The two executors; what they share is in _executor.py."""

from __future__ import annotations

import inspect
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from rclpy import _dds
from rclpy._executor import (
    POLL_NS,
    ConditionReachedException,
    Executor,
    ExternalShutdownException,
    ShutdownException,
    TimeoutException,
    Work,
)
from rclpy._reader import ReaderEntity
from rclpy.context import Context
from rclpy.task import Future


class _OwnExecutor(Executor):
    """What the two share beyond the base."""

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait for one piece of work and run it.

        :param timeout_sec: seconds to wait, for ever when None or negative, not at all when 0
        """
        self._spin_once(timeout_sec, None)

    def _spin_until(self, future: Future, timeout_sec: float | None) -> None:
        self._spin_once(timeout_sec, future.done)

    def _spin_once(self, timeout_sec: float | None, condition: Callable[[], bool] | None) -> None:
        raise NotImplementedError


class SingleThreadedExecutor(_OwnExecutor):
    """Runs callbacks in the thread that spins."""

    def _spin_some(self) -> None:
        with self._spinning:
            self._spin_once(None, None)
            while self._active and self._active[-1]._pending and not self._interrupted():
                if not self._drain(self._active[-1]):
                    return

    def _interrupted(self) -> bool:
        """Whether there is, or may be, other work than the next sample."""
        return (
            not self._context._ok
            or self._is_shutdown
            or self._entities_changed
            or self._timers_stale
            or bool(self._tasks)
            or bool(self._triggered)
            or time.monotonic_ns() >= min(self._timer_due, self._last_poll + POLL_NS)
        )

    def _drain(self, entity: ReaderEntity) -> bool:
        """Work on the samples at hand without the detour through _next_work for each.

        False when a coroutine that waits for something has the callback group.
        """
        if not entity.callback_group.beginning_execution(entity):
            return False
        self._started()
        coroutine = None
        self._local.depth = getattr(self._local, "depth", 0) + 1
        try:
            while coroutine is None and entity._pending and not self._interrupted():
                result = entity._invoke(entity._pending.popleft())
                if inspect.iscoroutine(result):
                    coroutine = result
                    self._run_coroutine(entity, coroutine)
        finally:
            self._local.depth -= 1
            if coroutine is None:
                entity.callback_group.ending_execution(entity)
            self._stopped()
        return True

    # Everything is in one thread: no lock to count, and nobody to wake.

    def _started(self) -> None:
        self._running += 1

    def _stopped(self) -> None:
        self._running -= 1
        if self._is_shutdown:
            with self._idle:
                self._idle.notify_all()

    def _spin_once(self, timeout_sec: float | None, condition: Callable[[], bool] | None) -> None:
        with self._spinning:
            try:
                work = self._next_work(timeout_sec, condition)
            except (TimeoutException, ConditionReachedException):
                return
            except ShutdownException:
                self._waitset.close()
                return
            work()


class MultiThreadedExecutor(_OwnExecutor):
    """Runs callbacks in a pool of threads; callback groups say which at the same time.

    :param num_threads: size of the pool, by default the number of CPUs (2 at least)
    """

    def __init__(self, num_threads: int | None = None, *, context: Context | None = None) -> None:
        super().__init__(context=context)
        if num_threads is None:
            num_threads = max(2, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="rclpy executor")
        self._threads = num_threads
        self._submitted = 0
        self._errors: deque[BaseException] = deque()

    # Work is only taken when a thread is free: the rest stays in DDS, where its QoS holds.

    def _pick(self, now: int) -> Work | None:
        return None if self._submitted >= self._threads else super()._pick(now)

    def _until_timer(self, now: int) -> int:
        return _dds.INFINITE if self._submitted >= self._threads else super()._until_timer(now)

    def _spin_once(self, timeout_sec: float | None, condition: Callable[[], bool] | None) -> None:
        self._raise_error()
        with self._spinning:
            try:
                work = self._next_work(timeout_sec, condition)
            except ShutdownException:
                self._waitset.close()
            except (ExternalShutdownException, TimeoutException, ConditionReachedException):
                pass
            else:
                with self._idle:
                    self._submitted += 1
                self._pool.submit(self._work, work)
        self._raise_error()

    def _work(self, work: Work) -> None:
        try:
            work()
        except BaseException as error:
            self._errors.append(error)
        finally:
            with self._idle:
                self._submitted -= 1
            self._waitset.wake()

    def _raise_error(self) -> None:
        if self._errors:
            raise self._errors.popleft()

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """Stop; wait until running callbacks have ended. False when they have not in time."""
        done = super().shutdown(timeout_sec)
        self._pool.shutdown(wait=False)
        return done


__all__ = [
    "ConditionReachedException",
    "Executor",
    "ExternalShutdownException",
    "MultiThreadedExecutor",
    "ShutdownException",
    "SingleThreadedExecutor",
    "TimeoutException",
]
