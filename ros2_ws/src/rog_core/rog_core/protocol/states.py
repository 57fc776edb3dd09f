"""The state machines of the protocol, as tables that map a state and an event to the next state.

Every change of state of a worker, of a member at the server, and of a transfer goes through
`Table.after`. An event is an error if the table does not list it for the present state. If the peer
can cause the event, the peer is at fault. Otherwise the program that called the machine is at
fault. `docs/inside/protocol.md` shows the same tables; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import LocalProtocolError, RemoteProtocolError

# States of a worker.
REGISTERING, JOINING, COMPUTING = 'registering', 'joining', 'computing'
PUSHING, WAITING, PULLING, STOPPED = 'pushing', 'waiting', 'pulling', 'stopped'
PAUSED = 'paused'  # the worker has left, and may come back with the rows that it has
# Two states of a worker that occur only in status messages. STARVED: the worker waits for data.
# EVALUATING: the worker evaluates the final model.
STARVED, EVALUATING = 'starved', 'evaluating'
# States of a worker's gradient. IDLE: no gradient is ordered. BUSY: the worker computes a gradient.
# READY: the gradient is computed, but not used yet.
IDLE, BUSY, READY = 'idle', 'busy', 'ready'
# States of a member, which is the server's data about one robot. A member can also have four
# states of a worker: joining, waiting, pulling and stopped.
TRAINING, DRAINING, AWAY = 'training', 'draining', 'away'
# States of a member's place in the fleet. COUNTED: other robots wait for the member. RETIRED: no
# robot waits for the member.
COUNTED, RETIRED = 'counted', 'retired'
# States of the server.
RUNNING, STOPPING = 'running', 'stopping'
# States of a transfer. First line: the states at its sender. Second line: those at its receiver.
SENDING, CLOSING, DONE = 'sending', 'closing', 'done'
NONE, OPEN, CLOSED = 'none', 'open', 'closed'


@dataclass(frozen=True)
class Table:
    """One state machine. ``who``: name of the machine in error texts.

    ``peer``: events that the peer causes. ``rows``: maps each state to its events, and each
    event to the next state. The first state is the initial state.
    """

    who: str
    rows: Mapping[str, Mapping[str, str]]
    peer: frozenset[str] = frozenset()

    @property
    def events(self) -> list[str]:
        """All events, in the order in which the table first names them."""
        return list(dict.fromkeys(event for row in self.rows.values() for event in row))

    def after(self, state: str, event: str) -> str:
        """Return the state after an event.

        If the event is not allowed in this state, raises `RemoteProtocolError` for an event that
        the peer causes, and `LocalProtocolError` for any other event.
        """
        if event in self.rows[state]:
            return self.rows[state][event]
        fault = RemoteProtocolError if event in self.peer else LocalProtocolError
        raise fault(f"'{event}' cannot happen to {self.who} that is {state}; it may be "
                    f"{', '.join(self.rows[state]) or 'nothing any more'}")

    def markdown(self) -> str:
        """Return the table of `docs/inside/protocol.md`: a row per state, a column per event."""
        lines = [f'| {self.who} | {" | ".join(self.events)} |',
                 '|---' * (len(self.events) + 1) + '|']
        for state, row in self.rows.items():
            lines.append(f'| `{state}` | {" | ".join(row.get(e, "") for e in self.events)} |')
        return '\n'.join(lines)


WORKER = Table('a worker', {
    REGISTERING: {'accepted': JOINING, 'refused': STOPPED, 'leave': STOPPED, 'pause': PAUSED},
    JOINING: {'rows': JOINING, 'stored': JOINING, 'granted': COMPUTING, 'lost': REGISTERING,
              'final': STOPPED, 'leave': STOPPED, 'pause': PAUSED},
    # A server may grant the next iteration while the worker still computes the present iteration: a
    # restarted server may count the push of the present iteration as done.
    COMPUTING: {'push': PUSHING, 'rows': COMPUTING, 'granted': COMPUTING, 'lost': REGISTERING,
                'final': STOPPED, 'leave': STOPPED, 'pause': PAUSED},
    PUSHING: {'taken': WAITING, 'lost': REGISTERING, 'leave': STOPPED, 'rows': PUSHING,
              'pause': PAUSED},
    WAITING: {'rows': PULLING, 'granted': COMPUTING, 'lost': REGISTERING, 'final': STOPPED,
              'leave': STOPPED, 'pause': PAUSED},
    PULLING: {'rows': PULLING, 'granted': COMPUTING, 'lost': REGISTERING, 'final': STOPPED,
              'leave': STOPPED, 'pause': PAUSED},
    PAUSED: {'resume': REGISTERING, 'leave': STOPPED},
    STOPPED: {'leave': STOPPED},
}, frozenset({'accepted', 'refused', 'granted', 'lost', 'final', 'rows', 'stored',
              'taken'}))

# The gradient has its own table, because with pipelining a worker also computes while it pushes,
# waits and pulls.
GRADIENT = Table('a gradient', {
    IDLE: {'order': BUSY},
    BUSY: {'order again': BUSY, 'use': IDLE, 'keep': READY, 'drop': IDLE},
    READY: {'use': IDLE, 'drop': IDLE},
})

MEMBER = Table('a member', {
    JOINING: {'enter': WAITING, 'silent': AWAY, 'leave': STOPPED},
    WAITING: {'pull': PULLING, 'drain': DRAINING, 'silent': AWAY, 'leave': STOPPED},
    PULLING: {'pulled': TRAINING, 'silent': AWAY, 'leave': STOPPED},
    TRAINING: {'pushed': WAITING, 'silent': AWAY, 'leave': STOPPED},
    DRAINING: {'drained': STOPPED, 'silent': AWAY, 'leave': STOPPED},
    AWAY: {},
    STOPPED: {},
}, frozenset({'enter', 'pulled', 'pushed', 'drained', 'leave'}))

# Whether a member counts or is retired has its own table, because the transfers of a retired robot
# continue.
PLACE = Table('a place', {
    COUNTED: {'retire': RETIRED},
    RETIRED: {'return': COUNTED},
})

SERVER = Table('a server', {
    RUNNING: {'stop': STOPPING},
    STOPPING: {},
})

SENDER = Table('a sent transfer', {
    SENDING: {'close': CLOSING, 'receipt': DONE, 'abort': DONE},
    CLOSING: {'receipt': DONE, 'abort': DONE},
    DONE: {},
}, frozenset({'receipt'}))

RECEIVER = Table('a received transfer', {
    NONE: {'begin': OPEN, 'restore': CLOSED},
    OPEN: {'begin': OPEN, 'end': CLOSED, 'cut short': CLOSED},
    CLOSED: {'begin': OPEN},
}, frozenset({'begin', 'end'}))

TABLES = (WORKER, GRADIENT, MEMBER, PLACE, SERVER, SENDER, RECEIVER)
