"""Two parameter servers in one namespace.

The newer one ends, and robots stay with the older one.
"""

from types import SimpleNamespace

import pytest
from fleet_link.key import new_key
from rog_msgs.msg import FleetStatus
from rog_ros.servers import FRESH, YOUNG, Loyalty, Order, Others, gives_way, refusal
from rog_ros.signature import Signature


def status(elapsed=0.0, incarnation=5, state='training', run=0, start=1, count=1):
    return SimpleNamespace(state=state, elapsed=elapsed, incarnation=incarnation, sync='bsp',
                           host='laptop, process 7', robots=[SimpleNamespace(robot='robot1')],
                           run=run, start=start, count=count)


@pytest.mark.parametrize(('mine', 'other'), [
    ((0.0, 1, 7), status(20.0, 9)), ((0.0, 1, 7), status(0.0, 5)), ((3.0, 1, 7), status(3.5, 9)),
    ((0.0, 3, 7), status(count=9, incarnation=9)), ((0.0, 3, 7), status(count=2, incarnation=5))])
def test_of_two_servers_exactly_one_gives_way(mine, other):
    assert gives_way(mine, other, age=1.0)
    assert not gives_way((other.elapsed, other.count, other.incarnation),
                         status(mine[0], mine[2], count=mine[1]), age=1.0)


def test_a_server_gives_way_only_at_its_start_and_to_one_that_serves():
    assert not gives_way((0.0, 1, 7), status(20.0), age=YOUNG)
    assert not gives_way((0.0, 1, 7), status(20.0, state='stopped'), age=1.0)


def test_the_refusal_names_the_other_server_and_what_to_do():
    text = refusal(status(20.0), '/blue/rog')
    for part in ('/blue/rog', 'laptop, process 7', 'bsp', 'robot1', '20 s', 'network.namespace'):
        assert part in text


def test_the_refusal_is_printable_and_short_whatever_the_other_says_of_itself():
    other = status(20.0)
    other.host, other.sync = '\x1b[2J' * 100_000, 'bsp\n' * 100_000
    other.robots = [SimpleNamespace(robot='\x07' * 1000)] * 1000
    text = refusal(other, '/blue/rog')
    assert text.isprintable() and len(text) < 1000 and text.startswith('there is a parameter')


def test_a_robot_stays_with_the_server_that_has_accepted_it_until_that_one_is_silent():
    loyalty = Loyalty(3.0)
    for tick in range(20):  # two servers that send in turn
        assert loyalty.listens(True, tick)
        assert not loyalty.listens(False, tick + 0.5)
    assert not loyalty.listens(False, 21.9)
    assert loyalty.listens(False, 22.1)


def test_a_later_start_of_its_run_shows_a_robot_at_once_that_its_server_is_dead():
    loyalty = Loyalty(3.0)
    assert loyalty.listens(True, 0.0)
    loyalty.note(True, status(run=7, start=2))
    for other in (status(run=8, start=9), status(run=7, start=1), status(run=7, start=2)):
        loyalty.note(False, other)
        assert not loyalty.listens(False, 0.1)
    loyalty.note(False, status(run=7, start=3))
    assert loyalty.listens(False, 0.2)


def test_before_a_robot_knows_a_run_nothing_makes_it_disloyal():
    loyalty = Loyalty(3.0)
    # the answer to the robot's registration; there is no status yet
    assert loyalty.listens(True, 0.0)
    loyalty.note(False, status(run=7, start=3))
    assert not loyalty.listens(False, 0.1)


def made(at, process, count=1, run=7, start=1):
    stamp = SimpleNamespace(sec=at, nanosec=0)
    return SimpleNamespace(incarnation=process, count=count, run=run, start=start,
                           header=SimpleNamespace(stamp=stamp))


@pytest.mark.parametrize('new, old', [
    (made(100, 5, 9), made(100, 5, 9)),            # the same status again
    # the second status is older, because its count is lower; its later time stamp does not matter
    (made(100, 5, 9), made(200, 5, 8)),
    (made(100, 5, start=3), made(999, 6, start=2)),  # an earlier process of the run
    (made(100, 5, run=7), made(99, 6, run=8))])    # another run, with an earlier time stamp
def test_a_status_that_is_older_than_the_newest_is_dropped(new, old):
    order = Order(3.0)
    assert order.is_new(new, 0.0) and not order.is_new(old, 0.1)
    order = Order(3.0)  # if they arrive in the order in which they were made, both statuses count
    assert order.is_new(old, 0.0)
    assert old == new or order.is_new(new, 0.1)


def test_a_server_on_a_machine_whose_clock_is_behind_counts_when_the_former_is_silent():
    order = Order(3.0)
    assert order.is_new(made(100, 5, run=7), 0.0)
    assert not order.is_new(made(50, 6, run=8), 2.9)
    assert order.is_new(made(50, 6, run=8), 3.1)
    assert not order.is_new(made(50, 6, run=8), 99.0), 'within a process the count decides'


KEY = new_key()


def a_status(made=100, key=KEY, run=5, state='training'):
    message = FleetStatus(incarnation=9, run=run, start=1, state=state)
    message.header.stamp.sec = made
    if key is not None:
        Signature(key).sign(message)
    return message


def test_without_a_key_every_status_of_another_server_shows_it():
    others = Others(None, run=3, process=2)
    assert others.shows(a_status(key=None), 1e6)
    assert not others.shows(a_status(key=None, state='stopped'), 100)
    assert not others.shows(FleetStatus(incarnation=2, state='training'), 100)  # our own status
    assert not others.shows(a_status(key=None, run=3), 100), 'the lock of its directory decides'
    assert Others(None).shows(FleetStatus(incarnation=2, state='training'), 100)


@pytest.mark.parametrize('key, now, why', [
    (None, 100, 'not signed'), (new_key(), 100, 'not signed'),
    (KEY, 100 + FRESH + 1, 'somebody repeats it'), (KEY, 100 - FRESH - 1, 'somebody repeats it')])
def test_with_a_key_a_status_shows_a_server_only_if_it_is_proved_and_new(key, now, why):
    others = Others(Signature(KEY))
    assert not others.shows(a_status(key=key), now) and why in others.refused
    assert others.shows(a_status(), 100 + FRESH)
