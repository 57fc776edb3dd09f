"""The replaying server: executes one run at a time, possibly ahead of the program.

A run is the replay of one pass of a sequence; `plan` compiles the sequence. A run is open from
`Start` until `Finish` or `Abandon`, and holds its tensors in registers. An older tensor is one that
exists before the run.

The server can undo an open run: it drops the tensors that the run has created, and restores the
older tensors that the run has changed. For this purpose the server saves the values of each older
tensor that the run may change, when it puts this tensor into a register. All memory that a run uses
counts as the client's memory.

If a step fails, the server executes none of the later steps until the client ends the run. At the
end of the run, the server also executes the later steps. So the effects are the same as if the
program had made the calls one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..protocol.actions import Abandon, Define, Finish, Forget, Free, More, Start, Switch, Value
from ..protocol.errors import Missing, OutOfMemory, RemoteError, described
from ..protocol.record import DTOH, HTOD, Meta
from .plan import Executor, Instruction, Plan, run_operator

# Maximum number of sequences that the server keeps for one client. The client itself keeps at most
# half as many, see `search.known_sequences`.
MAX_SEQUENCES = 64

Request = Define | Forget | Start | More | Switch | Abandon | Finish | Free


class _Run:
    """The open run of a plan."""

    def __init__(self, start: Start, plan: Plan, executor: Executor, offered: Any = None) -> None:
        self.number, self.base = start.run, start.base
        self.inputs: list[Any] = []
        self.bound = list(start.bound)
        self.executor = executor
        self.kept = 0            # number of bytes of the inputs
        self.short: OutOfMemory | None = None   # the error if the inputs do not fit into memory
        self.keep(start.inputs)
        self.begin(plan, offered=offered)

    def keep(self, inputs: tuple[Any, ...]) -> None:
        """Keep `inputs` until the run ends, and count them as the client's memory."""
        if self.short is not None:
            return
        try:
            self.kept += self.executor.reserve(sum(map(len, inputs)))
            self.inputs += inputs
        except OutOfMemory as error:
            self.short = error

    def begin(self, plan: Plan, last: bool = False, offered: Any = None) -> None:
        """Set the run to the state before the first step of `plan`.

        `last`: whether the server executes the run for the last time and cannot undo it afterwards.
        `offered`: what computes the whole run in another process, see `sharing`; or None.
        """
        self.plan, self.last = plan, last
        self.offered = offered      # None as soon as it has been asked
        self.elsewhere: Any = None  # what has computed the run
        self.stay: dict[int, Any] = {}      # what it has made and stays: tensors by slot
        # Numbers of executed steps, of inputs that they used, and of values that they returned.
        self.position = self.used = self.values = 0
        # Whether the metas of the last step differ from the plan; the run then waits for `Abandon`.
        self.differs = False
        self.stopped = False     # whether an error has stopped the run
        self.error: Exception | None = None   # the first error of the run
        self.told = False        # whether `advance` has yielded the error
        # Maps a register whose tensor does not exist to the error that caused this.
        self.failed: dict[int, Exception] = {}
        self.random = None if offered else self.executor.random()
        self.saved: list[tuple[Any, Any]] = []
        self.sizes: dict[int, int] = {}       # maps a register to its number of charged bytes
        self.registers: list[Any] = [None] * plan.slots
        if not offered:
            self.enter(plan.persistent)
        self.bind()

    def bind(self) -> None:
        """Fill the registers of the `Bound` tensors whose handles have arrived."""
        if len(self.bound) > self.plan.bound:
            raise RemoteError(f'a run must have at most {self.plan.bound} bound tensors, '
                              f'got {len(self.bound)}')
        if self.random is not None:
            known = len(self.registers) - self.plan.slots - len(self.plan.persistent)
            self.enter(self.bound[known:])
        if self.short is not None:
            self.fail(self.short)

    def enter(self, handles: list[int]) -> None:
        """Fill the next registers with the older tensors that have these handles.

        Save the values of the tensors to which the run writes.
        """
        for handle in handles:
            place = len(self.registers)
            self.registers.append(None)
            try:
                self.registers[place] = tensor = self.executor.get(handle)
                if place in self.plan.written and not self.last:
                    saved = self.executor.save(tensor)
                    self.sizes[place] = self.executor.charge(saved)
                    self.saved.append((tensor, saved))
            except Missing as error:   # the call that creates this tensor has failed
                self.failed[place] = error
                # In the last execution, do not stop: only the steps that use this tensor fail.
                if not self.last:
                    self.fail(error)
            except OutOfMemory as error:
                self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop the run. The next value that the client receives reports the run's first error."""
        self.stopped = True
        self.error = self.error or error

    def undo(self) -> None:
        """Restore the random state and the changed tensors to their values before the run."""
        for tensor, saved in reversed(self.saved):
            self.executor.restore(tensor, saved)
        if self.random is not None:     # this process has computed
            self.executor.set_random(self.random)
        self.leave()

    def leave(self) -> None:
        """Stop counting the memory of the run's tensors."""
        self.executor.credit(sum(self.sizes.values()))
        self.sizes.clear()

    def ready(self) -> bool:
        """Return whether the next step can be executed."""
        plan = self.plan
        if self.stopped or self.differs or self.position >= len(plan.instructions):
            return False
        step = plan.instructions[self.position]
        return (step.kind != HTOD or self.used < len(self.inputs)) and \
            step.needs <= len(self.bound)

    def step(self, alive: frozenset[int] = frozenset()) -> Value | None:
        """Execute the next step; return its `Value` if the client needs it, otherwise None.

        `alive`: slots whose tensors the step must not release.
        """
        step = self.plan.instructions[self.position]
        value = None
        if step.kind == DTOH:
            value = self.executor.download(self.registers[step.holes[0][1]])
        elif step.kind == HTOD:
            meta = step.metas[0]
            assert meta is not None
            self.registers[step.results[0][1]] = self.executor.upload(
                self.inputs[self.used], meta)
            self.used += 1
        else:
            value = run_operator(step, self.registers)
        for place in step.fresh:
            self.sizes[place] = self.executor.charge(self.registers[place])
        self.position += 1
        answer = self.answer(step, value) if step.wanted else None
        for place in step.release:
            if place not in alive:
                self.registers[place] = None
        for place in step.frees:
            if not alive or alive.isdisjoint(self.plan.sharers[place]):
                self.executor.credit(self.sizes.pop(place, 0))
        return answer

    def wait(self) -> bool:
        """Return whether the run waits for inputs, because another process computes it at once."""
        return self.offered is not None and len(self.inputs) < self.offered.inputs \
            and not self.stopped

    def delegate(self) -> list[Value] | None:
        """Let another process compute the run; None: this process must compute it."""
        offered, self.offered = self.offered, None
        found = None if self.stopped or len(self.inputs) != offered.inputs else \
            offered.run(self.inputs)
        if found is None:
            self.begin(self.plan)
            return None
        self.elsewhere, (values, self.stay) = offered, found
        self.position, self.used, self.values = \
            len(self.plan.instructions), len(self.inputs), len(values)
        return [Value(self.number, k, value) for k, value in enumerate(values)]

    def skip(self, error: Exception) -> None:
        """Skip the next step, which has failed with `error`; its new tensors do not exist."""
        self.fail(error)
        step = self.plan.instructions[self.position]
        for _, place in step.results:
            self.registers[place], self.failed[place] = None, error
            self.executor.credit(self.sizes.pop(place, 0))
        self.used += step.kind == HTOD
        self.position += 1

    def complete(self, count: int, alive: frozenset[int]) -> Exception | None:
        """Execute the remaining steps before step number `count`; skip the steps that fail.

        Return the first error or None.
        """
        steps = self.plan.instructions[self.position:count]
        missing = self.used + sum(s.kind == HTOD for s in steps) > len(self.inputs)
        if missing and self.short is None or any(s.needs > len(self.bound) for s in steps):
            raise RemoteError('inputs or bound tensors of the completed steps are missing')
        self.differs = False    # the client already knows that the metas differ
        for step in steps:
            error = next((self.failed[p] for p in step.reads() if p in self.failed), None)
            if step.kind == HTOD and self.used == len(self.inputs):
                error = self.short
            try:
                if error is not None:
                    raise error
                self.step(alive)
            except Exception as wrong:
                self.skip(wrong)
        return self.error

    def answer(self, step: Instruction, value: Any) -> Value:
        """Return the `Value` of a wanted step: the answer that the program needs at once."""
        metas: tuple[Meta | None, ...] = ()
        if step.metas:
            row: list[Meta | None] = list(step.metas)
            for index, place in step.returned:
                row[index] = self.executor.meta(self.registers[place])
            metas = tuple(row)
            self.differs = any(
                mine is not None and mine != meta
                for mine, meta in zip(step.metas, metas, strict=True))
        self.values += 1
        return Value(self.number, self.values - 1, value, metas)


class ReplayServer:
    """Runs the sequences of one client. Raises RemoteError for an invalid request."""

    def __init__(self, executor: Executor, sharing: Any = None) -> None:
        self.executor, self.sharing = executor, sharing
        self._plans: dict[int, Plan] = {}
        self._run: _Run | None = None

    @property
    def ready(self) -> bool:
        """Whether `advance` can execute a step or report an error."""
        run = self._run
        return run is not None and (run.ready() or run.error is not None and not run.told)

    def apply(self, request: Request) -> Exception | None:
        """Apply a request; requests must come in the client's order.

        If the request ends a run, return the first error of the run's steps, or None. Return None
        also if the client already knows the error.
        """
        match request:
            case Define(sequence):
                if len(self._plans) >= MAX_SEQUENCES or sequence.number in self._plans:
                    raise RemoteError('too many sequences, or two with one number')
                self._plans[sequence.number] = Plan(sequence, self.executor)
            case Forget(number):
                self._plans.pop(number, None)
                if self.sharing is not None:
                    self.sharing.forget(number)
            case Start():
                if self._run is not None:
                    raise RemoteError('only one run may be open at a time')
                plan = self._plan(request.number)
                self._run = _Run(request, plan, self.executor,
                                 self.sharing and self.sharing.ready(plan))
            case Free(handles):
                for handle in handles:
                    self.executor.free(handle)
            case More(number, inputs, bound):
                run = self._open(number)
                run.keep(inputs)
                run.bound.extend(bound)
                run.bind()
            case Switch(number, new, sequence_number):
                run = self._open(number)
                plan = self._plan(sequence_number)
                run.undo()
                run.number = new
                run.begin(plan)
            case Abandon(number, count, alive, failed):
                error = self._abandon(self._open(number), count, alive)
                return None if failed else error
            case Finish(number, alive):
                return self._finish(self._open(number), alive)
        return None

    def advance(self, limit: int) -> Iterator[Value]:
        """Execute at most `limit` steps of the open run; yield each value that the program needs.

        Yield each value as soon as it exists, so that the program does not wait for later steps.
        """
        run = self._run
        if run is not None and run.offered is not None:
            if run.wait():
                return
            yield from run.delegate() or ()
        while run is not None and limit > 0 and run.ready():
            limit -= 1
            try:
                value = run.step()
            except Exception as error:  # the client raises this error in the program
                run.skip(error)
                break
            if value is not None:
                yield value
        if run is not None and run.error is not None and not run.told:
            run.told = True
            yield Value(run.number, run.values, error=': '.join(described(run.error)))

    def _plan(self, number: int) -> Plan:
        if number not in self._plans:
            raise RemoteError(f'there is no sequence {number}')
        return self._plans[number]

    def _open(self, number: int) -> _Run:
        if self._run is None or self._run.number != number:
            raise RemoteError(f'run {number} is not open')
        return self._run

    def _finish(self, run: _Run, alive: tuple[int, ...]) -> Exception | None:
        if any(h - run.base not in run.plan.kept for h in alive):
            raise RemoteError('a kept tensor must be one that the sequence keeps')
        if run.offered is not None:     # the whole pass came at once, so nobody was asked
            run.begin(run.plan)
        error = run.complete(len(run.plan.instructions), frozenset())
        for handle in alive if run.elsewhere is not None else ():
            slot = handle - run.base
            run.registers[slot] = run.elsewhere.placed(run.stay[slot])
        plan, alone = run.plan, run.elsewhere is None and error is None
        self._close(run, alive)
        if alone and self.sharing is not None:
            self.sharing.passed(plan)
        return error

    def _abandon(self, run: _Run, count: int, alive: tuple[int, ...]) -> Exception | None:
        if not 0 <= count <= len(run.plan.instructions):
            raise RemoteError(f'a run of {len(run.plan.instructions)} steps cannot repeat {count}')
        if any(not 0 <= h - run.base < run.plan.made[count] for h in alive):
            raise RemoteError('a kept tensor must be one that the repeated steps create')
        run.undo()
        run.begin(run.plan, last=True)
        error = run.complete(count, frozenset(h - run.base for h in alive))
        self._close(run, alive)
        return error

    def _close(self, run: _Run, alive: tuple[int, ...]) -> None:
        """End the run; add the tensors whose handles are in `alive` to the client's context."""
        self._run = None
        self.executor.credit(run.kept)
        run.leave()
        for handle in alive:
            error = run.failed.get(handle - run.base)
            if error is None:
                self.executor.add(handle, run.registers[handle - run.base])
            else:
                self.executor.failed(handle, *described(error))
