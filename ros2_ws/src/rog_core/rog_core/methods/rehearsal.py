"""A rehearsal: what a method of another package does is seen before robots are sent training.

The method's own machines play some iterations of a fleet on a model of a few rows, every message
delivered at once. Whatever it raises, answers that are no answers, and a fleet that stands still
become one `ConfigError` that says what was asked of it.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import numpy as np

from ..accumulator import Accumulator
from ..config import ServerConfig, SgdConfig, TransferConfig
from ..dispatch import Loopback
from ..errors import ConfigError, RogError
from ..messages import Compute, Sending
from ..partition import partition_of
from ..server import ServerMachine
from ..steps import STEPS
from ..worker import WorkerMachine
from .base import Method, Team

ROBOTS = 3        # where the fleet is not known from the beginning
ITERATIONS = 12   # of every robot
SGD = SgdConfig(0.01, 0.9, 0.0, True)


def rehearse(build: Callable[[], Method], text: str, team: Team) -> None:
    """Play a fleet of ``team`` under the method that ``build`` returns, and again after a restart.

    Raises `ConfigError` naming the method, ``text``, and what it did.
    """
    try:
        method = build()
        server = _play(method, team)
        state = json.loads(json.dumps(server.checkpoint().policy))
        again = build()
        again.begin(server.model, server.iteration)
        again.load_state(state)
        again.load_arrays(method.arrays())
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(f"synchronisation method '{text}' fails in a rehearsal: "
                          f'{type(error).__name__}: {error} (in {last.filename}, line '
                          f'{last.lineno}: {last.line})') from error


def _play(method: Method, team: Team) -> ServerMachine:
    transfer = TransferConfig('row', team.codec, 1.0, 1.0, 14000, 0.004)
    partition = partition_of([('w', (20, 60)), ('b', (9,))], transfer.granularity, team.codec)
    noise = np.random.default_rng(0)
    config = ServerConfig(transfer, 'bsp', team.momentum, 3.0, 1.0, team.capacities)
    server = ServerMachine(partition, np.zeros(partition.elements, np.float32), 1, config)
    server.aggregation.method = method
    method.begin(server.model, 0)
    names = list(team.capacities) or [f'robot{k + 1}' for k in range(ROBOTS)]
    workers = [WorkerMachine(name, k + 2, Accumulator(partition, np.zeros(
        partition.elements, np.float32)), transfer) for k, name in enumerate(names)]
    fleet = Loopback(server, workers)
    due: dict[str, int] = {}  # who computes -> turn in which it began
    wanted = fleet.start()
    for turn in range(ITERATIONS * len(names)):
        due |= {name: turn for name, action in wanted if isinstance(action, Compute)}
        if not due:
            waits = {name: m.waiting_for for name, m in server.members.items()}
            raise RogError(f'the fleet stands still: who waits for whom is {waits}')
        # The robot that has waited longest, and now and then another one.
        _check(method, server)
        name = min(due, key=due.__getitem__) if turn % 3 else max(due, key=due.__getitem__)
        del due[name]
        gradient = noise.standard_normal(partition.elements).astype(np.float32)
        fleet.want(name, fleet.workers[name].on_gradient(gradient, SGD, fleet.now))
        wanted = fleet.deliver()
    return server


def _check(method: Method, server: ServerMachine) -> None:
    """Raise `RogError` for an answer that is none: Python would not notice before robots train."""
    fleet = {member.robot: member.standing for member in server.active()}
    for member in server.active():
        names = method.held_up_by(member.robot, fleet)
        if not isinstance(names, list) or not set(names) <= set(server.members):
            raise RogError(f'held_up_by answers {names!r}; it must be a list of names of robots')
        if STEPS.get(getattr(member.step, 'name', '')) is not type(member.step):
            raise RogError(f'grant answers the step {member.step!r}; a robot knows '
                           f'{", ".join(STEPS)}')
        if not isinstance(reason := method.refusal(member.robot), str) or reason:
            raise RogError(f'refusal answers {reason!r} of a robot of the fleet that trains')
    if not isinstance(sending := method.sending(), Sending):
        raise RogError(f'sending answers {sending!r}; it must be a Sending')
