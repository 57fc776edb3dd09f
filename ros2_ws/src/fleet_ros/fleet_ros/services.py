"""Services that rclpy gives every node: which are offered, and what their calls may cost.

rclpy answers calls on the thread that also handles heartbeats and rows, so a call that takes
seconds holds up the fleet for as long. Also, an exception in a callback ends the node, and the
callbacks of rclpy raise one if a call has a value that is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.parameter import Parameter

STEADY = Clock(clock_type=ClockType.STEADY_TIME)  # heartbeats go on whatever time a network tells
MOST = 1000    # names, prefixes or parameters in a call; no node of ours has as many parameters
AT_ONCE = 2.0  # s of work for calls that nobody has proved
SHARE = 10     # and afterwards this part of the time
SETTERS = ('set_parameters', 'set_parameters_atomically')
PARAMETER_SERVICES = ('describe_parameters', 'get_parameters', 'get_parameter_types',
                      'list_parameters', *SETTERS)


class Allowance:
    """What calls that nobody has proved may cost: `AT_ONCE` seconds, then 1/`SHARE` of the time."""

    def __init__(self) -> None:
        self._spent, self._at = 0.0, 0.0  # seconds, and the time of that

    def left(self, now: float) -> float:
        """Return the seconds of work that are left; ``now``: any monotonic clock, s."""
        return AT_ONCE - max(self._spent - (now - self._at) / SHARE, 0.0)

    def spend(self, seconds: float, now: float) -> None:
        """Count the work for a call."""
        self._spent, self._at = AT_ONCE - self.left(now) + seconds, now


def close_parameters(node: Node) -> None:
    """Offer no parameter services: their calls carry no proof."""
    _destroy(node, PARAMETER_SERVICES)


def bound_parameters(node: Node, writable: bool, allowance: Allowance | None = None) -> None:
    """Bound what calls of a node's parameter services cost, and let none of them end the node.

    :param writable: whether a parameter can be changed while the node runs; if none can, the
        services that change parameters are not offered.
    :param allowance: of these calls together; by default a new one.
    """
    if not writable:
        _destroy(node, SETTERS)
    allowance = allowance or Allowance()
    for service in node.services:
        if _is_one_of(service, PARAMETER_SERVICES):
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
    """Return the callback of a service that answers a call with nothing where it costs too much."""
    def refused(response: Any, reason: str) -> Any:
        node.get_logger().warning(f'refused a call of a parameter service: {reason}',
                                  throttle_duration_sec=5.0)
        return response

    def bounded(request: Any, response: Any) -> Any:
        wanted = sum(len(value) for name in request.get_fields_and_field_types()
                     if not isinstance(value := getattr(request, name), int))
        if wanted > MOST:
            return refused(response, f'it must name at most {MOST} things, got {wanted}')
        if allowance.left(time.monotonic()) <= 0:
            return refused(response, 'such calls must leave the node time for its work')
        began = time.thread_time()
        try:
            return answer(request, response)
        except Exception as error:  # of rclpy, which has no base for them: a type that is none
            return refused(type(response)(), f'{type(error).__name__}: {str(error)[:200]!r}')
        finally:
            allowance.spend(time.thread_time() - began, time.monotonic())
    return bounded


def _refuse_clock(parameters: list[Parameter]) -> SetParametersResult:
    if any(parameter.name == 'use_sim_time' for parameter in parameters):
        return SetParametersResult(successful=False, reason='use_sim_time cannot change while the '
                                   'node runs; give it when the node is started')
    return SetParametersResult(successful=True)
