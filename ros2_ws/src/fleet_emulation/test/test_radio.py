"""The radio of an emulated network divides air time as the simulation does, and impairs frames."""

import math

import pytest
from fleet_emulation.radio import AT_BASE, Conditions, Radio
from fleet_env.errors import SettingError
from fleet_env.links.channel import Channel
from fleet_env.links.trace import LinkTrace
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import traces

NAMES = ('a', 'b', 'c')
fleets = st.lists(traces(), min_size=1, max_size=3).map(
    lambda found: dict(zip(NAMES, found, strict=False)))
# (seconds since the previous frame, robot, uplink, bytes)
frames = st.lists(st.tuples(st.floats(0, 2), st.sampled_from(NAMES), st.booleans(),
                            st.integers(60, 1514)), min_size=1, max_size=20)
chance = st.sampled_from([0.0, 0.3, 1.0])
conditions = st.builds(Conditions, linked=st.booleans(), delay=st.floats(0, 0.5),
                       jitter=st.floats(0, 0.5), loss=chance, duplicate=chance, reorder=chance)
FAST = LinkTrace([0.0], [8.0])  # a byte takes a microsecond


def play(radio, sent, until=1e4):
    """Send frames; return (time, robot, uplink, number of the frame) in order of arrival."""
    out, now = [], 0.0
    radio.begin(0.0)

    def drain(limit):
        while radio.deadline <= limit:
            at = radio.deadline
            out.extend((at, robot, uplink, int.from_bytes(frame[:4], 'big'))
                       for robot, uplink, frame in radio.release(at))
    for number, (gap, robot, uplink, size) in enumerate(sent):
        now += gap
        drain(now)
        if robot in radio.conditions:
            radio.take(robot, uplink, number.to_bytes(4, 'big') + bytes(size - 4), now)
    drain(until)
    return out


@given(fleets, frames, st.booleans())
def test_frames_take_the_air_time_that_messages_take_in_virtual_time(fleet, sent, shared):
    channel, now, expected = Channel(fleet, shared), 0.0, []

    def drain(limit):
        while channel.deadline <= limit:
            at = channel.deadline
            expected.extend((at, *left) for left in channel.pop(at))
    for number, (gap, robot, uplink, size) in enumerate(sent):
        now += gap
        drain(now)
        if robot in fleet and fleet[robot].rate(now) > 0:
            channel.offer(robot, uplink, size, number, now)
    drain(1e4)
    assert play(Radio(fleet, shared=shared), sent) == expected


@given(fleets, frames, conditions, st.integers(0, 99))
def test_every_frame_is_counted_once(fleet, sent, everywhere, seed):
    radio = Radio(fleet, dict.fromkeys(fleet, everywhere), seed=seed)
    out = play(radio, sent)
    for robot, entry in radio.report(1e4).items():
        for direction, uplink in (('uplink', True), ('downlink', False)):
            counted = entry[direction]
            mine = [number for _, name, up, number in out if (name, up) == (robot, uplink)]
            offered = [number for number, (_, name, up, _) in enumerate(sent)
                       if (name, up) == (robot, uplink)]
            assert counted['frames'] == len(mine) and set(mine) <= set(offered)
            assert counted['refused'] + counted['lost'] + len(set(mine)) <= len(offered)
            if fleet[robot].mean > 0:  # the link is not dead for ever: all frames leave
                assert counted['refused'] + counted['lost'] + len(set(mine)) == len(offered)
            assert counted['bytes'] <= entry['capacity_mbit'] / 8e-6 + 1e-3


@given(frames, st.floats(0, 0.5), st.floats(0, 0.5))
def test_delay_and_jitter_keep_the_order_and_their_bounds(sent, delay, jitter):
    sent = [(gap, 'a', True, size) for gap, _, _, size in sent]
    plain = play(Radio({'a': FAST}), sent)
    late = play(Radio({'a': FAST}, {'a': Conditions(delay=delay, jitter=jitter)}), sent)
    assert [number for *_, number in late] == [number for *_, number in plain]
    for (before, *_), (after, *_) in zip(plain, late, strict=True):
        assert before + delay - 1e-9 <= after <= before + delay + jitter + 1e-9


def test_a_frame_that_is_held_back_is_overtaken():
    radio = Radio({'a': FAST}, {'a': Conditions(reorder=0.5, reorder_time=0.01)}, seed=1)
    order = [number for *_, number in play(radio, [(0.0, 'a', True, 100)] * 50)]
    assert sorted(order) == list(range(50)) and order != sorted(order)


def test_without_a_link_nothing_arrives_and_with_it_everything_does():
    radio = Radio({'a': FAST, 'b': FAST}, {'a': Conditions(linked=False)})
    out = play(radio, [(0.1, 'a', True, 100), (0.1, 'b', True, 100)] * 5)
    assert [robot for _, robot, *_ in out] == ['b'] * 5
    assert radio.report(9.0)['a']['uplink']['refused'] == 5
    radio.conditions['a'] = Conditions()
    radio.take('a', True, b'again', 10.0)
    assert radio.release(11.0) == [('a', True, b'again')]


def test_a_link_whose_rate_is_0_carries_nothing():
    radio = Radio({'a': LinkTrace([0.0, 1.0], [8.0, 0.0], 2.0)})
    radio.begin(0.0)
    radio.take('a', True, b'lost', 1.5)
    radio.take('a', True, b'there', 2.5)
    assert radio.release(9.0) == [('a', True, b'there')]


def test_before_the_traces_begin_links_are_fast():
    radio = Radio({'a': LinkTrace([0.0], [0.001])})
    radio.take('a', True, bytes(1000), 5.0)
    assert radio.deadline == pytest.approx(5.0 + 8e-3 / AT_BASE)
    radio.begin(5.0)
    assert radio.release(5.0) == [('a', True, bytes(1000))]
    radio.take('a', True, bytes(1000), 5.0)
    assert radio.deadline == pytest.approx(5.0 + 8.0)
    radio.begin(7.0)  # a second call changes nothing
    assert radio.deadline == pytest.approx(5.0 + 8.0)


@given(frames)
def test_a_direction_is_busy_while_frames_wait_for_the_air_or_are_on_it(sent):
    sent = [(gap, 'a', True, size) for gap, _, _, size in sent]
    radio = Radio({'a': FAST})
    play(radio, sent)
    busy = radio.report(1e4)['a']['uplink']['busy']
    assert busy == pytest.approx(sum(size for *_, size in sent) * 1e-6, abs=1e-9)


@pytest.mark.parametrize(('wrong', 'says'), [
    ({'loss': 1.5}, 'loss is 1.5'), ({'duplicate': -0.1}, 'duplicate is -0.1'),
    ({'reorder': math.nan}, 'reorder is nan'), ({'delay': -1.0}, 'delay is -1.0'),
    ({'jitter': math.inf}, 'jitter is inf')])
def test_invalid_conditions_are_refused(wrong, says):
    with pytest.raises(SettingError, match=says):
        Conditions(**wrong)
