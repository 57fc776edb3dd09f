"""Which answers to a registration count, and when a robot that is refused gives up."""

from types import SimpleNamespace

import pytest
from fleet_link.key import new_key
from rog_core.protocol.messages import RegisterRequest, RegisterResponse
from rog_msgs.srv import Register
from rog_ros.convert import response_to_ros
from rog_worker import registration
from rog_worker.registration import GIVE_UP, Registration

LIMIT = 3.0
REQUEST = RegisterRequest('robot1', 7, 0, 0, 'row', 'onebit', '', ())


class Future:
    def __init__(self, result=None):
        self._result = result

    def add_done_callback(self, call):
        self.done = call

    def exception(self):
        return None if self._result else OSError('no answer')

    def result(self):
        return self._result


class Robot:
    """A registration whose service answers what `answer` is given."""

    def __init__(self, key=None):
        self.now, self.is_there, self.awaits, self.follows = 100.0, True, True, True
        self.sessions, self.answers, self.reasons, self.dropped, self.said = [], [], [], [], []
        client = SimpleNamespace(service_is_ready=lambda: self.is_there, call_async=self._call,
                                 remove_pending_request=lambda future: None)
        log = SimpleNamespace(warning=lambda text, **_: self.said.append(text))
        self.registration = Registration(
            client, key, 7, LIMIT, awaits=lambda request: self.awaits,
            follows=lambda server: self.follows, joined=self.sessions.append,
            answered=self.answers.append, given_up=self.reasons.append,
            dropped=self.dropped.append, log=log)

    def _call(self, request):
        self.future = Future()
        return self.future

    def answer(self, *fields, **more):
        assert self.registration.call(REQUEST)
        self.future._result = response_to_ros(RegisterResponse(*fields, **more),
                                              Register.Response()) if fields else None
        self.future.done(self.future)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(registration.time, 'monotonic', lambda: now[0])
    return now


def test_without_a_server_nothing_is_called():
    robot = Robot()
    robot.is_there = False
    assert not robot.registration.call(REQUEST)


def test_only_an_answer_that_is_awaited_and_of_a_server_that_the_robot_follows_counts():
    robot = Robot()
    robot.answer(True)
    assert [answer.accepted for answer in robot.answers] == [True]
    robot.awaits = False
    robot.answer(True)
    robot.awaits, robot.follows = True, False
    robot.answer(True)
    robot.answer()
    assert len(robot.answers) == 1
    assert robot.said == ['registration failed: no answer; trying again']


def test_a_robot_that_is_refused_for_too_long_gives_up(clock):
    robot = Robot()
    robot.answer(False, 'the name is taken')
    clock[0] += GIVE_UP * LIMIT
    robot.answer(False, 'the name is taken')
    assert len(robot.answers) == 2 and not robot.reasons
    robot.answer(True)                       # in between it was accepted
    clock[0] += 1
    robot.answer(False, 'the name is taken')
    assert not robot.reasons
    clock[0] += GIVE_UP * LIMIT + 1
    robot.answer(False, 'the name is taken')
    assert robot.reasons == ['the name is taken'] and len(robot.answers) == 4


def test_each_process_of_the_server_begins_a_session():
    robot = Robot(new_key().of('robot1'))
    for server in (5, 5, 6):
        robot.registration.count += 3
        robot.answer(True, incarnation=server)
    first, second = robot.sessions
    assert first.number != second.number and robot.registration.session is second
    assert robot.registration.count == 0
