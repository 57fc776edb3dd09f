"""Where rclpy keeps `expand_topic_name`."""

from rclpy._names import expand, validate_namespace, validate_node_name
from rclpy.exceptions import NameValidationException


def expand_topic_name(topic_name: str, node_name: str, node_namespace: str) -> str:
    """Return the fully qualified name; ValueError when one of the three is invalid."""
    try:
        validate_node_name(node_name)
        validate_namespace(node_namespace)
        return expand(topic_name, node_name, node_namespace)
    except NameValidationException as error:
        raise ValueError(str(error)) from None
