"""`rog chaos` reports wrong behaviour of a fleet as violations.

It does not report right behaviour.
"""

import math

import pytest
from fleet_emulation.chaos_watch import Seen, Watch, checksums, grew, growth, mirrored, offered

BOUND, LIMIT = 60.0, 4.0


def watched(*seen):
    """Return a `Watch` that has observed one robot in several phases.

    ``seen``: for each phase a tuple (duration in seconds, iterations per second, whether the server
    counts the robot as away, whether the robot can work).
    """
    watch, now, iteration = Watch(BOUND, LIMIT), 0.0, 0.0
    for duration, speed, away, able in seen:
        for _ in range(int(duration * 4)):
            watch.observe(now, {'robot1': Seen(int(iteration), away, '' if able else 'pause')})
            now += 0.25
            iteration += speed / 4
    return watch


def test_a_robot_that_can_work_and_stands_still_is_reported_once():
    found = watched((10, 1, False, True), (200, 0, False, True)).violations
    assert [(v.what, v.target) for v in found] == [('no progress', 'robot1')]
    assert found[0].t == pytest.approx(10 + BOUND, abs=1.5)


def test_a_robot_that_cannot_work_may_stand_still_and_be_called_away():
    watch = watched((10, 1, False, True), (5, 0, False, False), (200, 0, True, False),
                    (20, 0, True, True), (30, 1, False, True))
    assert not watch.violations
    assert watch.returns == {'pause': [pytest.approx(21, abs=1.0)]}


def test_a_slow_robot_that_is_called_away_is_a_false_death():
    watch = watched((30, 0.1, False, True), (5, 0.1, True, True))
    assert [v.what for v in watch.violations] == ['false death']


def test_a_robot_may_be_called_away_just_after_it_has_returned():
    watch = watched((30, 1, False, True), (10, 0, False, False), (1, 0, False, True),
                    (1, 0, True, True), (20, 1, False, True))
    assert not watch.violations


def counters(t, *ways):
    up, down = ({'bytes': nbytes, 'busy': busy} for nbytes, busy in ways)
    return {'t': t, 'robots': {'robot1': {'uplink': up, 'downlink': down}}}


@pytest.mark.parametrize(('up', 'down', 'mbit'), [
    ((5000, 1.0), (250, 0.1), 0.04), ((250, 0.1), (5000, 1.0), 0.04),
    ((5000, 1.0), (2500, 1.0), 0.02), ((250, 0.5), (0, 0.0), math.inf)])
def test_a_link_that_had_to_wait_all_the_time_got_what_the_air_had_for_it(up, down, mbit):
    before = counters(7.0, (10 ** 6, 40.0), (10 ** 6, 40.0))
    after = counters(8.0, (10 ** 6 + up[0], 40.0 + up[1]), (10 ** 6 + down[0], 40.0 + down[1]))
    assert offered(before, after) == {'robot1': pytest.approx(mbit)}


@pytest.mark.parametrize(('slope', 'expected'), [(0.0, False), (0.005, False), (0.1, True)])
def test_memory_is_flat_or_not(slope, expected):
    samples = [(t, 300 + slope * t) for t in range(0, 3600, 5)]
    assert grew(samples) == expected
    assert growth(samples) == pytest.approx(slope * 1800, rel=0.1, abs=0.1)


def test_memory_of_a_short_life_is_not_judged():
    assert growth([(0, 1), (60, 1000)]) is None and growth([]) is None


def test_rows_are_compared_where_both_sides_have_logged_them():
    server = checksums(['[INFO] checksum of a/2/3/4: 0000000a', 'checksum of b/2/3/4: 0000000b',
                        'checksum of b/2/3/4: 0000000c', 'checksum of c/2/3/4: 0000000d'])
    robot = checksums(['x checksum of a/2/3/4: 0000000a', 'checksum of b/2/3/4: 0000000f'])
    assert mirrored(server, [robot]) == (2, ['b/2/3/4'])
