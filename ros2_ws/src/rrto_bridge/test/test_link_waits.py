"""How the program's side of the link waits; these tests need no server."""

import math
import signal
import threading
import time
from collections import deque
from queue import SimpleQueue
from types import SimpleNamespace

import pytest
from fleet_link.session import SILENT, End, Session
from fleet_msgs.msg import FrameAck
from rrto_bridge.client import shell
from rrto_bridge.client.inprocess import InProcess
from rrto_bridge.client.journal import Journal
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.client.percall import PerCall
from rrto_bridge.client.shell import Link
from rrto_bridge.program.connection import Connection
from rrto_bridge.protocol.errors import LinkError
from rrto_bridge.protocol.messages import ENDED
from rrto_bridge.protocol.record import Meta


class Stop(Exception):
    pass


@pytest.fixture
def link():
    made = Link.__new__(Link)
    made.server, made.lease, made._inbox, made._waited = 's', 3.0, deque(), False
    made.engine = None
    return made


def test_a_program_that_is_interrupted_with_its_server_is_not_told_that_that_has_ended(link):
    def stop(*_):
        if not link.idle:   # if the link is busy, delay the signal, as program/signals.py does
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            raise Stop

    link.lost = ENDED
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        with pytest.raises(Stop):
            link.receive()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not link.idle
    with pytest.raises(LinkError, match='the server has ended'):
        link.receive()


def test_a_program_that_continues_without_the_server_waits_for_no_interrupt(link, monkeypatch):
    waits = []
    monkeypatch.setattr(shell.time, 'sleep', waits.append)
    link.lost, link.engine = ENDED, SimpleNamespace(journal=Journal())
    with pytest.raises(LinkError, match='the server has ended'):
        link.receive()
    assert not waits
    link.engine.journal = None
    with pytest.raises(LinkError):
        link.receive()
    assert waits == [shell.GRACE]


@pytest.mark.parametrize(('reason', 'said'), [
    (SILENT, 'this program was suspended for 9.0 s'),
    ('its process on the server was ended by SIGKILL in a message', 'was ended by SIGKILL')])
def test_a_suspended_program_is_told_another_reason_that_the_server_gives(link, reason, said):
    link._incarnation, link._changed, link._arrived = 1, threading.RLock(), SimpleQueue()
    link._stood, link.lost, link._answered = 9.0, '', threading.Event()
    link.session, answers = Session(1 << 20, 3.0, True, time.monotonic()), []
    link._alarm = SimpleNamespace(set=lambda at: None)
    link._channel = SimpleNamespace(transmit=lambda packets, now: answers.extend(packets),
                                    deadline=math.inf)
    for _ in range(2):   # the server repeats what it gets no answer to
        link._on_message(FrameAck(incarnation=1, error=reason))
    assert answers == [End(reason)] * 2 and link._answered.is_set()
    with pytest.raises(LinkError, match=said):
        link.receive()


def test_a_link_that_is_made_while_the_program_ends_is_closed_with_it(monkeypatch):
    """A lost link makes another one on its own thread, and closing it waits for this thread."""
    closed = []
    successor = SimpleNamespace(close=lambda exits: closed.append('successor'))
    lost = SimpleNamespace(close=lambda exits: (links.append(successor), closed.append('lost')))
    links = [lost]
    monkeypatch.setattr(shell, '_links', links)
    shell._close_links()
    assert closed == ['lost', 'successor'] and not links


@pytest.mark.parametrize('ends', [False, True])
def test_a_program_that_ends_sends_no_weights_to_another_server(ends):
    def engine():
        return PerCall(InProcess(ClientMachine('async')), Journal())
    lost, found, closed = engine(), engine(), []
    lost.upload(Meta((4096,), (1,), 'uint8'), bytes(4096), True)
    lost.port.ending, found.port.close = ends, lambda: closed.append(1)
    connection = Connection(lambda: found)
    connection._lost = lost
    assert connection._found() == connection.returning == (not ends)
    assert len(closed) == ends


def test_a_server_that_cannot_take_over_is_not_asked_all_the_time(link, monkeypatch):
    now, looks, asked = [0.0], [], []
    timer = SimpleNamespace(cancel=lambda: looks.clear())
    link._wanted = ''
    link.node = SimpleNamespace(create_timer=lambda _, look: looks.append(look) or timer)
    monkeypatch.setattr(shell, 'usable', lambda node, named: ['other'])
    monkeypatch.setattr(shell, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    link.watch(lambda: asked.append(now[0]) or len(asked) == 3)
    now[0] = 1.0
    while looks and now[0] < 60:
        looks[0]()
        now[0] += 0.25
    assert asked == [1.0, 3.0, 5.0] and not looks
