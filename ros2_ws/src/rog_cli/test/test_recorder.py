"""`rog fleet up --bag` records what a fleet says, so that other programs show it."""

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
import rclpy
import rog_view
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from fleet_env.errors import SettingError
from fleet_testing import eventually
from rclpy.context import Context
from rog_cli.display.bag import played
from rog_cli.display.recorder import Recorder, check_bag, recorded
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from rog_ros import qos

reader = pytest.importorskip('rosbags.rosbag2').Reader
LAYOUT = Path(rog_view.__file__).parents[1] / 'layouts' / 'foxglove.json'
SAID = {
    '/rog/fleet_status': (FleetStatus(run=7, state='training', robots=[
        RobotStatus(robot='robot1', state='training')]), qos.STATUS),
    '/rog/robots': (TrainingStatus(robot='robot1', iteration=3, loss=0.5, accuracy=0.75),
                    qos.RELAY),
    '/diagnostics': (DiagnosticArray(status=[DiagnosticStatus(name='link')]), qos.DIAGNOSTICS)}


@pytest.fixture
def bag(tmp_path, monkeypatch):
    """Record a fleet of which only the publishers are there; return the recording."""
    topics, write = set(), Recorder.write

    def written(recorder, topic, kind, data):
        write(recorder, topic, kind, data)
        topics.add(topic)

    monkeypatch.setattr(Recorder, 'write', written)
    with ExitStack() as stack:
        context = Context()
        rclpy.init(args=[], context=context)
        stack.callback(context.try_shutdown)
        node = rclpy.create_node('said', context=context)
        stack.callback(node.destroy_node)
        publishers = {topic: node.create_publisher(type(message), topic, profile)
                      for topic, (message, profile) in SAID.items()}
        stack.enter_context(recorded(tmp_path / 'bag'))
        eventually(lambda: all(p.get_subscription_count() for p in publishers.values()))

        def arrived():
            for topic, publisher in publishers.items():
                publisher.publish(SAID[topic][0])
            return len(topics) == len(SAID)

        eventually(arrived)
    return tmp_path / 'bag'


def test_a_recording_is_read_as_one_of_rosbag2(bag):
    statuses = [status for _, status in played(bag)]
    assert {type(s).__name__.rpartition('_')[2] for s in statuses} == {
        'FleetStatus', 'TrainingStatus'}
    assert {s.loss for s in statuses if hasattr(s, 'loss')} == {0.5}


def test_foxgloves_layout_finds_its_topics_with_their_definitions(bag):
    with reader(bag) as opened:
        topics = {c.topic: c.msgdef.data for c in opened.connections}
    shown = re.findall(r'"(/[\w/]+)', LAYOUT.read_text())
    assert json.loads(LAYOUT.read_text())
    assert {t for t in shown if 'robot2' not in t and 'robot3' not in t} <= topics.keys()
    assert ' loss\n' in topics['/robot1/training_status']
    assert 'MSG: rog_msgs/RobotStatus' in topics['/rog/fleet_status']


def test_a_place_that_is_taken_is_refused_before_the_run(tmp_path):
    check_bag(None)
    check_bag(tmp_path / 'new')
    with pytest.raises(SettingError, match='is already there'):
        check_bag(tmp_path)


def test_a_full_disk_ends_the_recording_alone(tmp_path, monkeypatch, capsys):
    recorder = Recorder(tmp_path / 'bag')

    def full(*arguments):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(recorder._writer, 'write', full)
    for _ in range(2):
        recorder.write('/a', 'rog_msgs/msg/FleetStatus', b'')
    recorder.close()
    assert capsys.readouterr().err.count('nothing more is recorded: No space left') == 1
