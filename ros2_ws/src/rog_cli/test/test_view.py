"""The live table shows who waits for whom, for how long and why, and who is retired."""

import io

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from fleet_env.records.summary import RobotSummary, Summary
from fleet_env.settings.fleet import FleetConfig, RobotConfig
from fleet_link.key import new_key
from fleet_testing import eventually
from rich.console import Console
from rog_cli.display import view
from rog_cli.display.fleet_state import FleetState
from rog_cli.display.view import Monitor, live_table, show
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from rog_ros import qos
from rog_ros.signature import Signature


def drawn(*robots, faults=()):
    """Return the table of robots as text.

    ``robots``: for each robot a tuple: name, state, and further fields of its `RobotStatus`.
    ``faults``: those of the server.
    """
    state = FleetState()
    state.on_fleet(FleetStatus(sync='rsp:4', state='training', robots=[
        RobotStatus(robot=name, state=seen, **fields) for name, seen, fields in robots],
        faults=list(faults)), 0.0)
    for name, *_ in robots:
        state.on_robot(TrainingStatus(robot=name, state='waiting'), 0.0)
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(live_table(state.shown(0.0)))
    return console.export_text()


def test_the_table_names_cause_and_duration():
    text = drawn(
        ('robot1', 'waiting', {'waiting_for': 'robot2', 'waiting_time': 2.2}),
        ('robot2', 'training', {'why': '4 iterations behind, pushing, no progress for 1.5 s'}),
        ('robot3', 'retired', {'why': 'pulling, no progress for 9.0 s: the others go on'}))
    assert 'waiting for robot2 2 s' in text
    assert 'robot2: 4 iterations behind, pushing, no progress for 1.5 s' in text
    assert 'robot3: retired, pulling, no progress for 9.0 s: the others go on' in text
    assert 'retired' in next(line for line in text.splitlines() if line.startswith('robot3 '))


def test_the_table_names_what_the_server_fails_to_do():
    text = drawn(('robot1', 'training', {}), faults=['no checkpoint: No space left [red]'])
    assert 'server: no checkpoint: No space left [red]' in text


class Sends:
    """Replaces the monitor and the clock.

    robot2 sends its first status after ``speaks`` seconds.
    """

    def __init__(self, speaks, state='training'):
        self.speaks, self.now, self.state = speaks, 0.0, FleetState()
        self.state.on_fleet(FleetStatus(sync='rsp:4', state='training', robots=[
            RobotStatus(robot='robot1', state='training'),
            RobotStatus(robot='robot2', state=state)]), 0.0)
        self.state.on_robot(TrainingStatus(robot='robot1', state='computing'), 0.0)
        self.fleet, self.robots = self.state.fleet, self.state.robots

    def monotonic(self):
        return self.now

    def policies(self):
        return []

    def spin(self, seconds):
        self.now += seconds
        if self.now >= self.speaks:
            self.state.on_robot(TrainingStatus(robot='robot2', state='pushing', iteration=4711),
                                self.now)

    def shown(self):
        return self.state.shown(self.now)


@pytest.mark.parametrize(('speaks', 'state', 'until', 'heard'), [
    (2.0, 'training', 2.0, True),   # the table waits until robot2 has sent a status
    # robot2 sends nothing: the table waits 0.5 s, and then at most `COMPLETE` seconds
    (60.0, 'training', 3.5, False),
    (60.0, 'away', 0.5, False)])     # the table does not wait for a robot that is away
def test_a_table_shown_once_waits_for_each_robot(monkeypatch, capsys, speaks, state, until, heard):
    monitor = Sends(speaks, state)
    monkeypatch.setattr(view, 'time', monitor)
    assert show(monitor, once=True, timeout=10.0) == 0
    assert ('4711' in capsys.readouterr().out) == heard
    assert monitor.now == pytest.approx(until, abs=0.15)


def test_who_looks_when_the_run_is_over_sees_what_is_known(monkeypatch, capsys):
    monitor = Sends(1.0)
    monitor.fleet.state = 'stopped'
    monkeypatch.setattr(view, 'time', monitor)
    assert show(monitor, once=False, timeout=10.0) == 0
    assert '4711' in capsys.readouterr().out


def test_the_last_lines_are_those_of_the_end(monkeypatch, capsys):
    monitor = Sends(12.0)

    def over(seconds):
        Sends.spin(monitor, seconds)
        if monitor.now > 12.0:
            monitor.fleet.state = 'stopped'
    monitor.spin = over
    monkeypatch.setattr(view, 'time', monitor)
    assert show(monitor, once=False, timeout=10.0) == 0
    assert '4711' in capsys.readouterr().out.splitlines()[-1]


def test_a_fleet_without_robots_is_one(monkeypatch, capsys):
    monitor = Sends(60.0)
    monitor.fleet.robots, monitor.robots = [], {}
    monitor.state.robots.clear()
    monkeypatch.setattr(view, 'time', monitor)
    assert show(monitor, once=True, timeout=10.0) == 0
    assert 'rsp:4   training' in capsys.readouterr().out


def test_the_headline_says_that_the_server_is_silent():
    state = FleetState()
    state.on_fleet(FleetStatus(sync='rsp:4', state='training'), 0.0)
    assert 'no word' not in state.shown(4.0).headline()
    assert 'training   no word from the parameter server for 9 s' in state.shown(9.0).headline()
    state.on_fleet(FleetStatus(sync='rsp:4', state='stopped'), 9.0)
    assert 'no word' not in state.shown(90.0).headline()


def test_what_a_stranger_calls_itself_is_text_and_no_markup():
    assert '[/red]' in drawn(('robot1', 'waiting', {'why': 'a [/red] b', 'waiting_for': '[/]'}))


@pytest.mark.parametrize('robots, topics', [
    (None, ['/blue/rog/robots', '/blue/rog/robots_before']),
    (['robot2'], ['/blue/robot2/training_status'])])
def test_statuses_of_robots_elsewhere_come_from_the_server(robots, topics):
    """A status that a robot sent to each table would fill a slow link with copies."""
    with Monitor('/blue', robots=robots) as monitor:
        assert [s.topic_name for s in monitor.node.subscriptions
                if s.msg_type is TrainingStatus] == topics
        publisher = monitor.node.create_publisher(TrainingStatus, topics[0], qos.STATUS)
        publisher.publish(TrainingStatus(robot='robot2', iteration=7))
        eventually(lambda: monitor.robots, step=lambda: monitor.spin(0.05))
        assert monitor.robots['robot2'].iteration == 7


def test_a_status_that_names_what_cannot_be_a_robot_does_no_harm():
    with Monitor() as monitor:
        publisher = monitor.node.create_publisher(FleetStatus, '/rog/fleet_status', qos.STATUS)
        publisher.publish(FleetStatus(robots=[RobotStatus(robot=name) for name in
                                              ('', 'no robot', '/../x', 'robot1')]))
        eventually(lambda: monitor.fleet, step=lambda: monitor.spin(0.05))
        assert len(monitor.shown().robots) == 4


def test_with_a_key_an_old_status_that_is_repeated_does_not_count():
    """With a key, the monitor ignores an old server status that somebody sends again.

    Each control call names the server process of the last status. If an old status counted, the
    calls would name a former process, and the server would refuse them.
    """
    key = new_key()

    def status(process, count, start=1, sec=5):
        made = FleetStatus(incarnation=process, count=count, run=3, start=start)
        made.header.stamp.sec = sec
        Signature(key).sign(made)
        return made

    with Monitor(key=key) as monitor:
        for process, count, start in ((1, 1, 1), (1, 7, 1), (2, 1, 2), (2, 2, 2)):
            monitor._on_fleet(status(process, count, start))
            assert (monitor.fleet.incarnation, monitor.fleet.count) == (process, count)
        for old in (status(1, 7), status(1, 9), status(2, 1, 2), status(2, 2, 2)):
            monitor._on_fleet(old)
            assert (monitor.fleet.incarnation, monitor.fleet.count) == (2, 2)
        monitor._on_fleet(status(2, 3, 2))
        assert monitor.fleet.count == 3


def test_policies_are_shown_if_they_are_asked_for(capsys):
    def status(name, message, **values):
        return DiagnosticStatus(name=name, message=message, values=[
            KeyValue(key=key.replace('_', ' '), value=value) for key, value in values.items()])

    with Monitor() as monitor:
        assert monitor.node.subscriptions and not [
            s for s in monitor.node.subscriptions if s.topic_name == '/diagnostics']
    with Monitor(policies=True) as monitor:
        publisher = monitor.node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        sent = {'sent for an inference (B)': '148768'}
        publisher.publish(DiagnosticArray(status=[
            status('/robot2/policy: policy', 'acts', computed_by='server', **sent),
            status('/robot1/policy: policy', 'starved:\x1b[31m no action'),
            status('motor 3', 'warm')]))
        eventually(monitor.policies, step=lambda: monitor.spin(0.05))
        assert monitor.policies() == [
            '/robot1/policy: policy starved:?[31m no action, actions by nobody yet',
            '/robot2/policy: policy acts, actions by server, 148.8 kB sent for an inference']
        assert show(monitor, True, 0.0) == 0 and '148.8 kB' in capsys.readouterr().out


def test_who_asks_for_policies_waits_for_one_and_needs_no_fleet(monkeypatch, capsys):
    class Policies(Sends):
        def __init__(self):
            super().__init__(60.0)
            self.fleet, self.namespace, self.state = None, '', FleetState()

        def policies(self):
            return ['/robot1/policy: policy acts'] if 7.0 < self.now < 20.0 else []

        def spin(self, seconds):
            self.now += seconds

    monkeypatch.setenv('ROS_DOMAIN_ID', '7')
    for once, code in ((True, 0), (False, 1)):
        monitor = Policies()
        monkeypatch.setattr(view, 'time', monitor)
        monitor.now = 0.0 if once else 30.0
        assert show(monitor, once=once, timeout=10.0, policies=True) == code
        out, err = capsys.readouterr()
        assert 'waiting for a parameter server or a policy in DDS domain 7' in err
        assert ('/robot1/policy: policy acts' in out, 'and no policy in' in err) == (once, not once)


def test_the_outcome_names_all_that_went_wrong(capsys):
    notes = {'server': {'accuracy': 0.5, 'iteration': 7, 'young': 0.6},
             'failed': {'robot2': 'iteration 3: the gradient holds NaN'},
             'faults': {'push_refused': 4}}
    view.outcome(Summary('rsp:4', 'digits', 1, 60.0, {'robot1': RobotSummary(7)}, notes=notes),
                 FleetConfig(name='one', robots=[RobotConfig(name='robot1')]))
    said = ' '.join(capsys.readouterr().out.split())
    for part in ('at iteration 7: 50.0 %', '60.0 % of the statistics', '4 pushes were refused',
                 'robot2 has left the fleet: iteration 3: the gradient holds NaN'):
        assert part in said
