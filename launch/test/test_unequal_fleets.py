"""Fleets of unequal robots, as processes over DDS: two robots are slow, one dies and returns."""

import pytest
from fleet_env.records.summary import read_summary
from fleet_under_test import Fleet

pytestmark = pytest.mark.long

FAST, SLOW = ('robot1', 'robot2', 'robot3'), ('robot4', 'robot5')


@pytest.mark.parametrize('sync', ['gsgm', 'dgh-gc'])
def test_slow_and_dying_robots_hold_up_nobody_for_good(tmp_path, sync):
    with Fleet(tmp_path, robots=5, sync=sync) as fleet:
        fleet.start('server', *FAST)
        fleet.start(*SLOW, pace=0.4)
        fleet.until_trained(*FAST, *SLOW)
        fleet.kill('robot3')
        fleet.until(lambda: fleet.state('robot3') == 'away', 'robot3 is declared away')
        fleet.until_trained('robot1', 'robot2', *SLOW)
        fleet.start('robot3')
        fleet.until(lambda: fleet.state('robot3') in ('training', 'waiting'), 'robot3 is back')
        fleet.until_trained(*FAST, *SLOW)
        fleet.interrupt('server')
        names = ('server', *FAST, *SLOW)
        assert [fleet.ended(name) for name in names] == [0] * 6
        metrics = {robot.accuracy.after for robot in read_summary(fleet.out).robots.values()}
        assert len(metrics) == 1, 'not everybody holds the final model'
        assert 'Traceback' not in ''.join(fleet.log(name) for name in fleet.processes)


def test_coded_training_goes_on_when_more_die_than_the_code_tolerates(tmp_path):
    with Fleet(tmp_path, robots=4, sync='gc:1') as fleet:
        fleet.start_all()
        fleet.until_trained('robot1', 'robot2', 'robot3', 'robot4')
        for name in ('robot3', 'robot4'):
            fleet.kill(name)
        fleet.until_trained('robot1', 'robot2', iterations=10)
        assert {fleet.state('robot3'), fleet.state('robot4')} == {'away'}
        fleet.start('robot3', 'robot4')
        fleet.until(lambda: {fleet.state(f'robot{n}') for n in (1, 2, 3, 4)}
                    <= {'training', 'waiting'}, 'all are back')
        fleet.until_trained('robot1', 'robot2', 'robot3', 'robot4')


def dropping_out(seconds):
    """Return the parameters of a robot that drops out for ``seconds`` before every gradient."""
    return {'stragglers.drop_probability': 1.0, 'stragglers.drop_time': seconds}


def test_a_robot_that_drops_out_is_away_until_it_is_heard_again(tmp_path):
    with Fleet(tmp_path, robots=4, sync='dgh-gc') as fleet:
        fleet.start('server', 'robot1', 'robot2')
        fleet.start('robot3', **dropping_out(1e6))
        fleet.start('robot4', **dropping_out(4.0))
        fleet.until(lambda: fleet.state('robot3') == 'away', 'robot3 is declared away')
        fleet.until(lambda: fleet.state('robot4') == 'away', 'robot4 is declared away')
        fleet.until_trained('robot1', 'robot2', 'robot4', iterations=2)
        assert fleet.state('robot3') == 'away'
        assert fleet.log('server').count('robot3 joins') == 1
        fleet.interrupt('robot3')
        assert fleet.ended('robot3') == 0
