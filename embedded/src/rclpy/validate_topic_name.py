"""Where rclpy keeps `validate_topic_name`."""

from rclpy._names import validate_topic_name

__all__ = ["validate_topic_name"]
