"""Node parameters, declared from the class of the node's settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import yaml
from fleet_env.errors import SettingError
from fleet_env.settings.base import Knob, Settings, flat, from_flat, knobs
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException
from rclpy.node import Node
from rclpy.parameter import Parameter

S = TypeVar('S', bound=Settings)


def declared(model: type[Settings]) -> Iterator[Knob]:
    """Yield the settings of the class ``model`` that are parameters of its node.

    ``model.UNUSED`` names the parameters and sections that the node does not use.
    """
    unused = getattr(model, 'UNUSED', ())
    for knob in knobs(model):
        if not {knob.name, knob.path[0]}.intersection(unused):
            yield knob


def declare(node: Node, model: type[S], prefix: str = '') -> S:
    """Declare the parameters of ``model`` that the node has not declared yet; return all values.

    :param prefix: prefix of every parameter's name.
    """
    values = {knob.name: _declare(node, prefix + knob.name, knob) for knob in declared(model)}
    return from_flat(model, values, f'parameter {prefix}')


def parameters(settings: Settings) -> dict[str, Any]:
    """Return the parameters that give a node these settings, as a dictionary from name to value."""
    values = flat(settings)
    found = {knob.name: _to_ros(values[knob.name]) for knob in declared(type(settings))}
    # Leave out empty lists: rclpy cannot pass an empty list, and every list is empty by default.
    return {name: value for name, value in found.items() if value != []}


class _Quoting(yaml.SafeDumper):
    """Quotes every text, because ROS 2 reads other texts as numbers than PyYAML does: inf, 1e5."""


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar(
    'tag:yaml.org,2002:str', text, style='"'))


def parameter_file(values: Mapping[str, Any]) -> str:
    """Return the text of a parameter file that gives any node these parameters."""
    return yaml.dump({'/**': {'ros__parameters': dict(values)}}, Dumper=_Quoting)


def _to_ros(value: Any) -> Any:
    if isinstance(value, dict):
        return json.dumps(value)
    return list(value) if isinstance(value, tuple) else value


def declare_early(node: Node, model: type[Settings], *names: str) -> dict[str, Any]:
    """Declare the parameters of ``model`` that are in ``names``; return their values by name."""
    return {knob.name: _declare(node, knob.name, knob) for knob in declared(model)
            if knob.name in names}


def _declare(node: Node, name: str, knob: Knob) -> Any:
    default = _to_ros(knob.default)
    if node.has_parameter(name):  # declared by `declare_early` or by an earlier configuration
        given = node.get_parameter_or(name).value
    else:
        try:
            given = node.declare_parameter(name, Parameter.Type.STRING_ARRAY if default == []
                                           else default, _descriptor(name, knob)).value
        except InvalidParameterTypeException as error:
            if knob.kind not in (str, tuple):
                raise
            raise SettingError(f'parameter {name} must be {knob.allowed}; ROS 2 reads inf, 1e5 or '
                               'on as no text: put quotes around it, and on a command line '
                               f"others around them (-p {name}:=\"'inf'\"): {error}") from None
    if knob.kind is dict:
        try:
            return json.loads(given)
        except ValueError as error:
            raise SettingError(f'parameter {name} is not JSON: {error}') from None
    return tuple(given or ()) if knob.kind is tuple else given


def _descriptor(name: str, knob: Knob) -> ParameterDescriptor:
    """Return the descriptor that `ros2 param describe` shows.

    The text of the descriptor describes all limits, also those that the descriptor's range
    cannot express.
    """
    bounds = knob.bounds
    low, high = bounds.get('ge', bounds.get('gt')), bounds.get('le', bounds.get('lt'))
    descriptor = ParameterDescriptor(
        name=name, description=knob.description + f' [{knob.unit}]' * bool(knob.unit),
        read_only=not knob.live, additional_constraints=knob.allowed)
    if bounds and knob.kind is float:
        most = sys.float_info.max
        descriptor.floating_point_range = [FloatingPointRange(
            from_value=float(-most if low is None else low),
            to_value=float(most if high is None else high))]
    elif bounds:
        descriptor.integer_range = [IntegerRange(
            from_value=-2**63 if low is None else low, to_value=2**63 - 1 if high is None else high,
            step=1)]
    return descriptor
