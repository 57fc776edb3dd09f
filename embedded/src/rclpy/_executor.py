"""What executors share: they wait for work and run the callbacks.

One DDS wait set per executor. Readers report "data available" once; from then on the executor takes
from them until they are empty, in turn, one sample each, so a busy topic starves neither timers nor
other topics. While there is work, new events are looked for once a millisecond; without work the
executor sleeps in the wait set until DDS, a timer or `wake` (from any thread) ends it.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy import _dds
from rclpy._reader import Entity, ReaderEntity
from rclpy.context import Context
from rclpy.guard_condition import GuardCondition
from rclpy.task import Future, Task
from rclpy.timer import Timer
from rclpy.utilities import get_default_context, timeout_sec_to_nsec

POLL_NS = 1_000_000
_READER_EVENTS = _dds.DATA_AVAILABLE | _dds.SUBSCRIPTION_MATCHED


class TimeoutException(Exception):
    """There was no work in time."""


class ShutdownException(Exception):
    """The executor was shut down."""


class ExternalShutdownException(Exception):
    """The context was shut down, for example by a signal."""


class ConditionReachedException(Exception):
    """What was waited for has happened."""


Work = partial[None]
"""What runs a callback; its first argument is an Entity, or a Task of nobody's."""


class Executor:
    """Base of the executors.

    One of your own has a `spin_once`, which gets its work from `wait_for_ready_callbacks` and runs
    it in whatever thread it likes.

    :param context: by default the default context
    """

    def __init__(self, *, context: Context | None = None) -> None:
        self._context = get_default_context() if context is None else context
        self._nodes: list[Any] = []
        self._lock = threading.RLock()
        self._is_shutdown = False
        self._waitset = _dds.WaitSet()
        self._keys: dict[int, ReaderEntity] = {}
        self._attached: dict[ReaderEntity, int] = {}
        self._next_key = 1
        self._entities_changed = True
        self._timer_list: list[Timer] = []
        self._timers_stale = True
        self._timer_due = _dds.INFINITE
        self._active: deque[ReaderEntity] = deque()
        self._triggered: deque[GuardCondition] = deque()
        self._tasks: deque[Task] = deque()
        self._recheck_timers = False
        self._last_poll = 0
        self._running = 0
        self._idle = threading.Condition(self._lock)
        self._spinning = threading.RLock()
        self._context._executors.add(self)

    # What rclpy offers.

    @property
    def context(self) -> Context:
        """The context that it belongs to."""
        return self._context

    def create_task(self, callback: Any, *args: Any, **kwargs: Any) -> Task:
        """Run a function or coroutine in the executor; returns its future."""
        task = Task(callback, args, kwargs, executor=self)
        self._resume_task(task)
        return task

    def add_node(self, node: Any) -> bool:
        """Run the node's callbacks from now on; False when that is so already."""
        with self._lock:
            if node in self._nodes:
                return False
            self._nodes.append(node)
        node.executor = self
        self._changed()
        return True

    def remove_node(self, node: Any) -> None:
        """Stop running the node's callbacks."""
        with self._lock:
            if node not in self._nodes:
                return
            self._nodes.remove(node)
        node._left(self)
        self._changed()

    def get_nodes(self) -> list[Any]:
        """Return the nodes whose callbacks are run."""
        with self._lock:
            return list(self._nodes)

    def wake(self) -> None:
        """Have the executor look for work, because something has changed."""
        self._entities_changed = True
        self._waitset.wake()

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        """Stop; wait until running callbacks have ended. False when they have not in time."""
        self._is_shutdown = True
        self._waitset.wake()
        with self._idle:
            wait = None if timeout_sec is None or timeout_sec < 0 else timeout_sec
            if not self._idle.wait_for(lambda: self._running <= self._own_running(), wait):
                return False
            nodes, self._nodes = self._nodes, []
        for node in nodes:
            node._left(self)
        # Whoever spins still uses the wait set; it goes when the spinning ends.
        if self._spinning.acquire(blocking=False):
            self._waitset.close()
            self._spinning.release()
        return True

    def _own_running(self) -> int:
        """Callbacks that run in this very thread: shutdown() must not wait for its caller."""
        return getattr(self._local, "depth", 0)

    _local = threading.local()

    def spin(self) -> None:
        """Run callbacks until shutdown."""
        while self._context.ok() and not self._is_shutdown:
            self._spin_some()

    def _spin_some(self) -> None:
        """Wait for work and run it, and more if that is cheap: what spin() does again and again."""
        self.spin_once()

    def spin_once(self, timeout_sec: float | None = None) -> None:
        """Wait (for ever when None) for one piece of work and run it."""
        raise NotImplementedError("an executor needs spin_once")

    def wait_for_ready_callbacks(
        self,
        timeout_sec: float | None = None,
        nodes: list[Any] | None = None,
        condition: Callable[[], bool] = lambda: False,
    ) -> tuple[Task, Any, Any]:
        """Wait for one piece of work, for an executor of one's own.

        The work is a task: call it, in any thread, and it runs the callback; `result()` then raises
        what the callback has raised. Entity and node are None when nobody's: create_task.

        :param nodes: only None here: all nodes
        :param condition: ends the waiting, looked at whenever something wakes the executor
        :raises TimeoutException: there was none in time; or one of the other three exceptions
            above, when the executor or the context was shut down, or the condition holds
        """
        if nodes is not None:
            raise NotImplementedError("to wait for some of the nodes only needs a real ROS 2")
        with self._spinning:
            try:
                work = self._next_work(timeout_sec, condition)
            except ShutdownException:
                self._waitset.close()
                raise
        entity = work.args[0] if isinstance(work.args[0], Entity) else None
        node = None if entity is None else entity._node()
        return Task(work, executor=self), entity, node

    def spin_until_future_complete(self, future: Future, timeout_sec: float | None = None) -> None:
        """Run callbacks until the future is done, or the timeout is over."""
        future.add_done_callback(lambda _: self._waitset.wake())
        end = None if timeout_sec is None or timeout_sec < 0 else time.monotonic() + timeout_sec
        while self._context.ok() and not future.done() and not self._is_shutdown:
            if future.cancelled():
                return
            left = None if end is None else max(0.0, end - time.monotonic())
            self._spin_until(future, left)
            if end is not None and time.monotonic() >= end:
                return

    def spin_once_until_future_complete(
        self, future: Future, timeout_sec: float | None = None
    ) -> None:
        """Wait for one piece of work and run it, or return because the future is done."""
        future.add_done_callback(lambda _: self._waitset.wake())
        self._spin_until(future, timeout_sec)

    def _spin_until(self, future: Future, timeout_sec: float | None) -> None:
        raise NotImplementedError("spinning until a future is done needs one of rclpy's executors")

    def can_execute(self, entity: Entity) -> bool:
        """Whether the entity's callback may run now."""
        return entity.callback_group.can_execute(entity)

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # Waking up. These are called from any thread.

    def _changed(self) -> None:
        self._entities_changed = self._timers_stale = True
        self._waitset.wake()

    def _timers_changed(self) -> None:
        self._timers_stale = True
        self._waitset.wake()

    def _trigger(self, guard: GuardCondition) -> None:
        self._triggered.append(guard)
        self._waitset.wake()

    def _resume_task(self, task: Task) -> None:
        self._tasks.append(task)
        self._waitset.wake()

    # Finding work. Only the spinning thread comes here.

    def _raise_error(self) -> None:
        """Raise what a callback in another thread has raised."""

    def _next_work(self, timeout_sec: float | None, condition: Callable[[], bool] | None) -> Work:
        """Wait for work. Its callback group is taken; whoever gets the work runs it."""
        timeout = timeout_sec_to_nsec(timeout_sec)
        end = -1 if timeout < 0 else time.monotonic_ns() + timeout
        polled = False
        while True:
            # A wait uses up the wakes of other threads, so what they have changed is looked at
            # after it.
            now = time.monotonic_ns()
            if now - self._last_poll > POLL_NS:
                self._wait(0)
                self._last_poll = now
            if self._is_shutdown:
                raise ShutdownException()
            if not self._context.ok():
                raise ExternalShutdownException()
            if condition is not None and condition():
                raise ConditionReachedException()
            self._raise_error()
            if self._entities_changed:
                self._sync()
            work = self._pick(now)
            if work is not None:
                return work
            wait = _dds.INFINITE if end < 0 else end - now
            if wait <= 0:
                if polled:
                    raise TimeoutException()
                polled = True  # something may have come in since the last look
                wait = 0
            self._wait(max(0, min(wait, self._until_timer(now))))

    def _wait(self, timeout_ns: int) -> None:
        for key in self._waitset.wait(timeout_ns):
            entity = self._keys.get(key)
            if entity is not None:
                entity._on_event(_dds.take_status(entity._reader, _READER_EVENTS))
                self._queue(entity)

    def _queue(self, entity: ReaderEntity) -> None:
        """Take from the reader, if there may be samples."""
        if entity._fresh and not entity._queued:
            entity._queued = True
            self._active.append(entity)

    def _sync(self) -> None:
        """Watch the readers that the nodes have now."""
        self._entities_changed = False
        self._timers_stale = True
        with self._lock:
            readers = [e for node in self._nodes for e in node._readers() if not e._destroyed]
            triggered = [g for n in self._nodes for g in n._guards if g._triggered]
        wanted = dict.fromkeys(readers)  # whose turn it is first does not depend on a hash
        for entity in [e for e in self._attached if e not in wanted]:
            del self._keys[self._attached.pop(entity)]
            self._waitset.detach(entity._reader)
            if entity._queued:
                self._active.remove(entity)
                entity._queued = False
        for entity in [e for e in wanted if e not in self._attached]:
            if not self._waitset.attach(entity._reader, self._next_key):
                continue  # destroyed by another thread just now
            self._keys[self._next_key] = entity
            self._attached[entity] = self._next_key
            self._next_key += 1
            entity._fresh = True
        for entity in self._attached:
            self._queue(entity)  # a client that waits for its service may have taken the event
        for guard in triggered:
            if guard not in self._triggered:
                self._triggered.append(guard)

    def _until_timer(self, now: int) -> int:
        """Nanoseconds to the next timer that may be called."""
        self._timer_due = _dds.INFINITE
        for timer in self._timer_list:
            if (
                not timer._canceled
                and not timer._simulated
                and (timer._next > now or self.can_execute(timer))
            ):
                self._timer_due = min(self._timer_due, timer._next)
        return self._timer_due - now

    def _pick(self, now: int) -> Work | None:
        if self._tasks:
            self._started()
            return partial(self._run_task, self._tasks.popleft())
        if self._timers_stale:
            self._collect_timers()
        if self._recheck_timers:
            self._recheck_timers = False
            self._timer_due = 0
        if now >= self._timer_due:
            work = self._pick_timer(now)
            if work is not None:
                return work
        if self._triggered:
            work = self._pick_guard()
            if work is not None:
                return work
        return self._pick_sample() if self._active else None

    def _collect_timers(self) -> None:
        self._timers_stale = False
        with self._lock:
            self._timer_list = [t for n in self._nodes for t in n._timers if not t._destroyed]
        for timer in self._timer_list:
            timer._sync_clock()
        self._timer_due = 0

    def _pick_timer(self, now: int) -> Work | None:
        ready = [t for t in self._timer_list if t.is_ready()]
        for timer in sorted(ready, key=lambda t: t._next):
            if timer.callback_group.beginning_execution(timer):
                timer._advance()
                self._timer_due = 0
                self._started()
                return partial(self._run, timer, None)
        self._until_timer(now)
        return None

    def _pick_guard(self) -> Work | None:
        for guard in list(self._triggered):
            if guard._destroyed or not guard._triggered:
                self._triggered.remove(guard)
            elif guard.callback_group.beginning_execution(guard):
                self._triggered.remove(guard)
                guard._triggered = False
                self._started()
                return partial(self._run, guard, None)
        return None

    def _pick_sample(self) -> Work | None:
        for _ in range(len(self._active)):
            entity = self._active[0]
            if not entity.callback_group.can_execute(entity):
                self._active.rotate(-1)
            elif not entity._fill():
                self._active.popleft()._queued = False
            elif entity.callback_group.beginning_execution(entity):
                self._active.rotate(-1)
                sample = entity._pending.popleft()
                self._started()
                return partial(self._run, entity, sample)
        return None

    # Running it, in whatever thread.

    def _run(self, entity: Entity, argument: Any) -> None:
        """Run a callback; its exception is the caller's to raise."""
        local = self._local
        local.depth = getattr(local, "depth", 0) + 1
        coroutine = None
        try:
            if not entity._destroyed:
                coroutine = entity._invoke(argument)  # type: ignore[attr-defined]
                if inspect.iscoroutine(coroutine):
                    self._run_coroutine(entity, coroutine)
                else:
                    coroutine = None
        finally:
            local.depth -= 1
            if coroutine is None:
                entity.callback_group.ending_execution(entity)
            self._stopped()

    def _run_coroutine(self, entity: Entity, coroutine: Any) -> None:
        """The callback is a coroutine: its group stays taken until it has ended."""
        task = Task(lambda: None, executor=self)
        task._handler = coroutine
        task._on_end = partial(  # type: ignore[attr-defined]
            entity.callback_group.ending_execution, entity
        )
        self._step(task)

    def _run_task(self, task: Task) -> None:
        local = self._local
        local.depth = getattr(local, "depth", 0) + 1
        try:
            self._step(task)
        finally:
            local.depth -= 1
            self._stopped()

    @staticmethod
    def _step(task: Task) -> None:
        task()
        if not task.done():
            return  # it waits for a future, which will schedule it again
        ended = getattr(task, "_on_end", None)
        if ended is not None:
            ended()
        error = task.exception()
        if error is not None:
            raise error

    # What runs now is counted: shutdown() waits for it. A coroutine that waits does not run.
    # The spinning thread counts what begins, whoever runs it what ends.

    def _started(self) -> None:
        with self._idle:
            self._running += 1

    def _stopped(self) -> None:
        with self._idle:
            self._running -= 1
            self._idle.notify_all()
        self._recheck_timers = True
        self._waitset.wake()
