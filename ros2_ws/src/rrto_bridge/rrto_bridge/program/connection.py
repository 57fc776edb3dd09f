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
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import torch

from ..client.inprocess import InProcess
from ..client.migration import migrate, prepare
from ..client.ownprocess import Here, OwnGpu
from ..client.percall import NoReplay, PerCall
from ..client.replaying import Replaying
from ..protocol.errors import LinkError, OutOfMemory, RrtoError, UnknownOperator
from ..protocol.tensors import meta_of
from .turns import Turns

OUT_OF_MEMORY: type[Exception] = getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)


class Connection:
    """Holds the engine that executes the program's calls; replaces it if the server is lost.

    A thread must hold `lock` to use the engine.

    `connect` connects to a server and returns an engine. `Connection` calls `connect` at the first
    use of the device, and again when a server becomes visible after a loss. If this later call
    raises RrtoError, the program continues on this machine. `local`: the places of this machine.
    """

    def __init__(self, connect: Callable[[], PerCall], local: Here | None = None) -> None:
        self._connect = connect
        self._local = local or Here()
        self._lost: PerCall | None = None       # the engine of the lost server
        self._next: PerCall | None = None       # the engine of a server that answers after the loss
        self._rehearses = True      # whether that server runs the known sequences once before
        self._there: dict[int, str] = {}        # the tensors that this server has, see `prepare`
        # returns, once, the handles of tensors that the program no longer references
        self.dropped: Callable[[], list[int]] = list
        self.follower: Any = NoReplay()
        self.lock = threading.RLock()
        self.turns = Turns(self.lock)
        self.refusals = 0       # number of requests for which the server had too little memory
        self.forked = False                     # whether the parent process had an engine
        self._parents: PerCall | None = None    # engine of the parent process; do not close it
        self._seed: int | None = None           # seed to send at the first use of the device
        here = weakref.WeakMethod(self._after_fork)
        os.register_at_fork(after_in_child=lambda: (forked := here()) and forked())

    def _after_fork(self) -> None:
        """Remove the engine in a forked child, which does not have the threads of the link."""
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
        self._use_server(self._connect())
        if self._seed is not None:
            # `ask` handles the case that the server has already been lost
            self.ask('seed', self._seed)
        return self.engine

    @property
    def connected(self) -> bool:
        """Whether the program has used the device."""
        return 'engine' in self.__dict__

    def busy(self) -> bool:
        """Return whether an exception in this thread would leave the device inconsistent now.

        Without an engine it would not. Signal handlers call this method, also while the first use
        of the device connects, so do not connect here.
        """
        engine = self.__dict__.get('engine')
        owned: bool = self.lock._is_owned()  # type: ignore[attr-defined]
        return owned and engine is not None and not engine.port.idle

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call the engine's method `what`; the caller must hold the lock.

        If the server is lost, continue with an engine on this machine, and call the method of
        that engine. If the setting `on_loss` is not 'local', raise LinkError instead. Also raise
        LinkError if the first connection fails: there is nothing to continue then. A lack of memory
        is PyTorch's own error, which programs catch.
        """
        try:
            return self._ask(what, *arguments)
        except OutOfMemory as error:
            self.refusals += 1
            raise OUT_OF_MEMORY(str(error)) from None

    def _ask(self, what: str, *arguments: Any) -> Any:
        engine = self.engine
        try:
            return getattr(engine, what)(*arguments)
        except LinkError as error:
            if engine.journal is None:
                raise
            self._go_local(error)
            return getattr(self.engine, what)(*arguments)

    def check(self, op: str) -> None:
        """Raise UnknownOperator if the server has refused this operator before."""
        reason = self.engine.unknown.get(op)
        if reason is not None:
            raise UnknownOperator(reason)

    # -- loss and return of the server -----------------------------------------------------------

    def _go_local(self, error: LinkError) -> None:
        """Continue on this machine, after the loss of the server or of the process on the GPU."""
        lost = self.engine
        assert lost.journal is not None
        with suppress(LinkError):   # the journal has noted it then; no call remakes these tensors
            lost.free(self.dropped())
        lost.lost()
        for port in self._local.places(lost.machine):
            try:
                short = lost.journal.rebuild(port)
            except LinkError as why:
                short = str(why)
            if short and isinstance(port, OwnGpu):
                print(f'rrto: {port.name}: {short}', file=sys.stderr)
                port.close()
                continue
            break
        # The process on the GPU may be lost, too; the CPU of this process is not.
        self._use(PerCall(port, lost.journal if isinstance(port, OwnGpu) else None))
        print(f'rrto: {error}; continuing on this machine' + f', on its {port.name}' * bool(
            port.name), file=sys.stderr)
        if isinstance(lost.port, OwnGpu):
            lost.port.close()
        else:
            self._lost = lost
            lost.port.watch(self._found)

    def _use_server(self, engine: PerCall) -> None:
        self._use(engine)
        if engine.journal is not None:
            self._local.prepare()
            engine.port.on_lost = partial(self._leave, engine)

    def _leave(self, lost: PerCall) -> bool:
        """Continue on this machine between two calls of the program, which then need not wait.

        Return False while the program uses the device: it notices the loss itself.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.__dict__.get('engine') is lost and not lost.port.ending:
                self._go_local(LinkError(lost.port.why()))
        finally:
            self.lock.release()
        return True

    def _use(self, engine: PerCall) -> None:
        self.engine = engine
        self.follower = engine.follower

    def _found(self) -> bool:
        """Connect to a server that has become visible; return whether the server answers.

        Even if a server is visible, the link may be too bad for data. Therefore wait for one
        answer, and send the weights that the server lacks. Otherwise the program might have to
        wait later, in the middle of an inference.
        """
        lost = self._lost
        assert lost is not None and lost.journal is not None
        self._there = {}
        try:
            found = self._connect()
        except RrtoError:
            return False
        try:
            found.settle(found.machine.synchronize())
            if lost.port.ending:
                raise LinkError('the program ends')
            # no handle of the program means something else there, also not for a moment
            found.machine.follow(self.engine.machine)
            self._there = prepare(lost.journal, found)
            if isinstance(found, Replaying) and isinstance(lost, Replaying):
                # A rehearsal may bring the program's process on the server down, which zeros can
                # do: not again then.
                rehearses, self._rehearses = self._rehearses, False
                found.inherit(lost, self._there, rehearses)
                self._rehearses = True
        except OutOfMemory:
            pass                # `resume` says so
        except Exception:       # also an operator's error in the rehearsal
            found.port.close()
            return False
        self._next = found
        return True

    @property
    def returning(self) -> bool:
        """Whether a server answers after the loss, so that `resume` can continue on it."""
        return self._next is not None

    def resume(self) -> None:
        """Move the program's tensors to a server that answers after the loss, and continue there.

        Do nothing if there is no such server. Call this when an inference begins, with the lock
        held.
        """
        found = self._next
        if found is None:
            return
        lost = self._lost
        assert lost is not None
        self._next = None
        try:
            context = self._tensors()
            found.machine.follow(self.engine.machine)
            migrate(context, found, self._there)
            if isinstance(found, Replaying):
                found.adopt({h: meta_of(t) for h, t in context.tensors.items()})
        except RrtoError as error:
            found.port.close()
            print(f'rrto: {error}; staying on this machine', file=sys.stderr)
            if isinstance(error, LinkError):
                lost.port.watch(self._found)
            return
        self.engine.port.close()
        self._use_server(found)
        lost.port.close()
        self._lost = None
        print('rrto: the server is back; continuing there', file=sys.stderr)

    def _tensors(self) -> Any:
        """Return a `Context` with the tensors of the program, which continues on this machine."""
        self.ask('synchronize')
        port = self.engine.port
        assert isinstance(port, (InProcess, OwnGpu))
        try:
            return port.context()
        except LinkError as error:
            self._go_local(error)
            return self._tensors()

    # -- requests that concern the whole device --------------------------------------------------

    def query(self, name: str) -> Any:
        """Return a fact about the server's device; `execution.perform` lists the names of facts."""
        with self.lock:
            return self.ask('query', name)

    def seed(self, seed: int) -> None:
        """Seed the random operators; before the first use of the device, only store the seed."""
        with self.lock:
            # A Generator turns a negative seed into an unsigned number.
            seed = torch.Generator().manual_seed(seed).initial_seed()
            self._seed = seed
            if self.connected:
                self.turns.enter(True)
                self.ask('seed', seed)

    @property
    def next_handle(self) -> int:
        """A handle that is lower than the handles of all tensors created later."""
        return self.engine.machine.allocate(1) if self.connected else 0

    @property
    def first_seed(self) -> int:
        """The seed that was last set; if none was set, PyTorch's initial seed."""
        return torch.initial_seed() if self._seed is None else self._seed

    def random(self, state: bytes = b'') -> bytes:
        """Return the state of the random generator; if `state` is not empty, first set `state`."""
        with self.lock:
            found: bytes = self.ask('random', state)
            return found

    def synchronize(self) -> None:
        """Wait until the server has executed every call; raise an error that a call has caused."""
        with self.lock:
            self.ask('synchronize')

    def clock(self) -> float:
        """Wait until the server has executed every call; return the monotonic time in seconds."""
        self.synchronize()
        return time.monotonic()
