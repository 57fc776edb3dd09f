"""The severities, which are in rclpy.logging."""

from rclpy.logging import LoggingSeverity

__all__ = ["LoggingSeverity"]
