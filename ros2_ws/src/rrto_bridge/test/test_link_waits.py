"""How the program's end of the link waits, without a server."""

import signal
from collections import deque

import pytest
from rrto_bridge.client.shell import Link
from rrto_bridge.protocol.errors import LinkError
from rrto_bridge.protocol.messages import ENDED


class Stop(Exception):
    pass


@pytest.fixture
def link():
    made = Link.__new__(Link)
    made.server, made._inbox, made._waited = 's', deque(), False
    return made


def test_a_program_that_is_interrupted_with_its_server_is_not_told_that_that_has_ended(link):
    def stop(*_):
        if not link.idle:   # as `signals` does with handlers
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
