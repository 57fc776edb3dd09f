"""The replaying client: compares each call of the program with known sequences (Algorithm 11).

A sequence is the list of calls of one inference; a pass is one execution of it. A run is the replay
of one pass by the server. While no run is open, the client sends calls one by one, and also gives
them to the search for sequences. A pass can begin at a *boundary*: at a host-to-device copy, or
after a wanted call (a call whose value the program needs at once). A call at a boundary opens a run
if it equals the first step of a known sequence. From then on, calls are *virtual*: the program gets
handles and metas as results while the server executes the run. The program waits only for the
values of wanted calls. A call that differs from the sequence is a mismatch: the server undoes the
run, then executes again the calls that the program has made.

Several known sequences may begin with the same calls. A run follows one of them, the *leader*. The
other sequences that agree with all calls so far are its *rivals*. Shortly before a step at which a
rival differs from the leader, the client sends nothing, because the program may follow the rival.
At other times the server may execute steps of the leader that the program has not made. The server
undoes these steps if the program then follows a rival.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..protocol.actions import Abandon, Action, Finish, Free, More, Notice, Start, Switch, Value
from ..protocol.record import HTOD, Call, Meta
from ..protocol.sequence import Sequence, Step, instantiate
from ..search.derive import Infer
from ..search.known_sequences import Known, PrefixTree
from ..search.partial_sequences import PartialSequences
from ..search.search import LIMIT, Search

NEAR = 16             # number of steps ahead that `_stop_is_near` checks
HOPELESS = LIMIT      # number of calls after which the user is told once that no sequence was found


@dataclass(slots=True)
class Decision:
    """How to handle a call: first perform `actions`; then, if `step` is None, send the call.

    If `step` is not None, the call is virtual: its results have the handles `handles` and the metas
    of `step`. If `wait` is (run, index), the program must wait for the `Value` that has this `run`
    and this `index`.
    """

    actions: list[Action]
    step: Step | None = None
    handles: tuple[int | None, ...] = ()
    wait: tuple[int, int] | None = None


@dataclass(slots=True)
class _Run:
    """The state of the open run."""

    number: int
    leader: Known
    rivals: list[Known]
    base: int
    started: bool = False              # whether `Start` was sent
    done: bool = False                 # whether the program has made all calls of the sequence
    values: int = 0                    # number of calls whose value the program has needed
    bound: list[int] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    # (number of sent items of `inputs`, number of sent items of `bound`)
    sent: tuple[int, int] = (0, 0)
    dead: set[int] = field(default_factory=set)  # handles of this run that the program has freed
    # Key: position of a step whose result has a shape that depends on data. Value: the metas of the
    # result, as the server returned them.
    returned: dict[int, tuple[Meta | None, ...]] = field(default_factory=dict)

    def alive(self, count: int) -> tuple[int, ...]:
        """Return the handles that the first `count` steps create and the program has not freed."""
        made = self.leader.sequence.made[count]
        return tuple([h for h in range(self.base, self.base + made) if h not in self.dead])


class ReplayClient:
    """Decides which calls of one program are replayed; a state machine.

    `allocate(n)` reserves n handles and returns the first. `meta_of(handle)` returns the meta of a
    tensor that the program holds, or None if it is unknown. `infer` infers shapes, see
    search/derive.py.

    Each of the methods `call`, `leave`, `release`, `received` and `failed` sets the attribute
    `closed`. If the method has closed a run, `closed` is a function that returns the calls of this
    run, in the form of `pending`. Otherwise `closed` is None.
    """

    def __init__(self, allocate: Callable[[int], int],
                 meta_of: Callable[[int], Meta | None], search: Search | None = None,
                 infer: Infer | None = None) -> None:
        self.search = search or Search()
        self.partial = PartialSequences(self.search.repetitions)
        # If the program's next call matches this step, the caller uses `advance` instead of `call`.
        self.expected: Step | None = None
        self.base = 0                      # handle of the first tensor that the open run creates
        # `runs`: runs begun, also by a switch; `finished`: runs whose pass the program completed
        self.runs = self.finished = 0
        self.former: Items[Sequence] = ()
        self.closed: Callable[[], list[tuple[Call, Any]]] | None = None
        self._allocate = allocate
        self._tree = PrefixTree(meta_of, infer)
        self._run: _Run | None = None
        self._position = 0
        self._fast: list[Step | None] = []
        self._boundary = True              # whether the next call may open a run
        self._frees: list[int] = []
        self._notified = False

    @property
    def sequences(self) -> int:
        """Number of known sequences."""
        return len(self._tree.known)

    # -- events ----------------------------------------------------------------------------------

    def advance(self) -> None:
        """Record that the program has made the call `expected`, which needs no message."""
        self._position += 1
        self.expected = self._fast[self._position]

    def call(self, call: Call, data: Any = None) -> Decision:
        """Decide how to handle a call.

        `call` has no results yet. It has metas only if it is a host-to-device copy (HTOD). `data`:
        the bytes of a host-to-device copy.
        """
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
        """Record a call that the client has sent; `call` now has its results."""
        actions: list[Action] = []
        self._boundary = call.wanted
        self._observe(call, actions)
        if self.search.observed >= HOPELESS and not self._tree.added and not self._notified:
            self._notified = True
            actions.append(Notice(f'no sequence repeats in {self.search.observed} calls; '
                                  'each call is sent separately'))
        return actions

    def received(self, value: Value) -> list[Action]:
        """Process the value for which the program has waited.

        End the run if the meta of a returned tensor differs from its meta in the sequence.
        """
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
        """Return the actions that send all data of the open run to the server.

        The caller then waits until the server has executed all calls of the run that were made so
        far.
        """
        actions: list[Action] = []
        if self._run is not None:
            self._send(self._run, actions)
        return actions

    def leave(self) -> list[Action]:
        """End the run, because the program does something that a run cannot contain."""
        actions: list[Action] = []
        self.closed = None
        run = self._run
        if run is not None and run.done:
            self._settle(run, actions)
        elif run is not None:
            self._abandon(run, actions)
        return actions

    @property
    def dropping(self) -> bool:
        """Whether `release` has something to do."""
        return bool(self._frees) if self._run is None else self._run.done

    def release(self) -> list[Action]:
        """Free dropped tensors without waiting for the next call; end the run if it is complete.

        Within a pass do nothing: the run goes on.
        """
        actions: list[Action] = []
        self.closed = None
        run = self._run
        if run is not None and not run.done:
            return actions
        if run is not None:
            self._settle(run, actions)
        self._flush_frees(actions)
        return actions

    def failed(self) -> list[Action]:
        """End the open run because its last call has failed; the calls before it remain valid."""
        run = self._run
        assert run is not None
        count = self._position - 1   # without the last call: it has failed, so it has no result
        actions: list[Action] = [Abandon(run.number, count, run.alive(count), True)]
        self._tree.forget(run.leader, actions)
        self.search.restart()
        self.partial.restart()
        self._boundary = True
        self.closed = partial(self._calls, run, count)
        self._close()
        return actions

    def freed(self, handle: int) -> None:
        """Record that the program no longer references a tensor."""
        run = self._run
        if run is not None and handle >= run.base:
            run.dead.add(handle)
        else:
            self._frees.append(handle)

    def pending(self) -> list[tuple[Call, Any]]:
        """Return (call, bytes or None) for each call that the program has made in the open run."""
        return self._calls(self._run, self._position) if self._run else []

    @staticmethod
    def _calls(run: _Run, count: int) -> list[tuple[Call, Any]]:
        data = iter(run.inputs)
        calls = run.leader.sequence.calls(count, run.base, run.bound)
        return [(c, next(data) if c.op == HTOD else None) for c in calls]

    def lost(self) -> list[tuple[Call, Any]]:
        """Forget the open run and all sequences, because the server is lost.

        Return the calls that the program has made in this run, as `pending` does. `former` then has
        the sequences, for the next server.
        """
        calls = self.pending()
        self._close()
        self.former = [known.sequence for known in self._tree.known]
        self._tree.known.clear()
        self._frees.clear()
        self.search.restart()
        self.partial.restart()
        return calls

    def adopt(self, sequences: Items[Sequence]) -> list[Action]:
        """Know the `former` sequences of another server, as far as the program holds their tensors.

        The tensors must have the same handles on this server.
        """
        actions: list[Action] = []
        for sequence in sequences:
            self._add(sequence, actions)
        return actions

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
        """Return whether the call matches a sequence that the run can still follow.

        The leader is the sequence that the run follows now; the rivals are the other possible
        sequences. A matching rival becomes the leader.
        """
        position = self._position
        for known in (run.leader, *run.rivals):
            if position < len(known.sequence.steps) and \
                    self._tree.bind(known, position, call, run.base, run.bound) is not None:
                self._lead(run, known, call, actions)
                return True
        return False

    def _lead(self, run: _Run, leader: Known, call: Call, actions: list[Action]) -> None:
        """Make `leader` the sequence that the run follows; `leader` matches the call.

        Drop the rivals (other possible sequences) that do not match the call.
        """
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
        """Record that the call is the next step of the leader; return the decision.

        The leader is the sequence that the run follows. The call is not sent. Its results are
        handles, whose tensors exist only on the server.
        """
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
        """Return whether to send nothing yet, because a step that needs a message follows soon.

        A step needs a message if it needs data from the client. It also needs one if two possible
        sequences differ at this step: the one that the run follows, and another one.
        """
        sequence = run.leader.sequence
        branches = {run.leader.common[r.sequence.number] for r in run.rivals}
        for at in range(self._position + 1, self._position + 1 + NEAR):
            if at in branches or at in sequence.needs:
                return True
            if at >= len(sequence.steps) or sequence.steps[at].wanted:
                return False
        return False

    def _send(self, run: _Run, actions: list[Action]) -> None:
        """Send the inputs, and the handles of `Bound` tensors, that the server does not have yet.

        A `Bound` tensor exists before the run, and is another tensor in each run. If the server has
        not started the run, the message also starts it.
        """
        inputs, bound = tuple(run.inputs[run.sent[0]:]), tuple(run.bound[run.sent[1]:])
        if not run.started:
            run.started = True
            actions.append(Start(run.number, run.leader.sequence.number, run.base, inputs, bound))
        elif inputs or bound:
            actions.append(More(run.number, inputs, bound))
        run.sent = len(run.inputs), len(run.bound)

    def _settle(self, run: _Run, actions: list[Action]) -> None:
        """End the run after a complete pass; the server keeps the effects of the run."""
        sequence = run.leader.sequence
        alive = run.alive(self._position)
        if not all(h - run.base in sequence.kept for h in alive):
            self._abandon(run, actions)      # the program holds a tensor that the sequence frees
            return
        actions.append(Finish(run.number, alive))
        metas = dict(sequence.metas)
        for position, returned in run.returned.items():
            metas |= sequence.steps[position].made(returned)
        left = {h: metas[h - run.base] for h in alive}
        self.search.interrupt(left)
        self._add(self.partial.interrupt(left), actions)
        self._boundary = True
        self.closed = partial(self._calls, run, self._position)
        self._close()

    def _abandon(self, run: _Run, actions: list[Action]) -> None:
        """End the run at a mismatch.

        The server undoes the run, then executes again the calls that the program has made.
        """
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
        # The last call may complete a sequence, which lists the tensors that the program still
        # holds. Tensors that the program has freed must not be in this list, so record them first.
        for handle in run.dead - last:
            self._forget(handle)
        self._observe(calls[-1], actions)
        for handle in run.dead & last:
            self._forget(handle)

    def _observe(self, call: Call, actions: list[Action]) -> None:
        for sequence in (self.search.observe(call), self.partial.observe(call)):
            self._add(sequence, actions)

    def _add(self, sequence: Sequence | None, actions: list[Action]) -> None:
        if sequence is not None and self._tree.alive(sequence):
            self._tree.add(sequence, actions)

    def _forget(self, handle: int) -> None:
        self.search.freed(handle)
        self.partial.freed(handle)

    def _close(self) -> None:
        self._run = self.expected = None
        self._position = 0

    def _flush_frees(self, actions: list[Action]) -> None:
        """Free the tensors that the program has dropped; call this only while no run is open."""
        if not self._frees:
            return
        self._tree.forget_users(self._frees, actions)
        for handle in self._frees:
            self._forget(handle)
        actions.append(Free(tuple(self._frees)))
        self._frees.clear()
