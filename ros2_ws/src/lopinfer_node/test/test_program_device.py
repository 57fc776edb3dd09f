"""Tests which threads may use the device that computes."""

import gc

import numpy as np
import pytest
import torch
from fleet_compute.graphs import AFTER, CudaCapture, Graphs
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import DEVICE, SERVER, Plan
from lopinfer_node.runtime import program
from lopinfer_node.runtime.program import Program
from model_files import load, save
from replayed import Replayed
from runtime_models import Small

GPU = pytest.param('cuda:0', marks=[
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')])


@pytest.fixture(scope='module')
def traced():
    return trace(Small().eval(), torch.zeros(1, 3, 16, 16))


def test_compute_copies_delivered_tensors_to_the_device(traced, monkeypatch):
    """`deliver` copies nothing to the GPU; the next `compute` copies the delivered tensors.

    A copy to a GPU may block. The thread that accepts a message holds the lock of the state
    machine, so it must not block.
    """
    brought = []
    monkeypatch.setattr(program, 'uploaded', lambda flat, device: brought.append(flat) or flat)
    plan = Plan.server_only(traced.graph)
    x = torch.rand(1, 3, 16, 16)
    robot, server = Program(traced, plan, DEVICE).start([x]), Program(traced, plan, SERVER).start()
    up = [t.index for t in plan.transfers if t.source == DEVICE]
    for transfer in up:
        server.deliver(transfer, bytearray(robot.piece(transfer)))
    assert not brought
    server.compute(range(1))
    assert len(brought) == len(up)


def test_what_leaves_begins_to_leave_before_the_next_step(traced, monkeypatch):
    """On a GPU, a copy waits for all that was queued before it, so it begins at once."""
    seen = []
    monkeypatch.setattr(program, 'downloading', lambda elements: seen.append(
        len(elements)) or (lambda: elements))
    plan = half(traced)
    made, plain = Program(traced, plan, SERVER, Graphs(Replayed())), Program(traced, plan, SERVER)
    run, other = (runs_of(p, traced, plan, torch.ones(1, 1, 3, 16, 16))[0] for p in (made, plain))
    del seen[:]
    leaving = [t for step in plain.steps for t in step.sends]
    for steps in stretches(plain):
        assert made.compute_together([run], steps)
        other.compute(steps)
    assert len(seen) == 2 * len(leaving) > 2
    for t in leaving:       # computing goes on before the first one is waited for
        assert bytes(run.piece(t)) == bytes(other.piece(t))
    assert len(seen) == 2 * len(leaving)


def shared(traced, there, x):
    """Let the server compute the whole model; return the model's outputs.

    `traced` and `there`: the traced model on the robot and on the server.
    """
    plan = Plan.server_only(traced.graph)
    programs = Program(traced, plan, DEVICE), Program(there, plan, SERVER)
    robot, server = programs[DEVICE].start([x]), programs[SERVER].start()
    for transfer in plan.transfers:
        if transfer.source == DEVICE:
            server.deliver(transfer.index, bytearray(robot.piece(transfer.index)))
    server.compute(range(len(programs[SERVER].steps)))
    for transfer in plan.transfers:
        if transfer.source == SERVER:
            robot.deliver(transfer.index, bytearray(server.piece(transfer.index)))
    return robot.outputs()


def runs_of(program, traced, plan, inputs):
    """Runs of the server's program to which robots have sent all that follows from these inputs."""
    runs = []
    for x in inputs:
        run = program.start()
        known = {traced.graph.inputs[0]: x}
        sent = [t for t in plan.transfers if t.source == DEVICE]
        if any(t.node not in known for t in sent):
            traced.run(known)
        for t in sent:
            axis = traced.graph.nodes[t.node].axis
            part = known[t.node] if axis is None else known[t.node].narrow(axis, t.lo, t.hi - t.lo)
            run.deliver(t.index, bytearray(part.reshape(-1).contiguous().view(torch.uint8).numpy()))
        runs.append(run)
    return runs


@pytest.mark.parametrize('share', [0.0, 0.4, 1.0])
def test_requests_computed_together_give_what_each_gives_alone(traced, share):
    cuts = np.array([0 if n.is_global or n.extent == 1 else round(n.extent * share)
                     for n in traced.graph.nodes])
    plan = Plan.of_cuts(traced.graph, cuts, cuts)
    program, pictures = Program(traced, plan, SERVER), torch.rand(3, 1, 3, 16, 16)
    alone, batch = (runs_of(program, traced, plan, pictures) for _ in range(2))
    begin = 0
    for end, step in enumerate(program.steps, 1):
        if not step.sends and end < len(program.steps):
            continue
        for run in alone:
            run.compute(range(begin, end))
        assert program.compute_together(batch, range(begin, end))
        for t in step.sends:
            dtype = traced.tape.records[plan.transfers[t].node].dtype
            for one, other in zip(alone, batch, strict=True):
                torch.testing.assert_close(torch.frombuffer(other.piece(t), dtype=dtype),
                                           torch.frombuffer(one.piece(t), dtype=dtype))
        begin = end
    assert [r._stretches.keys() for r in alone] == [r._stretches.keys() for r in batch]


class Looking(torch.nn.Module):
    """Looks a row up: in a table that all robots share, or in the robot's own input."""

    def __init__(self, own):
        super().__init__()
        self.own, self.table = own, torch.nn.Parameter(torch.rand(4, 3))

    def forward(self, x):
        rows = x.reshape(4, 3) * 2 if self.own else self.table
        return torch.nn.functional.embedding(x[:1, :2].long(), rows)


@pytest.mark.parametrize('own', [False, True])
def test_a_row_out_of_range_never_is_another_robots_row(own):
    traced = trace(Looking(own).eval(), torch.rand(1, 12))
    plan = Plan.server_only(traced.graph)
    program = Program(traced, plan, SERVER)
    steps = range(len(program.steps))
    good, bad = torch.rand(2, 1, 12)
    bad[0, 0] = 5
    assert program.compute_together(runs_of(program, traced, plan, [good, good]), steps) != own
    assert not program.compute_together(runs_of(program, traced, plan, [good, bad]), steps)


def stretches(program):
    """Yield the ranges of steps that are computed without a break."""
    begin = 0
    for end, step in enumerate(program.steps, 1):
        if step.sends or end == len(program.steps):
            yield range(begin, end)
            begin = end


def computed(program, runs, steps, together=True):
    """Let a program compute these steps of runs; return what each of them sends."""
    if together:
        assert program.compute_together(runs, steps)
    for run in runs if not together else ():
        run.compute(steps)
    return [[torch.frombuffer(run.piece(t), dtype=torch.float32) for t in program.steps[at].sends]
            for run in runs for at in steps]


def half(traced, share=0.4):
    cuts = np.array([0 if n.is_global or n.extent == 1 else round(n.extent * share)
                     for n in traced.graph.nodes])
    return Plan.of_cuts(traced.graph, cuts, cuts)


@pytest.mark.parametrize('share', [0.0, 0.4, 1.0])
@pytest.mark.parametrize('size', [1, 3])
@pytest.mark.parametrize('device', ['cpu', GPU])
def test_captured_stretches_give_what_the_operators_give_and_keep_their_results(
        traced, tmp_path, share, size, device):
    plan, capture, done = half(traced, share), Replayed(), []
    save(traced, tmp_path)
    graphs = Graphs(capture) if device == 'cpu' else Graphs(CudaCapture(torch.device(device)))
    program = Program(load(tmp_path, device), plan, SERVER, graphs)
    plain = Program(traced, plan, SERVER)
    for _ in range(AFTER + 4):
        pictures = torch.rand(size, 1, 3, 16, 16)
        runs, wanted = (runs_of(p, traced, plan, pictures) for p in (program, plain))
        done += [(computed(program, runs, steps),
                  computed(plain, wanted, steps, together=False)) for steps in stretches(plain)]
        assert [r._stretches.keys() for r in runs] == [r._stretches.keys() for r in wanted]
    parts = sum(any(program._compiled[at].run for at in steps) for steps in stretches(plain))
    assert len(graphs) == parts
    assert device != 'cpu' or capture.captures == parts and capture.replays >= 4 * parts
    for got, want in done:      # no later replay has written to them
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_runs_between_whose_parts_others_run_or_that_end_early_mix_up_nothing(traced):
    plan = half(traced)
    program = Program(traced, plan, SERVER, Graphs(Replayed()))
    plain = Program(traced, plan, SERVER)
    for _ in range(AFTER + 1):
        run, = runs_of(program, traced, plan, torch.rand(1, 1, 3, 16, 16))
        ranges = list(stretches(program))
        for steps in ranges:
            computed(program, [run], steps)
    assert len(program._graphs) == len(ranges) > 2
    pictures = torch.rand(3, 1, 3, 16, 16)
    runs, wanted = (runs_of(p, traced, plan, pictures) for p in (program, plain))
    for at, steps in enumerate(ranges):
        going = 3 if at == 0 else 2     # nobody goes on with the third one
        found = [computed(program, [run], steps) for run in runs[:going]]
        torch.testing.assert_close(found, [computed(plain, [run], steps, together=False)
                                           for run in wanted[:going]])


def test_the_robots_results_stay_as_they_are_and_new_weights_have_new_graphs(traced):
    graphs, plan = Graphs(Replayed()), Plan.device_only(traced.graph)
    program = Program(traced, plan, DEVICE, graphs)
    model, results = Small().eval(), []

    def infer(program, x):
        run = program.start([x])
        assert program.compute_together([run], range(len(program.steps)))
        return run.outputs()
    inputs = torch.rand(AFTER + 4, 1, 3, 16, 16)
    results = [infer(program, x) for x in inputs]
    assert len(graphs) == 1
    with torch.no_grad():
        for x, found in zip(inputs, results, strict=True):
            torch.testing.assert_close(list(found), list(model(x).values()))
        model.head.weight.mul_(-3.0)
        other = Program(trace(model, inputs[0]), plan, DEVICE, graphs)
        torch.testing.assert_close(list(infer(other, inputs[0])), list(model(inputs[0]).values()))
    del program
    gc.collect()
    assert not len(graphs)
    del other


class Alias(torch.nn.Module):
    """Has results that are their inputs, and a part that needs no input."""

    def forward(self, x):
        return torch.cat([x.flatten(), torch.ones(3).to(x.dtype).flatten()]), x.to(x.dtype) * 2


class Scalars(torch.nn.Module):
    """Compares a tensor without axes with one of another type."""

    def forward(self, x, least):
        return (x > least).float() + torch.where(x > 0, x, least).float()


@pytest.mark.parametrize(('model', 'inputs'), [
    (Alias(), [(torch.rand(4),) for _ in range(3)]),
    (Scalars(), [(torch.tensor([1, -100, 90], dtype=torch.int8), torch.tensor(k))
                 for k in (-1000, 112, 6000)])])
def test_a_batch_gives_no_other_values_and_types_than_each_request_alone(model, inputs):
    traced = trace(model.eval(), *inputs[0])
    plan = Plan.server_only(traced.graph)
    program = Program(traced, plan, SERVER)

    def runs():
        made = [program.start() for _ in inputs]
        for run, given in zip(made, inputs, strict=True):
            for t in plan.transfers:
                if t.source == DEVICE:
                    x = given[traced.graph.inputs.index(t.node)]
                    run.deliver(t.index, bytearray(x.reshape(-1).view(torch.uint8).numpy()))
        return made
    steps, batch, alone = range(len(program.steps)), runs(), runs()
    computed = program.compute_together(batch, steps)
    assert computed == isinstance(model, Alias)
    for one, other in zip(alone, batch, strict=True):
        for run in (one,) if computed else (one, other):
            run.compute(steps)
        for t in plan.transfers:
            if t.source == SERVER:
                assert bytes(one.piece(t.index)) == bytes(other.piece(t.index))


def test_transfers_for_later_steps_are_not_mixed_up(traced):
    plan = Plan.server_only(traced.graph)
    program = Program(traced, plan, SERVER)
    runs = runs_of(program, traced, plan, torch.rand(2, 1, 3, 16, 16))
    extra = torch.full((1, 8, 3, 16), 7.0)
    node = program.steps[2].node
    runs[0]._stretches[node] = [(0, 3, extra)]      # has arrived for one run only
    first = range(2)
    assert program.compute_together(runs, first)
    assert runs[0]._stretches[node][0][2] is extra and node not in runs[1]._stretches


class Lookup(torch.nn.Module):
    """Fails for an index outside its table."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 2)

    def forward(self, index):
        return self.table(index) * 2


def test_a_request_that_cannot_be_computed_spoils_no_other():
    traced = trace(Lookup().eval(), torch.zeros(1, dtype=torch.int64))
    plan = Plan.server_only(traced.graph)
    program = Program(traced, plan, SERVER)
    good, bad, other = runs_of(program, traced, plan, [torch.tensor([k]) for k in (1, 9, 3)])
    steps = range(len(program.steps))
    assert not program.compute_together([good, bad, other], steps)
    with pytest.raises(IndexError):
        bad.compute(steps)
    for run in (good, other):
        run.compute(steps)
    assert program.compute_together(runs_of(program, traced, plan, [torch.tensor([k])
                                                                   for k in (1, 3)]), steps)


@pytest.mark.parametrize('device', ['cpu', GPU])
def test_a_server_on_any_device_gives_what_the_robot_gives(traced, tmp_path, device):
    save(traced, tmp_path)
    x = torch.rand(1, 3, 16, 16)
    with torch.no_grad():
        expected = Small().eval()(x)
    for found, wanted in zip(shared(traced, load(tmp_path, device), x), expected.values(),
                             strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_value_that_cannot_leave_fails_when_it_is_asked_for(traced, monkeypatch):
    """A batch has been computed then, so only the request of this value may fail."""
    def fails(elements):
        raise RuntimeError('out of memory')
    plan = Plan.server_only(traced.graph)
    made = Program(traced, plan, SERVER)
    runs = runs_of(made, traced, plan, torch.rand(2, 1, 3, 16, 16))
    monkeypatch.setattr(program, 'downloading', fails)
    assert made.compute_together(runs, range(len(made.steps)))
    back = [t.index for t in plan.transfers if t.source == SERVER]
    with pytest.raises(RuntimeError, match='out of memory'):
        runs[0].piece(back[0])
    monkeypatch.undo()
    assert all(len(runs[1].piece(t)) for t in back)
