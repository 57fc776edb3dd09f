"""The seed decides all faults of `rog chaos`.

At any time, at least `PRESENT` robots can take part.
"""

from fleet_emulation.chaos_schedule import (
    APART,
    LINK_IMPAIRMENT,
    OF_A_ROBOT,
    OF_THE_SERVER,
    PRESENT,
    SERVER,
    quiet,
    schedule,
)
from fleet_emulation.radio import Conditions
from hypothesis import given
from hypothesis import strategies as st

ROBOTS = [f'robot{number}' for number in range(1, 6)]
seeds = st.integers(0, 2**31 - 1)
durations = st.floats(0, 7200)


@given(seeds, durations)
def test_the_seed_decides_everything(seed, duration):
    assert schedule(seed, ROBOTS, duration) == schedule(seed, ROBOTS, duration)


@given(seeds, durations)
def test_mishaps_are_in_order_within_their_bounds_and_leave_the_ends_quiet(seed, duration):
    found = schedule(seed, ROBOTS, duration)
    assert [m.start for m in found] == sorted(m.start for m in found)
    for fault in found:
        server = fault.target == SERVER
        assert server or fault.target in ROBOTS
        shortest, longest, _ = (OF_THE_SERVER if server else OF_A_ROBOT)[fault.kind]
        assert shortest <= fault.duration <= longest * (1 + 1e-12)
        assert fault.start >= quiet(duration)
        assert fault.end <= duration - quiet(duration) + 1e-9
        assert (fault.conditions != Conditions()) == (fault.kind == LINK_IMPAIRMENT)
        assert fault.conditions.loss <= 0.3


@given(seeds, st.integers(PRESENT + 1, 8))
def test_enough_robots_are_there_at_every_moment_and_each_has_time_to_recover(seed, count):
    robots = [f'robot{number}' for number in range(count)]
    found = schedule(seed, robots, 3600.0)
    for fault in found:
        at = fault.start
        now = [m for m in found if m.start <= at < m.end]
        away = [m.target for m in now if m.absent]
        assert len(away) == len(set(away)) <= count - PRESENT
        assert sum(m.target == SERVER for m in now) <= 1
        for other in found:
            if other.target == fault.target and other.start > at and other.absent == fault.absent:
                assert other.start >= fault.end + APART


def test_an_hour_has_everything_in_it():
    kinds = {fault.kind for fault in schedule(1, ROBOTS, 3600.0)}
    assert kinds == {*OF_A_ROBOT, *OF_THE_SERVER}
