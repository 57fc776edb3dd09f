"""Where rclpy keeps `validate_namespace`."""

from rclpy._names import validate_namespace

__all__ = ["validate_namespace"]
