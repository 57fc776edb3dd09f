"""What the middleware knows of other nodes: who publishes on a topic, whose services differ."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.node import Node
from rclpy.utilities import get_rmw_implementation_identifier

# The first bytes of an endpoint's identifier name its vendor (RTPS, 9.3.1.5).
_VENDORS = {(1, 15): 'Fast DDS', (1, 16): 'Cyclone DDS'}
_OURS = {'rmw_fastrtps_cpp': 'Fast DDS', 'rmw_fastrtps_dynamic_cpp': 'Fast DDS',
         'rmw_cyclonedds_cpp': 'Cyclone DDS'}


def other_middleware(node: Node, service: str) -> str:
    """Return an error message if all servers of a service use other middleware than ``node``.

    Topics work between DDS implementations of different vendors, but services do not. The
    message is '' if no server is found, if a server uses the same middleware, or if the middleware
    of a server or of this process is not known.

    :param service: full name of the service.
    """
    theirs = {_VENDORS.get(tuple(info.endpoint_gid[:2]), '')
              for info in node.get_publishers_info_by_topic(f'rr{service}Reply', no_mangle=True)}
    ours = _OURS.get(get_rmw_implementation_identifier(), '')
    if not theirs or not ours or theirs & {'', ours}:
        return ''
    return (f'{service} is offered by {" and ".join(sorted(theirs))}, this process uses {ours}: '
            'services do not work between them; set RMW_IMPLEMENTATION to the same on all machines')


def publishers(node: Node, topic: str) -> list[tuple[str, str]]:
    """Return the full name of the node and the type, for each publisher of a topic."""
    return sorted((f'{info.node_namespace.rstrip("/")}/{info.node_name}', info.topic_type)
                  for info in node.get_publishers_info_by_topic(topic))


def several(node: Node, topic: str, kinds: Sequence[str], most: int = 1) -> str:
    """Return that more than ``most`` publishers send messages of some types; '' if they do not.

    The text names their nodes; what several nodes send on one topic is mixed.
    """
    if node.count_publishers(topic) <= most:   # thirty times as fast as `publishers`
        return ''
    there = [name for name, kind in publishers(node, topic) if kind in kinds]
    return f'{topic} has {len(there)} publishers ({", ".join(there)})' if len(there) > most else ''
