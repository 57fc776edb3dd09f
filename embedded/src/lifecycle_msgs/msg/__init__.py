"""Messages of lifecycle_msgs; the classes are made when they are first used."""

from rclpy._types import load

__getattr__, __dir__, __all__ = load(__name__)
