"""Limits the services that rclpy gives every node, and who may call them.

rclpy answers calls on the thread that also handles heartbeats and rows, so a call that takes
seconds holds up the fleet for as long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_ros.managed import ManagedNode
from rcl_interfaces.msg import SetParametersResult
from rclpy.clock import Clock, ClockType
from rclpy.parameter import Parameter

STEADY = Clock(clock_type=ClockType.STEADY_TIME)  # for heartbeats: a network cannot set it
MOST = 1000  # names, prefixes or parameters in a call; no node of ours has as many parameters
PARAMETER_SERVICES = ('describe_parameters', 'get_parameters', 'get_parameter_types',
                      'list_parameters', 'set_parameters', 'set_parameters_atomically')


def guard(node: ManagedNode, closed: bool) -> None:
    """Bound the calls of a node's parameter services, or offer none if ``closed``.

    Such a call carries no proof. The clock of a running node cannot be changed.
    """
    for service in list(node.services):
        if service.srv_name.rpartition('/')[2] not in PARAMETER_SERVICES:
            continue
        if closed:
            node.destroy_service(service)
        else:
            node.held.callback(setattr, service, 'callback', service.callback)
            service.callback = _bounded(service.callback)
    node.add_on_set_parameters_callback(_refuse_clock)
    node.held.callback(node.remove_on_set_parameters_callback, _refuse_clock)


def _bounded(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def bounded(request: Any, response: Any) -> Any:
        wanted = sum(len(value) for name in request.get_fields_and_field_types()
                     if not isinstance(value := getattr(request, name), int))
        return response if wanted > MOST else answer(request, response)
    return bounded


def _refuse_clock(parameters: list[Parameter]) -> SetParametersResult:
    if any(parameter.name == 'use_sim_time' for parameter in parameters):
        return SetParametersResult(successful=False, reason='use_sim_time cannot change while the '
                                   'node runs; give it when the node is started')
    return SetParametersResult(successful=True)
