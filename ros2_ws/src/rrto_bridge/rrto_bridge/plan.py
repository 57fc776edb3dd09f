"""The replaying server: sequences as compiled plans, and the run that is open (Algorithm 12).

A plan is resolved once: operators, places of arguments, when a tensor is let go. A run executes it
in one go and may be ahead of the program, so until `Finish` it can be undone: what it made is
dropped, and tensors from before it that it writes (also through views) were saved when it began.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .actions import Abandon, Define, Finish, Forget, Free, More, Start, Switch, Value
from .errors import RemoteError
from .record import DTOH, HTOD, Meta, Persistent
from .sequence import ROLES, Bound, Own, Sequence, Step, StepRole

MAX_SEQUENCES = 64    # of one client; a client keeps half as many
MAX_STEPS = 1 << 17

Request = Define | Forget | Start | More | Switch | Abandon | Finish | Free


@dataclass(frozen=True, slots=True)
class Kernel:
    """An operator, ready to run: `call(arguments, keywords)` -> (results, value).

    Results are flattened, as in a `Call`; `value` is what a wanted operator gives. `writes`:
    positions or names of tensor arguments that it changes. `views`: its results may share memory
    with its arguments.
    """

    call: Callable[[list[Any], dict[str, Any]], tuple[tuple[Any, ...], Any]]
    writes: tuple[int | str, ...] = ()
    views: bool = False


class Executor(Protocol):
    """Tensors of one client, and what can be done to them."""

    def resolve(self, op: str) -> Kernel:
        """The operator of this name; raises Refused."""
    def argument(self, value: Any) -> Any:
        """What an operator gets for a scalar, string, `Special` or tuple of a step."""
    def upload(self, data: Any, meta: Meta) -> Any:
        """A new tensor; raises RemoteError if the bytes do not fit."""
    def download(self, tensor: Any) -> Any:
        """What the client gets for a device-to-host copy."""
    def meta(self, tensor: Any) -> Meta:
        """Shape, strides, dtype, offset."""
    def save(self, tensor: Any) -> Any:
        """The values (and what else an operator may change) of a tensor."""
    def restore(self, tensor: Any, saved: Any) -> None:
        """Undo what was done to a tensor since `save`."""
    def random(self) -> Any:
        """State of the random generator."""
    def set_random(self, state: Any) -> None:
        """Go back to a state."""
    def get(self, handle: int) -> Any:
        """The tensor of a handle; raises RemoteError."""
    def add(self, handle: int, tensor: Any) -> None:
        """Take a tensor in; raises RemoteError if the handle is in use."""
    def free(self, handle: int) -> None:
        """Forget a tensor; an unknown handle is nothing."""


@dataclass(slots=True)
class _Instruction:
    """One step. Registers hold the tensors: slots first, then persistent, then bound ones."""

    kind: str                               # HTOD, DTOH or ''
    call: Callable[..., Any] | None
    arguments: list[Any]                    # scalars in place; `holes` are filled in a copy
    holes: list[tuple[int, Any]]            # position, register or nested list of an argument
    keywords: dict[str, Any]
    keyword_holes: list[tuple[str, Any]]
    results: list[tuple[int, int]]          # index of a new tensor, register
    metas: tuple[Meta | None, ...]          # of an input, or where the shape depends on data
    wanted: bool
    needs: int                              # bound tensors that must be known
    release: list[int]                      # registers that are not needed any more


class Plan:
    """A compiled sequence; raises RemoteError or Refused for one that cannot be."""

    def __init__(self, sequence: Sequence, executor: Executor) -> None:
        if not 0 < len(sequence.steps) <= MAX_STEPS:
            raise RemoteError(f'a sequence of {len(sequence.steps)} steps')
        self.slots, self.made, self.kept = sequence.slots, sequence.made, sequence.kept
        self.persistent: list[int] = []          # handles, in the order of their registers
        self.places: dict[StepRole, int] = {}
        self.bound = len(sequence.bound)
        self.count_registers(sequence)
        self.written: set[int] = set()           # registers from before the run that it changes
        self._shares: dict[int, set[int]] = {}   # register: registers from before it may share with
        kernels = {s.op: executor.resolve(s.op) for s in sequence.steps if s.op not in (HTOD, DTOH)}
        self.instructions = [self.compile(step, kernels.get(step.op), executor)
                             for step in sequence.steps]
        self.note_releases(sequence)

    def count_registers(self, sequence: Sequence) -> None:
        """Give every tensor a register."""
        made = -1
        bound = 0
        for step in sequence.steps:
            for role in step.roles():
                if type(role) is Own and role.slot > made:
                    raise RemoteError('a step uses a tensor that is not made yet')
                if type(role) is Bound:
                    if role.index > bound:
                        raise RemoteError('bound tensors come in another order')
                    bound = max(bound, role.index + 1)
                if type(role) is Persistent and role not in self.places:
                    self.places[role] = self.slots + len(self.persistent)
                    self.persistent.append(role.handle)
            for result in step.results:
                if type(result) is Own and result.slot > made:
                    made += 1
                    if result.slot != made:
                        raise RemoteError('tensors are made in another order')
        if bound != self.bound:
            raise RemoteError('a sequence names bound tensors that it does not use')
        for slot in range(self.slots):
            self.places[Own(slot)] = slot
        for index in range(bound):
            self.places[Bound(index)] = self.slots + len(self.persistent) + index
        self.registers = self.slots + len(self.persistent) + bound

    def compile(self, step: Step, kernel: Kernel | None, executor: Executor) -> _Instruction:
        """Turn a step into an instruction, and note what it writes and what shares memory."""
        roles = step.roles()
        if len(step.metas) != len(step.results):
            raise RemoteError('a step has as many metas as results')
        if step.op == HTOD and (roles or len(step.results) != 1 or not step.metas[0]):
            raise RemoteError('a host-to-device copy makes one tensor')
        if step.op == DTOH and (len(roles) != 1 or step.results):
            raise RemoteError('a device-to-host copy has one tensor')
        if any(not isinstance(r, Own | None) and r not in roles for r in step.results):
            raise RemoteError('a step returns a tensor that it neither made nor was given')
        inputs = [self.places[role] for role in roles]
        results, seen = [], set(inputs)
        for index, role in enumerate(step.results):
            if role is not None and self.places[role] not in seen:
                results.append((index, self.places[role]))
        self.note_writes(step, kernel, inputs, [place for _, place in results])
        arguments, holes = [], []
        for position, value in enumerate(step.arguments):
            hole = self.hole(value, executor)
            arguments.append(None if hole is not None else executor.argument(value))
            if hole is not None:
                holes.append((position, hole))
        keyword_holes = [(name, hole) for name, value in step.keywords
                         if (hole := self.hole(value, executor)) is not None]
        named = {name for name, _ in keyword_holes}
        keywords = {name: executor.argument(value) for name, value in step.keywords
                    if name not in named}
        needs = max((r.index + 1 for r in roles if type(r) is Bound), default=0)
        return _Instruction(
            step.op if kernel is None else '', kernel.call if kernel else None, arguments, holes,
            keywords, keyword_holes, results,
            step.metas if step.wanted or kernel is None else (), step.wanted, needs, [])

    def hole(self, value: Any, executor: Executor) -> Any:
        """Register of a tensor, or a list with such in it; None for an argument without tensors."""
        if isinstance(value, ROLES):
            return self.places[value]
        if not Step('', (value,)).roles():
            return None
        return [(True, self.places[v]) if isinstance(v, ROLES) else (False, executor.argument(v))
                for v in value]

    def note_writes(self, step: Step, kernel: Kernel | None, inputs: list[int],
                    made: list[int]) -> None:
        """Note registers from before the run that the step changes, maybe through a view."""
        if kernel is None:
            return
        keywords = dict(step.keywords)
        for place in kernel.writes:
            values = keywords.get(place) if isinstance(place, str) else step.arguments[place] if \
                place < len(step.arguments) else None
            for role in Step('', (values,)).roles():
                self.written |= self.shares(self.places[role])
        if kernel.views:
            shared = set().union(*(self.shares(place) for place in inputs))
            for place in made:
                self._shares[place] = shared

    def shares(self, place: int) -> set[int]:
        """Registers from before the run whose memory a register may share."""
        return {place} if place >= self.slots else self._shares.get(place, set())

    def note_releases(self, sequence: Sequence) -> None:
        """Let every tensor go after its last use, unless it lives on."""
        last: dict[int, int] = {}
        for position, step in enumerate(sequence.steps):
            for role in (*step.roles(), *step.results):
                if type(role) is Own:
                    last[role.slot] = position
        for slot, position in last.items():
            if slot not in sequence.kept:
                self.instructions[position].release.append(slot)


class _Run:
    """The open run of a plan."""

    def __init__(self, start: Start, plan: Plan, executor: Executor) -> None:
        self.number, self.base = start.run, start.base
        self.inputs, self.bound = list(start.inputs), list(start.bound)
        self.executor = executor
        self.begin(plan)

    def begin(self, plan: Plan) -> None:
        """Be at the first step of a plan."""
        self.plan = plan
        self.position = self.used = self.values = 0
        self.stopped = False     # waits for Abandon: an error, or a tensor of another shape
        self.random = self.executor.random()
        self.saved: list[tuple[Any, Any]] = []
        persistent = [self.executor.get(h) for h in plan.persistent]
        self.registers: list[Any] = [None] * plan.slots + persistent
        for place in range(plan.slots, len(self.registers)):
            self.save(place)
        self.bind()

    def bind(self) -> None:
        """Fill registers of bound tensors that are known now."""
        if len(self.bound) > self.plan.bound:
            raise RemoteError('the run has fewer bound tensors')
        known = len(self.registers) - self.plan.slots - len(self.plan.persistent)
        for handle in self.bound[known:]:
            self.registers.append(self.executor.get(handle))
            self.save(len(self.registers) - 1)

    def save(self, place: int) -> None:
        if place in self.plan.written:
            tensor = self.registers[place]
            self.saved.append((tensor, self.executor.save(tensor)))

    def undo(self) -> None:
        """Be as if the run had not begun."""
        for tensor, saved in reversed(self.saved):
            self.executor.restore(tensor, saved)
        self.executor.set_random(self.random)

    def ready(self) -> bool:
        """Whether the next step can be executed."""
        plan = self.plan
        if self.stopped or self.position >= len(plan.instructions):
            return False
        step = plan.instructions[self.position]
        return (step.kind != HTOD or self.used < len(self.inputs)) and \
            step.needs <= len(self.bound)

    def step(self, keep: bool = False) -> Value | None:
        """Execute the next step; a value if it is a wanted one. `keep`: let no tensor go."""
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
            value = self.execute(step)
        self.position += 1
        answer = self.answer(step, value) if step.wanted else None
        if not keep:
            for place in step.release:
                self.registers[place] = None
        return answer

    def execute(self, step: _Instruction) -> Any:
        registers = self.registers
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

    def answer(self, step: _Instruction, value: Any) -> Value:
        """What the client gets for a wanted step."""
        metas: tuple[Meta | None, ...] = ()
        if step.metas:
            row: list[Meta | None] = list(step.metas)
            for index, place in step.results:
                row[index] = self.executor.meta(self.registers[place])
            metas = tuple(row)
            self.stopped = metas != step.metas
        self.values += 1
        return Value(self.number, self.values - 1, value, metas)


class ReplayServer:
    """Runs sequences of one client. Raises RemoteError for what a client may not ask."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._plans: dict[int, Plan] = {}
        self._run: _Run | None = None

    @property
    def ready(self) -> bool:
        """Whether `advance` has something to do."""
        return self._run is not None and self._run.ready()

    def apply(self, request: Request) -> None:
        """Take a request, in the order in which the client made them."""
        match request:
            case Define(sequence):
                if len(self._plans) >= MAX_SEQUENCES or sequence.number in self._plans:
                    raise RemoteError('too many sequences, or two with one number')
                self._plans[sequence.number] = Plan(sequence, self.executor)
            case Forget(number):
                self._plans.pop(number, None)
            case Start():
                if self._run is not None:
                    raise RemoteError('a run is open')
                self._run = _Run(request, self._plan(request.number), self.executor)
            case Free(handles):
                for handle in handles:
                    self.executor.free(handle)
            case More(number, inputs, bound):
                run = self._open(number)
                run.inputs.extend(inputs)
                run.bound.extend(bound)
                run.bind()
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

    def advance(self, limit: int) -> list[Value]:
        """Execute at most `limit` steps of the open run; the values that the program may want."""
        run = self._run
        values = []
        while run is not None and limit > 0 and run.ready():
            limit -= 1
            try:
                value = run.step()
            except Exception as error:  # what an operator raises belongs to its caller
                run.stopped = True
                reason = f'{type(error).__name__}: {error}'
                values.append(Value(run.number, run.values, error=reason))
                break
            if value is not None:
                values.append(value)
        return values

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
        self._run_to(run, len(run.plan.instructions), keep=False)
        self._close(run, alive)

    def _abandon(self, run: _Run, count: int, alive: tuple[int, ...]) -> None:
        if not 0 <= count <= len(run.plan.instructions):
            raise RemoteError(f'the run has no step {count}')
        if any(not 0 <= h - run.base < run.plan.made[count] for h in alive):
            raise RemoteError('these steps do not make this tensor')
        run.undo()
        run.begin(run.plan)
        self._run_to(run, count, keep=True)
        self._close(run, alive)

    def _run_to(self, run: _Run, count: int, keep: bool) -> None:
        """Execute up to step `count`; if that cannot be, the run is undone and over."""
        try:
            while run.position < count:
                run.stopped = run.stopped and not keep
                if not run.ready():
                    raise RemoteError('the run cannot make the steps that it is said to have made')
                run.step(keep)
        except Exception:
            run.undo()
            self._run = None
            raise

    def _close(self, run: _Run, alive: tuple[int, ...]) -> None:
        self._run = None
        for handle in alive:
            self.executor.add(handle, run.registers[handle - run.base])
