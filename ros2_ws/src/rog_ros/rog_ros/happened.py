"""What happened in a fleet, as two successive statuses of its server show it.

The server chooses by this which of its statuses it keeps for those that begin to listen later, and
they show by this what happened. Texts come from the network: they are made printable and short.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rog_core.errors import shown
from rog_core.protocol.states import AWAY, PAUSED, RETIRED, STOPPED, STOPPING

ROBOTS = 256     # maximum number of robots shown; a server has the same limit
FAULTS = 16      # maximum number of faults of the server that are shown
NAME = 60        # maximum characters shown of a name, a state or a method
APART = (AWAY, RETIRED)  # states that only the server can report
LEFT = {PAUSED: 'has paused', STOPPED: 'has left'}  # the robot itself has left


class Event(NamedTuple):
    """An event that happened ``t`` seconds after the start of the run.

    ``robot`` is empty if the event concerns the whole fleet.
    """

    t: float
    robot: str
    text: str


def changes(former: Any, message: Any) -> Sequence[Event]:
    """Return the events that two successive statuses of the server show; ``former`` may be None.

    A robot that is away or retired, and a fault of the server, is an event also without a former
    status. Of pushes that are refused, the 1st, 2nd, 4th, 8th ... is an event.
    """
    found, t = [], float(message.elapsed)
    if former is not None and former.sync not in ('', message.sync):
        found.append(Event(t, '', f'the method is {shown(message.sync, NAME)} now'))
    if former is not None and message.state != former.state:
        found.append(Event(t, '', f'the fleet is {shown(message.state, NAME)}'))
    now, failed = _faults(message), {} if former is None else _faults(former)
    found += [Event(t, '', shown(line)) for what, line in now.items() if what not in failed]
    found += [Event(t, '', f'mended: {shown(what, NAME)}') for what in failed if what not in now]
    before = {} if former is None else {r.robot: r for r in former.robots[:ROBOTS]}
    for robot in message.robots[:ROBOTS]:
        name, was = shown(robot.robot, NAME), before.get(robot.robot)
        text = _step('' if was is None else was.state, robot, former is not None,
                     message.state in (STOPPING, STOPPED))
        if text:
            found.append(Event(t, name, text))
        if was is not None and robot.refused.bit_length() > was.refused.bit_length():
            found.append(Event(t, name, f'push_refused: {robot.refused} of its pushes until now'))
    return found


def _faults(message: Any) -> dict[str, str]:
    """Return what the server fails to do, such as 'no checkpoint', and the line that says why."""
    return {line.partition(': ')[0]: line for line in message.faults[:FAULTS]}


def _step(was: str, robot: Any, followed: bool, ending: bool) -> str:
    """Return what became of a robot whose state in the former status is ``was``; '' if nothing.

    :param followed: whether there is a former status. Without it, the robot may have joined, left
        or come back long ago.
    :param ending: whether the run ends, so that all robots leave.
    """
    state = robot.state
    if state in APART:
        return '' if state == was else ': '.join(filter(None, (state, shown(robot.why))))
    if state in LEFT:
        return '' if state == was or not followed or ending else LEFT[state]
    if was in APART or was in LEFT:
        return 'is back'
    return 'has joined' if followed and not was else ''
