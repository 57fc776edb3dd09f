"""Tests of what a robot's node says about the topics of its data sources."""

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from fleet_testing import eventually
from rclpy.context import Context
from rclpy.node import Node
from rog_tasks.sources import open_source
from rog_worker.sources import Watch
from sensor_msgs.msg import Image
from std_msgs.msg import String


@pytest.fixture
def context():
    made = Context()
    rclpy.init(args=[], context=made)
    yield made
    made.try_shutdown()


def test_a_second_camera_on_a_topic_is_said_with_its_node(context):
    one, two = (Node('driver', namespace=name, context=context) for name in ('robot1', 'robot2'))
    one.create_publisher(Image, '/camera', 10)
    one.create_publisher(String, '/said', 10)
    source = open_source('topic:/camera', 'topic:/said', classes=['red', 'blue'])
    watch = Watch(one, [source])

    def looked():
        return watch.look()[0]
    eventually(lambda: watch._has_all(source), step=looked)
    assert looked().level == DiagnosticStatus.OK
    second = two.create_publisher(Image, '/camera', 10)
    eventually(lambda: '/camera has 2 publishers (/robot1/driver, /robot2/driver)'
               in looked().message and looked().level == DiagnosticStatus.WARN)
    two.destroy_publisher(second)
    eventually(lambda: looked().level == DiagnosticStatus.OK)
    for node in (one, two):
        node.destroy_node()
