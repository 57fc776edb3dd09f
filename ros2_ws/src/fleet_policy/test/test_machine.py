"""Decisions of `PolicyMachine` under any schedule of losses, repetitions, delays and crashes."""

import math
import re
from itertools import cycle

import numpy as np
import pytest
from fleet_policy.core.config import CoreSettings
from fleet_policy.core.machine import ACT, HOLD, NOTHING, SAFE, STARVED, STOP, WAITING
from fleet_policy.core.places import ROBOT, SERVER
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from virtual_policy import chunk_of, world

# A server's answers to successive requests: for each request, the delays in seconds of all copies
# of its answer. If there is no copy, the answer is lost.
answers = st.lists(st.lists(st.floats(0.001, 10.0), max_size=3), min_size=1, max_size=12)
dead = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 15)), max_size=3)
options = st.builds(CoreSettings, request_share=st.floats(0.05, 1.0), in_flight=st.integers(1, 4),
                    aggregation=st.sampled_from(['latest', 'weighted']),
                    patience=st.floats(0.2, 3.0))


def unreliable(script, crashes):
    """Return a function that returns the delays of a server's replies to the next request.

    The delays follow ``script``. A reply that would arrive during a crash is lost.
    """
    turn = iter(range(10**9))

    def replies(now):
        delays = script[next(turn) % len(script)]
        return [d for d in delays if not any(at <= now + d <= at + last for at, last in crashes)]
    return replies


@examples(200)
@given(answers, dead, options, st.floats(0.02, 1.3))
def test_no_tick_starves_if_the_robot_alone_can_keep_up(script, crashes, settings, robot_takes):
    made = world(unreliable(script, crashes), robot_takes=robot_takes, settings=settings).run(25)
    assert made.starved == 0 and made.machine.counts['missed'] == 0
    begun = [command.kind == ACT for _, _, command, _ in made.executed]
    assert all(begun[begun.index(True):])


@examples(100)
@given(answers, dead, st.lists(st.integers(20, 120), min_size=1, max_size=6), st.floats(0.02, 0.2))
def test_chunks_of_changing_lengths_starve_no_tick_if_the_robot_keeps_up_with_the_shortest(
        script, crashes, lengths, robot_takes):
    made, length = world(unreliable(script, crashes), robot_takes=robot_takes), cycle(lengths)
    made.spoil = lambda infer, actions: actions[:next(length)]
    assert made.run(25).starved == 0


@pytest.mark.parametrize('takes', [0.05, 0.5, 1.0])
def test_observations_that_come_once_a_second_starve_no_tick(takes):
    for replies in (None, lambda now: [0.1]):
        assert world(replies, robot_takes=takes, period=1.0).run(60).starved == 0


@examples(200)
@given(answers, dead, st.integers(1, 4), st.floats(0.02, 5.0))
def test_actions_of_earlier_observations_never_follow_those_of_later_ones(script, crashes, several,
                                                                          robot_takes):
    settings = CoreSettings(in_flight=several)
    made = world(unreliable(script, crashes), robot_takes=robot_takes, settings=settings).run(25)
    behind = [command.values[0] for _, _, command, _ in made.executed if command.kind == ACT]
    assert behind == sorted(behind)


@examples(100)
@given(answers, dead, options)
def test_requests_in_flight_are_bounded_and_each_has_a_newer_observation(script, crashes, settings):
    made = world(unreliable(script, crashes), settings=settings)
    for _ in range(600):
        made.run(1 / 30)
        assert made.machine.places[SERVER].busy <= settings.in_flight
        assert made.machine.places[ROBOT].busy <= 1
    for place in (ROBOT, SERVER):
        observed = [infer.observed for _, infer in made.asked if infer.place == place]
        assert observed == sorted(set(observed))


def test_a_good_server_computes_everything_and_the_robot_nothing():
    made = world(lambda now: [0.1]).run(30)
    assert set(made.places()) == {SERVER} and made.machine.counts['late'] == 0


def test_a_link_that_dies_for_30_s_costs_no_tick_and_the_robot_computes_meanwhile():
    made = world(lambda now: [] if 10 <= now < 40 else [0.1]).run(60)
    assert made.starved == 0
    during = {command.place for _, now, command, _ in made.executed if 15 < now < 40}
    assert during == {ROBOT}
    assert made.executed[-1][2].place == SERVER
    asked = [now for now, infer in made.asked if infer.place == SERVER and 10 <= now < 40]
    assert len(asked) < 20          # the machine does not ask the server at every tick


def test_a_robot_that_is_too_slow_starves_and_does_what_safety_says():
    for safety, kind in (('hold', HOLD), ('stop', STOP)):
        made = world(length=75, robot_takes=2.0, settings=CoreSettings(safety=safety)).run(20)
        lacking = [c.kind for _, _, c, state in made.executed if state == STARVED]
        assert lacking and set(lacking) == {kind}
        assert made.machine.counts['starved'] == made.starved == len(lacking)


def test_the_faster_place_is_asked_and_the_other_is_measured_now_and_then():
    made = world(lambda now: [0.8], robot_takes=0.05).run(60)
    asked = [infer.place for _, infer in made.asked]
    assert asked.count(ROBOT) > 5 * asked.count(SERVER) > 0


def test_a_server_that_can_be_in_time_is_asked_before_a_slow_robot_must_begin():
    made = world(lambda now: [0.5 + 0.1 * math.sin(now)], robot_takes=1.2).run(60)
    late = [now for now, infer in made.asked if infer.place == ROBOT and now > 5]
    assert late == [] and set(made.places()[300:]) == {SERVER}
    assert made.starved == 0


def test_a_server_that_cannot_be_in_time_is_asked_at_the_share_that_is_set():
    def asked(share):
        settings = CoreSettings(request_share=share)
        made = world(lambda now: [1.0], robot_takes=1.2, settings=settings).run(60)
        assert made.starved == 0
        return sum(infer.place == SERVER for _, infer in made.asked)
    assert asked(0.25) < asked(0.5) < asked(1.0)


@pytest.mark.parametrize('takes, starves', [(1.3, False), (1.6, False), (1.75, True)])
def test_a_robot_alone_keeps_up_if_two_of_its_inferences_fit_in_a_chunk(takes, starves):
    made = world(robot_takes=takes).run(60)
    assert (made.starved > 0) is starves
    warned = any('actions of the robot take' in text for text in made.machine.warnings)
    assert warned is starves


def test_a_place_that_is_not_available_is_not_asked():
    made = world(lambda now: [0.1])
    made.machine.set_available(SERVER, False, 'not connected yet')
    made.run(20)
    assert {infer.place for _, infer in made.asked} == {ROBOT} and made.starved == 0
    assert any('not connected yet' in text for text in made.machine.warnings)
    made.machine.set_available(SERVER, True)
    made.run(20)
    assert made.executed[-1][2].place == SERVER


@pytest.mark.parametrize('spoil, message', [
    (lambda a: np.where(a == a[3, 1], math.nan, a), 'nan at'),
    (lambda a: a[:, :1], r'shape (100, 1)'), (lambda a: a[0], r'shape (2,)'),
    (lambda a: a[:0], 'shape (0, 2)')])
def test_actions_that_are_not_allowed_end_in_the_safe_state_and_say_so(spoil, message):
    made = world(lambda now: [0.1])
    made.run(5)
    made.spoil = lambda infer, actions: spoil(actions)
    made.run(5)
    assert made.ended_safe and message in made.machine.reason
    at = next(k for k, (*_, state) in enumerate(made.executed) if state == SAFE)
    assert all(command.kind == HOLD for _, _, command, _ in made.executed[at:])
    made.spoil = lambda infer, actions: actions
    made.run(5)
    assert made.ended_safe, 'until somebody resets it'
    made.machine.reset()
    made.run(5)
    assert made.executed[-1][2].kind == ACT


def test_a_sensor_that_stops_ends_in_the_safe_state_until_it_is_back():
    made = world(lambda now: [0.1]).run(5)
    made.machine.sensor('top', 'no image on camera_top for 1.0 s')
    made.run(2)
    assert made.ended_safe and 'camera_top' in made.machine.reason
    assert made.executed[-1][2].kind == HOLD
    made.machine.sensor('top', 'encoding of camera_top')
    assert made.machine.reason == 'encoding of camera_top'   # the newest
    made.machine.sensor('top', '')
    made.run(5)
    assert made.executed[-1][2].kind == ACT and made.machine.reason == ''


def test_a_stale_action_is_executed_counted_and_said():
    made = world(lambda now: [0.1] if now < 5 else [], robot_takes=3.0,
                 settings=CoreSettings(stale=1.0)).run(8)
    late = [c.age for _, _, c, _ in made.executed if c.kind == ACT and c.age > 1.0]
    assert late and made.machine.counts['stale'] == len(late)
    assert made.machine.command.age > 1.0
    assert any('s old' in text for text in made.machine.warnings)


def test_what_was_stale_or_missing_between_two_reports_is_said_in_the_next_one():
    made = world(lambda now: [0.1] if now < 5 else [], robot_takes=3.0,
                 settings=CoreSettings(stale=1.0))
    said, since = [], {'stale': 0, 'starved': 0}
    for _ in range(100):
        before = made.machine.counts.copy()
        made.run(0.5)
        text = '; '.join(made.machine.warnings) + made.machine.state
        for what, words in (('stale', 's old'), ('starved', 'no action|starved')):
            happened = made.machine.counts[what] > before[what]
            since[what] += happened
            said.append(happened == bool(re.search(words, text)))
        made.machine.begin_report()
    assert all(said) and all(since.values())


def test_an_action_beyond_the_greatest_age_is_not_executed():
    made = world(lambda now: [0.1] if now < 5 else [], robot_takes=30.0,
                 settings=CoreSettings(most_age=1.0)).run(20)
    ages = [c.age for _, _, c, _ in made.executed if c.kind == ACT]
    assert max(ages) <= 1.0 and made.starved > 0


def test_a_latency_beyond_what_the_queue_covers_is_said():
    made = world(lambda now: [2.5], robot_takes=20.0).run(30)
    assert any('raise request_share' in text for text in made.machine.warnings)


def test_the_prefix_is_what_will_be_executed_before_the_answer_comes():
    made = world(lambda now: [0.2]).run(10)
    infer = made.asked[-1][1]
    first = made.machine.tick_of(infer.observed)
    assert infer.prefix[:, 1].tolist() == list(range(first, first + len(infer.prefix)))
    assert len(infer.prefix) >= 0.2 * 30
    assert made.asked[0][1].prefix is None


def test_answers_to_unknown_and_former_requests_are_counted_and_not_taken():
    machine = world().machine
    machine.on_observation(0.0)
    _, asked = machine.on_tick(0.0)
    assert machine.on_answer(99, chunk_of(0, 5), 0.1) == 'unknown'
    machine.reset()
    assert machine.on_answer(asked[0].request, chunk_of(0, 5), 0.1) == 'repeated'
    assert machine.state == WAITING and machine.on_tick(0.1)[0].kind == NOTHING


def test_ticks_that_the_shell_has_missed_are_counted():
    machine = world().machine
    machine.on_tick(1.0)
    assert machine.deadline == pytest.approx(31 / 30)
    machine.on_tick(1.5)
    assert machine.counts['missed'] == 14 and machine.counts['ticks'] == 2
