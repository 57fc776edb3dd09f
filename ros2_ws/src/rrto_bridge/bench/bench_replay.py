"""Measure what replay costs in addition to the operators; print one JSON line.

The sequence has 229 calls, like those of ResNet-50. All times are microseconds of
processor time. Client: `advance_us` is the time of one `advance`; `pass_us_per_call` is
the time of a whole pass divided by its number of calls. A pass includes the input, the
output, and the end of the previous run. Server: `server_step_us` is the time of one
step of a plan whose operators do nothing; `plain_loop_us` is the time of one such
operator in a plain loop; `compile_step_us` is the time to compile one step.
"""

import json
import time

from bench_search import MAP, one_pass
from rrto_bridge.client.replay import ReplayClient
from rrto_bridge.execution.plan import Kernel, Plan
from rrto_bridge.execution.replay_server import ReplayServer
from rrto_bridge.protocol.actions import Finish, Start
from rrto_bridge.protocol.record import DTOH, HTOD, Call, Ref
from rrto_bridge.protocol.sequence import build

PASSES = 300


class Nothing:
    """An executor whose operators only return their first argument."""

    def __init__(self):
        self.tensors = {}

    def resolve(self, op):
        return Kernel(lambda a, k: ((a[0], None, None), None), (0,) if op.endswith('_') else ())

    def argument(self, value):
        return value

    upload = download = random = set_random = lambda *_: None

    def get(self, handle):
        return handle

    def charge(self, tensor):
        return 1

    reserve = staticmethod(lambda size: 0)
    add = free = save = restore = credit = lambda *_: None


def recorded():
    calls, _ = one_pass(10_000, 57, 1, 0)
    return calls


def client():
    """Return the seconds per call of a pass, and the number of `advance` calls in all passes."""
    handles = [10_000]

    def allocate(count):
        handles[0] += count
        return handles[0] - count

    machine = ReplayClient(allocate, lambda handle: MAP)
    while not machine.sequences:
        calls, used = one_pass(allocate(0), 57, 1, 0)
        allocate(used)
        for call in calls:
            machine.call(call)
            machine.recorded(call)
    begin = time.process_time()
    fast = 0
    advance = machine.advance
    for _ in range(PASSES):
        machine.call(Call(HTOD, metas=(MAP,)))
        while machine.expected is not None:
            advance()
            fast += 1
        machine.call(Call(DTOH, (Ref(machine.base + handles_of_output),), wanted=True))
    whole = time.process_time() - begin
    assert machine.finished == PASSES
    return whole / PASSES / len(calls), fast


def server():
    calls = recorded()
    sequence = build(calls, {}, ())
    sequence.number = 0
    executor = Nothing()
    begin = time.process_time()
    for _ in range(10):
        plan = Plan(sequence, executor)
    compiling = (time.process_time() - begin) / 10
    machine = ReplayServer(executor)
    machine._plans[0] = plan
    begin = time.process_time()
    for run in range(PASSES):
        machine.apply(Start(run, 0, 10_000, (b'',), ()))
        list(machine.advance(1 << 20))
        machine.apply(Finish(run, ()))
    running = time.process_time() - begin
    kernel = executor.resolve('').call
    begin = time.process_time()
    for _ in range(PASSES):
        for _ in calls:
            kernel([1, 2, 3], {})
    plain = time.process_time() - begin
    steps = PASSES * len(calls)
    return running / steps, plain / steps, compiling / len(calls)


def advance_alone():
    sequence = build(recorded(), {}, ())
    machine = ReplayClient(lambda n: 0, lambda h: MAP)
    machine._fast = list(sequence.steps) * PASSES + [None]
    begin = time.process_time()
    for _ in range(len(machine._fast) - 1):
        machine.advance()
    return (time.process_time() - begin) / len(machine._fast)


handles_of_output = build(recorded(), {}, ()).steps[-1].arguments[0].slot


def main():
    whole, fast = client()
    running, plain, compiling = server()
    print(json.dumps({
        'bench': 'rrto_replay', 'calls': len(recorded()), 'fast_share': round(
            fast / PASSES / len(recorded()), 3),
        'advance_us': round(advance_alone() * 1e6, 3), 'pass_us_per_call': round(whole * 1e6, 3),
        'server_step_us': round(running * 1e6, 3), 'plain_loop_us': round(plain * 1e6, 3),
        'compile_step_us': round(compiling * 1e6, 2)}))


if __name__ == '__main__':
    main()
