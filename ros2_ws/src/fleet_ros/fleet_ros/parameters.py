"""Node parameters, declared from one table of names, defaults, descriptions and bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.node import Node


class ParameterError(ValueError):
    """A parameter has a value that it can't have."""


@dataclass(frozen=True)
class Knob:
    """One parameter: default (its type is the parameter's), description with unit, bounds."""

    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()


def declare(node: Node, knobs: Mapping[str, Knob]) -> SimpleNamespace:
    """Declare the parameters on a node and return their values by name.

    Raises ParameterError for a value that is none of the choices.
    """
    values = {}
    for name, knob in knobs.items():
        descriptor = ParameterDescriptor(name=name, description=knob.description, read_only=True)
        if isinstance(knob.default, float) and knob.low is not None and knob.high is not None:
            descriptor.floating_point_range = [
                FloatingPointRange(from_value=float(knob.low), to_value=float(knob.high))]
        elif isinstance(knob.default, int) and knob.low is not None and knob.high is not None:
            descriptor.integer_range = [
                IntegerRange(from_value=int(knob.low), to_value=int(knob.high), step=1)]
        if knob.choices:
            descriptor.additional_constraints = 'one of ' + ', '.join(knob.choices)
        value = node.declare_parameter(name, knob.default, descriptor).value
        if knob.choices and value not in knob.choices:
            raise ParameterError(f"parameter {name} is '{value}'; it must be one of "
                                 f"{', '.join(knob.choices)}")
        values[name] = value
    return SimpleNamespace(**values)
