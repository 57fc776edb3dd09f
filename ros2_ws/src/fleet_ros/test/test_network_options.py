"""Options of commands become parameters of nodes."""

import pytest
import rclpy
from fleet_ros.network_options import ros_arguments
from rclpy.context import Context
from rclpy.node import Node


@pytest.mark.parametrize('value', [
    'inf', '1e5', 'yes', '2024', '/a b/c', 'g\u00e4rten', 7, True, .5])
def test_a_node_reads_what_was_given(monkeypatch, tmp_path, value):
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path))
    context = Context()
    rclpy.init(args=ros_arguments({'name': value, 'omitted': ''}), context=context)
    try:
        node = Node('reader', context=context, enable_rosout=False, start_parameter_services=False)
        assert node.declare_parameter('name', type(value)()).value == value
        node.destroy_node()
    finally:
        context.try_shutdown()
