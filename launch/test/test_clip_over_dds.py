"""`server.clip` in a fleet of real processes: a robot with far too large pushes changes little."""

import pytest
from fleet_under_test import Fleet

pytestmark = pytest.mark.long


def test_a_robot_that_pushes_40_times_the_opposite_does_not_ruin_the_model(tmp_path):
    with Fleet(tmp_path, robots=3, sync='bsp') as fleet:
        fleet.start('server', **{'server.clip': 0.5})
        fleet.start('robot1', 'robot2')
        fleet.start('robot3', task='tiny_task:Opposed')
        fleet.until(lambda: 'robot1' in fleet.robots and fleet.robots['robot1'].evaluated_at > 0,
                    'a first evaluation')
        first = fleet.robots['robot1']
        fleet.until(lambda: fleet.robots['robot1'].evaluated_at >= first.evaluated_at + 50,
                    'a later one')
        assert fleet.robots['robot1'].accuracy > first.accuracy
        assert 'a push of robot3 counts only in part' in fleet.log('server')
