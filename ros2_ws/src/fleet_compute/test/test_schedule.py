"""Whose request is next, and which are computed together."""

import math

import pytest
from fleet_compute.schedule import AGAIN, MOST, Ready, Schedule
from hypothesis import given
from hypothesis import strategies as st


class Program:
    """Any object that can be told from others."""


def ready(request, program, deadline, part=0, arrived=0.0):
    return Ready(request, program, part, arrived, deadline)


def names(chosen):
    return [r.request for r in chosen]


def measured(program, single, sizes=(2, 4, 8, 16), each=math.nan):
    """A schedule that knows a program's time per request, alone and in batches."""
    schedule = Schedule()
    schedule.note(program, 0, 1, single)
    for size in sizes if each == each else ():
        for _ in range(2):
            schedule.note(program, 0, size, size * each)
    return schedule


def test_the_first_that_came_is_first():
    schedule, a, b = Schedule(), Program(), Program()
    waiting = [ready('second', a, 3.0, arrived=0.2), ready('first', b, 9.0, arrived=0.1)]
    assert names(schedule.choose(waiting, 0.5)) == ['first']


def test_a_request_that_would_be_late_overtakes_others():
    a, b = Program(), Program()
    schedule = measured(a, 1.0)
    schedule.note(b, 0, 1, 1.0)
    waiting = [ready('patient', a, 9.0), ready('urgent', b, 2.5, arrived=0.1)]
    assert names(schedule.choose(waiting, 0.5)) == ['patient']     # both are in time
    assert names(schedule.choose(waiting, 1.0)) == ['urgent']
    assert names(schedule.choose(waiting, 1.6)) == ['patient']     # it is late in any order


def test_a_request_whose_deadline_is_over_comes_last():
    schedule, a, b = Schedule(), Program(), Program()
    assert names(schedule.choose([ready('over', a, 1.0), ready('on time', b, 9.0)], 2.0)) == \
        ['on time']
    assert names(schedule.choose([ready('over', a, 1.0)], 2.0)) == ['over']


def test_requests_with_one_next_part_are_computed_together_if_that_saves_time():
    a, b = Program(), Program()
    waiting = [ready(k, a, 10.0 + k) for k in range(3)] + [ready('other', b, 99.0),
                                                          ready('elsewhere', a, 11.0, part=7)]
    assert names(measured(a, 1.0, each=0.5).choose(waiting, 0.0)) == [0, 1, 2]
    assert names(measured(a, 1.0, each=0.8).choose(waiting, 0.0)) == [0]


def test_a_batch_has_at_most_the_largest_size():
    a = Program()
    waiting = [ready(k, a, 1e9) for k in range(2 * MOST)]
    assert len(measured(a, 1.0, each=0.1).choose(waiting, 0.0)) == MOST


def test_a_single_request_is_measured_before_a_batch_is_tried():
    schedule, a = Schedule(), Program()
    waiting = [ready(0, a, 9.0), ready(1, a, 9.0)]
    assert len(schedule.choose(waiting, 0.0)) == 1
    schedule.note(a, 0, 1, 1.0)
    assert len(schedule.choose(waiting, 0.0)) == 2


def test_no_batch_makes_the_first_request_late():
    a = Program()
    schedule = measured(a, 1.0, each=0.7)
    waiting = [ready(k, a, 2.0) for k in range(8)]
    assert len(schedule.choose(waiting, 0.0)) == 2      # 1.4 s, where eight take 5.6 s


def test_what_saved_nothing_is_seldom_tried_again():
    a = Program()
    schedule = measured(a, 1.0, each=1.0)
    waiting = [ready(0, a, 1e9), ready(1, a, 1e9)]
    sizes = [len(schedule.choose(waiting, 0.0)) for _ in range(2 * AGAIN)]
    assert 1 <= sum(size > 1 for size in sizes) <= AGAIN + 1 and sizes[0] == 1


def test_a_program_that_cannot_be_batched_is_computed_alone():
    a = Program()
    schedule = measured(a, 1.0, each=0.1)
    schedule.never_together(a)
    assert len(schedule.choose([ready(k, a, 9.0) for k in range(4)], 0.0)) == 1


@pytest.mark.parametrize('greedy', [0.0, 1e-3, 0.5, 1.1, 1.9, 2.0, 2.5, 5.0])
def test_a_robot_with_short_deadlines_leaves_the_others_their_share(greedy):
    a, b = Program(), Program()
    schedule = measured(a, 1.0)
    schedule.note(b, 0, 1, 1.0)
    now, arrived, served = 0.0, {'greedy': 0.0, 'patient': 0.0}, {'greedy': 0, 'patient': 0}
    while now < 100:
        waiting = [ready('greedy', a, arrived['greedy'] + greedy, arrived=arrived['greedy']),
                   ready('patient', b, arrived['patient'] + 1e6, arrived=arrived['patient'])]
        (name,) = names(schedule.choose(waiting, now))
        now += 1.0
        served[name] += 1
        arrived[name] = now
    assert served['patient'] >= 49


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100), st.floats(0, 100)), min_size=1,
                max_size=40), st.lists(st.tuples(st.integers(0, 3), st.integers(1, MOST),
                                                 st.floats(1e-6, 10)), max_size=40),
       st.floats(0, 200))
def test_what_is_chosen_waits_and_has_one_part(requests, times, now):
    programs = [Program() for _ in range(4)]
    schedule = Schedule()
    for program, size, seconds in times:
        schedule.note(programs[program], 0, size, seconds)
    waiting = [ready(k, programs[p], arrived + within, arrived=arrived)
               for k, (p, arrived, within) in enumerate(requests)]
    chosen = schedule.choose(waiting, now)
    assert 1 <= len(chosen) <= MOST and len(set(names(chosen))) == len(chosen)
    assert len({r.program for r in chosen}) == 1 and all(r in waiting for r in chosen)
    assert all(schedule.expected(p) >= 0 for p in programs)
    hopeful = [r for r in waiting if r.deadline >= now + 10]
    assert not hopeful or chosen[0].deadline >= now


def test_what_cannot_be_in_time_does_not_make_others_late():
    a, b = Program(), Program()
    schedule = measured(a, 1.0)
    schedule.note(b, 0, 1, 1.0)
    waiting = [ready('hopeless', a, 0.9), ready('in time', b, 1.2, arrived=0.1)]
    assert names(schedule.choose(waiting, 0.1)) == ['in time']


def test_expected_is_the_time_of_a_whole_request():
    schedule, a = Schedule(), Program()
    assert schedule.expected(a) == 0.0
    for seconds in (9.0, 1.0, 2.0):
        schedule.note_whole(a, seconds)
    assert schedule.expected(a) == 2.0
