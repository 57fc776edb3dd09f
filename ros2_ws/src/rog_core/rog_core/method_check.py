"""Checks a synchronisation method before a state machine uses it.

Every program that runs the state machine of a server or a worker calls this check
before it gives the name of the method to the machine.

For a method of this package, the check only creates the object. For a method of another
package, the check imports the method and rehearses it: a server and workers in this
process train a model of a few rows for some iterations, and every message arrives at
once. The rehearsal raises `ConfigError` if the method raises an exception, returns a
value of the wrong type, or makes all robots wait for each other.

The state machines themselves never import a user's code.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np

from .codecs import get_codec
from .errors import ConfigError, RogError
from .loopback import Loopback
from .methods import METHODS, Method, Team, create, parse, place_of, usages
from .protocol.config import SgdConfig
from .protocol.messages import Compute, Sending
from .protocol.steps import STEPS, Step
from .server.server import Server

ROBOTS = 3        # robots in a rehearsal if the server does not know its robots beforehand
ITERATIONS = 12   # iterations per robot in a rehearsal
SGD = SgdConfig(0.01, 0.9, 0.0, True)
# What has passed a rehearsal: class of the method, its text, the team, and the codec.
_rehearsed: set[tuple[Any, str, str, Any]] = set()


class _BadAnswer(RogError):
    """A synchronisation method of another package returns an invalid value."""


def check_method(settings: Any, capacities: Mapping[str, float], rehearse: bool = True) -> None:
    """Raise `ConfigError` if the method in ``settings.training`` does not fit the fleet.

    ``capacities``: maps each robot to its computing capacity. ``rehearse``: see `check_named`. Call
    this function before any program of the fleet is started.
    """
    training = settings.training
    check_named(training.sync, Team(capacities, get_codec(training.codec).name, training.momentum,
                                    settings.server.clip, bool(settings.upstream.robot)), rehearse)


def check_named(text: str, team: Team, rehearse: bool = True) -> None:
    """Raise `ConfigError` if a method is unknown, does not fit the team, or fails in a rehearsal.

    ``text``: the method with its arguments, as users write it. ``rehearse``: false if another
    process has rehearsed it; a process rehearses a method once. Call this function before you give
    ``text`` to a `Server`, at the start of a run or to change the method during a run.
    """
    name = parse(text).name
    if name not in METHODS:
        _import(place_of(name)[0], text.strip())
    create(text, team)
    if name not in METHODS and rehearse:
        module, cls = place_of(name)
        known = getattr(sys.modules[module], cls), text, repr(team), get_codec(team.codec)
        if known not in _rehearsed:
            _rehearse(text, team)
            _rehearsed.add(known)


def _import(module: str, text: str) -> None:
    what = f"synchronisation method '{text}'"
    try:
        importlib.import_module(module)
    except ImportError as error:
        if error.name and not (module + '.').startswith(error.name + '.'):
            raise ConfigError(f'{what}: importing {module} failed: {error}') from error
        raise ConfigError(f'{what}: {error}; is it installed where the server runs, beside the '
                          'fleet file, or its folder on PYTHONPATH? Or choose one of '
                          f'{usages()}') from error
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{what}: module {module} cannot be imported: '
                          f'{type(error).__name__}: {error}') from error


def _rehearse(text: str, team: Team) -> None:
    """Train a small model with the method, then test that its saved state can be restored."""
    try:
        method = create(text, team)
        server = _play(method, team)
        if server is None:
            return
        state = json.loads(json.dumps(server.checkpoint().policy))
        again = create(text, team)
        again.begin(server.model, server.iteration)
        again.load_state(state)
        again.load_arrays(method.arrays())
    except ConfigError:
        raise
    except _BadAnswer as error:
        raise ConfigError(f"synchronisation method '{text}' fails in a rehearsal: "
                          f'{error}') from None
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ConfigError(f"synchronisation method '{text}' fails in a rehearsal: "
                          f'{type(error).__name__}: {error} (in {last.filename}, line '
                          f'{last.lineno}: {last.line})') from error


def _play(method: Method, team: Team) -> Server | None:
    """Train a small model; return the server, or None if the method cannot train this model."""
    names = list(team.capacities) or [f'robot{k + 1}' for k in range(ROBOTS)]
    fleet = Loopback.small([('w', (20, 60)), ('b', (9,))], 'bsp', Team(
        team.capacities or dict.fromkeys(names, 1.0), team.codec, team.momentum))
    server, noise = fleet.server, np.random.default_rng(0)
    if method.unfit(server.model):
        return None
    _check_grants(method)
    server.aggregation.method = method
    method.begin(server.model, 0)
    due: dict[str, int] = {}  # maps each computing robot to the turn in which it began to compute
    wanted = fleet.start()
    for turn in range(ITERATIONS * len(names)):
        due |= {name: turn for name, action in wanted if isinstance(action, Compute)}
        if not due:
            waits = {name: m.waiting_for for name, m in server.members.items()}
            raise _BadAnswer(f'the fleet stands still; each robot waits for: {waits}')
        _check(method, server)
        # In most turns the robot that began first finishes first. In every third turn, the
        # robot that began last finishes first.
        name = min(due, key=due.__getitem__) if turn % 3 else max(due, key=due.__getitem__)
        del due[name]
        gradient = noise.standard_normal(server.partition.elements).astype(np.float32)
        fleet.want(name, fleet.workers[name].on_gradient(gradient, SGD, fleet.now))
        wanted = fleet.deliver()
    return server


def _check_grants(method: Method) -> None:
    """Wrap ``method.grant`` so that it raises `_BadAnswer` if its return value is invalid."""
    grant = method.grant

    def checked(robot: str, iteration: int) -> tuple[int, Step]:
        answer: Any = grant(robot, iteration)
        if not (isinstance(answer, (tuple, list)) and len(answer) == 2
                and isinstance(answer[0], Integral)):
            raise _BadAnswer(f'grant answers {answer!r}; it must be (iteration, step)')
        following, step = answer
        if STEPS.get(getattr(step, 'name', '')) is not type(step):
            raise _BadAnswer(f'grant answers the step {step!r}; it must be one of '
                           f'{", ".join(STEPS)}')
        return following, step
    method.grant = checked  # type: ignore[method-assign]


def _check(method: Method, server: Server) -> None:
    """Check what the method's ``held_up_by``, ``refusal`` and ``sending`` return.

    :raises _BadAnswer: one of the three returns an invalid value.
    """
    fleet = {member.robot: member.standing for member in server.active()}
    for member in server.active():
        names = method.held_up_by(member.robot, fleet)
        if not isinstance(names, list) or not set(names) <= set(server.members):
            raise _BadAnswer(f'held_up_by answers {names!r}; it must be a list of names of robots')
        if not isinstance(reason := method.refusal(member.robot), str) or reason:
            raise _BadAnswer(f"refusal answers {reason!r}; it must be '' for a robot of the fleet")
    if not isinstance(sending := method.sending(), Sending):
        raise _BadAnswer(f'sending answers {sending!r}; it must be a Sending')
