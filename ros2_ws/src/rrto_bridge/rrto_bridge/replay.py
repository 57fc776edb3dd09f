"""The replaying client: follows the program, call by call (Algorithm 11), and falls back.

Idle, every call is made one by one and feeds the search. A call at a boundary (host to device, or
first after a wanted call) that begins a known sequence opens a run: from then on the program gets
virtual results while the server executes. The program waits only for wanted values. At the first
call that differs the server undoes what it did ahead and makes the same calls again.

Sequences that begin alike form a prefix tree, kept as a list with the length of every common
prefix: a run follows a *leader*, and the others that agree so far are its rivals. The client sends
nothing while a decision is near, else the server runs the leader, which can be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from .actions import Abandon, Action, Finish, Free, More, Notice, Start, Switch, Value
from .derive import Infer
from .known_sequences import Known, PrefixTree
from .partial_sequences import PartialSequences
from .record import HTOD, Call, Meta
from .search import LIMIT, Search
from .sequence import Sequence, Step, instantiate

NEAR = 16             # calls: worth waiting for before a message is sent
HOPELESS = LIMIT      # calls without any sequence after which the user is told, once


@dataclass(slots=True)
class Decision:
    """What to do with a call: the actions, then, if `step` is None, the call itself.

    Else the call is virtual: its results have handles `handles` and the metas of `step`, and if
    `wait` is not None the program needs the `Value` of this run and index.
    """

    actions: list[Action]
    step: Step | None = None
    handles: tuple[int | None, ...] = ()
    wait: tuple[int, int] | None = None


@dataclass(slots=True)
class _Run:
    """The open run."""

    number: int
    leader: Known
    rivals: list[Known]
    base: int
    started: bool = False              # the server knows of it
    done: bool = False                 # the program has made all its calls
    values: int = 0                    # wanted calls so far
    bound: list[int] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    sent: tuple[int, int] = (0, 0)     # inputs, bound
    dead: set[int] = field(default_factory=set)  # own handles that the program let go
    # Metas that steps whose shape depends on data returned, by position.
    returned: dict[int, tuple[Meta | None, ...]] = field(default_factory=dict)

    def alive(self, count: int) -> tuple[int, ...]:
        """Handles that the first `count` steps made and the program still holds."""
        made = self.leader.sequence.made[count]
        return tuple([h for h in range(self.base, self.base + made) if h not in self.dead])


class ReplayClient:
    """State machine of one program.

    `allocate(n)` reserves n handles and returns the first; `meta_of(handle)`: of a tensor that the
    program holds, None if it is not known; `infer`: see derive.py. `closed`: after `call`, `leave`
    and `received`, if that closed a run whose effects stay: gives its calls, as `pending` did.
    """

    def __init__(self, allocate: Callable[[int], int],
                 meta_of: Callable[[int], Meta | None], search: Search | None = None,
                 infer: Infer | None = None) -> None:
        self.search = search or Search()
        self.partial = PartialSequences(self.search.repetitions)
        self.expected: Step | None = None  # the only call that `advance` may stand for
        self.base = 0                      # handle of slot 0 of the open run
        self.runs = self.finished = 0      # opened, and brought to their end
        self.closed: Callable[[], list[tuple[Call, Any]]] | None = None
        self._allocate = allocate
        self._tree = PrefixTree(meta_of, infer)
        self._run: _Run | None = None
        self._position = 0
        self._fast: list[Step | None] = []
        self._boundary = True              # whether an idle call may open a run
        self._frees: list[int] = []
        self._notified = False

    @property
    def sequences(self) -> int:
        """How many sequences are known."""
        return len(self._tree.known)

    # -- events ----------------------------------------------------------------------------------

    def advance(self) -> None:
        """The program made the call `expected`."""
        self._position += 1
        self.expected = self._fast[self._position]

    def call(self, call: Call, data: Any = None) -> Decision:
        """The program makes a call, its results not known yet (`metas` only of HTOD)."""
        actions: list[Action] = []
        self.closed = None
        run = self._run
        if run is not None and not run.done:
            if self._follow(run, call, actions):
                return self._virtual(run, data, actions)
            self._abandon(run, actions)
        elif run is not None:
            self._settle(run, actions)
        self._flush_frees(actions)
        run = self._open(call, actions)
        if run is not None:
            return self._virtual(run, data, actions)
        self._boundary = False
        return Decision(actions)

    def recorded(self, call: Call) -> list[Action]:
        """The call that `call` left to be made was made; it has its results now."""
        actions: list[Action] = []
        self._boundary = call.wanted
        self._observe(call, actions)
        if self.search.observed >= HOPELESS and not self._tree.taken and not self._notified:
            self._notified = True
            actions.append(Notice(f'no sequence repeats in {self.search.observed} calls; '
                                  'every call is sent by itself'))
        return actions

    def received(self, value: Value) -> list[Action]:
        """A value the program waited for: its tensors may differ from the step's in shape."""
        run = self._run
        actions: list[Action] = []
        self.closed = None
        if run is None or run.number != value.run or not value.metas:
            return actions
        run.returned[self._position - 1] = value.metas
        if run.leader.sequence.steps[self._position - 1].differs(value.metas):
            self._abandon(run, actions)
        return actions

    def hasten(self) -> list[Action]:
        """The program waits for what it has called: the server shall not wait for more calls."""
        actions: list[Action] = []
        if self._run is not None:
            self._send(self._run, actions)
        return actions

    def leave(self) -> list[Action]:
        """Something follows that is no call and changes what calls do: end the run."""
        actions: list[Action] = []
        self.closed = None
        run = self._run
        if run is not None and run.done:
            self._settle(run, actions)
        elif run is not None:
            self._abandon(run, actions)
        return actions

    def failed(self) -> list[Action]:
        """An operator of the open run failed on the server: what the run made is lost."""
        run = self._run
        assert run is not None
        actions: list[Action] = [Abandon(run.number, 0, ())]
        self._tree.forget(run.leader, actions)
        self.search.restart()
        self.partial.restart()
        self._boundary = True
        self._close()
        return actions

    def freed(self, handle: int) -> None:
        """The program holds this tensor no longer."""
        run = self._run
        if run is not None and handle >= run.base:
            run.dead.add(handle)
        else:
            self._frees.append(handle)

    def pending(self) -> list[tuple[Call, Any]]:
        """Calls of the open run with the bytes of their inputs, to make them elsewhere."""
        return self._calls(self._run, self._position) if self._run else []

    @staticmethod
    def _calls(run: _Run, count: int) -> list[tuple[Call, Any]]:
        data = iter(run.inputs)
        calls = run.leader.sequence.calls(count, run.base, run.bound)
        return [(c, next(data) if c.op == HTOD else None) for c in calls]

    def lost(self) -> list[tuple[Call, Any]]:
        """The server is gone: the calls of the open run, which is over, and nothing is known."""
        calls = self.pending()
        self._close()
        self._tree.known.clear()
        self._frees.clear()
        self.search.restart()
        self.partial.restart()
        return calls

    # -- idle: opening a run ---------------------------------------------------------------------

    def _open(self, call: Call, actions: list[Action]) -> _Run | None:
        if not self._boundary and call.op != HTOD:
            return None
        ready = self._tree.openers(call, actions)
        if not ready:
            return None
        self.runs += 1
        self.base = self._allocate(max(k.sequence.slots for k in ready))
        self._run = run = _Run(self.runs, ready[0], ready[1:], self.base)
        self._position = 0
        self._lead(run, ready[0], call, actions)
        return run

    # -- a run -----------------------------------------------------------------------------------

    def _follow(self, run: _Run, call: Call, actions: list[Action]) -> bool:
        """Whether the call is the next one of the leader, or of a rival, which then leads."""
        position = self._position
        for known in (run.leader, *run.rivals):
            if position < len(known.sequence.steps) and \
                    self._tree.bind(known, position, call, run.base, run.bound) is not None:
                self._lead(run, known, call, actions)
                return True
        return False

    def _lead(self, run: _Run, leader: Known, call: Call, actions: list[Action]) -> None:
        """Follow a sequence that the call agrees with; drop the rivals that it rules out."""
        position = self._position
        run.bound += self._tree.bind(leader, position, call, run.base, run.bound) or ()
        if leader is not run.leader and run.started:
            self.runs += 1
            actions.append(Switch(run.number, self.runs, leader.sequence.number))
            run.number = self.runs
        run.rivals = [r for r in (run.leader, *run.rivals) if r is not leader
                      and leader.common[r.sequence.number] > position]
        run.leader = leader
        self._fast = leader.fast
        if run.rivals:
            self._fast = [*leader.fast]
            for rival in run.rivals:
                at = leader.common[rival.sequence.number]
                if at < len(self._fast):
                    self._fast[at] = None

    def _virtual(self, run: _Run, data: Any, actions: list[Action]) -> Decision:
        """The call was the leader's step: its results exist from now on, if only in name."""
        position = self._position
        steps = run.leader.sequence.steps
        step = steps[position]
        if step.op == HTOD:
            run.inputs.append(data)
        wait = None
        if step.wanted:
            wait = run.number, run.values
            run.values += 1
        if step.wanted or not self._stop_is_near(run):
            self._send(run, actions)
        self._position += 1
        if self._position < len(steps):
            self.expected = self._fast[self._position]
        else:
            self.expected = None
            run.done = True
            self.finished += 1
            self._tree.used(run.leader)
        call = instantiate(step, run.base, run.bound)
        return Decision(actions, step, call.results, wait)

    def _stop_is_near(self, run: _Run) -> bool:
        """Whether the next message has to wait for a call that is expected soon."""
        sequence = run.leader.sequence
        branches = {run.leader.common[r.sequence.number] for r in run.rivals}
        for at in range(self._position + 1, self._position + 1 + NEAR):
            if at in branches or at in sequence.needs:
                return True
            if at >= len(sequence.steps) or sequence.steps[at].wanted:
                return False
        return False

    def _send(self, run: _Run, actions: list[Action]) -> None:
        """Tell the server what it does not know yet."""
        inputs, bound = tuple(run.inputs[run.sent[0]:]), tuple(run.bound[run.sent[1]:])
        if not run.started:
            run.started = True
            actions.append(Start(run.number, run.leader.sequence.number, run.base, inputs, bound))
        elif inputs or bound:
            actions.append(More(run.number, inputs, bound))
        run.sent = len(run.inputs), len(run.bound)

    def _settle(self, run: _Run, actions: list[Action]) -> None:
        """The program goes on after a pass: what the server did is to stay."""
        sequence = run.leader.sequence
        alive = run.alive(self._position)
        if not all(h - run.base in sequence.kept for h in alive):
            self._abandon(run, actions)      # it kept more than it used to: the server freed that
            return
        actions.append(Finish(run.number, alive))
        metas = dict(sequence.metas)
        for position, returned in run.returned.items():
            metas |= sequence.steps[position].made(returned)
        left = {h: metas[h - run.base] for h in alive}
        self.search.interrupt(left)
        self._take(self.partial.interrupt(left), actions)
        self._boundary = True
        self.closed = partial(self._calls, run, self._position)
        self._close()

    def _abandon(self, run: _Run, actions: list[Action]) -> None:
        """The program left the sequence: the calls so far are made again, the rest is undone."""
        self._send(run, actions)
        actions.append(Abandon(run.number, self._position, run.alive(self._position)))
        if not run.done:
            run.leader.failed()
        self.closed = partial(self._calls, run, self._position)
        calls = [call for call, _ in self.pending()]
        for at, metas in run.returned.items():
            calls[at] = replace(calls[at], metas=metas)
        last = set(calls[-1].inputs())
        self._boundary = calls[-1].wanted
        self._close()
        for call in calls[:-1]:
            self._observe(call, actions)
        for handle in run.dead - last:       # known before the last call: it may end a sequence
            self._forget(handle)
        self._observe(calls[-1], actions)
        for handle in run.dead & last:
            self._forget(handle)

    def _observe(self, call: Call, actions: list[Action]) -> None:
        for sequence in (self.search.observe(call), self.partial.observe(call)):
            self._take(sequence, actions)

    def _take(self, sequence: Sequence | None, actions: list[Action]) -> None:
        if sequence is not None and self._tree.alive(sequence):
            self._tree.add(sequence, actions)

    def _forget(self, handle: int) -> None:
        self.search.freed(handle)
        self.partial.freed(handle)

    def _close(self) -> None:
        self._run = self.expected = None
        self._position = 0

    def _flush_frees(self, actions: list[Action]) -> None:
        """Let go what the program does not hold, while no run is open whose undo may need it."""
        if not self._frees:
            return
        self._tree.forget_users(self._frees, actions)
        for handle in self._frees:
            self._forget(handle)
        actions.append(Free(tuple(self._frees)))
        self._frees.clear()
