"""Whatever a program does between a forward pass and reading its result, every wait ends."""

import os
import signal
from pathlib import Path

import pytest
import remote
import torch
from fleet_testing import environment, eventually, free_domain
from rrto_bridge.cli import run
from torch import nn


def ask_nothing():
    pass


def timed_events():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0


QUERIES = {
    'nothing': ask_nothing,
    'synchronize': lambda: torch.cuda.synchronize(),
    'memory': lambda: torch.cuda.memory_allocated(), 'free': lambda: torch.cuda.mem_get_info(),
    'event': lambda: torch.cuda.Event().synchronize(), 'events': timed_events,
    'stream': lambda: torch.cuda.current_stream().synchronize(),
    'properties': lambda: torch.cuda.get_device_properties(0),
    'stats': lambda: torch.cuda.memory_stats(),
}


@pytest.mark.parametrize('mode', ['async', 'replay'])
@pytest.mark.parametrize('query', QUERIES)
def test_questions_between_the_forward_pass_and_the_read(mode, query):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    inputs = [torch.rand(3, 4) for _ in range(9)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        engine = remote.start(mode)
        model.cuda()
        ask = QUERIES[query]
        for x, y in zip(inputs, expected, strict=True):
            on_device = x.cuda()
            ask()
            result = model(on_device)
            ask()
            assert torch.equal(result.cpu(), y)
            ask()
    assert engine.inferences > 3 or mode != 'replay'


def test_a_seed_set_within_a_replayed_pass_counts_from_there_on(mode):
    def infer(x):
        y = torch.rand_like(x) + x
        torch.manual_seed(7)
        return y + torch.rand_like(y)

    def program(device):
        torch.manual_seed(1)
        return [infer(torch.ones(3).to(device)).cpu() for _ in range(12)]

    expected = program('cpu')
    remote.start(mode)
    assert all(map(torch.equal, program('cuda'), expected))


@pytest.mark.long
def test_a_server_of_its_own_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr(run, 'STOP_LIMIT', 1.0)
    for key, value in environment(free_domain()).items():
        monkeypatch.setenv(key, value)
    with run.server_process() as (_, server):
        os.kill(server.pid, signal.SIGSTOP)   # so that it does not receive the request to end
        eventually(lambda: ') T ' in Path(f'/proc/{server.pid}/stat').read_text())
    assert server.returncode == -signal.SIGKILL
