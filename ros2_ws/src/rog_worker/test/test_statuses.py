"""What a robot says of itself."""

from types import SimpleNamespace

import pytest
from fleet_env.emulated.shaped import ShapedLink
from rog_worker.reports import Present, Reports
from std_msgs.msg import Header


@pytest.mark.parametrize(('is_starved', 'state'), [(False, 'registering'), (True, 'starved')])
def test_before_the_model_is_there_a_robot_says_whether_it_waits_for_data(is_starved, state):
    sent = []
    present = Present(None, None, 0.0, (0, 0.0), 0.0, 0.0, is_starved)
    reports = Reports('/robot1/worker', 'robot1', 1, 3.0, ShapedLink(),
                      lambda *_: SimpleNamespace(publish=sent.append),
                      lambda: Header().stamp, lambda: present, lambda: None)
    reports.report(urgent=True)
    assert [message.state for message in sent] == [state]
