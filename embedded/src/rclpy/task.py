"""Futures and tasks."""

from __future__ import annotations

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Generator
from typing import Any


class Future:
    """A result that is there later; can be awaited in callbacks that are coroutines."""

    def __init__(self, *, executor: Any = None) -> None:
        self._lock = threading.Lock()
        self._done = False
        self._cancelled = False
        self._result: Any = None
        self._exception: BaseException | None = None
        self._exception_fetched = False
        self._callbacks: list[Callable[[Future], Any]] = []
        self._executor: Callable[[], Any] = lambda: None
        self._set_executor(executor)

    def __del__(self) -> None:
        if self._exception is not None and not self._exception_fetched:
            warnings.warn(
                f"The following exception was never retrieved: {self._exception!r}", stacklevel=2
            )

    def __await__(self) -> Generator[Any, None, Any]:
        while not self._done and not self._cancelled:
            yield self
        return self.result()

    def cancel(self) -> None:
        """Ask that it never completes; does nothing when it is done."""
        with self._lock:
            if not self._done:
                self._cancelled = True
        self._call_back()

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled

    def done(self) -> bool:
        """Whether there is a result or an exception."""
        return self._done

    def result(self) -> Any:
        """Return the result (None when there is none yet), or raise the exception."""
        if self._exception is not None:
            raise self.exception()  # type: ignore[misc]
        return self._result

    def exception(self) -> BaseException | None:
        """Return the exception, None when there is none."""
        self._exception_fetched = True
        return self._exception

    def set_result(self, result: Any) -> None:
        """Complete it."""
        with self._lock:
            self._result, self._done, self._cancelled = result, True, False
        self._call_back()

    def set_exception(self, exception: BaseException) -> None:
        """Complete it with an exception, which result() raises."""
        with self._lock:
            self._exception, self._done, self._cancelled = exception, True, False
            self._exception_fetched = False
        self._call_back()

    def _call_back(self) -> None:
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
            executor = self._executor()
        for callback in callbacks:
            if executor is not None:
                executor.create_task(callback, self)
                continue
            try:
                callback(self)
            except Exception as error:
                warnings.warn(f"Unhandled exception in done callback: {error}", stacklevel=2)

    def _set_executor(self, executor: Any) -> None:
        """From now on done callbacks run as tasks of this executor."""
        with self._lock:
            self._executor = (lambda: None) if executor is None else weakref.ref(executor)

    def add_done_callback(self, callback: Callable[[Future], Any]) -> None:
        """Call back with the future when it is done, in its executor if it has one."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
            executor = self._executor()
        if executor is not None:
            executor.create_task(callback, self)
        else:
            callback(self)


class Task(Future):
    """A function or coroutine that an executor runs.

    A coroutine that awaits a future is resumed when that is done, not before.
    """

    def __init__(
        self,
        handler: Any,
        args: Any = None,
        kwargs: dict[str, Any] | None = None,
        executor: Any = None,
    ) -> None:
        super().__init__(executor=executor)
        self._args, self._kwargs = args or (), kwargs or {}
        self._handler = handler
        if inspect.iscoroutinefunction(handler):
            self._handler = handler(*self._args, **self._kwargs)
        self._executing = False
        self._task_lock = threading.RLock()

    def __call__(self) -> None:
        """Run, or resume, until it is done or awaits something."""
        # A step that is just ending in another thread has the lock for a moment.
        with self._task_lock:
            if self._done or self._handler is None:
                return
            self._executing = True
            try:
                if self._cancelled:
                    self._handler = None
                elif inspect.iscoroutine(self._handler):
                    self._resume(self._handler)
                else:
                    self._call(self._handler)
            finally:
                self._executing = False

    def _call(self, handler: Callable[..., Any]) -> None:
        try:
            result = handler(*self._args, **self._kwargs)
        except Exception as error:
            self.set_exception(error)
        else:
            self.set_result(result)
        self._handler = None

    def _resume(self, coroutine: Any) -> None:
        try:
            awaited = coroutine.send(None)
        except StopIteration as stop:
            self.set_result(stop.value)
            self._handler = None
        except Exception as error:
            self.set_exception(error)
            self._handler = None
        else:
            executor = self._executor()
            if executor is None:
                return  # whoever runs the task by hand resumes it by hand
            if isinstance(awaited, Future):
                reference = weakref.ref(executor)

                def resume(_: Future) -> None:
                    waiting = reference()
                    if waiting is not None:
                        waiting._resume_task(self)

                awaited.add_done_callback(resume)
            else:
                executor._resume_task(self)

    def executing(self) -> bool:
        """Whether it runs right now."""
        return self._executing
