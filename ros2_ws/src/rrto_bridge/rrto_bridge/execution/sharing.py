"""What several programs have in common: sequences that the server's runner computes for all.

A sequence can be shared if it is a pure function of what each pass uploads: it changes no older
tensor, draws no random number, and every other tensor is the same in every pass. Its definition
consists of the steps, in which older tensors are numbered by first use, and of the values of these
tensors: large ones by their digest among the kept `Weights`. See `fleet_compute.runner`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

import torch
from fleet_compute.batch import unchecked
from fleet_compute.operators import refusal
from fleet_compute.runner import Computation, Form, Offer, Tenant
from fleet_compute.weights import Weights

from ..protocol.actions import Define
from ..protocol.errors import OutOfMemory, Refused, RemoteError
from ..protocol.operators import resolve
from ..protocol.record import DTOH, HTOD, Meta, Persistent
from ..protocol.requests import from_item, to_item
from ..protocol.sequence import Own, Sequence, Step, substitute
from ..protocol.tensors import DTYPES, dense, meta_of, pack, size_of, to_device, to_host, unpack
from ..protocol.wire import decode, encode
from .context import Context, default_generator
from .executor import ContextExecutor
from .kernels import UNINITIALISED
from .plan import Plan, run_operator

AFTER = 8            # passes after which a sequence is offered; each failure doubles the number
KEPT = 1 << 16       # least bytes of a tensor that is named by its digest
MOST = 64 << 20      # most bytes of tensors without a known digest, and of tensors that stay
WORST = 3            # failed runs in a row after which an offer is taken back
SHELVING = ('cuda',)    # devices whose memory weights take that the runner has there, too


class Sharing:
    """Offers the sequences of one client to the runner at `path`.

    `patience`: seconds for which the client waits for the runner.
    """

    def __init__(self, context: Context, weights: Weights, path: Path, patience: float) -> None:
        self._context, self._weights = context, weights
        self._path, self._patience = path, patience
        self._tenant: Tenant | None = None
        self._passes: dict[int, int] = {}               # passes of a sequence, by its number
        self._refused: set[int] = set()
        self._offers: dict[int, _Offered] = {}

    def passed(self, plan: Plan) -> None:
        """Count a pass that this process has computed; offer the sequence when it is proved."""
        number = plan.sequence.number
        if number in self._refused or number in self._offers:
            return
        count = self._passes[number] = self._passes.get(number, 0) + 1
        if count >= AFTER and not count & count - 1:
            try:
                self._offers[number] = self._offer(plan)
            except OSError:     # there is no runner, or no memory; later there may be
                pass
            except Exception:   # Refused, or any other: the sequence is not shared
                self._refused.add(number)

    def forget(self, number: int) -> None:
        """Take back what is offered of a sequence."""
        self._passes.pop(number, None)
        self._refused.discard(number)
        self._take_back(number)

    def _take_back(self, number: int) -> None:
        if (offered := self._offers.pop(number, None)) is not None:
            offered.offer.close()

    def ready(self, plan: Plan) -> _Offered | None:
        """Return what computes the next pass of a sequence; None: this process."""
        offered = self._offers.get(plan.sequence.number)
        if offered is None or self._tenant is None:
            return None
        self._tenant.look()
        if self._tenant.lost:
            self._drop()
            return None
        if not offered.offer.shared:
            return None
        if self._valid(offered) and offered.failures < WORST:
            if self._context.device.type in SHELVING and not offered.shelved:
                offered.shelved = True
                self._shelve(offered)
            return offered
        self._take_back(plan.sequence.number)
        if offered.failures >= WORST:
            self._refused.add(plan.sequence.number)
        return None

    def _drop(self) -> None:
        """Forget the runner; what was offered is offered again to the next one."""
        self._tenant = None
        self._offers.clear()

    def _valid(self, offered: _Offered) -> bool:
        """Return whether the older tensors contain what they did when they were offered."""
        digests = self._context.digests
        return all(digests.get(handle) == digest for handle, digest in offered.digests)

    def _offer(self, plan: Plan) -> _Offered:
        """Raises Refused if the sequence cannot be shared, RemoteError, and OSError."""
        context = self._context
        if self._tenant is None:    # first: a program that is alone computes no digests
            self._tenant = Tenant(self._path, self._patience)
        tensors = [context.tensor(handle) for handle in plan.persistent]
        inputs, outputs = check(plan, tensors, context.altered)
        unknown = sum(tensor.nbytes for handle, tensor in zip(plan.persistent, tensors, strict=True)
                      if handle not in context.digests)
        if unknown > MOST:      # to hash and to copy them would take too long
            raise Refused('it uses large tensors that were not uploaded as they are')
        values = [self._value(handle, tensor)
                  for handle, tensor in zip(plan.persistent, tensors, strict=True)]
        order = {handle: k for k, handle in enumerate(plan.persistent)}

        def numbered(value: Any) -> Any:
            return substitute(value, Persistent, lambda role: Persistent(order[role.handle]))
        sequence = Sequence(tuple(
            Step(step.op, numbered(step.arguments), numbered(step.keywords), numbered(step.results),
                 step.metas, step.wanted) for step in plan.sequence.steps), plan.kept)
        sequence.number = 0
        definition = encode((to_item(Define(sequence)), tuple(values)))
        try:
            offer = self._tenant.offer(hashlib.sha256(definition).hexdigest(), definition, inputs,
                                       outputs)
        except OSError:
            self._drop()
            raise
        return _Offered(offer, plan, [(handle, context.digests[handle])
                                      for handle in plan.persistent], context)

    def _value(self, handle: int, tensor: torch.Tensor) -> tuple[Meta, Any]:
        """Return (meta, digest or bytes) of an older tensor; raises Refused."""
        digest, meta = self._context.digests.get(handle, ''), meta_of(tensor)._replace(offset=0)
        size = size_of(meta)
        if digest and size >= KEPT and self._weights.find(digest, size) is not None:
            return meta, digest
        meta, data = pack(to_host(tensor).clone())     # no `out=` can enlarge what NumPy has seen
        if not digest:
            digest = hashlib.sha256(data).hexdigest()
            self._context.mark(handle, digest)
        if len(data) < KEPT:
            return meta, bytes(data)
        if self._weights.keep(data, digest) is None:
            raise Refused('there is no room for its weights')
        return meta, digest

    def _shelve(self, offered: _Offered) -> None:
        """Free the GPU's memory of the weights that the runner has there, too."""
        context = self._context
        for handle, digest in offered.digests:
            tensor = context.tensors.get(handle)
            if tensor is not None and tensor.nbytes >= KEPT:
                meta = meta_of(tensor)
                kept = self._weights.find(digest, size_of(meta))
                if kept is not None and not meta.offset:
                    context.shelve(handle, meta, kept)


class _Offered:
    """An offered sequence. `digests`: (handle, digest) of the older tensors that it uses."""

    def __init__(self, offer: Offer, plan: Plan, digests: Items[tuple[int, str]], context: Context
                 ) -> None:
        self.offer, self.digests, self._context = offer, digests, context
        self.failures = 0
        self.shelved = False
        self._metas = [meta for step in plan.sequence.steps if step.op == HTOD
                       for meta in step.metas if meta is not None]
        self.inputs = len(self._metas)
        self._wanted = sum(step.op == DTOH for step in plan.sequence.steps)
        self._kept = sorted(plan.kept)

    def run(self, inputs: Items[Any]) -> tuple[list[Any], dict[int, torch.Tensor]] | None:
        """Return (the wanted values, the tensors that stay by slot) of a pass.

        `inputs`: the uploads of the pass, as they crossed the link. The tensors are valid until
        the next call. None: this process must compute the pass.
        """
        size = sum(size_of(meta) for meta in self._metas)
        results = None
        # An error shows when this process computes the pass.
        with contextlib.suppress(RemoteError, OutOfMemory):
            self._context.reserve(size)
            try:
                results = self.offer.run([unpack(meta, data) for meta, data in zip(
                    self._metas, inputs, strict=True)])
            finally:
                self._context.credit(size)
        if results is None:
            self.failures += self.offer.shared      # else another program has just gone
            return None
        self.failures = 0
        return ([self._context.packed(tensor) for tensor in results[:self._wanted]],
                dict(zip(self._kept, results[self._wanted:], strict=True)))

    def placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy of a tensor that stays, on the device."""
        return to_device(tensor.clone(), self._context.device)


def forms(sequence: Sequence) -> tuple[list[Form], list[Form]]:
    """Return the forms of the inputs, and those of the wanted tensors and of those that stay."""
    copied = [step for step in sequence.steps if step.op in (HTOD, DTOH)]
    inputs = [_form(step.metas[0]) for step in copied if step.op == HTOD]
    slots = [role.slot for step in copied if step.op == DTOH for role in step.arguments]
    return inputs, [_form(sequence.metas[slot]) for slot in (*slots, *sorted(sequence.kept))]


def _form(meta: Meta | None) -> Form:
    if meta is None or meta.dtype not in DTYPES or meta.offset or not dense(
            meta.shape, meta.stride):
        raise Refused('a tensor that leaves it, or stays, has gaps')
    return Form(meta.shape, meta.stride, DTYPES[meta.dtype])


def check(plan: Plan, tensors: Items[torch.Tensor], altered: Items[str] | set[str] = ()
          ) -> tuple[list[Form], list[Form]]:
    """Return the `forms` of a sequence.

    Raise Refused if it is no pure function, or not of the same in every pass.

    `tensors`: its older tensors. `altered`: operators that are not what they are elsewhere.
    """
    sequence = plan.sequence
    if sequence.bound or plan.written:
        raise Refused('it uses tensors of an earlier pass, or changes older ones')
    wanted = [at for at, step in enumerate(sequence.steps) if step.wanted]
    copies = [at for at, step in enumerate(sequence.steps) if step.op == HTOD]
    if not wanted or not copies or copies[-1] > wanted[0]:
        raise Refused('it does not upload everything before it wants the first value')
    for step in sequence.steps:
        if step.op in (HTOD, DTOH):
            if step.op == DTOH and not isinstance(step.arguments[0], Own):
                raise Refused('it downloads a tensor that it has not made')
            continue
        function = resolve(step.op)
        base = function._schema.name.removeprefix('aten::')
        why = refusal(function, changes=True) if base not in UNINITIALISED else ''
        if step.wanted or step.op in altered or None in step.metas:
            why = 'has results that depend on values'
        if _draws(function, step):
            why = 'draws random numbers'
        if why:
            raise Refused(f'{step.op} {why}')
    for tensor in tensors:
        if not dense(tensor.shape, tensor.stride()) or tensor.layout is not torch.strided:
            raise Refused('an older tensor has gaps')
    shared = [root for slot in plan.kept for root in plan.shares(slot)]
    if len(shared) > len(set(shared)) or any(root >= plan.slots for root in shared):
        raise Refused('tensors that stay share memory')
    if sum(size_of(sequence.metas[slot]) for slot in plan.kept) > MOST:
        raise Refused('what stays is large')
    return forms(sequence)


def _draws(function: Any, step: Step) -> bool:
    """Return whether a call draws random numbers; attention and recurrent layers may do so."""
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    arguments = function._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= dict(zip(given, step.arguments, strict=False)) | dict(step.keywords)
    dropout = given.get('dropout_p', given.get('dropout'))
    return not (dropout == 0 or dropout is not None and given.get('train') is False)


class _Loaded:
    """A sequence in the runner; see `fleet_compute.runner.Computation`."""

    inputs: Items[Form]
    outputs: Items[Form]

    def __init__(self, sequence: Sequence, tensors: Items[torch.Tensor],
                 device: torch.device) -> None:
        context = Context(device, 1 << 62, generator=default_generator(device))
        for handle, tensor in enumerate(tensors):
            context.add(handle, tensor)
        self._plan = Plan(sequence, ContextExecutor(context))
        if self._plan.persistent != list(range(len(tensors))):
            raise RemoteError('older tensors must be numbered by first use')
        self.inputs, self.outputs = check(self._plan, tensors)
        self._tensors, self._kept = list(tensors), sorted(self._plan.kept)
        # for each step: registers and types of its new tensors
        self._made = [[(place, DTYPES[meta.dtype]) for index, place in made.results
                       if (meta := step.metas[index]) is not None]
                      for step, made in zip(sequence.steps, self._plan.instructions, strict=True)]
        self.together = not _differs_in_batch(sequence, tensors)
        self.name = (f'a sequence of {len(sequence.steps)} operators with '
                     f'{sum(t.nbytes for t in tensors) >> 20} MiB of weights')

    def __call__(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        registers: list[Any] = [*[None] * self._plan.slots, *self._tensors]
        given, results = iter(inputs), []
        for step, made in zip(self._plan.instructions, self._made, strict=True):
            if step.kind == HTOD:
                registers[step.results[0][1]] = next(given)
            elif step.kind == DTOH:
                results.append(registers[step.holes[0][1]].clone())   # later steps may change it
            else:
                run_operator(step, registers)
            for place, dtype in made:
                if registers[place].dtype is not dtype:
                    raise TypeError(f'a step gives {registers[place].dtype}, not {dtype}')
            for place in step.release:
                registers[place] = None
        return [*results, *(registers[slot] for slot in self._kept)]


def _differs_in_batch(sequence: Sequence, tensors: Items[torch.Tensor]) -> bool:
    """Return whether an operator may give another result in a batch; see `batch.together`."""
    metas: dict[int, Meta] = {}
    for step in sequence.steps:
        roles = step.roles()
        if step.op not in (HTOD, DTOH):
            if unchecked(resolve(step.op), bool(roles) and isinstance(roles[0], Own)):
                return True
            own = [metas[role.slot] for role in roles if isinstance(role, Own)]
            dtypes = {DTYPES[meta.dtype] for meta in own} | {
                tensors[role.handle].dtype for role in roles if isinstance(role, Persistent)}
            if len(dtypes) > 1 and not all(meta.shape for meta in own):
                return True
        metas |= step.made(step.metas)
    return False


def load(definition: bytes, weights: Weights, device: torch.device,
         loaded: Any) -> Computation:
    """Return the computation of a definition; raise RemoteError or Refused if there is none.

    `loaded`: a mapping from (digest, meta) to tensors on the device, which all sequences share.
    """
    message = decode(definition)
    if type(message) is not tuple or len(message) != 2 or not all(
            type(part) is tuple for part in message):
        raise RemoteError('malformed definition: expected two tuples')
    item, values = message
    sequence = from_item(item).sequence
    tensors = []
    for value in values:
        if type(value) is not tuple or len(value) != 2 or type(value[0]) is not Meta:
            raise RemoteError('malformed definition: expected pairs of meta and value')
        meta, data = value
        if type(data) is not str:
            tensors.append(to_device(unpack(meta, data), device))
            continue
        key = data, meta
        tensor = loaded.get(key)
        if tensor is None:
            kept = weights.find(data, size_of(meta))
            if kept is None:
                raise RemoteError(f'weights {data[:64]} are no longer kept')
            tensor = loaded[key] = to_device(unpack(meta, kept, True), device)
        tensors.append(tensor)
    return _Loaded(sequence, tensors, device)
