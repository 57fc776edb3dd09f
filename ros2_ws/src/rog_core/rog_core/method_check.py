"""A test run of a method of another package, before any robot trains with it.

A server and workers in this process train a model of a few rows for some iterations; every message
is delivered at once. If the method raises an exception or returns a value of the wrong type, or
every robot waits, the rehearsal raises a `ConfigError`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable

import numpy as np

from .errors import ConfigError, RogError
from .loopback import Loopback
from .methods.base import Method, Team
from .protocol.config import SgdConfig
from .protocol.messages import Compute, Sending
from .protocol.steps import STEPS
from .server.machine import ServerMachine

ROBOTS = 3        # where the fleet is not known from the beginning
ITERATIONS = 12   # of every robot
SGD = SgdConfig(0.01, 0.9, 0.0, True)


def rehearse(build: Callable[[], Method], text: str, team: Team) -> None:
    """Train a small fleet of ``team`` with the method that ``build`` returns, then restore it.

    Raises `ConfigError` with the name of the method, ``text``, and what went wrong.
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
    names = list(team.capacities) or [f'robot{k + 1}' for k in range(ROBOTS)]
    fleet = Loopback.small([('w', (20, 60)), ('b', (9,))], 'bsp', Team(
        team.capacities or dict.fromkeys(names, 1.0), team.codec, team.momentum))
    server, noise = fleet.server, np.random.default_rng(0)
    server.aggregation.method = method
    method.begin(server.model, 0)
    due: dict[str, int] = {}  # robots that compute -> turn in which they began
    wanted = fleet.start()
    for turn in range(ITERATIONS * len(names)):
        due |= {name: turn for name, action in wanted if isinstance(action, Compute)}
        if not due:
            waits = {name: m.waiting_for for name, m in server.members.items()}
            raise RogError(f'the fleet stands still; each robot waits for: {waits}')
        _check(method, server)
        # Usually the robot that began first finishes first; every third time the last one does.
        name = min(due, key=due.__getitem__) if turn % 3 else max(due, key=due.__getitem__)
        del due[name]
        gradient = noise.standard_normal(server.partition.elements).astype(np.float32)
        fleet.want(name, fleet.workers[name].on_gradient(gradient, SGD, fleet.now))
        wanted = fleet.deliver()
    return server


def _check(method: Method, server: ServerMachine) -> None:
    """Raise `RogError` for an answer of the wrong type or about robots that do not exist."""
    fleet = {member.robot: member.standing for member in server.active()}
    for member in server.active():
        names = method.held_up_by(member.robot, fleet)
        if not isinstance(names, list) or not set(names) <= set(server.members):
            raise RogError(f'held_up_by answers {names!r}; it must be a list of names of robots')
        if STEPS.get(getattr(member.step, 'name', '')) is not type(member.step):
            raise RogError(f'grant answers the step {member.step!r}; it must be one of '
                           f'{", ".join(STEPS)}')
        if not isinstance(reason := method.refusal(member.robot), str) or reason:
            raise RogError(f"refusal answers {reason!r}; it must be '' for a robot of the fleet")
    if not isinstance(sending := method.sending(), Sending):
        raise RogError(f'sending answers {sending!r}; it must be a Sending')
