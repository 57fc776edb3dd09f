"""Which statuses of a robot the server accepts if the fleet has no key."""

from types import SimpleNamespace

import pytest
from fleet_link.errors import SealError
from fleet_link.seal import Session
from fleet_ros.sealing import seal
from rog_core.errors import RemoteProtocolError
from rog_msgs.msg import Heartbeat, TrainingStatus
from rog_ps.peer import Peer

MEMBER = SimpleNamespace(incarnation=5, granted=7)


def check(member=MEMBER, **fields):
    status = TrainingStatus(**{'robot': 'robot1', 'state': 'computing', **fields})
    unkeyed().check_status(status, member, 9, keyed=False)


def unkeyed():
    return Peer('/robot1/', None, None)


@pytest.mark.parametrize('state', ['dancing', 'stopped', 'paused'])
def test_a_heartbeat_cannot_say_that_the_robot_leaves(state):
    unkeyed().check_heartbeat(Heartbeat(state='computing'), keyed=False)
    with pytest.raises(RemoteProtocolError, match=state):
        unkeyed().check_heartbeat(Heartbeat(state=state), keyed=False)


def test_with_a_key_each_heartbeat_counts_once_in_a_session():
    sessions = [Session(bytes(32), worker, 9) for worker in (5, 6)]
    peer = unkeyed()

    def beat(session, count):
        peer.session = session
        peer.check_heartbeat(seal(session.to_server, Heartbeat(
            state='computing', count=count)), keyed=True)
    beat(sessions[0], 3)
    with pytest.raises(RemoteProtocolError, match='second time'):
        beat(sessions[0], 3)
    beat(sessions[1], 1)  # another process of the robot counts from the start
    with pytest.raises(SealError):
        peer.check_heartbeat(Heartbeat(state='computing', count=9), keyed=True)


def test_an_iteration_that_was_not_granted_is_none():
    check(iteration=7)
    # 0: the robot has just come back, so no iteration is granted yet
    check(SimpleNamespace(incarnation=5, granted=0), iteration=66)
    with pytest.raises(RemoteProtocolError, match='at most iteration 7, .* got 8'):
        check(iteration=8)


@pytest.mark.parametrize('fields', [{'state': 'dancing'}, {'state': 'stopped', 'session': 5}])
def test_a_state_that_is_none_or_not_proved_is_refused(fields):
    # the state 'stopped' is accepted together with the right session
    check(state='stopped', session=5 ^ 9)
    with pytest.raises(RemoteProtocolError):
        check(**fields)


def recorded(statuses):
    """Return for each of ``statuses`` whether it is written to the record.

    A status is (attempt, iteration, evaluated_at, state).
    """
    peer = unkeyed()
    return [peer.is_recorded(
        TrainingStatus(iteration=iteration, evaluated_at=evaluated, state=state),
        SimpleNamespace(attempt=attempt)) for attempt, iteration, evaluated, state in statuses]


def test_all_that_a_robot_reports_is_recorded_also_when_it_comes_back():
    # the robot registers again after a restart of the server
    honest = [(1, 57, 50, 'registering')]
    for iteration in range(1, 50):
        honest += [(iteration + 1, iteration, iteration // 5, 'computing')] * 3
    honest += [(51, 0, 0, 'joining')]      # a new process of the robot registers
    honest += [(51 + n, n, 0, 'pushing') for n in range(20)]
    assert all(recorded(honest))


def lines(said):
    """Return how many lines the record gets from statuses.

    A status that is equal to the previous recorded status gives no line.
    """
    kept = [one for one, goes in zip(said, recorded(said), strict=True) if goes]
    return sum(one != other for one, other in zip([None, *kept], kept, strict=False))


def test_who_says_again_and_again_that_it_has_finished_something_does_not_fill_the_disk():
    assert lines([(5, 1 + n % 2, 7, 'computing') for n in range(1000)]) <= 7
    said = [(5, 1, n, 'computing') for n in range(1000)]
    assert lines(said) <= 7
    assert recorded([*said, (5, 1, 7, 'stopped')])[-1], 'its last word, which is proved'
