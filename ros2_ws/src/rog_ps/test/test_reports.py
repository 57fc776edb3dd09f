"""A fleet status without news is rare, so that it fills no link of a robot that waits."""

import math
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from rog_core.model.partition import partition_of
from rog_core.protocol.config import ServerConfig, TransferConfig
from rog_core.protocol.messages import RegisterRequest
from rog_core.server.server import Server
from rog_ps import reports
from rog_ros.heartbeat import RARELY

PARTITION = partition_of([('w', (20, 60))])


@pytest.fixture
def made():
    """Reports whose publishers and node are not there."""
    return reports.Reports(
        '/rog/server', lambda kind, topic, profile: MagicMock(
            **{'get_subscription_count.return_value': 0}), lambda topic: [], Time,
        SimpleNamespace(run=0, start=1), None)


@pytest.fixture
def machine():
    return Server(
        PARTITION, np.ones(PARTITION.elements, np.float32), 50,
        ServerConfig(TransferConfig('row', 'onebit'), 'rsp:4', momentum=0.0, heartbeat_limit=3.0,
                     patience=math.inf, capacities={}))


def register(machine, now):
    machine.on_register(RegisterRequest(
        'robot1', 9, 0, 0, 'row', 'onebit', PARTITION.digest,
        tuple((p.name, p.shape, int(p.role)) for p in PARTITION.parameters)), now)


def test_a_status_with_no_news_is_due_after_four_seconds_and_any_other_at_once(
        monkeypatch, made, machine):
    now = 100.0
    monkeypatch.setattr(reports.time, 'monotonic', lambda: now)

    def passes(seconds):
        nonlocal now
        made.status(machine, 0.0, False, set(), [])
        now += seconds
        return made.is_due(machine, [])

    assert passes(1.0), 'nobody has a link: a robot or a second server shall hear of us soon'
    register(machine, now)
    assert made.is_due(machine, [])
    assert not passes(RARELY / 2)
    assert made.is_due(machine, ['no checkpoint: No space left on device'])
    machine.pause(now)
    assert made.is_due(machine, [])
    assert passes(RARELY)


def test_who_begins_to_listen_gets_the_statuses_that_show_that_something_happened(made, machine):
    told = made._fleet_before
    for elapsed in range(3):
        made.status(machine, elapsed, False, set(), [])
    register(machine, 0.0)
    for elapsed in range(3, 9):
        made.status(machine, elapsed, False, set(),
                    faults=[f'no checkpoint: disk {elapsed}'] if 5 < elapsed < 8 else [])
    made.tell_newcomers()
    assert not told.publish.called
    told.get_subscription_count.return_value = 1
    for _ in range(2):
        made.tell_newcomers()
    sent = [call.args[0] for call in told.publish.call_args_list]
    assert [(m.elapsed, [r.robot for r in m.robots], list(m.faults)) for m in sent] == [
        (0.0, [], []), (3.0, ['robot1'], []), (6.0, ['robot1'], ['no checkpoint: disk 6']),
        (8.0, ['robot1'], [])]
