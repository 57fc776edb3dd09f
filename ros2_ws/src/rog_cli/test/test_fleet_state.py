"""Tests of a fleet's displayed state, which is made from the fleet's statuses.

Messages from strangers must do no harm.
"""

import math

import pytest
from builtin_interfaces.msg import Time
from rog_cli.display.fleet_state import EVENTS, POINTS, ROBOTS, Curve, FleetState
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from std_msgs.msg import Header


def server(*robots, **fields):
    return FleetStatus(**{'state': 'training', 'sync': 'rsp:4', 'elapsed': 10.0} | fields,
                       robots=[RobotStatus(robot=name, state=state, **more)
                               for name, state, more in robots])


def own(name='robot1', **fields):
    return TrainingStatus(**{'robot': name, 'state': 'computing', 'link_rate': math.nan} | fields)


@pytest.fixture
def state():
    return FleetState()


def test_nothing_heard_is_an_empty_fleet_that_waits_for_its_server(state):
    fleet = state.shown(5.0)
    assert (fleet.found, fleet.robots) == (False, ())
    assert fleet.lines() == ['waiting for the parameter server']


def at(seconds):
    return Header(stamp=Time(sec=seconds))


def test_what_was_before_is_taken_up_once_in_order_and_does_not_replace_what_is_heard(state):
    before = {count: own(count=count, header=at(100 + count), iteration=count, rows_pushed=count,
                         rows_total=100) for count in (1, 2, 3, 5, 6)}
    state.on_past(before[2])  # the time of the run is not known yet
    assert not state.shown(0.0).robots
    state.on_fleet(server(('robot1', 'stopped', {}), header=at(110), elapsed=10.0), 50.0)
    assert state.curves['rows']['robot1'].points == [(2.0, 2.0)]
    assert (state.shown(50.0).robots[0].heard, state.shown(50.0).robots[0].iteration) == (True, 2)
    state.on_robot(own(count=5, iteration=5, rows_pushed=9, rows_total=100), 50.0)
    for count in (3, 1, 3, 2, 6, 5):
        state.on_past(before[count])
    assert state.curves['rows']['robot1'].points == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0),
                                                     (10.0, 9.0)]
    assert state.shown(50.0).robots[0].iteration == 5


def test_a_server_that_the_listener_has_started_is_starting():
    assert FleetState(starting=True).shown(5.0).lines() == ['the parameter server is starting']


def test_who_waits_for_whom_and_why(state):
    state.on_fleet(server(('robot1', 'waiting', {'waiting_for': 'robot2', 'waiting_time': 2.2}),
                          ('robot2', 'training', {'why': '4 iterations behind'}),
                          ('robot3', 'retired', {'why': 'no progress for 9.0 s'})), 0.0)
    state.on_robot(own('robot1', state='waiting'), 0.0)
    state.on_robot(own('robot3', state='pulling'), 0.0)
    fleet = state.shown(1.5)
    assert [r.doing for r in fleet.robots] == ['waiting for robot2 2 s', 'training', 'retired']
    assert fleet.causes() == ['robot2: 4 iterations behind',
                              'robot3: retired, no progress for 9.0 s']
    assert [r.heard for r in fleet.robots] == [True, False, True]
    assert fleet.robots[0].silent == 1.5


def test_a_robot_that_computes_again_is_not_shown_as_waiting_for_another(state):
    state.on_fleet(server(('robot1', 'waiting', {'waiting_for': 'robot2', 'waiting_time': 0.2})),
                   0.0)
    state.on_robot(own('robot1', state='computing'), 0.1)
    assert state.shown(0.1).robots[0].doing == 'computing'


def test_without_a_terminal_there_is_a_short_line_for_each_robot(state):
    state.on_fleet(server(('robot1', 'training', {}), ('robot2', 'joining', {})), 0.0)
    state.on_robot(own(iteration=94, loss=.048, accuracy=.95, rows_pushed=336, rows_total=336), 0.0)
    first, second = state.shown(0.0).lines()
    assert first == ('   10 s  robot1: 94 computing, loss 0.048, accuracy 95.0 %, rows 336/336, '
                     'stall 0.0 s')
    assert second == '   10 s  robot2: joining'


def test_an_emulated_link_shows_its_rate_and_a_real_one_what_was_measured(state):
    state.on_robot(own('robot1', bandwidth=3.0), 0.0)
    state.on_robot(own('robot2', bandwidth=3.0, link_rate=8.0), 0.0)
    assert [r.link for r in state.shown(0.0).robots] == [3.0, 8.0]


def test_curves_are_over_the_time_of_the_run(state):
    state.on_robot(own(), 99.0)              # a status from before the run begins
    state.on_fleet(server(('robot1', 'training', {}), elapsed=10.0), 100.0)
    state.on_robot(own(iteration=1, evaluated_at=1, accuracy=.5, rows_pushed=3, rows_total=12,
                       bandwidth=2.0), 100.5)
    state.on_robot(own(iteration=1, evaluated_at=1, accuracy=.5, bandwidth=4.0), 101.0)
    points = {name: curves['robot1'].points for name, curves in state.curves.items()}
    assert points == {'accuracy': [(10.5, 50.0)], 'link': [(10.5, 2.0), (11.0, 4.0)],
                      'rows': [(10.5, 25.0)], 'staleness': [(10.5, 0.0)]}


def trained(state, now, *robots, **fields):
    """Pass to ``state`` a status of the server, and a status of each robot in ``robots``."""
    state.on_fleet(server(*((name, 'training', {}) for name in robots), **fields), now)
    for name in robots:
        state.on_robot(own(name, iteration=3, rows_total=4, accuracy=.5, bandwidth=2.0), now)


def times(state):
    return {name: [t for t, _ in curve.points] for name, curve in state.curves['link'].items()}


def test_another_run_begins_anew(state):
    trained(state, 0.0, 'robot1', 'robot2', run=1, incarnation=1, elapsed=50.0)
    trained(state, 9.0, 'robot2', run=2, incarnation=2, elapsed=1.0)
    assert times(state) == {'robot2': [1.0]}
    assert [r.name for r in state.shown(9.0).robots] == ['robot2'] and not state.events


def test_a_run_that_its_next_server_continues_goes_on_and_never_runs_back(state):
    trained(state, 0.0, 'robot1', run=1, incarnation=1, elapsed=50.0)
    trained(state, 9.0, 'robot1', run=1, incarnation=2, elapsed=59.0)
    assert times(state) == {'robot1': [50.0, 59.0]}
    trained(state, 20.0, 'robot1', run=1, incarnation=3, elapsed=40.0)
    assert times(state) == {'robot1': [40.0]}


@pytest.mark.parametrize(('minutes', 'status', 'said'), [
    (1.0, 'training', '10 s, 50 s left'), (60.0, 'paused', '10 s, 60 min left'),
    (0.1, 'training', '10 s, 0 s left'), (0.0, 'training', '10 s'), (1.0, 'stopped', '10 s')])
def test_the_time_left_is_said_where_the_duration_is_known(minutes, status, said):
    state = FleetState(minutes=minutes)
    state.on_fleet(server(('robot1', 'training', {}), state=status), 0.0)
    assert f'   {said}' in state.shown(0.0).headline()
    assert ('left' in state.shown(0.0).lines()[-1]) == ('left' in said)


def test_a_curve_of_a_long_run_keeps_its_shape_and_no_more_points_than_it_may():
    curve = Curve()
    for n in range(10 * POINTS):
        curve.add(n, 2 * n)
    curve.add(math.nan, 1.0)
    curve.add(1.0, math.inf)
    times = [t for t, _ in curve.points]
    assert POINTS // 2 <= len(times) <= POINTS
    assert len({b - a for a, b in zip(times, times[1:], strict=False)}) == 1
    assert all(value == 2 * t for t, value in curve.points)


def test_what_happened_is_remembered(state):
    state.on_fleet(server(('robot2', 'training', {})), 0.0)
    state.on_fleet(server(('robot1', 'training', {})), 0.0)
    state.on_fleet(server(('robot1', 'away', {'why': 'no heartbeat'}), elapsed=12.0), 0.0)
    state.on_fleet(server(('robot1', 'training', {}), elapsed=15.0, sync='bsp'), 0.0)
    state.on_fleet(server(('robot1', 'stopped', {'refused': 1}), elapsed=16.0, sync='bsp'), 0.0)
    state.on_fleet(server(('robot1', 'training', {'refused': 3}), elapsed=17.0, sync='bsp'), 0.0)
    state.on_fleet(server(('robot1', 'stopped', {'refused': 3}), elapsed=18.0, sync='bsp',
                          state='stopping'), 0.0)
    assert [tuple(event) for event in state.events] == [
        (10.0, 'robot1', 'has joined'), (12.0, 'robot1', 'away: no heartbeat'),
        (15.0, '', 'the method is bsp now'), (15.0, 'robot1', 'is back'),
        (16.0, 'robot1', 'has left'), (16.0, 'robot1', 'push_refused: 1 of its pushes until now'),
        (17.0, 'robot1', 'is back'), (17.0, 'robot1', 'push_refused: 3 of its pushes until now'),
        (18.0, '', 'the fleet is stopping')]


def test_a_fault_of_the_server_is_shown_while_it_lasts_and_remembered(state):
    robot = ('robot1', 'training', {})
    for t, faults in [(10.0, ['no checkpoint: disk full']), (11.0, ['no checkpoint: 2 B free']),
                      (12.0, ['no checkpoint: 2 B free', 'no record: disk full']), (13.0, [])]:
        state.on_fleet(server(robot, elapsed=t, faults=faults), 0.0)
        assert state.shown(0.0).faults == tuple(faults)
        assert [line.strip() for line in state.shown(0.0).lines()[1:]] == [
            f'server: {fault}' for fault in faults]
    assert [tuple(event) for event in state.events] == [(t, '', text) for t, text in [
        (10.0, 'no checkpoint: disk full'), (12.0, 'no record: disk full'),
        (13.0, 'mended: no checkpoint'), (13.0, 'mended: no record')]]


def test_what_happened_before_the_listener_began_is_remembered_once_and_in_order(state):
    says = [server(('robot1', robot, {'why': why}), elapsed=t, count=count, run=1, incarnation=2)
            for count, t, robot, why in [(1, 0.0, 'joining', ''), (4, 5.0, 'retired', 'slow'),
                                         (6, 9.0, 'training', ''), (9, 12.0, 'away', 'no link'),
                                         (11, 20.0, 'training', '')]]
    says.insert(0, server(elapsed=0.0, count=0, run=1, incarnation=2))
    strange = server(('robot9', 'away', {}), count=2, run=1, incarnation=7)
    state.on_past_fleet(says[2])    # before the first status that is heard
    state.on_fleet(says[4], 50.0)
    assert [event.text for event in state.events] == ['retired: slow', 'away: no link']
    for message in (says[3], strange, says[0], says[1], says[4], says[3]):
        state.on_past_fleet(message)
    state.on_fleet(says[5], 58.0)
    assert [tuple(event) for event in state.events] == [
        (t, 'robot1', text) for t, text in [
            (0.0, 'has joined'), (5.0, 'retired: slow'), (9.0, 'is back'), (12.0, 'away: no link'),
            (20.0, 'is back')]]
    state.on_fleet(server(run=5, incarnation=5, elapsed=0.0), 60.0)
    assert not state.events


def test_texts_of_strangers_are_cut_and_printable_and_numbers_bounded(state):
    evil = '\x1b[2J<script>alert(1)</script>' + 'x' * 5000
    for n in range(3):
        state.on_fleet(server(*((f'{n}{k}{evil}', 'away', {'why': evil, 'waiting_for': evil})
                                for k in range(2 * ROBOTS)), sync=evil, state=evil, host=evil,
                              faults=[f'{k}{n}{evil}' for k in range(ROBOTS)]), 0.0)
    for n in range(2 * ROBOTS):
        state.on_robot(own(f'{n}{evil}', state=evil, loss=math.inf, accuracy=math.nan), 0.0)
    fleet = state.shown(0.0)
    texts = [fleet.headline(), fleet.sync, fleet.state, fleet.host, *fleet.lines(), *fleet.causes(),
             *fleet.faults]
    texts += [text for r in fleet.robots for text in (r.name, r.state, r.doing, r.why)]
    texts += [text for event in state.events for text in event[1:]]
    assert all(text.isprintable() and len(text) < 1000 for text in texts)
    assert len(fleet.robots) == ROBOTS and len(state.events) == EVENTS
