"""A fleet in virtual time computes what the papers' algorithms compute in plain PyTorch."""

from itertools import islice

import numpy as np
import pytest
import torch
from fleet_env.settings.base import changed
from rog_core.model.flat import flatten
from rog_sim.simulation import Simulation
from virtual_fleet import Linear, fleet_of

RATE, MOMENTUM, DECAY = .05, .9, .01


def trained(tmp_path, sync, robots, nesterov=True, **training):
    """Train a fleet in virtual time; return the server's model and its number of iterations.

    The links lose no message, and the codec rounds no value.
    """
    fleet = fleet_of(tmp_path, sync, minutes=.4, links=('0 8000\n',) * robots,
                     paces=(.5,) * robots, codec='raw', traffic='', learning_rate=RATE,
                     momentum=MOMENTUM, nesterov=nesterov, weight_decay=DECAY, **training)
    simulation = Simulation(changed(fleet, training={'evaluate_every': 0}))
    simulation.run(lambda done: None)
    return simulation.server.master, simulation.server.iteration


class Robot:
    """A robot that trains with torch.optim.SGD and keeps its momentum until `forget`."""

    def __init__(self, rank, robots, nesterov=True):
        self.task = Linear(3)
        self.batches = self.task.batches(rank, robots)
        self.model, self.nesterov = self.task.model(), nesterov
        self.forget()

    def forget(self):
        """Set the momentum to zero."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), RATE, MOMENTUM,
                                         nesterov=self.nesterov)

    def steps(self, count, start):
        """Return the model after ``count`` steps from the model ``start``.

        Both models are flat vectors.
        """
        torch.nn.utils.vector_to_parameters(start.clone(), self.model.parameters())
        for batch in islice(self.batches, count):
            self.optimizer.zero_grad()
            self.task.loss(self.model, batch).backward()
            # Weight decay changes the model directly and does not enter the momentum
            # (dist-EF-SGDM).
            with torch.no_grad():
                for p in self.model.parameters():
                    p *= 1 - RATE * DECAY
            self.optimizer.step()
        return torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()


def start():
    return torch.from_numpy(flatten(Linear(3).model()).copy())


def sgd(rounds, robots, nesterov=True):
    """Train in lock-step: average the robots' models after every step.

    Each robot has its own momentum.
    """
    fleet, model = [Robot(rank, robots, nesterov) for rank in range(robots)], start()
    for _ in range(rounds):
        model = torch.stack([robot.steps(1, model) for robot in fleet]).mean(0)
    return model


def fedavg(rounds, robots, count):
    """Train with FedAvg (McMahan et al.): local steps, then the mean of the models."""
    fleet, model = [Robot(rank, robots) for rank in range(robots)], start()
    for _ in range(rounds):
        for robot in fleet:
            robot.forget()
        model = torch.stack([robot.steps(count, model) for robot in fleet]).mean(0)
    return model


def diloco(rounds, robots, count, rate, momentum):
    """Train with DiLoCo, Algorithm 1.

    The inner optimisers keep their state. The outer optimiser is Nesterov SGD.
    """
    fleet, model = [Robot(rank, robots) for rank in range(robots)], start().requires_grad_()
    outer = torch.optim.SGD([model], rate, momentum, nesterov=momentum > 0)
    for _ in range(rounds):
        shared = model.detach().clone()
        model.grad = shared - torch.stack(
            [robot.steps(count, shared) for robot in fleet]).mean(0)
        outer.step()
    return model.detach()


CASES = [
    ('bsp', 1, lambda n: sgd(n, 1)), ('bsp', 3, lambda n: sgd(n, 3)),
    ('ssp:1', 1, lambda n: sgd(n, 1)), ('asp', 1, lambda n: sgd(n, 1)),
    ('rsp:1', 1, lambda n: sgd(n, 1)),
    ('rsp:1', 3, lambda n: sgd(n, 3)),
    ('local:1', 1, lambda n: fedavg(n, 1, 1)), ('local:4', 3, lambda n: fedavg(n, 3, 4)),
    ('diloco:1+rate=1+momentum=0', 3, lambda n: sgd(n, 3)),
    ('diloco:4', 3, lambda n: diloco(n, 3, 4, .7, .9)),
    ('diloco:3+rate=0.5+momentum=0.3', 2, lambda n: diloco(n, 2, 3, .5, .3)),
    ('diloco:4+quorum=3+grace=0', 3, lambda n: diloco(n, 3, 4, .7, .9)),
    ('diloco:4+quorum=1+grace=3600', 3, lambda n: diloco(n, 3, 4, .7, .9)),
    ('rsp:1+local=4', 3, lambda n: diloco(n, 3, 4, 1, 0)),
    ('rsp:1+local=4+rate=0.7+momentum=0.9', 3, lambda n: diloco(n, 3, 4, .7, .9))]


@pytest.mark.parametrize('sync, robots, expected', [
    pytest.param(*case, id=f'{case[0]} of {case[1]}',
                 marks=() if case[0] in ('diloco:4', 'rsp:1+local=4') else pytest.mark.long)
    for case in CASES])
def test_a_fleet_computes_what_is_published(tmp_path, sync, robots, expected):
    found, iterations = trained(tmp_path, sync, robots)
    assert iterations > 3
    assert np.allclose(found, expected(iterations), atol=2e-5)


@pytest.mark.long
def test_standard_momentum_is_that_of_torch(tmp_path):
    found, iterations = trained(tmp_path, 'bsp', 2, nesterov=False)
    assert iterations > 3 and np.allclose(found, sgd(iterations, 2, False), atol=2e-5)
