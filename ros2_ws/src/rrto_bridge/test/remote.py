"""Runs rrto's device in this process. Each test gets a new server, also in this process."""

import gc

import pytest
import torch
from rrto_bridge.client.inprocess import InProcess
from rrto_bridge.client.journal import Journal
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.client.percall import PerCall
from rrto_bridge.client.replaying import Replaying
from rrto_bridge.program import intercept, remote
from rrto_bridge.program.device import Device
from rrto_bridge.protocol.errors import LinkError

MODES = ('rpc', 'cached', 'async', 'replay')
_device = None
_next = None   # engine of the server to which the program connects next
torch.set_num_threads(1)   # always one thread: the number of threads changes how sums are rounded


class Mortal(InProcess):
    """A server in this process; it is lost when the client waits more than `lives` times."""

    def __init__(self, machine, lives):
        super().__init__(machine)
        self.lives = lives
        self.waits = 0
        self.back = None   # function that a test calls to report that the server is back

    def wait(self, ticket):
        self.waits += 1
        if self.waits > self.lives:
            raise LinkError('the server is lost')
        return super().wait(ticket)

    def transmit(self):
        if self.waits <= self.lives:
            super().transmit()
        else:
            self.machine.outgoing()

    def watch(self, back):
        self.back = back


def _engine(mode, lives, journal):
    port = Mortal(ClientMachine('async' if mode == 'replay' else mode), lives)
    kind = Replaying if mode == 'replay' else PerCall
    return kind(port, Journal() if journal else None)


def another(mode, lives=1 << 60):
    """Make a new server, to which the program connects next, and return its engine."""
    global _next
    assert _device.connection.engine   # this access connects the program to the present engine
    _next = _engine(mode, lives, True)
    return _next


def since(version, what):
    """Return a mark that skips a test in a PyTorch before ``version``, which has no ``what``."""
    own = tuple(map(int, torch.__version__.split('.')[:2]))
    return pytest.mark.skipif(own < version, reason=f'PyTorch {torch.__version__} has no {what}')


GROUPED = since((2, 9), 'grouped matrix product on a CPU')


def start(mode, lives=1 << 60, journal=False, local=None):
    """Install a new engine and return it; `local`: see `Connection`.

    No tensor of an earlier engine may exist when this function is called.
    """
    global _device, _next
    _next = _engine(mode, lives, journal)
    gc.collect()
    # With more than 50,000 objects, a library has been imported. Freeze the objects, so that the
    # garbage collector skips them; see the conftest.py of the repository.
    if len(gc.get_objects()) > 50_000:
        gc.freeze()
    remote.released.clear()
    if _device is None:
        _device = Device(lambda: _next, local)
        intercept.install(_device)   # once per process; each test then restarts this device
    else:
        vars(_device).clear()
        _device.__init__(lambda: _next, local)
    return _next


def device():
    return _device
