"""The live table says who waits for whom, for how long and why, and who is retired."""

import io

import pytest
from rich.console import Console
from rog_cli.view import Monitor
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus


@pytest.fixture
def monitor():
    with Monitor() as monitor:
        monitor.fleet = FleetStatus(sync='rsp:4', state='training', robots=[
            RobotStatus(robot='robot1', state='waiting', waiting_for='robot2', waiting_time=2.2),
            RobotStatus(robot='robot2', state='training',
                        why='4 iterations behind, pushing, no progress for 1.5 s'),
            RobotStatus(robot='robot3', state='retired',
                        why='pulling, no progress for 9.0 s: the others go on')])
        monitor.robots = {f'robot{n}': TrainingStatus(robot=f'robot{n}', state=state)
                          for n, state in ((1, 'waiting'), (2, 'pushing'), (3, 'pulling'))}
        yield monitor


def test_the_table_names_cause_and_duration(monitor):
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(monitor.table())
    text = console.export_text()
    assert 'waiting for robot2 2 s' in text
    assert 'robot2: 4 iterations behind, pushing, no progress for 1.5 s' in text
    assert 'robot3: retired, pulling, no progress for 9.0 s: the others go on' in text
    assert 'retired' in next(line for line in text.splitlines() if line.startswith('robot3 '))


def test_the_line_names_them_too(monitor):
    assert 'robot3: retired, pulling, no progress for 9.0 s' in monitor.line()
    assert 'robot2: 4 iterations behind' in monitor.line()
