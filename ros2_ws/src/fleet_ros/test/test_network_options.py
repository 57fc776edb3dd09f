"""Options of commands become parameters of nodes."""

import argparse

import pytest
import rclpy
from fleet_env.errors import SettingError
from fleet_ros.network_options import add_server_options, ros_arguments, server_arguments
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


@pytest.mark.parametrize('name', ['1e5', '0x10', 'a b', 'a__b', 'a' * 65])
def test_the_name_of_a_server_that_ros_2_would_not_take_is_refused_with_the_whole_rule(name):
    parser = argparse.ArgumentParser()
    add_server_options(parser, 'cpu', '')
    with pytest.raises(SettingError, match='--name: namespace is .*letters a to z, digits and '
                                           'single underscores .*first a letter.*at most 64'):
        server_arguments(parser.parse_args([]), {}, name)
    assert '__ns:=/inf' in server_arguments(parser.parse_args([]), {}, 'inf')


def test_a_server_keeps_weights_where_and_as_many_as_its_options_say():
    parser = argparse.ArgumentParser()
    add_server_options(parser, 'cpu', '')
    given = server_arguments(parser.parse_args(['--directory', '/data/weights', '--disk', '0']), {})
    assert 'directory:="/data/weights"' in given and 'disk:=0' in given
