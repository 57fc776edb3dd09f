"""Limits the services that rclpy gives every node (mostly for parameters), and the cost of calls.

rclpy answers calls on the thread that also handles heartbeats and rows. So a call that takes
seconds delays the fleet by the same time. Also, an exception in a callback ends the node, and
rclpy's own callbacks raise an exception if a call contains an invalid value.
"""

from __future__ import annotations

import time
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
# Calls of unauthenticated senders can use AT_ONCE seconds of processor time in one burst. After
# that, they get 1/SHARE of the processor time.
AT_ONCE = 2.0
SHARE = 10
SETTERS = ('set_parameters', 'set_parameters_atomically')
PARAMETER_SERVICES = ('describe_parameters', 'get_parameters', 'get_parameter_types',
                      'list_parameters', *SETTERS)
TYPES = 'get_type_description'  # besides `PARAMETER_SERVICES`, rclpy gives nodes only this service
NAME = 256     # maximum number of characters in the name of a type, a hash or a transition


class Allowance:
    """The processor time for service calls whose sender is not authenticated.

    Such calls can use `AT_ONCE` seconds of processor time in one burst. After that, they get
    1/`SHARE` of the processor time.
    """

    def __init__(self) -> None:
        # `_spent`: seconds of processor time that count as used at the time `_at`.
        self._spent, self._at = 0.0, 0.0

    def left(self, now: float) -> float:
        """Return how many seconds of work the calls can still use.

        ``now``: seconds on any monotonic clock.
        """
        return AT_ONCE - max(self._spent - (now - self._at) / SHARE, 0.0)

    def spend(self, seconds: float, now: float) -> None:
        """Count ``seconds`` of work that a call has used."""
        self._spent, self._at = AT_ONCE - self.left(now) + seconds, now


def close_parameters(node: Node) -> None:
    """Remove the parameter services of a node, because a call to them does not name its sender."""
    _destroy(node, PARAMETER_SERVICES)


def is_name(text: str) -> bool:
    """Return whether a text is printable and short enough to be logged.

    rcl, the C library of ROS 2, logs the names in a call without escaping them.
    """
    return text.isprintable() and len(text) <= NAME


def bound_parameters(node: Node, writable: bool, allowance: Allowance | None = None) -> None:
    """Limit the cost of calls to the services that rclpy gives a node, and catch their errors.

    :param writable: whether any parameter can be changed while the node runs. If not, remove the
        services that change parameters.
    :param allowance: processor time that all these calls share; default: a new allowance.
    """
    if not writable:
        _destroy(node, SETTERS)
    allowance = allowance or Allowance()
    for service in node.services:
        if _is_one_of(service, (*PARAMETER_SERVICES, TYPES)):
            service.callback = _bounded(node, service.callback, allowance)
    node.add_on_set_parameters_callback(_refuse_clock)


def _is_one_of(service: Any, names: tuple[str, ...]) -> bool:
    return service.srv_name.rpartition('/')[2] in names


def _destroy(node: Node, names: tuple[str, ...]) -> None:
    for service in list(node.services):
        if _is_one_of(service, names):
            node.destroy_service(service)


def _bounded(node: Node, answer: Callable[[Any, Any], Any], allowance: Allowance
             ) -> Callable[[Any, Any], Any]:
    """Return a service callback that passes calls to ``answer``, but refuses some of them.

    It refuses a call that is too large or invalid, or that comes when the allowance is used up. The
    response to a refused call is empty.
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
        if allowance.left(time.monotonic()) <= 0:
            return refused(response, 'such calls must leave the node time for its work')
        began = time.thread_time()
        try:
            return answer(request, response)
        # Catch every error, because rclpy's errors about invalid values have no common base class.
        except Exception as error:
            return refused(type(response)(), f'{type(error).__name__}: {str(error)[:200]!r}')
        finally:
            allowance.spend(time.thread_time() - began, time.monotonic())
    return bounded


def _refuse_clock(parameters: list[Parameter]) -> SetParametersResult:
    if any(parameter.name == 'use_sim_time' for parameter in parameters):
        return SetParametersResult(successful=False, reason='use_sim_time cannot change while the '
                                   'node runs; give it when the node is started')
    return SetParametersResult(successful=True)
