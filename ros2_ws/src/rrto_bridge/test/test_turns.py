"""Threads share the device; the calls of each inference stay together, so replay is possible."""

import threading

import pytest
import remote
import torch
from fleet_testing import LIMIT
from rrto_bridge.program import turns
from torch import nn

COUNT = 60


def model(k):
    torch.manual_seed(k)
    layers = [nn.Linear(8 + k, 8 + k) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(8 + k, 3)).eval().requires_grad_(False)


def in_threads(*works):
    threads = [threading.Thread(target=work) for work in works]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]


@pytest.mark.parametrize('threads', [2, 4])
def test_threads_with_a_model_each_are_replayed_as_one_is(mode, threads, monkeypatch):
    monkeypatch.setattr(turns, 'GAP', 1.0)   # seconds; long enough for a busy machine
    engine = remote.start(mode)
    models = [model(k) for k in range(threads)]
    inputs = [torch.rand(2, 8 + k) for k in range(threads)]
    expected = [m(x) for m, x in zip(models, inputs, strict=True)]
    wrong = []

    def infer(k):
        models[k].cuda()
        found = [models[k](inputs[k].cuda()).cpu() for _ in range(COUNT)]
        wrong.extend(y for y in found if not torch.equal(y, expected[k]))

    in_threads(*[lambda k=k: infer(k) for k in range(threads)])
    assert not wrong
    assert mode != 'replay' or engine.inferences >= threads * (COUNT - 10)


def test_a_value_within_an_inference_does_not_end_it(monkeypatch):
    monkeypatch.setattr(turns, 'GAP', 1.0)
    engine = remote.start('replay')
    models = [model(k).cuda() for k in range(2)]

    def infer(k):
        for _ in range(COUNT):
            y = models[k](torch.ones(1, 8 + k).cuda())
            (y * 2 if y.sum().item() > 0 else y * 3).cpu()

    in_threads(lambda: infer(0), lambda: infer(1))
    assert engine.inferences >= 2 * (COUNT - 10)


def test_a_thread_waits_for_no_other_that_waits_for_it():
    """While a thread waits for another thread, the other thread can use the device.

    One thread uploads, and another computes.
    """
    remote.start('replay')
    layer = model(0).cuda()
    given, done = threading.Semaphore(0), threading.Semaphore(0)
    place, results = [], []

    def upload():
        for k in range(20):
            place.append(torch.full((1, 8), float(k)).cuda())
            given.release()
            assert done.acquire(timeout=LIMIT)

    def compute():
        for _ in range(20):
            assert given.acquire(timeout=LIMIT)
            results.append(layer(place.pop()).cpu())
            done.release()

    in_threads(upload, compute)
    layer.cpu()
    assert all(torch.equal(y, layer(torch.full((1, 8), float(k)))) for k, y in enumerate(results))


def test_an_error_in_one_thread_leaves_the_turn_to_the_others():
    remote.start('replay')
    layer = model(0).cuda()
    results = []

    def fail():
        x = torch.ones(1, 8).cuda()
        with pytest.raises(RuntimeError):
            torch.ones(1).cuda() + torch.ones(3, 3)
        results.append(x.shape)

    in_threads(fail, lambda: results.append(layer(torch.ones(1, 8).cuda()).cpu().shape))
    assert sorted(map(tuple, results)) == [(1, 3), (1, 8)]
