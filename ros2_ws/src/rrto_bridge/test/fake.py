"""Two devices for test programs: `Direct` executes calls itself, `Offload` uses replay.

Tensors are numpy arrays of int64. A program uses only the methods of `Device`, so it can run on
both devices. It must return the same values on both devices.
"""

import random

import numpy as np
from rrto_bridge.client.replay import ReplayClient
from rrto_bridge.execution.plan import Kernel
from rrto_bridge.execution.replay_server import ReplayServer
from rrto_bridge.protocol.actions import Define, Forget, Notice
from rrto_bridge.protocol.errors import Missing, OutOfMemory, RemoteError
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Meta, Ref
from rrto_bridge.protocol.sequence import matches, substitute

WANTED = frozenset(('item', 'nonzero', DTOH))
IN_PLACE = frozenset(('add_', 'zero_'))


def meta_of(array):
    return Meta(array.shape, tuple(s // 8 for s in array.strides), str(array.dtype))


class Executor:
    """Executes plans with numpy; implements the interface `Executor` of plan.py."""

    def __init__(self):
        self.tensors, self.lost = {}, {}
        self.generator = np.random.default_rng(0)
        # number of bytes that the tensors of runs need, and the largest allowed number
        self.used, self.limit = 0, 1 << 60
        self.kernels = {
            'add': Kernel(lambda a, k: ((a[0] + a[1],), None)),
            'mul': Kernel(lambda a, k: ((a[0] * a[1],), None)),
            'add_': Kernel(self._add_in_place, (0,), True),
            'zero_': Kernel(self._zero, (0,), True),
            'track': Kernel(self._track, (1, 'total')),
            'row': Kernel(lambda a, k: ((a[0][a[1]:a[1] + 1],), None), (), True, False),
            'view': Kernel(lambda a, k: ((a[0].reshape(a[1]),), None), (), True, False),
            'sum': Kernel(lambda a, k: ((a[0].sum(keepdims=True),), None)),
            'split': Kernel(lambda a, k: ((a[0] % 7, None, a[0] // 7), None)),
            'cat': Kernel(lambda a, k: ((np.concatenate(a[0]),), None)),
            'zeros': Kernel(lambda a, k: ((np.zeros(a[0], np.int64),), None)),
            'noise': Kernel(lambda a, k: ((a[0] + self.generator.integers(0, 99, a[0].shape),),
                                          None)),
            'nonzero': Kernel(lambda a, k: ((np.flatnonzero(a[0]),), None)),
            'item': Kernel(lambda a, k: ((), int(a[0].sum())))}

    @staticmethod
    def _add_in_place(a, k):
        a[0][...] += a[1]
        return (a[0],), None

    @staticmethod
    def _zero(a, k):
        a[0][...] = 0
        return (a[0],), None

    @staticmethod
    def _track(a, k):
        """Update a running statistic in place, without returning it."""
        total = k.get('total', a[1] if len(a) > 1 else None)
        total[...] = (total + a[0].sum()) % 1009
        return (a[0] * 2,), None

    def resolve(self, op):
        return self.kernels[op]

    def argument(self, value):
        return value

    def upload(self, data, meta):
        return np.frombuffer(data, np.int64).reshape(meta.shape).copy()

    def download(self, tensor):
        return tensor.copy()

    def meta(self, tensor):
        return meta_of(tensor)

    def save(self, tensor):
        return tensor.copy()

    def restore(self, tensor, saved):
        tensor[...] = saved

    def random(self):
        return self.generator.bit_generator.state

    def set_random(self, state):
        self.generator.bit_generator.state = state

    def charge(self, tensor):
        return self.reserve(tensor.nbytes)

    def reserve(self, size):
        if self.used + size > self.limit:
            raise OutOfMemory('full')
        self.used += size
        return size

    def credit(self, size):
        self.used -= size

    def get(self, handle):
        if handle not in self.tensors:
            raise Missing(f'no tensor {handle}')
        return self.tensors[handle]

    def add(self, handle, tensor):
        if handle in self.tensors:
            raise RemoteError(f'there is a tensor {handle}')
        self.tensors[handle] = tensor

    def free(self, handle):
        self.tensors.pop(handle, None)

    def failed(self, first, kind, text):
        self.lost[first] = kind


class Tensor:
    """A program's reference to a tensor on the device; deleting the reference frees the tensor."""

    __slots__ = ('device', 'handle', 'meta')

    def __init__(self, device, handle, meta):
        self.device, self.handle, self.meta = device, handle, meta
        device.metas[handle] = meta

    def __del__(self):
        self.device.metas.pop(self.handle, None)
        self.device.freed(self.handle)


class Device:
    """The operations that a program may call; subclasses decide how a call is made."""

    def __init__(self):
        self.executor = Executor()
        self.handles = 0
        self.metas = {}

    def allocate(self, count):
        self.handles += count
        return self.handles - count

    def put(self, array):
        """Copy from host to device."""
        return self.make(HTOD, metas=(meta_of(array),), data=array.tobytes())[0]

    def get(self, tensor):
        """Copy from device to host."""
        return self.make(DTOH, tensor)

    def __getattr__(self, op):
        if op not in self.executor.kernels:
            raise AttributeError(op)

        def run(*arguments, **keywords):
            results = self.make(op, *arguments, **keywords)
            if op == 'item':
                return results
            return results[0] if len(results) == 1 else results
        return run

    def make(self, op, *arguments, metas=(), data=None, **keywords):
        def ref(value):
            return Ref(value.handle)

        given = {}

        def note(value):
            given[value.handle] = value
            return Ref(value.handle)

        call = Call(op, substitute(arguments, Tensor, note),
                    tuple((n, substitute(v, Tensor, note)) for n, v in sorted(keywords.items())),
                    (), metas, op in WANTED)
        handles, metas, value = self.perform(call, data)
        if op in ('item', DTOH):
            return value
        return tuple([None if h is None else given.get(h) or Tensor(self, h, m)
                      for h, m in zip(handles, metas, strict=True)])

    def execute(self, call, data):
        """Execute a call now; return (handles, metas, value)."""
        executor = self.executor
        if call.op == HTOD:
            results, value = (executor.upload(data, call.metas[0]),), None
        elif call.op == DTOH:
            return (), (), executor.download(executor.get(call.arguments[0].handle))
        else:
            def tensor(ref):
                return executor.get(ref.handle)

            results, value = executor.kernels[call.op].call(
                list(substitute(call.arguments, Ref, tensor)),
                {n: substitute(v, Ref, tensor) for n, v in call.keywords})
        handles = []
        for result in results:
            if result is None:
                handles.append(None)
            elif call.op in IN_PLACE:
                handles.append(call.arguments[0].handle)
            else:
                handles.append(self.allocate(1))
                executor.add(handles[-1], result)
        metas = tuple(None if r is None else meta_of(r) for r in results)
        return tuple(handles), metas, value


class Direct(Device):
    """Executes every call immediately. The other devices must return the same values."""

    def perform(self, call, data):
        return self.execute(call, data)

    def freed(self, handle):
        self.executor.free(handle)


class Offload(Device):
    """Uses the replay machines of the client and the server.

    After each message, the server executes a random number of steps. Therefore the server
    is sometimes ahead of the program and sometimes behind it.
    """

    def __init__(self, seed=0, infer=None, search=None):
        super().__init__()
        self.machine = ReplayClient(self.allocate, self.metas.get, search, infer)
        self.server = ReplayServer(self.executor)
        self.chance = random.Random(seed)
        self.values, self.notices, self.messages = {}, [], 0
        self.round_trips = self.single = self.fast = 0

    def freed(self, handle):
        self.machine.freed(handle)

    def carry_out(self, actions):
        for action in actions:
            if isinstance(action, Notice):
                self.notices.append(action.text)
                continue
            self.messages += not isinstance(action, (Define, Forget))
            self.server.apply(action)
            self.progress(self.chance.choice((0, 0, 1, 3, 1000)))

    def progress(self, limit):
        for value in self.server.advance(limit):
            self.values[value.run, value.index] = value

    def perform(self, call, data):
        machine = self.machine
        step = machine.expected
        if step is not None and matches(step, call, machine.base, []) == []:
            results = tuple(None if r is None else self._handle(r) for r in step.results)
            machine.advance()
            self.fast += 1
            return results, step.metas, None
        decision = machine.call(call, data)
        self.carry_out(decision.actions)
        if decision.step is None:
            return self._single(call, data)
        if decision.wait is None:
            return decision.handles, decision.step.metas, None
        self.round_trips += 1
        self.progress(1 << 30)
        value = self.values[decision.wait]
        if value.error:
            self.carry_out(machine.failed())
            raise RuntimeError(value.error)
        self.carry_out(machine.received(value))
        return decision.handles, value.metas, value.value

    def _handle(self, role):
        return self.machine.base + role.slot if hasattr(role, 'slot') else role.handle

    def _single(self, call, data):
        self.single += 1
        self.round_trips += call.wanted
        handles, metas, value = self.execute(call, data)
        self.carry_out(self.machine.recorded(
            Call(call.op, call.arguments, call.keywords, handles, metas, call.wanted)))
        return handles, metas, value
