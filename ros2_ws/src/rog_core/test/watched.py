"""Checks that a running machine changes its states only as the state tables allow."""

from __future__ import annotations

from contextlib import contextmanager

from rog_core.patience import Patience
from rog_core.protocol import states
from rog_core.server.member import Member
from rog_core.server.server import Server
from rog_core.transfer.receiver import Receiver
from rog_core.transfer.sender import Sender
from rog_core.worker.worker import Worker

TABLE_OF = {(Worker, 'state'): states.WORKER, (Worker, 'gradient'): states.GRADIENT,
            (Member, 'state'): states.MEMBER, (Patience, 'place'): states.PLACE,
            (Server, 'state'): states.SERVER, (Sender, 'state'): states.SENDER,
            (Receiver, 'state'): states.RECEIVER}


class _State:
    """An attribute that accepts only the states that a table allows.

    The first value must be the initial state. Each later value must be a state to which the table
    allows a change from the present state.
    """

    def __init__(self, name, table, changes):
        self.name, self.table, self.changes = name, table, changes

    def __get__(self, machine, owner):
        return self if machine is None else vars(machine)[self.name]

    def __set__(self, machine, state):
        former = vars(machine).get(self.name)
        if former is None:
            assert state == next(iter(self.table.rows)), f'{self.table.who} begins as {state}'
        else:
            after = self.table.rows[former].values()
            assert state in after, f'{self.table.who} that was {former} is {state} all at once'
            self.changes.add((self.table.who, former, state))
        vars(machine)[self.name] = state


@contextmanager
def watched():
    """Collect all changes of state while the block runs.

    Yields a set of changes: (name of the state machine in its table, state before, state after).
    """
    changes: set = set()
    nothing = object()
    former = {(cls, name): vars(cls).get(name, nothing) for cls, name in TABLE_OF}
    for (cls, name), table in TABLE_OF.items():
        setattr(cls, name, _State(name, table, changes))
    try:
        yield changes
    finally:
        for (cls, name), default in former.items():
            if default is nothing:
                delattr(cls, name)
            else:
                setattr(cls, name, default)
