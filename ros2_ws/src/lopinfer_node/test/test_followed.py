"""A shared model takes up what a fleet learns: robot and server change together."""

import copy
import threading
import time
from contextlib import closing, contextmanager

import pytest
import torch
from fleet_models import FollowOptions
from fleet_testing import LIMIT, eventually
from lopinfer_node import followed
from lopinfer_node.api import offload
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.runtime.upload import Sending
from offering import Offering
from runtime_models import Small
from test_nodes import (  # noqa: F401
    SHAPE,
    Camera,
    domain,
    halves,
    processes,
    server_here,
    start,
    store,
    tried,
    tried_once,
)
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor


@contextmanager
def offering(folder):
    server = Offering(folder)
    try:
        yield server
    finally:
        server.close()


def other(seed):
    """Return a model that gives clearly other results."""
    model = Small().eval()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.normal_(0, .5)
    return model


def equal(found, model, x):
    with torch.no_grad():
        want = model(x)
    return all(torch.allclose(found[name], want[name], rtol=1e-4, atol=1e-5) for name in want)


def test_robot_and_server_change_together_and_share_all_the_time(store, tmp_path):  # noqa: F811
    model, x = Small().eval(), torch.rand(SHAPE)
    versions = [copy.deepcopy(model), other(1), other(2)]
    with server_here(store), offering(tmp_path / 'models') as fleet:
        fleet.give(versions[0], .5)
        with offload(model, example=x, options=ClientOptions(halves), follow='/rog') as shared:
            assert shared.wait(LIMIT)
            current = 0
            for number in (1, 2):
                eventually(lambda: shared.follower.version is not None or shared(x) is None)
                fleet.give(versions[number], .5 + number / 10)
                while current < number:
                    found = shared(x)
                    fits = [k for k, v in enumerate(versions) if equal(found, v, x)]
                    assert fits in ([current], [number])
                    current = fits[0]
                before = shared.report.offloaded
                eventually(lambda: equal(shared(x), versions[number], x)   # noqa: B023
                           and shared.report.offloaded > before)           # noqa: B023
            assert shared.follower.version.number == 3 and equal(model(x), versions[0], x)


def test_a_server_that_follows_needs_no_weights_of_robots(
        processes, store, tmp_path, monkeypatch):  # noqa: F811
    sent, real = [], Sending._send
    monkeypatch.setattr(Sending, '_send', lambda self, missing: (
        sent.append(missing), real(self, missing)))
    model, x, new = Small().eval(), torch.rand(SHAPE), other(1)
    start(processes, 'server', directory=store, follow='/rog')
    with offering(tmp_path / 'models') as fleet, \
            offload(model, example=x, options=ClientOptions(halves), follow='/rog') as shared:
        assert shared.wait(LIMIT)
        fleet.give(new, .5)
        eventually(lambda: equal(shared(x), new, x) and shared.shared)
        assert not sent     # the server says at once that it has the new model whole


@pytest.mark.long
def test_the_node_of_a_robot_with_a_camera_takes_up_versions(
        processes, store, tmp_path):  # noqa: F811
    new = other(1)
    start(processes, 'server', directory=store)
    with offering(tmp_path / 'models') as fleet, closing(Camera()) as camera:
        start(processes, 'client', model='runtime_models:small', height=32, width=40,
              method='server-only', follow='/rog')
        camera.until(lambda: any(r.offloaded for r in camera.results))
        assert camera.answers(Small().eval(), camera.results[-1])
        fleet.give(new, .5)
        camera.until(lambda: camera.answers(new, camera.results[-1])
                     and camera.results[-1].offloaded)


def test_without_a_server_the_robot_takes_up_versions_alone(tmp_path):
    model, x, new = Small().eval(), torch.rand(SHAPE), other(1)
    with offering(tmp_path) as fleet, \
            offload(model, example=x, options=ClientOptions(halves), follow='/rog') as shared:
        fleet.give(new, .5)
        eventually(lambda: equal(shared(x), new, x))
        assert not shared.shared


def test_a_version_for_which_no_server_is_ready_in_time_is_refused(
        store, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(followed, 'PATIENCE', 0.0)
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(store), offering(tmp_path / 'models') as fleet, \
            offload(model, example=x, options=ClientOptions(halves), follow='/rog') as shared:
        assert shared.wait(LIMIT)
        fleet.give(other(1), .5)
        eventually(lambda: 'no server was ready' in shared.follower.reason)
        assert equal(shared(x), model, x) and shared.shared


def test_threads_that_call_during_a_change_get_one_version_or_the_other(
        store, tmp_path):  # noqa: F811
    model, x, new = Small().eval(), torch.rand(SHAPE), other(1)
    over, failed = threading.Event(), []
    with server_here(store), offering(tmp_path / 'models') as fleet, \
            offload(model, example=x, options=ClientOptions(halves), follow='/rog') as shared:
        assert shared.wait(LIMIT)

        def call():
            while not over.is_set():
                found = shared(x)
                if not equal(found, model, x) and not equal(found, new, x):
                    failed.append(found)
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        fleet.give(new, .5)
        try:
            eventually(lambda: equal(shared(x), new, x))
        finally:
            over.set()
            for thread in threads:
                thread.join()
        assert not failed


class Interrupted(Small):
    """A model that calls a function once while it is traced."""

    once = None

    def forward(self, x):
        # PyTorch 2.4 traces with a FunctionalTensor
        if isinstance(self.first.weight, (FakeTensor, FunctionalTensor)) and Interrupted.once:
            once, Interrupted.once = Interrupted.once, None
            once()
        return super().forward(x)


def test_a_version_that_comes_while_the_model_is_traced_is_taken_up(tmp_path):
    model, x, new = Interrupted().eval(), torch.rand(SHAPE), other(1)
    with offering(tmp_path) as fleet, \
            offload(model, options=ClientOptions(halves), follow='/rog') as shared:
        version = fleet.write(new, .5)

        def give():
            fleet.announce(version)
            eventually(lambda: shared.follower.newest is not None)
            end = time.monotonic() + .5     # a copy of the traced model would fail before
            while not shared.follower.reason and time.monotonic() < end:
                time.sleep(.02)
        Interrupted.once = give
        shared.connect(x)
        assert Interrupted.once is None
        eventually(lambda: equal(shared(x), new, x))


def test_the_end_waits_for_a_version_that_is_being_traced(tmp_path):
    tracing, go_on = threading.Event(), threading.Event()
    with offering(tmp_path) as fleet:
        with offload(Interrupted().eval(), example=torch.rand(SHAPE), options=ClientOptions(halves),
                     follow='/rog'):
            Interrupted.once = lambda: (tracing.set(), go_on.wait(LIMIT))
            fleet.give(other(1), .5)
            assert tracing.wait(LIMIT)
            threading.Timer(.5, go_on.set).start()
        assert go_on.is_set()
        assert 'examine' not in [thread.name for thread in threading.enumerate()]


def test_a_margin_beyond_its_bounds_is_refused():
    with pytest.raises(ValueError, match='margin'), \
            offload(Small(), follow=FollowOptions('/rog', margin=7)):
        pass
