"""Which control calls are new, whatever clocks say; and what calls without a key may cost."""

import sys

import pytest
from rog_core.errors import ConfigError
from rog_core.methods import is_loaded
from rog_ps.control import AT_ONCE, Allowance, Calls

DAY = 86_400 * 10**9
NOW = 20_000 * DAY


def test_a_call_is_carried_out_once():
    calls = Calls()
    assert not calls.refusal(NOW, NOW)
    assert 'already' in calls.refusal(NOW, NOW + 5)
    assert 'already' in calls.refusal(NOW - 1, NOW + 5), 'one that was held back meanwhile'
    assert not calls.refusal(NOW + 1, NOW + 5)


def test_a_clock_a_day_ahead_leaves_the_calls_of_others_alone():
    calls = Calls()
    assert not calls.refusal(NOW + DAY, NOW)
    assert not calls.refusal(NOW + 1, NOW + 1)
    assert not calls.refusal(NOW + DAY + 5, NOW + 5), 'it may call again itself'
    for again in (NOW + DAY, NOW + DAY + 5, NOW + 1):
        assert 'already' in calls.refusal(again, NOW + 10)


def test_what_is_remembered_is_forgotten_when_its_time_has_come():
    calls = Calls()
    for k in range(100):
        assert not calls.refusal(NOW + DAY + k, NOW + k)
    assert not calls.refusal(NOW + 2 * DAY, NOW + 2 * DAY)
    assert not calls._ahead and calls.refusal(NOW + DAY, NOW + 2 * DAY)


def test_a_clock_that_is_behind_is_told_so():
    calls = Calls()
    assert not calls.refusal(NOW, NOW)
    assert 'the machine that calls is behind' in calls.refusal(NOW - DAY, NOW)
    assert '86400.000 s' in calls.refusal(NOW - DAY, NOW)


def test_calls_that_nobody_has_proved_cost_a_tenth_of_the_time():
    allowance, now, spent = Allowance(), 0.0, 0.0
    for _ in range(10_000):  # one who calls ten times a second; each call takes 0.5 s
        now += 0.1
        if allowance.left(now) > 0:
            now, spent = now + 0.5, spent + 0.5
            allowance.spend(0.5, now)
    assert spent < AT_ONCE + 0.5 + now / 10
    assert spent > now / 20, 'it is carried out now and then'


def test_only_methods_that_are_there_can_be_asked_for_without_importing_anything():
    assert is_loaded('rsp:4') and is_loaded('rog_core.methods.rsp:Rsp:4')
    assert not is_loaded('antigravity:Fly') and 'antigravity' not in sys.modules
    with pytest.raises(ConfigError, match='at most 200 characters, got 100004'):
        is_loaded('rsp:' + '4' * 100_000)
