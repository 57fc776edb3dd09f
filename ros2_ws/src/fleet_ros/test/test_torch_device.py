"""The setting `device` means the same everywhere; copies to and from a GPU wait for no others."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from fleet_env.errors import SettingError
from fleet_ros import device
from fleet_ros.device import downloading, own_device, torch_device, uploaded


def test_auto_is_a_gpu_where_there_is_one():
    assert torch_device('cpu') == torch.device('cpu')
    assert torch_device('auto').type == ('cuda' if torch.cuda.is_available() else 'cpu')


def test_a_missing_device_is_refused_with_the_reason():
    with pytest.raises(SettingError, match="device 'cuda:99' cannot be used here: "):
        torch_device('cuda:99')


def test_the_own_device_is_never_that_of_a_server(monkeypatch):
    assert own_device('auto') == torch_device('auto')
    monkeypatch.setitem(sys.modules, 'rrto_bridge.program.launcher', None)   # as in `rrto run`
    assert own_device('auto') == own_device('cuda:99') == torch.device('cpu')


class Stream:
    """A CUDA stream: what is queued comes after what was queued before, and what it waits for."""

    def __init__(self, device=None):
        self.before = set()     # all that ends before what is queued next begins

    def wait_stream(self, other):
        self.before |= other.before


class Gpu:
    """Emulates the streams of a GPU; `after[work]` is all that has ended when this work begins."""

    def __init__(self, monkeypatch):
        self.stream, self.after, self.waited, self.kept = Stream(), {}, set(), []
        device._copying.cache_clear()
        for name, value in {'Stream': Stream, 'stream': self.on, 'Event': self.event,
                            'current_stream': lambda device: self.stream}.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def event(self, blocking):
        recorded = set()
        return SimpleNamespace(record=lambda: recorded.update(self.stream.before),
                               synchronize=lambda: self.waited.update(recorded))

    def queue(self, work):
        self.after[work] = set(self.stream.before)
        self.stream.before.add(work)

    def tensor(self, where):
        """A tensor whose copy to another device is queued as the work 'copy'."""
        def to(there, non_blocking):
            assert non_blocking
            self.queue('copy')
            return self.tensor(there)
        made = SimpleNamespace(device=torch.device(where), to=to, record_stream=self.kept.append)
        made.pin_memory = lambda: made
        return made


@pytest.fixture
def gpu(monkeypatch):
    yield Gpu(monkeypatch)
    device._copying.cache_clear()


def test_what_arrives_waits_for_nothing_and_only_what_is_queued_later_waits_for_it(gpu):
    gpu.queue('earlier')
    copy = uploaded(gpu.tensor('cpu'), torch.device('cuda', 0))
    gpu.queue('later')
    assert gpu.after['copy'] == set() and gpu.after['later'] == {'earlier', 'copy'}
    assert copy.device.type == 'cuda' and gpu.kept == [gpu.stream] and not gpu.waited


def test_what_leaves_waits_for_what_was_queued_and_not_for_what_is_queued_later(gpu):
    gpu.queue('earlier')
    wait = downloading(gpu.tensor('cuda:0'))
    gpu.queue('later')
    assert gpu.after['copy'] == {'earlier'} and gpu.after['later'] == {'earlier'}
    assert not gpu.waited
    assert wait().device.type == 'cpu' and gpu.waited == {'earlier', 'copy'}
    assert gpu.kept and gpu.kept[0] is not gpu.stream


@pytest.mark.parametrize('where', ['cpu', pytest.param('cuda:0', marks=[
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')])])
def test_values_arrive_and_leave_unchanged_while_the_device_computes(where):
    there, waits = torch.device(where), []
    values = [torch.rand(300, 300) for _ in range(20)]
    for value in values:
        x = uploaded(value, there)
        y = x @ x
        waits.append(downloading(y))
        del x, y
    for value, wait in zip(values, waits, strict=True):
        torch.testing.assert_close(wait(), value @ value, rtol=1e-3, atol=1e-2)
    if where == 'cpu':
        assert uploaded(value, there) is value and downloading(value)() is value
