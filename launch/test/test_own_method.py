"""A method outside of this repository trains a fleet; the robots have no copy of its code."""

import pytest
from fleet_env.records.summary import read_summary
from fleet_env.settings.fleet_file import read_fleet
from fleet_under_test import Fleet, write_fleet
from rog_msgs.srv import SetSync
from rog_sim.simulation import simulate

METHOD = '''
from rog_core.messages import Sending
from rog_core.methods import Method
from rog_core.steps import Local


class Lag(Method):
    """Lag:S: nobody is S exchanges ahead, half of the rows must arrive; +many: more local steps."""

    known = ('many',)

    def bounds(self):
        threshold = self.spec.threshold(1)
        return threshold, threshold

    def sending(self):
        return Sending(minimum=0.5, threshold=int(self.bound), by_importance=True)

    def grant(self, robot, iteration):
        return iteration + 1, Local(5 if 'many' in self.options else 2)


class Broken(Method):
    def grant(self, robot, iteration):
        return None
'''
SYNC = 'lag_of_mine:Lag:3+many'


@pytest.fixture
def folder(tmp_path):
    """Return a folder that contains the module of the method."""
    folder = tmp_path / 'mine'
    folder.mkdir()
    (folder / 'lag_of_mine.py').write_text(METHOD)
    return folder


def test_it_trains_in_virtual_time(tmp_path, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    emulated = write_fleet(tmp_path, minutes=0.2, sync=SYNC).read_text().replace(
        'emulate: false', 'rate: 5.0')
    (tmp_path / 'tiny.yaml').write_text(emulated)
    summary = simulate(read_fleet(tmp_path / 'tiny.yaml'))
    for robot in summary.robots.values():
        assert robot.iterations > 5 and robot.accuracy.after > robot.accuracy.before


@pytest.mark.long
def test_it_trains_over_dds_while_only_the_server_knows_it(tmp_path, folder):
    with Fleet(tmp_path, robots=2, sync=SYNC) as fleet:
        fleet.start('server', folders=[folder])
        fleet.start('robot1', 'robot2')
        fleet.until_trained('robot1', 'robot2')
        assert {status.sync for status in fleet.robots.values()} == {SYNC}
        client = fleet.node.create_client(SetSync, '/rog/set_sync')
        for sync, accepted in (('lag_of_mine:Broken', False), ('rsp:2', True),
                               ('lag_of_mine:Lag:2', True)):
            fleet.until(client.service_is_ready, 'the service is there')
            answer = client.call_async(SetSync.Request(sync=sync))
            fleet.until(answer.done, f'an answer to {sync}')
            assert answer.result().success == accepted, answer.result().message
            fleet.until_trained('robot1', 'robot2')
        fleet.interrupt('server')
        assert {name: fleet.ended(name) for name in fleet.processes} == {
            'server': 0, 'robot1': 0, 'robot2': 0}
    assert read_summary(fleet.out).sync == 'lag_of_mine:Lag:2', 'the last method'


@pytest.mark.long
@pytest.mark.parametrize(('sync', 'reason'), [
    ('lag_of_mine:Broken', 'grant answers None'),
    ('lag_of_mine:Missing', "has no 'Missing'"), ('not_there:Lag:2', 'is it installed where')])
def test_one_that_cannot_be_is_refused_before_training(tmp_path, folder, sync, reason):
    with Fleet(tmp_path, robots=1, sync=sync) as fleet:
        fleet.start('server', folders=[folder])
        assert fleet.ended('server') == 1
        assert reason in fleet.log('server') and 'Traceback' not in fleet.log('server')
        assert not fleet.out.exists()
