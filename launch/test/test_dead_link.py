"""In a fleet of real processes, the emulated link of one robot dies again and again.

The other robots train on. When the link is back, the robot trains again, too.
"""

import pytest
from fleet_env.records.events import Fault, read_run
from fleet_under_test import Fleet

pytestmark = pytest.mark.long


def test_a_dead_link_silences_the_robot_and_holds_up_nobody(tmp_path):
    trace = tmp_path / 'link.txt'
    trace.write_text('0 50\n15 0\n25 50\n40 50\n')
    with Fleet(tmp_path, robots=3) as fleet:
        links = {f'robot3.link.{name}': value for name, value in (
            ('emulate', True), ('trace', str(trace)), ('rate', 0.0))}
        fleet.start('server', **links)
        fleet.start('robot3', **{name.removeprefix('robot3.'): value
                                 for name, value in links.items()})
        fleet.start('robot1', 'robot2')
        fleet.until(lambda: fleet.state('robot3') in ('retired', 'away'), 'its link dies')
        fleet.until_trained('robot1', 'robot2', iterations=10)
        here = fleet.iteration('robot1')
        fleet.until(lambda: fleet.state('robot3') == 'training', 'its link and robot3 are back')
        fleet.until(lambda: fleet.iteration('robot3') >= here, 'it is where the others were')
        fleet.interrupt('server')
        assert [fleet.ended(name) for name in ('server', 'robot1', 'robot2')] == [0, 0, 0]
        assert fleet.log('robot3').count('waiting for the parameter server') < 10
    faults = [e.what for e in read_run(fleet.out) if isinstance(e, Fault)]
    assert faults[:2] in (['peer_lost', 'rejoined'], ['retired', 'returned'],
                          ['retired', 'peer_lost']), faults
