"""Two parameter servers and two fleets in one DDS domain."""

import pytest
from fleet_under_test import Fleet


@pytest.mark.long
def test_a_second_server_finds_the_first_and_does_not_start(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status is not None, 'the server is there')
        first = fleet.status.host
        fleet.start('server', label='second', out=str(tmp_path / 'second'))
        assert fleet.ended('second') == 1
        assert 'there is a parameter server at /rog already' in fleet.log('second')
        assert first in fleet.log('second')
        assert fleet.processes['server'].poll() is None


@pytest.mark.long
def test_a_server_of_another_namespace_does_not_meet_it(tmp_path):
    with Fleet(tmp_path, robots=1) as fleet:
        fleet.start('server')
        fleet.until(lambda: fleet.status is not None, 'the server is there')
        fleet.start('server', label='blue', namespace='/blue', out=str(tmp_path / 'blue'))
        fleet.start('robot1', namespace='/blue', server_namespace='/blue/rog')
        fleet.until(lambda: 'robot1 joins' in fleet.log('blue'), 'robot1 joins its own fleet')
        assert not fleet.status.robots and 'second' not in fleet.log('server')
