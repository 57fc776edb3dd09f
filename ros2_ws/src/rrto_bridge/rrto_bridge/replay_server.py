"""The replaying server: the run that is open, which may be ahead of the program.

Until `Finish` a run can be undone: what it made is dropped, and tensors from before it that it
writes were saved when it began. What it holds counts as the client's memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from . import blocks
from .actions import Abandon, Define, Finish, Forget, Free, More, Start, Switch, Value
from .blocks import Block
from .errors import Missing, OutOfMemory, RemoteError, described
from .graphs import Capturer, Part
from .plan import Executor, Instruction, Plan
from .record import DTOH, HTOD, Meta

MAX_SEQUENCES = 64    # of one client; a client keeps half as many

Request = Define | Forget | Start | More | Switch | Abandon | Finish | Free


class _Run:
    """The open run of a plan."""

    def __init__(self, start: Start, plan: Plan, executor: Executor) -> None:
        self.number, self.base = start.run, start.base
        self.inputs: list[Any] = []
        self.bound = list(start.bound)
        self.executor = executor
        self.kept = 0            # bytes of the inputs
        self.short: OutOfMemory | None = None   # inputs were too many to be kept
        self.whole = True        # blocks may be run as a whole
        self.take(start.inputs)
        self.begin(plan)
        if self.short is not None:
            self.fail(self.short)

    def take(self, inputs: tuple[Any, ...]) -> None:
        """Keep these inputs until the run is over, as the client's memory."""
        try:
            self.kept += self.executor.reserve(sum(map(len, inputs)))
            self.inputs += inputs
        except OutOfMemory as error:
            self.short = self.short or error

    def begin(self, plan: Plan) -> None:
        """Be at the first step of a plan."""
        self.plan = plan
        self.position = self.used = self.values = 0
        self.differs = False     # in shape, the last tensor: waits for Abandon
        self.stopped = False     # by an error
        self.error: Exception | None = None   # if the client is not told of it yet
        self.random = self.executor.random()
        self.saved: list[tuple[Any, Any]] = []
        self.sizes: dict[int, int] = {}       # bytes that are charged, by register
        self.registers: list[Any] = [None] * plan.slots
        self.enter(plan.persistent)
        self.bind()

    def bind(self) -> None:
        """Fill registers of bound tensors that are known now."""
        if len(self.bound) > self.plan.bound:
            raise RemoteError('the run has fewer bound tensors')
        known = len(self.registers) - self.plan.slots - len(self.plan.persistent)
        if not self.stopped:
            self.enter(self.bound[known:])

    def enter(self, handles: list[int]) -> None:
        """Fill the next registers with tensors from before the run; save those that it writes."""
        try:
            for handle in handles:
                tensor = self.executor.get(handle)
                if len(self.registers) in self.plan.written:
                    saved = self.executor.save(tensor)
                    self.sizes[len(self.registers)] = self.executor.charge(saved)
                    self.saved.append((tensor, saved))
                self.registers.append(tensor)
        except (Missing, OutOfMemory) as error:  # of an earlier call that nobody waited for
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Stop, and tell the client at the next value."""
        self.stopped = True
        self.error = error

    def undo(self) -> None:
        """Be as if the run had not begun."""
        for tensor, saved in reversed(self.saved):
            self.executor.restore(tensor, saved)
        self.executor.set_random(self.random)
        self.leave()

    def leave(self) -> None:
        """What the run holds is no longer the run's."""
        self.executor.credit(sum(self.sizes.values()))
        self.sizes.clear()

    def ready(self) -> bool:
        """Whether the next step can be executed."""
        plan = self.plan
        if self.stopped or self.differs or self.position >= len(plan.instructions):
            return False
        step = plan.instructions[self.position]
        return (step.kind != HTOD or self.used < len(self.inputs)) and \
            step.needs <= len(self.bound)

    def step(self, alive: frozenset[int] = frozenset()) -> Value | None:
        """Execute the next step; a value if it is a wanted one. `alive`: slots that stay.

        Where a block begins that is run as a whole, all of it.
        """
        block = self.plan.blocks.get(self.position)
        if block is not None and self.whole and self.leap(block):
            return None
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
            value = self.execute(step, self.registers)
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

    def leap(self, block: Block) -> bool:
        """Run a block as a whole, if it is its turn; whether it was."""
        registers = self.registers
        if block.part.dropped or block.needs > len(self.bound):
            return False
        inputs = [registers[place] for place in block.inputs]
        key = ([self.executor.meta(t) for t in inputs],
               [self.executor.place(registers[p]) for p in block.constants])
        if not block.part.wanted(key):
            return False
        steps = self.plan.instructions[block.start:block.end]

        def compute(given: list[Any]) -> list[Any]:
            scratch = list(registers)
            for place, tensor in zip(block.inputs, given, strict=True):
                scratch[place] = tensor
            for step in steps:
                self.execute(step, scratch)
                for place in step.release:
                    scratch[place] = None
            return [scratch[place] for place in block.outputs]

        made = block.part.run(key, compute, inputs)
        for place, tensor in zip(block.outputs, made, strict=True):
            registers[place] = tensor
            self.sizes[place] = self.executor.charge(tensor)
        for step in steps:
            for place in step.release:
                registers[place] = None
            for place in step.frees:
                self.executor.credit(self.sizes.pop(place, 0))
        self.position = block.end
        return True

    def execute(self, step: Instruction, registers: list[Any]) -> Any:
        """Run an operator; its new tensors are in their registers."""
        arguments, keywords = step.arguments, step.keywords
        if step.holes:
            arguments = arguments[:]
            for position, hole in step.holes:
                arguments[position] = registers[hole] if type(hole) is int else [
                    registers[v] if is_tensor else v for is_tensor, v in hole]
        if step.keyword_holes:
            keywords = dict(keywords)
            for name, hole in step.keyword_holes:
                keywords[name] = registers[hole] if type(hole) is int else [
                    registers[v] if is_tensor else v for is_tensor, v in hole]
        results, value = step.call(arguments, keywords)  # type: ignore[misc]
        for index, place in step.results:
            registers[place] = results[index]
        return value

    def answer(self, step: Instruction, value: Any) -> Value:
        """What the client gets for a wanted step."""
        metas: tuple[Meta | None, ...] = ()
        if step.metas:
            row: list[Meta | None] = list(step.metas)
            for index, place in step.results:
                row[index] = self.executor.meta(self.registers[place])
            metas = tuple(row)
            self.differs = any(
                mine is not None and mine != meta
                for mine, meta in zip(step.metas, metas, strict=True))
        self.values += 1
        return Value(self.number, self.values - 1, value, metas)


class ReplayServer:
    """Runs sequences of one client. Raises RemoteError for what a client may not ask."""

    def __init__(self, executor: Executor, capturer: Capturer | None = None) -> None:
        """`capturer`: what runs parts of plans as one, see `graphs`."""
        self.executor = executor
        self._capturer = capturer
        self._plans: dict[int, Plan] = {}
        self._run: _Run | None = None

    @property
    def ready(self) -> bool:
        """Whether `advance` has something to do."""
        run = self._run
        return run is not None and (run.ready() or run.error is not None)

    def apply(self, request: Request) -> None:
        """Take a request, in the order in which the client made them."""
        match request:
            case Define(sequence):
                if len(self._plans) >= MAX_SEQUENCES or sequence.number in self._plans:
                    raise RemoteError('too many sequences, or two with one number')
                plan = self._plans[sequence.number] = Plan(sequence, self.executor)
                if self._capturer is not None:
                    plan.blocks = blocks.blocks(plan, partial(self._part, self._capturer))
            case Forget(number):
                forgotten = self._plans.pop(number, None)
                for block in forgotten.blocks.values() if forgotten else ():
                    block.part.close()
            case Start():
                if self._run is not None:
                    raise RemoteError('a run is open')
                self._run = _Run(request, self._plan(request.number), self.executor)
            case Free(handles):
                for handle in handles:
                    self.executor.free(handle)
            case More(number, inputs, bound):
                run = self._open(number)
                run.take(inputs)
                run.bound.extend(bound)
                run.bind()
                if run.short is not None and not run.stopped:
                    run.fail(run.short)
            case Switch(number, new, sequence_number):
                run = self._open(number)
                plan = self._plan(sequence_number)
                run.undo()
                run.number = new
                run.begin(plan)
            case Abandon(number, count, alive):
                self._abandon(self._open(number), count, alive)
            case Finish(number, alive):
                self._finish(self._open(number), alive)

    def advance(self, limit: int) -> Iterator[Value]:
        """Execute at most `limit` steps of the open run; yields values that the program may want.

        Each as soon as it is there: the program waits for no more than what comes before it.
        """
        run = self._run
        while run is not None and limit > 0 and run.ready():
            limit -= 1
            try:
                value = run.step()
            except Exception as error:  # what an operator raises belongs to its caller
                run.fail(error)
                break
            if value is not None:
                yield value
        if run is not None and run.error is not None:
            text = ': '.join(described(run.error))
            run.error = None
            yield Value(run.number, run.values, error=text)

    def _part(self, capturer: Capturer, name: str) -> Part:
        return Part(capturer, name, self.executor.reserve, self.executor.credit)

    def _plan(self, number: int) -> Plan:
        if number not in self._plans:
            raise RemoteError(f'there is no sequence {number}')
        return self._plans[number]

    def _open(self, number: int) -> _Run:
        if self._run is None or self._run.number != number:
            raise RemoteError(f'run {number} is not open')
        return self._run

    def _finish(self, run: _Run, alive: tuple[int, ...]) -> None:
        if any(h - run.base not in run.plan.kept for h in alive):
            raise RemoteError('the run does not keep this tensor')
        self._run_to(run, len(run.plan.instructions), frozenset())
        self._close(run, alive)

    def _abandon(self, run: _Run, count: int, alive: tuple[int, ...]) -> None:
        if not 0 <= count <= len(run.plan.instructions):
            raise RemoteError(f'the run has no step {count}')
        if any(not 0 <= h - run.base < run.plan.made[count] for h in alive):
            raise RemoteError('these steps do not make this tensor')
        run.undo()
        run.whole = False    # the program has called no more than `count`
        run.begin(run.plan)
        self._run_to(run, count, frozenset(h - run.base for h in alive))
        self._close(run, alive)

    def _run_to(self, run: _Run, count: int, alive: frozenset[int]) -> None:
        """Execute up to step `count`; if that cannot be, the run is undone and over."""
        try:
            while run.position < count:
                if run.error is not None:
                    raise run.error
                run.differs = False    # the client knows
                if not run.ready():
                    if run.short is not None:
                        raise run.short
                    raise RemoteError('the run cannot make the steps that it is said to have made')
                run.step(alive)
        except Exception:
            run.undo()
            self._end(run)
            raise

    def _end(self, run: _Run) -> None:
        self._run = None
        self.executor.credit(run.kept)

    def _close(self, run: _Run, alive: tuple[int, ...]) -> None:
        self._end(run)
        run.leave()
        for handle in alive:
            self.executor.add(handle, run.registers[handle - run.base])
