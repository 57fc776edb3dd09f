"""Which statuses of a robot the server takes, without a key."""

from types import SimpleNamespace

import pytest
from rog_core.errors import RemoteProtocolError
from rog_msgs.msg import TrainingStatus
from rog_ps.peer import Peer

MEMBER = SimpleNamespace(incarnation=5, granted=7)


def check(member=MEMBER, **fields):
    status = TrainingStatus(**{'robot': 'robot1', 'state': 'computing', **fields})
    Peer.check_status(SimpleNamespace(session=None), status, member, 9, keyed=False)


def test_an_iteration_that_was_not_granted_is_none():
    check(iteration=7)
    check(SimpleNamespace(incarnation=5, granted=0), iteration=66)  # it has just come back
    with pytest.raises(RemoteProtocolError, match='at most iteration 7, .* got 8'):
        check(iteration=8)


@pytest.mark.parametrize('fields', [{'state': 'dancing'}, {'state': 'stopped', 'session': 5}])
def test_a_state_that_is_none_or_not_proved_is_refused(fields):
    check(state='stopped', session=5 ^ 9)  # the honest twin
    with pytest.raises(RemoteProtocolError):
        check(**fields)
