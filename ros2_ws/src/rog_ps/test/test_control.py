"""Which control calls count as new if clocks differ, and how much time unproved calls may cost."""

import sys
import time
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from fleet_ros.services import AT_ONCE, Allowance
from rog_core.errors import ConfigError
from rog_core.methods import is_known
from rog_msgs.srv import SaveCheckpoint
from rog_ps.control import REMEMBERED, REPEATED, Calls, Control
from rog_ros.message_auth import SealError, check, derived, new_key, process_of, sealed

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


def test_clocks_that_were_ahead_and_are_set_back_leave_later_calls_alone():
    calls = Calls()
    for late in (NOW + DAY, NOW + DAY + 5):
        assert not calls.refusal(late, late)
    assert not calls.refusal(NOW + 1, NOW + 1), 'the clocks are set'
    assert 'already' in calls.refusal(NOW, NOW + 2), 'one that was held back meanwhile'
    for again in (NOW + DAY, NOW + DAY + 5, NOW + 1):
        assert 'already' in calls.refusal(again, NOW + 10)


def test_what_is_remembered_has_a_bound():
    calls = Calls()
    for k in range(40):
        assert not calls.refusal(NOW + DAY + k, NOW + k)
    calls._done |= set(range(REMEMBERED))
    assert not calls.refusal(NOW + 2 * DAY, NOW + 2 * DAY)
    assert len(calls._done) == REMEMBERED and calls.refusal(NOW + DAY, NOW + 2 * DAY)


def test_a_clock_that_is_behind_is_told_so():
    calls = Calls()
    assert not calls.refusal(NOW, NOW)
    assert 'the machine that calls is behind' in calls.refusal(NOW - DAY, NOW)
    assert '86400.000 s' in calls.refusal(NOW - DAY, NOW)


def test_calls_that_nobody_has_proved_cost_a_tenth_of_the_time():
    allowance, now, spent = Allowance(), 0.0, 0.0
    # an attacker who calls ten times a second; a call that is carried out takes 0.5 s
    for _ in range(10_000):
        now += 0.1
        if allowance.left(now) > 0:
            now, spent = now + 0.5, spent + 0.5
            allowance.spend(0.5, now)
    assert spent < AT_ONCE + 0.5 + now / 10
    assert spent > now / 20, 'it is carried out now and then'


def test_only_methods_that_are_there_can_be_asked_for_without_importing_anything():
    assert is_known('diloco:8') and is_known('rsp:4') and is_known('rog_core.methods.rsp:Rsp:4')
    assert not is_known('antigravity:Fly') and 'antigravity' not in sys.modules
    with pytest.raises(ConfigError, match='at most 200 characters, got 100004'):
        is_known('rsp:' + '4' * 100_000)


# -- answers that carry a tag

KEY = new_key()
ASK, ANSWER = KEY.control(), derived(KEY.control(), 'answer')


class Server:
    """The control services of a node; ``saved`` lists the names of its saved checkpoints."""

    def __init__(self, key=KEY, control=True):
        self.saved = []
        node = Mock(machine=SimpleNamespace(incarnation=5), dropped=Counter(), save=self.save,
                    settings=SimpleNamespace(security=SimpleNamespace(control=control)))
        self.control = Control(node, key)

    def save(self, name):
        if name == 'bad':
            raise ConfigError('this cannot be a name')
        self.saved.append(name)
        return f'/out/{name}'

    def call(self, request):
        return self.control._on_save(request, SaveCheckpoint.Response())


def request(name='a', key=ASK, **fields):
    made = SaveCheckpoint.Request(**{'name': name, 'server': process_of(5),
                                     'time': time.time_ns(), **fields})
    return sealed(key, made)


@pytest.mark.parametrize(('name', 'success'), [('a', True), ('bad', False)])
def test_an_answer_is_proved_and_names_its_call(name, success):
    server, call, other = Server(), request(name), request(name)
    answer = server.call(call)
    assert answer.success == success
    check(ANSWER, answer, bytes(call.tag))
    for key, tag in ((ANSWER, other.tag), (ASK, call.tag), (derived(new_key().control(), 'answer'),
                                                            call.tag)):
        with pytest.raises(SealError):
            check(key, answer, bytes(tag))
    answer.success = not success
    with pytest.raises(SealError):
        check(ANSWER, answer, bytes(call.tag))


def test_a_refusal_is_proved_if_the_call_is():
    for server, call, reason in (
            (Server(), request(server=7), 'not for this server process'),
            (Server(control=False), request(), 'takes no control calls')):
        answer = server.call(call)
        assert not answer.success and reason in answer.message and not server.saved
        check(ANSWER, answer, bytes(call.tag))


def test_nobody_gets_a_proved_refusal_of_somebody_elses_call():
    """An attacker reads a call, sends another call with the same tag, and gets a refusal.

    This refusal carries no tag, so the attacker cannot pass it on as the answer to the true
    call.
    """
    server, call = Server(), request()
    for field, value in (('name', 'b'), ('time', call.time + 1), ('server', 7)):
        other = request(**{name: getattr(call, name) for name in ('name', 'time', 'server')})
        setattr(other, field, value)
        other.tag = call.tag
        answer = server.call(other)
        assert not answer.success and 'not proved' in answer.message and not len(answer.tag)
    assert server.call(call).success and server.saved == ['a'], 'its twin is carried out'


def test_a_call_that_comes_again_is_carried_out_once_and_answered_as_before():
    server, call = Server(), request()
    first = server.call(call)
    for _ in range(3):
        again = server.call(call)
        assert (again.success, again.message) == (True, '/out/a') == (first.success, first.message)
        check(ANSWER, again, bytes(call.tag))
    for _ in range(REPEATED + 3):
        server.call(request('b'))
    assert len(server.saved) == REPEATED + 4
    assert 'already' in server.call(call).message and len(server.control._answered) == REPEATED


def test_without_a_key_answers_carry_no_tag():
    server = Server(key=None)
    answer = server.call(request(key=None))
    assert answer.success and not len(answer.tag)
    assert server.call(request(key=None)).success and len(server.saved) == 2
