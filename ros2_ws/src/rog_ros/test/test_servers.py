"""Two parameter servers at one place: the younger gives way, and robots do not change sides."""

from types import SimpleNamespace

import pytest
from rog_ros.servers import YOUNG, Loyalty, gives_way, refusal


def status(elapsed=0.0, incarnation=5, state='training'):
    return SimpleNamespace(state=state, elapsed=elapsed, incarnation=incarnation, sync='bsp',
                           host='laptop, process 7', robots=[SimpleNamespace(robot='robot1')])


@pytest.mark.parametrize(('mine', 'other'), [
    ((0.0, 7), status(20.0, 9)), ((0.0, 7), status(0.0, 5)), ((3.0, 7), status(3.5, 9))])
def test_of_two_servers_exactly_one_gives_way(mine, other):
    assert gives_way(mine, other, age=1.0)
    assert not gives_way((other.elapsed, other.incarnation), status(*mine), age=1.0)


def test_a_server_gives_way_only_at_its_start_and_to_one_that_serves():
    assert not gives_way((0.0, 7), status(20.0), age=YOUNG)
    assert not gives_way((0.0, 7), status(20.0, state='stopped'), age=1.0)


def test_the_refusal_names_the_other_server_and_what_to_do():
    text = refusal(status(20.0), '/blue/rog')
    for part in ('/blue/rog', 'laptop, process 7', 'bsp', 'robot1', '20 s', 'network.namespace'):
        assert part in text


def test_a_robot_stays_with_the_server_that_has_accepted_it_until_that_one_is_silent():
    loyalty = Loyalty(3.0)
    for tick in range(20):  # two servers that alternate
        assert loyalty.listens(True, tick)
        assert not loyalty.listens(False, tick + 0.5)
    assert not loyalty.listens(False, 22.0)
    assert loyalty.listens(False, 22.1)
