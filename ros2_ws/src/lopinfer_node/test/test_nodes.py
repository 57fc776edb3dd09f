"""Tests real processes over DDS.

The tests compare results with the model on one machine, kill a server, share a server between two
robots, and run both nodes.
"""

import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image
import pytest
import rclpy
import torch
from fleet_compute.graphs import Graphs
from fleet_ros.spinning import Spinning
from fleet_testing import (
    INFERENCE,
    LIMIT,
    environment,
    eventually,
    forks,
    free_domain,
)
from lopinfer_node import api
from lopinfer_node.api import offload, offloaded
from lopinfer_node.errors import ModelError
from lopinfer_node.model.precision import Precision
from lopinfer_node.model.traced import trace
from lopinfer_node.planning.plan import Plan
from lopinfer_node.planning.profile import Profile
from lopinfer_node.ros import client_shell, server_shell
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.ros.server_shell import Server, ServerOptions
from lopinfer_node.runtime import client
from lopinfer_node.runtime.choice import PlanChoice, PlannedTable
from lopinfer_node.runtime.program import Program
from lopinfer_node.runtime.recording import Recording
from lopinfer_node.runtime.server import PreparePlans
from lopinfer_node.runtime.services import PlansRequest
from lopinfer_node.runtime.store import Store
from lopinfer_node.runtime.trial import Trier
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from replayed import Replayed
from runtime_models import Small, Untraceable

SHAPE = (1, 3, 32, 40)
HERE = Path(__file__).parent
TRIALS = {}


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    """Set a DDS domain that only this test uses."""
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain()))


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Let requests wait long, so that none ends because this machine is busy.

    test_client.py tests how long they wait.
    """
    monkeypatch.setattr(PlanChoice, 'patience', lambda *_: 4.0)


@pytest.fixture
def processes():
    running = []
    yield running
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture(scope='module')
def tried(tmp_path_factory):
    """Return the files of a server that has run a trial of the model `Small`."""
    kept = Store(tmp_path_factory.mktemp('tried'))
    traced = trace(Small().eval(), torch.rand(SHAPE))
    kept.add(traced)
    folder = kept.path(traced.digest)
    Trier('cpu', 1 << 30, LIMIT)(folder).save(folder / 'trial.json')
    return kept.directory


@pytest.fixture(autouse=True)
def tried_once(monkeypatch):
    """Let the servers of this process try each model once; test_trial.py tests the trials."""
    def trial(self, folder):
        if folder.name not in TRIALS:    # named by the model's digest
            TRIALS[folder.name] = try_model(self, folder)
        return TRIALS[folder.name]
    try_model = Trier.__call__
    monkeypatch.setattr(Trier, '__call__', trial)


@pytest.fixture
def store(tried, tmp_path):
    """Return a folder with a copy of the files of `tried`."""
    return shutil.copytree(tried, tmp_path / 'store')


def start(processes, kind, *arguments, **parameters):
    """Start a node, ``server`` or ``client``, in its own process; return the process."""
    given = ['--ros-args', '-p', 'threads:=1', *arguments]
    for name, value in parameters.items():
        given += ['-p', f'{name}:={value}']
    with os.fdopen(os.dup(2), 'wb') as log:
        processes.append(forks(*INFERENCE).start(
            [f'lopinfer_node.nodes:{kind}_main', *given], log,
            environment(os.environ['ROS_DOMAIN_ID'], *sys.path, HERE)))
    return processes[-1]


def halves(traced, fixed, per_share):
    """Yield one table whose plan divides each operator in the middle.

    The robot computes the first half of the indices, and the server the second half. The server
    computes global operators whole. The plan is the same for every bandwidth.
    """
    graph = traced.graph
    whole = np.array([n.is_global or n.extent == 1 for n in graph.nodes])
    cuts = np.where(whole, 0, graph.extents // 2)
    yield PlannedTable([0.0], [Plan.of_cuts(graph, cuts, cuts)], np.array([[0]]),
                       np.array([[2.0]]))


def everything_there(traced, fixed, per_share):
    """Yield one table whose plan computes everything on the server."""
    yield PlannedTable([0.0], [Plan.server_only(traced.graph)], np.array([[0]]), np.array([[2.0]]))


def same(got, want):
    assert got.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=1e-4, atol=1e-5)


def test_results_are_the_models_and_a_killed_server_costs_none_of_them(processes, store):
    model = Small().eval()
    inputs = [torch.rand(SHAPE) for _ in range(6)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    server = start(processes, 'server', directory=store)
    with offload(model, example=inputs[0], options=ClientOptions(halves)) as shared:
        # The server is not ready yet, so the robot computes this request alone.
        same(shared(inputs[0]), wanted[0])
        assert shared.wait(LIMIT)
        for x, want in zip(inputs, wanted, strict=True):
            same(shared(x), want)
        report = shared.report
        assert report.offloaded == 6 and report.server > 0
        server.kill()  # the client has not noticed this yet, so it begins a request with the server
        same(shared(inputs[1]), wanted[1])
        assert report.fallbacks <= 1 and report.offloaded == 6
        with server_here(store):
            eventually(lambda: shared(inputs[2]) is not None and report.offloaded > 6)
            same(shared(inputs[3]), wanted[3])
            same(shared(torch.ones(SHAPE)), model(torch.ones(SHAPE)))
            # a shape that differs from the shape with which the model was traced
            other = torch.rand(1, 3, 16, 16)
            same(shared(other), model(other))


@contextmanager
def server_here(directory, namespace='', **options):
    """Run a server in this process during the `with` block."""
    context = Context()
    rclpy.init(context=context)
    node = Node('lopinfer_server', namespace=namespace, context=context)
    server = Server(node, ServerOptions(directory, **options))
    spinning = Spinning(node)
    try:
        yield server
    finally:
        spinning.close()
        server.close()
        node.destroy_node()
        context.try_shutdown()


def test_a_result_that_can_not_be_read_back_costs_its_request_alone(store):
    class FailsOnce:
        """Emulates a device that reports an error only when a result is read."""

        runs = 0

        def next_run(self):
            self.runs += 1
            return self.runs

        def note(self, side, run, what, index, start):
            if what == 'send' and run == 1:
                raise RuntimeError('device-side assert')
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(store, recording=FailsOnce()), \
            offload(model, example=x, options=ClientOptions(halves)) as shared:
        assert shared.wait(LIMIT)
        same(shared(x), model(x))
        assert shared.report.fallbacks == 1
        eventually(lambda: shared(x) is not None and shared.report.offloaded > 0)
        same(shared(x), model(x))


@pytest.mark.parametrize(('error', 'kept'), [(OSError('Too many open files'), True),
                                             (ModelError('it is none'), False)])
def test_a_model_is_removed_for_its_own_fault_alone(error, kept, tmp_path, monkeypatch):
    def fails(digest):
        raise error
    traced = trace(Small().eval(), torch.rand(SHAPE))
    digest = traced.digest
    with server_here(tmp_path) as server:
        monkeypatch.setattr(server, '_try', fails)
        server.store.add(traced)
        server.machine.add('mine', digest, [], [])
        server._prepare(digest)
        assert (server.store.digests() == {digest}) == kept


def test_weights_that_the_disk_damages_after_their_trial_are_not_served(store, monkeypatch):
    traced = trace(Small().eval(), torch.rand(SHAPE))
    with server_here(store) as server:
        server.add(traced)
        eventually(lambda: (traced.digest, 'cpu') in server._models)
        server._models.clear()
        weight = server.store.kept.folder / traced.contents['head.weight'].sha256
        data = bytearray(weight.read_bytes())
        data[-7] ^= 0x40
        weight.write_bytes(data)
        server._prepare(traced.digest)
        assert 'damaged' in server.machine._models[traced.digest].reason
        # the files are deleted, so a robot may send the model again
        assert not server._models and not server.store.digests()


def test_tables_that_are_replaced_while_they_wait_are_not_kept(tmp_path, monkeypatch):
    made, begun, go_on = [], threading.Event(), threading.Event()

    def slow(traced, request, recording, prepared, lane, graphs):
        made.append(request.client)
        begun.set()
        assert go_on.wait(LIMIT)
        return []
    monkeypatch.setattr(server_shell, 'prepare_plans', slow)
    with server_here(tmp_path) as server:
        server._models['a', 'cpu'] = None

        def ask(client):
            request = PlansRequest(client, 1, 'a', b'', np.empty(0))
            with server._changed:
                server._act([PreparePlans(request)])
        ask('first')
        assert begun.wait(LIMIT)
        for _ in range(100):
            ask('again')
        ask('last')
        go_on.set()
        eventually(lambda: made[-1] == 'last')
    assert made == ['first', 'again', 'last']


def test_a_disk_that_takes_nothing_is_the_reason_and_a_profile_is_not_needed_there(
        store, monkeypatch):
    def full(*arguments):
        raise OSError('No space left on device')

    def read_only(*arguments):
        raise OSError('Read-only file system')
    model, unknown, x = Small().eval(), Small().eval(), torch.rand(SHAPE)
    with torch.no_grad():
        unknown.head.weight.mul_(-3.0)
    monkeypatch.setattr(Profile, 'save', read_only)
    with server_here(store):
        with monkeypatch.context() as patch:
            patch.setattr('lopinfer_node.runtime.store.Store.put', full)
            with offload(unknown, example=x) as shared:
                eventually(lambda: 'No space left' in shared.reason)
                same(shared(x), unknown(x))
        with offload(model, example=x, options=ClientOptions(halves)) as shared:
            assert shared.wait(LIMIT)


def test_a_planner_that_fails_and_a_server_that_is_not_there_are_the_reason(store):
    def fails(*arguments):
        raise KeyError('mine')
    model, x = Small().eval(), torch.rand(SHAPE)
    with offload(model, 'elsewhere', example=x) as shared:
        assert 'not connected yet to /robot/elsewhere/open' in shared.reason
    with server_here(store), \
            offload(model, example=x, options=ClientOptions(fails)) as shared:
        eventually(lambda: shared.reason == "no plans: KeyError: 'mine'")
        same(shared(x), model(x))


def test_an_answer_that_comes_after_its_call_was_repeated_counts(store, monkeypatch):
    """The client uses an answer even if it comes after the client has repeated the call."""
    ask, answer = client_shell.Client._ask, Server._on_open
    changed, calls, connected = threading.Condition(), [], []

    def counted(*arguments):
        ask(*arguments)
        with changed:
            calls.append(arguments)
            changed.notify_all()

    def late(*arguments):
        with changed:
            before = len(calls)
            changed.wait_for(lambda: len(calls) > before or connected, LIMIT)
        return answer(*arguments)
    monkeypatch.setattr(client, 'CALL_LIMIT', 0.02)
    monkeypatch.setattr(client_shell.Client, '_ask', counted)
    monkeypatch.setattr(Server, '_on_open', late)
    with server_here(store), offload(
            Small().eval(), example=torch.rand(SHAPE), options=ClientOptions(halves)) as shared:
        try:
            eventually(lambda: shared._client.present.machine.state != client.OPENING)
        finally:
            with changed:
                connected.append(True)
                changed.notify_all()
        assert shared.wait(LIMIT), shared.reason


def test_a_plan_that_computes_everything_on_the_robot_is_the_reason(store):
    def all_here(traced, fixed, per_share):
        yield PlannedTable([0.0], [Plan.device_only(traced.graph)], np.array([[0]]),
                           np.array([[2.0]]))
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(store), \
            offload(model, example=x, options=ClientOptions(all_here)) as shared:
        assert shared.wait(LIMIT), shared.reason
        assert shared.reason == ''
        same(shared(x), model(x))
        assert shared.shared and 'the plan computes everything on the robot' in shared.reason


@pytest.mark.parametrize('fails', [False, True])
def test_a_client_that_still_plans_closes_at_once_and_its_plans_have_no_effect(store, fails):
    planning, go, closed = (threading.Event() for _ in range(3))

    def plans(*arguments):
        planning.set()
        assert go.wait(LIMIT)
        if fails:    # as a pool that is gone does when the program ends
            raise RuntimeError('cannot schedule new futures after shutdown')
        yield from halves(*arguments)
    with server_here(store):
        context = offload(Small().eval(), example=torch.rand(SHAPE), options=ClientOptions(plans))
        shared = context.__enter__()
        machine, jobs = shared._client.present.machine, shared._client.present._jobs
        assert planning.wait(LIMIT)
        threading.Thread(target=lambda: (context.__exit__(None, None, None), closed.set())).start()
        try:
            assert closed.wait(LIMIT / 10), 'close waits for the planner'
        finally:
            go.set()
        jobs.shutdown()
        assert not machine.table.plans
        assert 'no plans' not in machine.reason


class Pair(torch.nn.Module):
    def forward(self, pair, scale=None):
        return pair['left'] - pair['right'] * (1 if scale is None else scale)


ONES = torch.ones(4, 4)
OTHERS = {
    'another shape': (lambda m: ({'left': ONES[:2], 'right': ONES[:2] * 3},),
                      'got torch.float32 [2, 4]: open a second offload for inputs of this shape'),
    'another type': (lambda m: ({'left': ONES.double(), 'right': ONES.double() * 3},), 'float64'),
    'another order': (lambda m: ({'right': ONES * 3, 'left': ONES},), 'nested, named and ordered'),
    'one more input': (lambda m: ({'left': ONES, 'right': ONES * 3}, ONES), 'nested, named'),
    'a number': (lambda m: ({'left': ONES, 'right': 3.0},), "input 0['right'] is of class float"),
    'a class of tensors': (lambda m: ({'left': ONES, 'right': (ONES * 3).as_subclass(
        type('Mine', (torch.Tensor,), {}))},), 'of class Mine'),
    'one tensor twice': (lambda m: ({'left': ONES, 'right': ONES},), 'same tensor')}


@pytest.mark.parametrize('kind', OTHERS)
def test_other_inputs_than_the_first_run_whole_with_a_reason_and_a_warning(kind):
    make, why = OTHERS[kind]
    model = Pair().eval()
    with offload(model, example={'left': ONES, 'right': ONES * 2}) as shared:
        args = make(model)
        with pytest.warns(UserWarning, match=re.escape(why)) as warned:
            result = shared(*args)
        assert warned[0].filename == __file__    # the warning names the line that called the model
        assert torch.equal(result, model(*args)) and why in shared.reason
        with warnings.catch_warnings():
            # the client reports each reason once; here a second warning would be an error
            warnings.simplefilter('error')
            shared(*args)
            assert torch.equal(shared({'left': ONES, 'right': ONES * 2}), -ONES)
        assert why not in shared.reason and shared.report.requests == 3


class Doubles(torch.nn.Module):
    """Writes to its first input."""

    def forward(self, left, right):
        return left.mul_(2) + right


def test_views_that_overlap_are_not_shared_by_a_model_that_writes_to_its_inputs():
    model = Doubles().eval()
    rows = torch.arange(12.0).view(3, 4)
    with offload(model, example=(rows[:2], rows[:2] + 1)) as shared:
        one, other, apart = rows.clone(), rows.clone(), torch.ones(4, 4)
        assert shared(apart[:2], apart[2:]).sum() == 24 and 'share memory' not in shared.reason
        with pytest.warns(match='share memory'):
            assert torch.equal(shared(one[:2], one[1:]), model(other[:2], other[1:]))
    reads = Pair().eval()
    with offload(reads, example={'left': rows[:2], 'right': rows[1:]}) as shared:
        shared({'left': rows[:2], 'right': rows[1:]})
        assert 'share memory' not in shared.reason


def test_threads_with_inputs_that_fit_and_others_get_the_models_results():
    model, failed = Pair().eval(), []

    def drive(size):
        left, right = torch.full((size, size), 3.0), torch.ones(size, size)
        try:
            for _ in range(50):
                assert torch.equal(shared({'left': left, 'right': right}), left - right)
        except Exception as error:
            failed.append(error)
    with warnings.catch_warnings(), offload(model, example={'left': ONES, 'right': ONES * 2}
                                            ) as shared:
        warnings.simplefilter('ignore')
        threads = [threading.Thread(target=drive, args=(size,)) for size in (4, 4, 5, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert not failed


def test_a_mode_of_pytorch_and_a_transform_see_the_models_operators():
    from torch.utils.flop_counter import FlopCounterMode
    model = torch.nn.Linear(4, 4).eval()
    with offload(model, example=ONES) as shared:
        with FlopCounterMode(display=False) as counter:
            shared(ONES)
        assert counter.get_total_flops() > 0 and 'a PyTorch mode' in shared.reason
        batch = torch.rand(3, 4, 4)
        torch.testing.assert_close(torch.vmap(shared)(batch), model(batch))
        with torch.device('cpu'):
            shared(ONES)
        assert 'mode' not in shared.reason
        torch.set_default_dtype(torch.float64)
        try:
            shared(ONES)
        finally:
            torch.set_default_dtype(torch.float32)
        assert 'default dtype' in shared.reason


def test_another_precision_than_that_of_the_trace_is_not_shared(monkeypatch):
    with torch.no_grad(), offload(torch.nn.Linear(4, 4).eval(), example=ONES) as shared:
        monkeypatch.setattr(Precision, 'of', lambda device: Precision(matmul=True))
        torch.testing.assert_close(shared(ONES), shared.model(ONES))
        assert 'TF32' in shared.reason
        monkeypatch.undo()
        shared(ONES)
        assert 'TF32' not in shared.reason


def test_a_model_without_weights_is_shared(tmp_path):
    model, x = torch.nn.Upsample(scale_factor=2).eval(), torch.rand(1, 3, 8, 8)
    with server_here(tmp_path), offload(model, example=x,
                                        options=ClientOptions(everything_there)) as shared:
        assert shared.wait(LIMIT), shared.reason
        assert torch.equal(shared(x), model(x)) and shared.report.offloaded == 1


def test_a_robot_that_was_closed_may_come_back_at_once(store, monkeypatch):
    monkeypatch.setattr('lopinfer_node.runtime.server.TAKE_OVER', LIMIT)
    replies, on_open = [], client.ClientMachine.on_open
    monkeypatch.setattr(client.ClientMachine, 'on_open', lambda machine, reply, now: (
        replies.append(reply.reason), on_open(machine, reply, now))[1])
    with server_here(store):
        for _ in range(2):
            with offload(Small().eval(), example=torch.rand(SHAPE), robot='arm',
                         options=ClientOptions(everything_there)) as shared:
                eventually(lambda shared=shared: shared.shared
                           or any('in use' in reason for reason in replies))
                assert shared.shared, replies


def test_two_models_of_one_process_are_both_shared(store, monkeypatch):
    """The server has tried the first model; the second differs in its weights, so that counts."""
    monkeypatch.setattr(Trier, '__call__', None)
    models = [Small().eval(), Small().eval()]
    with torch.no_grad():
        models[1].head.weight.mul_(-3.0)
    x = torch.rand(SHAPE)
    options = ClientOptions(halves)
    with server_here(store), offload(models[0], example=x, options=options) as one, \
            offload(models[1], example=x, options=options) as two:
        assert one.wait(LIMIT) and two.wait(LIMIT)
        for model, shared in zip(models, (one, two), strict=True):
            same(shared(x), model(x))
            assert shared.report.offloaded == 1


class Batch(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor | str


class Takes(torch.nn.Module):
    def forward(self, batch, scale=2.0):
        return batch.left - (1.0 if type(batch.right) is str else batch.right) * scale


def test_the_field_of_a_named_tuple_that_is_no_tensor_is_named():
    with pytest.warns(UserWarning, match=r'input 0\.right is of class str'), \
            offload(Takes().eval(), example=Batch(ONES, 'pick')) as shared:
        assert '0.right' in shared.reason
    with pytest.warns(UserWarning, match=r'input batch\.right is of class str'), \
            offload(Takes().eval()) as shared:
        shared(batch=Batch(ONES, ONES))
        assert torch.equal(shared(batch=Batch(ONES, 'pick')), ONES - 2)
        assert 'batch.right' in shared.reason


def test_a_named_tuple_is_one_input():
    with offload(Takes().eval(), example=Batch(ONES, ONES * 2)) as shared:
        assert torch.equal(shared(Batch(ONES, ONES * 2)), -3 * ONES)
        assert 'nested' not in shared.reason and shared.report.requests == 1


@pytest.mark.parametrize('names', [('left', 'right'), ('right', 'left')])
def test_arguments_given_by_name_may_come_in_any_order(names):
    class Subtract(torch.nn.Module):
        def forward(self, left, right):
            return left - right
    model, inputs = Subtract().eval(), {'left': torch.ones(4, 4), 'right': torch.zeros(4, 4)}
    with offload(model) as shared:
        shared(left=inputs['left'], right=inputs['right'])
        result = shared(**{name: inputs[name] for name in names})
        assert not shared.reason or 'connected' in shared.reason
    assert (result == 1).all()
    result += 1


def in_place(model):
    with torch.no_grad():
        model.head.weight.mul_(-3.0)


def other_weights(model):
    other = Small()
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(0.5)
    model.load_state_dict(other.state_dict())


def attribute(model):
    model.first.stride = (2, 2)


def uncounted(model):
    model.first.weight.detach().numpy()[:] = 0


CHANGES = {'a weight in place': (in_place, 1), 'load_state_dict': (other_weights, 1),
           'an attribute': (attribute, 2), 'a write that PyTorch does not count': (uncounted, 1)}


@pytest.mark.parametrize('kind', CHANGES)
def test_an_updated_model_is_shared_again_as_it_is_now(kind, store):
    change, times_planned = CHANGES[kind]
    model, x, planned = Small().eval(), torch.rand(SHAPE), []

    def planner(traced, *profile):
        planned.append(traced)
        return halves(traced, *profile)
    with server_here(store) as server, \
            offload(model, example=x, options=ClientOptions(planner)) as shared:
        assert shared.wait(LIMIT)
        same(shared(x), model(x))
        before = shared.report.offloaded
        change(model)
        with torch.no_grad():
            want = model(x)
        if change is not uncounted:
            with pytest.warns(UserWarning, match=r'was changed .*: call update\(\)') as warned:
                same(shared(x), want)
            assert warned[0].filename == __file__ and 'update' in shared.reason
            same(shared(x), want)
            assert shared.report.offloaded == before
        shared.update()
        same(shared(x), want)     # by the robot alone, because the server does not have the model
        # a request that the machine is too slow for is finished alone, so there may be several
        eventually(lambda: same(shared(x), want) or shared.report.offloaded > before)
        assert len(server.store.digests()) == 2 and len(planned) == times_planned


def test_an_update_without_a_change_sends_nothing_and_the_session_goes_on(store):
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(store) as server, \
            offload(model, example=x, options=ClientOptions(halves)) as shared:
        assert shared.wait(LIMIT)
        machine, sessions = shared._client.present.machine, server.machine._joins
        plans = machine.table.plans
        shared.update()
        eventually(lambda: same(shared(x), model(x)) or shared.report.offloaded)
        assert len(server.store.digests()) == 1
        assert machine.table.plans is plans and server.machine._joins == sessions


@pytest.mark.skipif(torch.__version__.startswith('2.4.'),
                    reason='PyTorch 2.4 cannot trace in one thread while another computes')
def test_calls_of_other_threads_get_the_models_results_during_updates(store):
    """Every result is that of the model before or after the change."""
    model, x, failed, changed = Small().eval(), torch.rand(SHAPE), [], threading.Event()
    other = torch.nn.Linear(8, 5).eval()
    changes = Small().eval()
    changes.head = other
    with torch.no_grad():
        old, new = model(x), changes(x)

    def drive(call):
        try:
            while not done.is_set():
                after = changed.is_set()
                result = call(x)
                if after or not torch.allclose(result['logits'], old['logits'], 1e-4, 1e-5):
                    same(result, new)
        except Exception as error:
            failed.append(error)
    done = threading.Event()
    with server_here(store), offload(model, example=x, options=ClientOptions(halves)) as shared, \
            torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert shared.wait(LIMIT)
        # `model` itself: a part of the program that does not share it
        threads = [threading.Thread(target=drive, args=(call,)) for call in (shared, model)]
        for thread in threads:
            thread.start()
        try:
            model.head = other
            changed.set()
            shared.update()
            assert not shared._reason
            before = shared.report.offloaded
            eventually(lambda: failed or shared.report.offloaded > before + 3)
        finally:
            done.set()
            for thread in threads:
                thread.join(LIMIT)
    assert not failed


def test_a_model_is_closed_while_it_is_updated(monkeypatch):
    tracing, closed, trace_ = threading.Event(), threading.Event(), api.trace

    def slow(*arguments):
        tracing.set()
        assert closed.wait(LIMIT)
        return trace_(*arguments)
    model, x = Small().eval(), torch.rand(SHAPE)
    with offload(model, example=x) as shared:
        monkeypatch.setattr(api, 'trace', slow)
        updating = threading.Thread(target=shared.update)
        updating.start()
        assert tracing.wait(LIMIT)
        assert shared.reason == 'the model is being updated'
        same(shared(x), model(x))
    closed.set()
    updating.join(LIMIT)
    assert not updating.is_alive() and shared.reason == 'closed' and shared.report is None
    same(shared(x), model(x))
    shared.update()
    assert shared.reason == 'closed'


def test_an_update_shares_what_could_not_be_traced_before_and_says_what_it_cannot_share():
    model, x = Small(), torch.rand(SHAPE)
    with pytest.warns(UserWarning, match='training mode'), offload(model) as shared:
        shared.update()      # nothing is traced yet
        assert not shared.reason
        shared(x)
        assert 'training mode' in shared.reason and shared.report is None
        model.eval()
        shared.update()
        assert 'not connected yet' in shared.reason and shared.report is not None
        model.guard = threading.Lock()
        for why in ('guard was changed', 'Small cannot be copied: TypeError'):
            with pytest.warns(UserWarning, match=why):
                same(shared(x), model(x)) if why.startswith('guard') else shared.update()
            assert why in shared.reason
        del model.guard
        shared.update()
        assert 'not connected yet' in shared.reason
        same(shared(x), model(x))


def test_threads_that_make_the_first_call_at_once_open_one_client(monkeypatch):
    opened = []

    class Counted(api.Servers):
        def __init__(self, *arguments):
            opened.append(self)
            super().__init__(*arguments)
    monkeypatch.setattr(api, 'Servers', Counted)
    model, x = Small().eval(), torch.rand(SHAPE)
    with offload(model) as shared:
        threads = [threading.Thread(target=shared, args=(x,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
    assert len(opened) == 1


def test_inputs_laid_out_in_another_way_and_autocast_are_the_models_too():
    class Flat(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(12, 4)

        def forward(self, x):
            return self.linear(x.contiguous().view(2, -1))
    model, x = Flat().eval(), torch.rand(2, 3, 2, 2)
    strided = x.to(memory_format=torch.channels_last)
    with offload(model, example=x) as shared, torch.no_grad():
        torch.testing.assert_close(shared(strided), model(strided))
        with torch.autocast('cpu'):
            assert torch.equal(shared(x), model(x))


@pytest.mark.long
def test_a_server_that_is_killed_while_it_computes(processes, tmp_path):
    model = Small().eval()
    x = torch.rand(SHAPE)
    server = start(processes, 'server', directory=tmp_path)

    class Kills:
        """Kills the server when the robot has computed its first step and has sent nothing."""

        def next_run(self):
            return 1

        def note(self, *_):
            server.kill()
            server.wait()
    with offload(model, example=x, options=ClientOptions(halves, recording=Kills())) as shared:
        assert shared.wait(LIMIT)
        same(shared(x), model(x))
        assert shared.report.fallbacks == 1 and not shared.shared


@pytest.mark.long
def test_both_sides_record_computations_and_transfers(processes, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    start(processes, 'server', directory=tmp_path / 'store', recording=tmp_path / 'server')
    options = ClientOptions(halves, recording=Recording(tmp_path / 'robot'))
    with offload(model, example=x, options=options) as shared:
        assert shared.wait(LIMIT)
        shared(x)
    lines = [json.loads(line) for name in ('robot', 'server')
             for line in (tmp_path / name).read_text().splitlines()]
    sent = {(e['side'], e['index']): e['start'] for e in lines if e['what'] == 'send'}
    received = {(1 - e['side'], e['index']): e['end'] for e in lines if e['what'] == 'receive'}
    assert {side for side, _ in sent} == {0, 1} and sent.keys() == received.keys()
    assert all(sent[transfer] < received[transfer] for transfer in sent)
    assert {e['side'] for e in lines if e['what'] == 'compute'} == {0, 1}


@pytest.mark.long
def test_two_robots_do_not_mix(processes, tmp_path):
    models = [Small().eval(), Small().eval()]
    with torch.no_grad():
        models[1].head.weight.mul_(-3.0)
    start(processes, 'server', directory=tmp_path)
    fine = []

    def drive(number, shared):
        generator, end = torch.Generator().manual_seed(number), time.monotonic() + LIMIT
        while shared.report.offloaded < 15 and time.monotonic() < end:
            x = torch.rand(SHAPE, generator=generator)
            same(shared(x), models[number](x))
        fine.append((number, shared.report.offloaded))

    with offload(models[0], example=torch.rand(SHAPE), robot='robot0',
                 options=ClientOptions(halves)) as first, \
            offload(models[1], example=torch.rand(SHAPE), robot='robot1',
                    options=ClientOptions(halves)) as second:
        assert first.wait(LIMIT) and second.wait(LIMIT)
        robots = [threading.Thread(target=drive, args=pair) for pair in enumerate([first, second])]
        for robot in robots:
            robot.start()
        for robot in robots:
            robot.join()
    assert sorted(fine) == [(0, 15), (1, 15)]

def numbered(processes, store, number):
    """Start a server in the namespace /s<number>, with its own copy of the files."""
    own = shutil.copytree(store, store.parent / f'store{number}')
    return start(processes, 'server', '-r', f'__ns:=/s{number}', directory=own)


def test_another_server_takes_the_next_inference_of_one_that_ends(processes, store):
    model, names = Small().eval(), '/s1,/s2,/s3,/s4'
    servers = [numbered(processes, store, number) for number in (1, 2, 3, 4)]

    def infer(shared):
        x = torch.rand(SHAPE)
        with torch.no_grad():
            same(shared(x), model(x))

    with offload(model, names, torch.rand(SHAPE),
                 options=ClientOptions(everything_there, names)) as shared:
        clients = shared._client._clients
        assert shared._client.wait_until(
            lambda: all(c.machine.state == client.OPEN for c in clients), time.monotonic() + LIMIT)
        for end in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            used = shared.report.offloaded
            while shared.report.offloaded < used + 5:
                infer(shared)
            before, first = replace(shared.report), clients.index(shared._client.present)
            servers[first].send_signal(end)
            if end == signal.SIGTERM:    # it says so, and only then ends
                assert servers[first].wait(LIMIT) == 0
            while shared.report.offloaded < before.offloaded + 10:
                infer(shared)
            assert clients.index(shared._client.present) != first, end
            late = shared.report.fallbacks - before.fallbacks
            assert late <= (end != signal.SIGTERM), end


def test_requests_of_several_robots_are_computed_together_and_each_gets_its_own(
        store, monkeypatch):
    together, sizes = Program.compute_together, []

    def counted(program, runs, steps):
        sizes.extend([len(runs)] * (len(runs) > 1))
        return together(program, runs, steps)
    monkeypatch.setattr(Program, 'compute_together', counted)
    model = Small().eval()

    def robot(number):
        draw = torch.Generator().manual_seed(number)
        options = ClientOptions(everything_there)
        with offload(model, robot=f'robot{number}', example=torch.rand(SHAPE),
                     options=options) as shared:
            assert shared.wait(LIMIT)
            while len(sizes) < 20:
                x = torch.rand(SHAPE, generator=draw)
                with torch.no_grad():
                    same(shared(x), model(x))
            return shared.report.offloaded

    with server_here(store), ThreadPoolExecutor(3) as robots:
        assert all(robots.map(robot, (1, 2, 3)))


class Chosen(torch.nn.Module):
    """Fails for an index outside its table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.table, self.head = torch.nn.Embedding(8, 16), torch.nn.Linear(16, 4)

    def forward(self, index):
        return self.head(self.table(index))


def test_two_devices_compute_for_two_robots_and_what_fails_on_one_harms_nobody(tmp_path):
    model, options = Chosen().eval(), ClientOptions(everything_there)

    def robot(number):
        with offload(model, robot=f'robot{number}', example=torch.zeros(3, dtype=torch.int64),
                     options=options) as shared:
            assert shared.wait(LIMIT)
            both.wait(LIMIT)
            draw = torch.Generator().manual_seed(number)
            while shared.report.offloaded < 20:
                index = torch.randint(8, (3,), generator=draw)
                with torch.no_grad():
                    torch.testing.assert_close(shared(index), model(index))
                if number and shared.report.offloaded == 5 and not shared.report.fallbacks:
                    with pytest.raises(IndexError):     # on the server, and then on the robot
                        shared(index + 8)
            done.append((number, shared.report.fallbacks))
            both.wait(LIMIT)

    computed, done, both = [], [], threading.Barrier(2)
    with server_here(tmp_path, device='cpu,cpu') as server, ThreadPoolExecutor(2) as robots:
        finish = server._finish
        server._finish = lambda lane, work, *more: (computed.extend(
            (r.client, lane.number) for r in work.members), finish(lane, work, *more))
        list(robots.map(robot, (0, 1)))
        assert len(server._models) == 1     # one device, so one copy of the weights
    lanes = {client: {lane for c, lane in computed if c == client} for client, _ in computed}
    assert sorted(map(tuple, lanes.values())) == [(0,), (1,)]
    assert sorted(done) == [(0, 0), (1, 1)]


def test_results_that_are_waited_for_while_the_device_goes_on_are_the_models(
        store, monkeypatch):
    """As on a GPU: later steps are queued before earlier results are there, and captured."""
    capture = Replayed()
    monkeypatch.setattr(server_shell, 'AHEAD', {'cpu': 1})
    monkeypatch.setattr(server_shell, 'graphs_on', lambda device: graphs)
    graphs, model = Graphs(capture), Small().eval()
    with server_here(store, device='cpu,cpu'), \
            offload(model, example=torch.rand(SHAPE), options=ClientOptions(halves)) as shared:
        assert shared.wait(LIMIT)
        while shared.report.offloaded < 20:
            x = torch.rand(SHAPE)
            with torch.no_grad():
                same(shared(x), model(x))
        assert shared.report.fallbacks <= 1
    assert capture.captures and len(graphs) == capture.captures


@pytest.mark.long
def test_other_weights_are_refused_by_name_where_models_can_not_be_sent(processes, tmp_path):
    model = Small().eval()
    Store(tmp_path).add(trace(model, torch.rand(SHAPE)))
    start(processes, 'server', directory=tmp_path, uploads='false')
    with offload(model, example=torch.rand(SHAPE), options=ClientOptions(halves)) as shared:
        assert shared.wait(LIMIT)
        other = Small().eval()
        with torch.no_grad():
            other.second.weight[0, 0, 0, 0] += 1.0
        with offload(other, example=torch.rand(SHAPE), robot='robot2',
                     options=ClientOptions(halves)) as refused:
            eventually(lambda: 'second.weight' in refused.reason)
            assert not refused.shared


def test_an_untraceable_model_says_where_and_runs_here():
    x = torch.rand(4)
    with pytest.warns(UserWarning, match='runtime_models.py') as warned, \
            offload(Untraceable().eval(), example=x) as shared:
        assert torch.equal(shared(x), x * 2) and not shared.wait(0.0)
    assert warned[0].filename == __file__


def test_the_decorator_gives_the_function_the_shared_model():
    model = Small().eval()

    @offloaded(model, options=ClientOptions(halves))
    def detect(shared, x):
        return shared(x)
    x = torch.rand(SHAPE)
    same(detect(x), model(x))


class Camera:
    """A node that publishes a picture again and again, and takes the `results`.

    ``x``: the picture as a model for ImageNet gets it. ``compressed``: as a PNG.
    """

    def __init__(self, compressed=False):
        from lopinfer_msgs.msg import Result
        from lopinfer_node.qos import IMAGE, RESULT
        from sensor_msgs.msg import CompressedImage, Image
        image = Image(height=32, width=40, encoding='bgr8', step=120,
                      data=np.random.default_rng(0).integers(0, 256, 32 * 120, np.uint8))
        pixels = torch.from_numpy(np.array(image.data).reshape(32, 40, 3)[:, :, ::-1].copy())
        mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        self.x = ((pixels / 255 - mean) / std).permute(2, 0, 1)[None]
        self.context = Context()
        rclpy.init(args=[], context=self.context)
        self.node = rclpy.create_node('camera', context=self.context)
        self.results = []
        self.node.create_subscription(Result, 'lopinfer/result', self.results.append, RESULT)
        if compressed:
            data = io.BytesIO()
            PIL.Image.fromarray(pixels.numpy()).save(data, 'PNG')
            image = CompressedImage(format='png', data=np.frombuffer(data.getvalue(), np.uint8))
        images = self.node.create_publisher(
            type(image), 'image/compressed' if compressed else 'image', IMAGE)
        self.node.create_timer(0.1, lambda: images.publish(image))
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)

    def until(self, condition, what=lambda: 'the condition'):
        eventually(condition, what, step=lambda: self.executor.spin_once(0.1))

    def answers(self, model, result):
        """Return whether a result is that of the model."""
        with torch.no_grad():
            wanted = model(self.x).values()
        return all(list(tensor.shape) == list(want.shape) and np.allclose(
            np.array(tensor.values), want.numpy().ravel(), 1e-4, 1e-5)
            for tensor, want in zip(result.outputs, wanted, strict=True))

    def close(self):
        self.node.destroy_node()
        self.context.try_shutdown()


@pytest.mark.long
@pytest.mark.parametrize('transport', ['raw', 'compressed'])
def test_the_nodes_answer_an_image_and_end_cleanly(processes, tmp_path, transport):
    from lopinfer_node.qos import IMAGE
    from rcl_interfaces.msg import Log
    from sensor_msgs.msg import CompressedImage, Image
    kind, topic = (Image, 'image') if transport == 'raw' else (CompressedImage, 'image/compressed')
    server = start(processes, 'server', directory=tmp_path)
    client = start(processes, 'client', model='runtime_models:small', height=32, width=40,
                   method='server-only', image_transport=transport)
    with closing(Camera(transport == 'compressed')) as camera:
        camera.until(lambda: any(r.offloaded for r in camera.results))
        logged = []
        camera.node.create_subscription(Log, '/rosout', lambda log: logged.append(log.msg), 10)
        camera.node.create_publisher(kind, topic, IMAGE)   # as another robot's camera
        two = f'/{topic} has 2 publishers (/camera, /camera)'
        camera.until(lambda: any(two in m for m in logged), lambda: str(logged))
        for result in (camera.results[0], camera.results[-1]):
            assert camera.answers(Small().eval(), result)
    for process in (client, server):
        process.send_signal(signal.SIGINT)
        assert process.wait(LIMIT) == 0
