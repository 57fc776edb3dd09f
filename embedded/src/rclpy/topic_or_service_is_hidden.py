"""Where rclpy keeps `topic_or_service_is_hidden`."""

from rclpy._names import hidden as topic_or_service_is_hidden

__all__ = ["topic_or_service_is_hidden"]
