"""Where rclpy keeps `validate_node_name`."""

from rclpy._names import validate_node_name

__all__ = ["validate_node_name"]
