"""Connects the device of one process to a server, and replaces a server that is lost.

An engine sends the calls of the program to a server (see `client.percall`).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from ..client.inprocess import InProcess
from ..client.machine import ClientMachine
from ..client.migration import migrate
from ..client.percall import NoReplay, PerCall
from ..protocol.errors import LinkError, RrtoError
from .turns import Turns


class Connection:
    """Holds the engine that executes the program's calls; replaces it if the server is lost.

    A thread must hold `lock` to use the engine.

    `connect` connects to a server and returns an engine. It is called at the first use of the
    device, and again when a lost server returns. In the second case it may raise RrtoError.
    """

    def __init__(self, connect: Callable[[], PerCall]) -> None:
        self._connect = connect
        self._lost: PerCall | None = None       # the engine of the lost server
        self._next: PerCall | None = None       # the engine of a server that has returned
        self.follower: Any = NoReplay()
        self.lock = threading.RLock()
        self.turns = Turns(self.lock)
        self.forked = False                     # whether the parent process had an engine
        self._parents: PerCall | None = None    # engine of the parent process, never closed here
        self._seed: int | None = None           # seed to send at the first use of the device
        here = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())

    def _after_fork(self) -> None:
        """Detach a forked child from the engine; the child lacks the threads of the link."""
        self.lock, self.follower = threading.RLock(), NoReplay()
        self.turns = Turns(self.lock)
        engine = self.__dict__.pop('engine', None)
        if engine is not None:
            self.forked, self._parents = True, engine

    @cached_property
    def engine(self) -> PerCall:
        """The engine that executes the calls."""
        if self.forked:
            raise RuntimeError('Cannot re-initialize CUDA in forked subprocess. To use CUDA with '
                               "multiprocessing, you must use the 'spawn' start method")
        self._use(self._connect())
        if self._seed is not None:
            self.ask('seed', self._seed)  # by `ask`, because the server may be lost by now
        return self.engine

    def busy(self) -> bool:
        """Return whether an exception in this thread would leave the device inconsistent now."""
        return self.lock._is_owned() and not self.engine.port.idle  # type: ignore[attr-defined]

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call the engine's method `what`; the caller must hold the lock.

        If the server is lost and the user allows it, call the method of an engine on this machine.
        """
        try:
            return getattr(self.engine, what)(*arguments)
        except LinkError as error:
            if self.engine.journal is None:
                raise
            self._go_local(error)
            return getattr(self.engine, what)(*arguments)

    # -- a server that is lost, and one that returns ---------------------------------------------

    def _go_local(self, error: LinkError) -> None:
        lost = self.engine
        assert lost.journal is not None
        lost.lost()
        port = InProcess(ClientMachine('async').follow(lost.machine))
        with torch.inference_mode():
            lost.journal.rebuild(port.performer.context)
        self._use(PerCall(port))
        print(f'rrto: {error}; continuing on this machine', file=sys.stderr)
        self._lost = lost
        lost.port.watch(self._found)

    def _use(self, engine: PerCall) -> None:
        self.engine = engine
        self.follower = engine.follower

    def _found(self) -> bool:
        """Connect to a server that has become visible; return whether it answers.

        This waits for one answer, because a link may be too bad for data when a server is visible;
        the program would wait for it in the middle of an inference.
        """
        try:
            found = self._connect()
        except RrtoError:
            return False
        try:
            found.settle(found.machine.synchronize())
        except RrtoError:
            found.port.close()
            return False
        self._next = found
        return True

    @property
    def returning(self) -> bool:
        """Whether `resume` has something to do."""
        return self._next is not None

    def resume(self) -> None:
        """Continue on a server that has returned, if there is one.

        Call this when an inference begins, and with the lock held.
        """
        found = self._next
        if found is None:
            return
        here, lost = self.engine, self._lost
        assert isinstance(here.port, InProcess) and lost is not None
        here.synchronize()
        self._next = None
        found.machine.follow(here.machine)
        try:
            migrate(here.port.performer.context, found)
        except RrtoError as error:
            found.port.close()
            print(f'rrto: {error}; staying on this machine', file=sys.stderr)
            if isinstance(error, LinkError):
                lost.port.watch(self._found)
            return
        self._use(found)
        lost.port.close()
        self._lost = None
        print('rrto: the server is back; continuing there', file=sys.stderr)

    # -- the device itself -----------------------------------------------------------------------

    def query(self, name: str) -> Any:
        """Return a fact about the server's device; `execution.perform` has the possible names."""
        with self.lock:
            return self.ask('query', name)

    def seed(self, seed: int) -> None:
        """Seed the random operators. This does not connect to a server."""
        with self.lock:
            seed = torch.Generator().manual_seed(seed).initial_seed()   # makes it unsigned
            self._seed = seed
            if 'engine' in self.__dict__:
                self.turns.enter(True)
                self.ask('seed', seed)

    @property
    def next_handle(self) -> int:
        """A handle that is lower than the handles of all tensors created later."""
        return self.engine.machine.allocate(1) if 'engine' in self.__dict__ else 0

    @property
    def first_seed(self) -> int:
        """The seed that was last set; if none was set, PyTorch's initial seed."""
        return torch.initial_seed() if self._seed is None else self._seed

    def random(self, state: bytes = b'') -> bytes:
        """Return the state of the random generator; set it first if `state` is not empty."""
        with self.lock:
            found: bytes = self.ask('random', state)
            return found

    def synchronize(self) -> None:
        """Wait until the server has executed every call; raise an error not yet reported."""
        with self.lock:
            self.ask('synchronize')

    def clock(self) -> float:
        """Wait until the server has executed every call; return the monotonic time, s."""
        self.synchronize()
        return time.monotonic()
