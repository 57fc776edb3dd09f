"""Where rclpy keeps `expand_topic_name`."""

from rclpy._names import expand


def expand_topic_name(topic_name: str, node_name: str, node_namespace: str) -> str:
    """Return the fully qualified name."""
    return expand(topic_name, node_name, node_namespace or "/")
