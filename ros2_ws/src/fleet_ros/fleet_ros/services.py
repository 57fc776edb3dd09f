"""Limits the services that rclpy gives every node, mostly for parameters.

rclpy answers calls on the thread that also handles heartbeats and rows. So a call that takes
seconds delays the fleet by the same time. Also, an exception in a callback ends the node, and
rclpy's own callbacks raise an exception if a call contains an invalid value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.parameter import Parameter

# Clock for the timers of the heartbeats. Messages from the network can stop the simulated time,
# but not this clock.
STEADY = Clock(clock_type=ClockType.STEADY_TIME)
MOST = 1000    # maximum number of names, prefixes or parameters in a call; our nodes have fewer
PARAMETER_SERVICES = ('describe_parameters', 'get_parameters', 'get_parameter_types',
                      'list_parameters', 'set_parameters', 'set_parameters_atomically')
TYPES = 'get_type_description'  # besides `PARAMETER_SERVICES`, rclpy gives nodes only this service
NAME = 256     # maximum number of characters in the name of a type, a hash or a transition


def close_parameters(node: Node) -> None:
    """Remove the parameter services of a node, because a call to them does not name its sender."""
    for service in list(node.services):
        if _is_one_of(service, PARAMETER_SERVICES):
            node.destroy_service(service)


def is_name(text: str) -> bool:
    """Return whether a text is printable and short enough to be logged.

    rcl, the C library of ROS 2, logs the names in a call without escaping them.
    """
    return text.isprintable() and len(text) <= NAME


def bound_parameters(node: Node) -> None:
    """Limit the size of calls to the services that rclpy gives a node, and catch their errors.

    A node without parameters that can change keeps the services that change them, because
    `ros2 param list`, `get` and `describe` wait for all services. Its descriptors refuse a change.
    """
    for service in node.services:
        if _is_one_of(service, (*PARAMETER_SERVICES, TYPES)):
            service.callback = _bounded(node, service.callback)
    node.add_on_set_parameters_callback(_refuse_clock)


def _is_one_of(service: Any, names: tuple[str, ...]) -> bool:
    return service.srv_name.rpartition('/')[2] in names


def _bounded(node: Node, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a service callback that passes calls to ``answer``, but refuses some of them.

    It refuses a call that is too large or invalid. The response to a refused call is empty.
    """
    def refused(response: Any, reason: str) -> Any:
        node.get_logger().warning(f'refused a call of a service of rclpy: {reason}',
                                  throttle_duration_sec=5.0)
        return response

    def bounded(request: Any, response: Any) -> Any:
        values = [getattr(request, name) for name in request.get_fields_and_field_types()]
        wanted = sum(len(value) for value in values if not isinstance(value, int | str))
        if wanted > MOST:
            return refused(response, f'it must name at most {MOST} things, got {wanted}')
        if not all(is_name(value) for value in values if isinstance(value, str)):
            return refused(response, f'a name must be printable, of at most {NAME} characters')
        try:
            return answer(request, response)
        # Catch every error, because rclpy's errors about invalid values have no common base class.
        except Exception as error:
            return refused(type(response)(), f'{type(error).__name__}: {str(error)[:200]!r}')
    return bounded


def _refuse_clock(parameters: list[Parameter]) -> SetParametersResult:
    if any(parameter.name == 'use_sim_time' for parameter in parameters):
        return SetParametersResult(successful=False, reason='use_sim_time cannot change while the '
                                   'node runs; give it when the node is started')
    return SetParametersResult(successful=True)
