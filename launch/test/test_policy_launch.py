"""`ros2 launch rog_bringup policy.launch.py` with real processes."""

import re

import pytest
from launched import Launched, check_clean_end, check_described, check_refused

FILE = 'policy.launch.py'


@pytest.mark.long
def test_a_robot_acts_with_the_server_and_everything_ends_cleanly(tmp_path):
    from diagnostic_msgs.msg import DiagnosticStatus
    from fleet_policy.qos import ACTION, STATUS
    from std_msgs.msg import Float64MultiArray
    actions, said = [], []
    with Launched(tmp_path, FILE, 'policy:=tiny_policy:Tiny', 'robots:=robot1', 'mock:=true',
                  'method:=server-only', 'threads:=1', f'directory:={tmp_path}') as launch:
        launch.node.create_subscription(Float64MultiArray, '/robot1/commands', actions.append,
                                        ACTION)
        launch.node.create_subscription(DiagnosticStatus, '/robot1/policy_status', said.append,
                                        STATUS)
        launch.spin_until(lambda: len(actions) > 20 and any(
            value.key == 'server requests' and int(value.value) > 0
            for status in said for value in status.values))
    assert len(actions) > 20, launch.output
    check_clean_end(launch)


@pytest.mark.long
def test_a_policy_that_does_not_start_ends_the_server_and_the_mock_too(tmp_path):
    launch = Launched(tmp_path, FILE, 'policy:=nowhere:Tiny', 'robots:=robot1', 'mock:=true',
                      f'directory:={tmp_path}').wait()
    assert launch.code == 1 and "there is no module 'nowhere'" in launch.output, launch.output
    assert re.search(r'failed: .*policy-\d+ \(exit code 1\)', launch.output)


@pytest.mark.parametrize('argument, message', [
    ('robots:=robot1', 'policy must be package.module:Class, got nothing'),
    ('safty:=stop', "there is no argument 'safty'; did you mean 'safety'?"),
    ('safety:=panic', "safety is 'panic'; it must be one of hold, stop"),
    ('only:=robot9', 'only:=robot9 names robot9; there are server, robot1')])
def test_a_bad_argument_ends_it_before_anything_is_started(tmp_path, argument, message):
    check_refused(Launched(tmp_path, FILE, argument), message)


def test_every_argument_is_described(tmp_path):
    check_described(tmp_path, FILE, 'robots', 'policy', 'contract', 'inference', 'server_threads',
                    'request_share', 'safety', 'link.rate', 'mock')
