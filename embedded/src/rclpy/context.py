"""A context: one DDS participant, the command line's ROS arguments, and what uses them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from inspect import ismethod
from typing import Any

from rclpy import _args, _dds, _profile, logging
from rclpy._graph import Graph

_contexts: weakref.WeakSet[Context] = weakref.WeakSet()


class Context:
    """Between init() and shutdown() nodes can be created and used.

    All DDS entities of the context are deleted by shutdown(), at the latest when the program ends.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], Any]] = []  # each returns the callback, or None
        self._executors: weakref.WeakSet[Any] = weakref.WeakSet()
        self._initialized = False
        self._ok = False
        self._domain = 0
        self._participant = 0
        self._graph: Graph | None = None
        self._arguments = _args.RosArgs()

    @property
    def handle(self) -> Context:
        """The context itself: there is no other handle."""
        return self

    def init(
        self,
        args: Sequence[str] | None = None,
        *,
        initialize_logging: bool = True,
        domain_id: int | None = None,
    ) -> None:
        """Join a DDS domain.

        :param args: command line, by default sys.argv; what follows --ros-args is used
        :param domain_id: by default ROS_DOMAIN_ID
        """
        with self._lock:
            if domain_id is not None and domain_id < 0:
                raise RuntimeError(f"Domain id ({domain_id}) should not be lower than zero.")
            if self._initialized:
                raise RuntimeError("Context.init() must only be called once")
            _profile.check_distribution()
            self._arguments, _ = _args.parse(sys.argv if args is None else args)
            self._domain = _profile.domain_id() if domain_id is None else domain_id
            self._participant = _dds.create_participant(self._domain, b"enclave=/;")
            try:
                self._graph = Graph(self._participant)
            except BaseException:
                _dds.delete_participant(self._domain, self._participant)
                raise
            if initialize_logging:
                switches = self._arguments.switches
                logging.configure(self._arguments.levels, switches.get("stdout-logs", True))
            self._initialized = self._ok = True
            _contexts.add(self)

    def ok(self) -> bool:
        """Whether init() has been called and shutdown() has not."""
        return self._ok

    @property
    def graph(self) -> Graph:
        """What is known about the other participants."""
        if self._graph is None:
            raise RuntimeError("Context must be initialized first")
        return self._graph

    def get_domain_id(self) -> int:
        """Return the DDS domain."""
        if not self._initialized:
            raise RuntimeError("Context must be initialized before it can have a domain id")
        return self._domain

    def shutdown(self) -> None:
        """Shut down; an error when that has happened already."""
        if not self._initialized:
            raise RuntimeError("Context must be initialized before it can be shutdown")
        if not self._shutdown():
            raise RuntimeError("failed to shutdown: the context is shut down already")

    def try_shutdown(self) -> None:
        """Shut down if that has not happened yet."""
        if self._initialized:
            self._shutdown()

    def _shutdown(self) -> bool:
        with self._lock:
            if not self._ok:
                return False
            self._ok = False
            callbacks, self._callbacks = self._callbacks, []
        for executor in list(self._executors):
            executor.wake()
        try:
            for reference in callbacks:
                callback = reference()
                if callback is not None:
                    callback()
        finally:
            _dds.delete_participant(self._domain, self._participant)
        return True

    def destroy(self) -> None:
        """Shut down if that has not happened yet."""
        self.try_shutdown()

    def on_shutdown(self, callback: Callable[[], Any]) -> None:
        """Call back at shutdown, at once when that is past. Methods are referenced weakly."""
        if not callable(callback):
            raise TypeError(f"callback should be a callable, got {type(callback)}")
        with self._lock:
            if not self._initialized or self._ok:
                self._callbacks = [c for c in self._callbacks if c() is not None]
                strong: Callable[[], Any] = lambda: callback  # noqa: E731
                self._callbacks.append(
                    weakref.WeakMethod(callback) if ismethod(callback) else strong
                )
                return
        callback()

    def __enter__(self) -> Context:
        self.init()
        return self

    def __exit__(self, *_: object) -> None:
        self.try_shutdown()


def shutdown_all() -> None:
    """Shut all contexts down: a signal has come, or the program ends."""
    for context in list(_contexts):
        context.try_shutdown()


atexit.register(shutdown_all)
# A forked child has none of the threads of DDS; to delete the participant is for the parent.
os.register_at_fork(after_in_child=_contexts.clear)
