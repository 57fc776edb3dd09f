"""Where rclpy keeps `validate_parameter_name`."""

from rclpy.exceptions import InvalidParameterException


def validate_parameter_name(name: str) -> bool:
    """Return True, or raise InvalidParameterException."""
    if not name:
        raise InvalidParameterException(name)
    return True
