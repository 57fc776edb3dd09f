"""Two ends of a session: what one sends, the other takes; both learn why it is over."""

import math

import pytest
from fleet_link.session import AGAIN, LAST_WORDS, MOST_REASON, SILENT, End, Session
from fleet_link.stream import Frame
from hypothesis import given
from hypothesis import strategies as st

LEASE = 4.0


def ends(lease=LEASE):
    return Session(1 << 20, lease, True, 0.0), Session(1 << 20, lease, False, 0.0)


def run(robot, server, until, now=0.0, lost=lambda: False):
    """Carry packets both ways until the time ``until``; return the messages that each side took."""
    took = {robot: [], server: []}
    while (now := max(now + 1e-3, min(robot.deadline, server.deadline))) < until:
        for side, other in ((robot, server), (server, robot)):
            for packet in side.poll(now):
                if not lost():
                    took[other] += map(bytes, other.take(packet, now))
    return took[robot], took[server]


@given(st.lists(st.binary(max_size=200), max_size=8), st.lists(st.booleans(), max_size=12),
       st.booleans())
def test_a_side_that_ends_is_heard_although_packets_are_lost(messages, losses, by_robot):
    robot, server = ends(1000.0)
    for message in messages:
        robot.stream.sender.offer(message)
    lost = iter(losses)
    got, took = run(robot, server, 900.0, lost=lambda: next(lost, False))
    assert (got, took) == ([], messages) and not robot.ended and not server.ended
    one, other = (robot, server) if by_robot else (server, robot)
    one.end('enough', 900.0)
    lost = iter(losses[:4])
    run(robot, server, 900.0 + LAST_WORDS, 900.0, lambda: next(lost, False))
    assert one.ended == other.ended == 'enough' and one.answered and other.answered
    assert one.over and other.over and one.ours and not other.ours
    assert one.deadline == other.deadline == math.inf


def test_two_that_end_at_the_same_time_do_not_answer_each_other_for_ever():
    robot, server = ends()
    robot.end('battery', 1.0)
    server.end('shift', 1.0)
    said = robot.poll(1.0), server.poll(1.0)
    assert said == ([End('battery')], [End('shift')])
    robot.take(said[1][0], 1.0), server.take(said[0][0], 1.0)
    assert robot.poll(9.0) == server.poll(9.0) == [] and robot.over and server.over
    assert (robot.ended, server.ended) == ('battery', 'shift')


def test_a_side_that_hears_of_the_end_before_it_has_told_its_own_tells_it():
    robot, server = ends()
    server.end('shift', 1.0)
    robot.end('battery', 1.0)
    robot.take(server.poll(1.0)[0], 1.0)
    server.take(robot.poll(1.0)[0], 1.0)
    assert robot.over and server.over and robot.answered and server.answered


def test_nobody_is_told_for_ever():
    _, server = ends()
    server.end('why', 1.0)
    said, now = 0, 1.0
    while not server.over:
        now = server.deadline
        said += len(server.poll(now))
    assert 1 < said <= 1 + LAST_WORDS / AGAIN and now <= 1.0 + LAST_WORDS


def test_each_end_of_the_peer_is_answered_and_nothing_else_then():
    robot, server = ends()
    for now in (1.0, 1.1):
        server.take(End('x' * 1000), now)
        assert server.poll(now) == [End('x' * MOST_REASON)]
    for number in range(500):
        assert server.take(Frame(number, number, True, b'x'), 2.0) == server.poll(2.0) == []
    assert not server.ours


def test_two_that_have_nothing_to_say_stay_together():
    robot, server = ends()
    run(robot, server, 100 * LEASE)
    assert not robot.ended and not server.ended


def test_a_peer_that_lives_answers_a_ping_at_once():
    robot, server = ends()
    robot.ping(0.1)
    for packet in robot.poll(0.1):
        server.take(packet, 0.2)
    answer, = server.poll(server.deadline)
    robot.take(answer, 0.3)
    assert server.heard == 0.2 and robot.heard == 0.3


@pytest.mark.parametrize('deaf', [0, 1])
def test_a_silent_peer_ends_the_session_after_the_lease(deaf):
    sides = ends()
    side = sides[deaf]
    while not side.ended:
        now = side.deadline
        said = side.poll(now)
    assert now == LEASE and said == [End(SILENT)]
    sides[1 - deaf].take(said[0], now)
    assert sides[1 - deaf].ended == SILENT


def test_what_no_peer_sends_ends_the_session_and_is_told():
    _, server = ends()
    server.take(Frame(0, 5000, True, b'x'), 1.0)
    end, = server.poll(1.0)
    assert 'was allowed only frames' in end.reason == server.ended
