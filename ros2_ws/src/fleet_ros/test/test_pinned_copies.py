"""Buffers for copies to and from a device that does nothing before it is waited for."""

import random

import pytest
import torch
from fleet_ros.pinned_copies import Staging, to_device, to_host


class Later:
    """A device that copies when it must: at `synchronize`, or when chance lets it go on."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.queue, self.done, self.locked_bytes = [], 0, 0

    def locked(self, size):
        self.locked_bytes += size
        return torch.zeros(size, dtype=torch.uint8)

    def empty(self, size):
        return torch.zeros(size, dtype=torch.uint8)

    def copy(self, target, source):
        self.queue.append((target, source))
        self.go_on(self.done + self.chance.choice((0, 0, 1, 2)))
        return Moment(self, len(self.queue))

    def go_on(self, until):
        while self.done < min(until, len(self.queue)):
            target, source = self.queue[self.done]
            target.copy_(source)
            self.done += 1


class Moment:
    def __init__(self, device, number):
        self.device, self.number = device, number

    def query(self):
        return self.device.done >= self.number

    def synchronize(self):
        self.device.go_on(self.number)


@pytest.mark.parametrize('seed', range(20))
def test_bytes_arrive_whenever_the_device_copies_them(seed):
    device = Later(seed)
    ring = Staging(device, 3, 8)
    sent = []
    for size in (0, 1, 8, 9, 100, 24, 7, 65):
        data = torch.randint(256, (size,), dtype=torch.uint8)
        sent.append((data.clone(), ring.upload(data)))
        data.zero_()    # it is the caller's again
        if size % 2:
            values, there = random.Random(seed).choice(sent)
            assert torch.equal(ring.download(there, torch.empty_like(values)), values)
    for values, there in sent:
        assert torch.equal(ring.download(there, torch.empty_like(values)), values)
    assert device.locked_bytes == 3 * 8
    assert len(ring._free) + len(ring._under_way) == 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='no GPU')
def test_tensors_cross_to_a_gpu_and_back():
    for count in (0, 1, 5 << 18, 33 << 18):
        values = torch.rand(count)
        there = to_device(values, torch.device('cuda:0'))
        assert there.is_cuda and torch.equal(to_host(there), values)
