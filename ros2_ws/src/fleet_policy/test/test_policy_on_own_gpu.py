"""A model in another process gives what it gives here; without the process, it runs here."""

import os
import signal
import time

import pytest
import torch
from fleet_policy import own_gpu
from fleet_policy.own_gpu import OwnGpu
from fleet_testing import INFERENCE, forked_on_link
from policies import Net

INPUTS = torch.zeros(1, 3, 24, 32, dtype=torch.uint8), torch.ones(1, 3)


class Picky(Net):
    """A model that does not accept every input."""

    def forward(self, image, state):
        if state.sum() < 0:
            raise ValueError('negative')
        return super().forward(image, state), {'state': state}


@pytest.fixture
def start(monkeypatch, request):
    """Return a function that starts a process with a model, one per module as always."""
    made, said = [], []
    if 'until_it_ends' not in request.node.name:
        monkeypatch.setattr(own_gpu, 'start_process', forked_on_link(*INFERENCE))

    def make(model, device='cpu'):
        made.append(OwnGpu(model.eval(), device, dict(os.environ), 1.0, said.append))
        return made[0], said
    yield make
    for one in made:
        one.close()


def close(network, model):
    with torch.no_grad():
        torch.testing.assert_close(network(*INPUTS), model(*INPUTS))


def test_the_process_computes_until_it_ends_and_then_this_one(start):
    model = Picky().eval()
    network, said = start(model)
    assert network.computes and not said
    close(network, model)
    with pytest.raises(RuntimeError, match='ValueError: negative'):
        network(INPUTS[0], -INPUTS[1])
    close(network, model)
    os.kill(network._process.pid, signal.SIGKILL)
    close(network, model)
    assert not network.computes and len(said) == 1
    assert 'the process for its GPU has failed' in said[0]


@pytest.mark.parametrize('pixels', [24, 2400])   # the second does not fit the socket's buffer
def test_a_process_that_is_stopped_is_given_up_and_this_one_computes(start, pixels):
    model = Picky().eval()
    network, said = start(model)
    close(network, model)
    os.kill(network._process.pid, signal.SIGSTOP)
    inputs = torch.zeros(1, 3, pixels, 320, dtype=torch.uint8), INPUTS[1]
    with torch.no_grad():
        torch.testing.assert_close(network(*inputs), model(*inputs))
    assert not network.computes and 'it gave no answer within' in said[0]


class Compiles(Net):
    """A model whose first inference takes longer than the patience."""

    warm = False

    def forward(self, image, state):
        time.sleep(0.0 if self.warm else 1.2)
        self.warm = True
        return super().forward(image, state)


def test_the_first_inference_of_each_model_may_take_longer(start):
    first, second = Net().eval(), Compiles().eval()
    network, said = start(first)
    close(network, first)
    network.use(second)
    close(network, second)
    assert network.computes, said


def test_a_device_that_does_not_exist_leaves_the_model_here(start):
    model = Picky().eval()
    network, said = start(model, 'nothing')
    assert not network.computes and 'device type at start of device string: nothing' in said[0]
    close(network, model)


def test_a_model_that_cannot_be_sent_stays_here(start):
    model = Picky()
    model.hidden = lambda: None
    network, said = start(model)
    assert not network.computes and 'failed' in said[0]
    close(network, model)
