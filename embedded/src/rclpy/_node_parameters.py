"""The parameters of a node: declaration, checks, changes, events. Base of Node."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from rclpy._message import message_class
from rclpy.exceptions import (
    InvalidParameterTypeException,
    InvalidParameterValueException,
    ParameterAlreadyDeclaredException,
    ParameterImmutableException,
    ParameterNotDeclaredException,
    ParameterUninitializedException,
)
from rclpy.parameter import (
    PARAMETER_SEPARATOR_STRING,
    Parameter,
    parameter_value_to_python,
)
from rclpy.validate_parameter_name import validate_parameter_name

_TOLERANCE = 1e-6

Callback = Callable[[list[Parameter]], Any]


def _result(reason: str | None = None) -> Any:
    cls = message_class("rcl_interfaces/msg/SetParametersResult")
    return cls(successful=True) if reason is None else cls(successful=False, reason=reason)


def _range_problem(parameter: Parameter, limits: Any, is_integer: bool) -> str | None:
    """Why a number is not in its range (both ends belong to it), None when it is."""
    low, high = sorted((limits.from_value, limits.to_value))
    value, step = parameter.value, limits.step

    def close(a: float, b: float) -> bool:
        return a == b if is_integer else math.isclose(a, b, rel_tol=_TOLERANCE)

    if close(value, low) or close(value, high):
        return None
    text = f"Min: {low}, Max: {high}, value: {value}"
    if not low < value < high:
        return f"Parameter {parameter.name} out of range. {text}"
    if step and not close(low + round((value - low) / step) * step, value):
        return f"The parameter value for {parameter.name} is not a valid step. {text}, step: {step}"
    return None


class NodeParameters:
    """What a node knows about its parameters."""

    def __init__(
        self, overrides: dict[str, Any], parameter_overrides: list[Parameter] | None, allow: bool
    ) -> None:
        self._parameters: dict[str, Parameter] = {}
        self._descriptors: dict[str, Any] = {}
        self._parameter_overrides = {n: Parameter(n, value=v) for n, v in overrides.items()}
        self._parameter_overrides.update({p.name: p for p in parameter_overrides or ()})
        self._allow_undeclared_parameters = allow
        self._pre_set_parameters_callbacks: list[Callback] = []
        self._on_set_parameters_callbacks: list[Callback] = []
        self._post_set_parameters_callbacks: list[Callback] = []

    def _publish_parameter_event(self, new: list[Any], changed: list[Any], gone: list[Any]) -> None:
        raise NotImplementedError

    # Declaring.

    def declare_parameter(
        self,
        name: str,
        value: Any = None,
        descriptor: Any = None,
        ignore_override: bool = False,
    ) -> Parameter:
        """Declare a parameter; what the command line or the constructor says wins over `value`.

        :param value: default value (its type is the parameter's type), or a Parameter.Type
        :raises ParameterAlreadyDeclaredException: declared before
        :raises InvalidParameterValueException: outside the descriptor's range, or rejected
        :raises InvalidParameterTypeException: the override has another type
        """
        if value is None and descriptor is None:
            declared = self.declare_parameters("", [(name,)], ignore_override)
        else:
            descriptor = descriptor or message_class("rcl_interfaces/msg/ParameterDescriptor")()
            declared = self.declare_parameters("", [(name, value, descriptor)], ignore_override)
        return declared[0]

    def declare_parameters(
        self, namespace: str, parameters: Sequence[tuple[Any, ...]], ignore_override: bool = False
    ) -> list[Parameter]:
        """Declare parameters given as (name, [value or type, [descriptor]])."""
        made = [
            self._declaration(namespace, index, entry, ignore_override)
            for index, entry in enumerate(parameters)
        ]
        known = [p.name for p, _ in made if p.name in self._parameters]
        if known:
            raise ParameterAlreadyDeclaredException(known)
        for parameter, descriptor in made:
            result = self._change([parameter], {parameter.name: descriptor}, keep_unset=True)
            if result.successful:
                continue
            if result.reason.startswith("Wrong parameter type"):
                expected = Parameter.Type(descriptor.type).name
                raise InvalidParameterTypeException(parameter, expected)
            raise InvalidParameterValueException(parameter.name, parameter.value, result.reason)
        return [self._parameters[p.name] for p, _ in made]

    def _declaration(
        self, namespace: str, index: int, entry: tuple[Any, ...], ignore_override: bool
    ) -> tuple[Parameter, Any]:
        """Check one entry of declare_parameters; returns the parameter and its descriptor."""
        descriptor_type = message_class("rcl_interfaces/msg/ParameterDescriptor")
        if not 1 <= len(entry) <= 3:
            raise TypeError(
                f"Invalid parameter tuple length at index {index} in parameters list: {entry}; "
                "expecting length between 1 and 3"
            )
        name = entry[0]
        if not isinstance(name, str):
            raise TypeError(f"First element {name} at index {index} in parameters list is no str.")
        name = f"{namespace}.{name}" if namespace else name
        validate_parameter_name(name)
        value = entry[1] if len(entry) > 1 else None
        descriptor: Any = entry[2] if len(entry) > 2 else descriptor_type()
        if not isinstance(descriptor, descriptor_type):
            raise TypeError(
                f"Third element {descriptor} at index {index} in parameters list is not a "
                "ParameterDescriptor."
            )
        if len(entry) == 1:
            warnings.warn(
                f"when declaring parameter named '{name}', declaring a parameter only providing "
                "its name is deprecated: pass a default value or a Parameter.Type, too.",
                stacklevel=4,
            )
            descriptor.dynamic_typing = True
        if isinstance(value, message_class("rcl_interfaces/msg/ParameterValue")):
            value = parameter_value_to_python(value)
        if isinstance(value, Parameter.Type):
            if value is Parameter.Type.NOT_SET or descriptor.dynamic_typing:
                raise ValueError(f"Cannot declare parameter {name} with both a type and none")
            descriptor.type = value.value
            value = None
        elif not descriptor.dynamic_typing:
            descriptor.type = Parameter.Type.from_parameter_value(value).value
            if descriptor.type == Parameter.Type.NOT_SET.value:
                raise ValueError(
                    "Cannot declare a statically typed parameter with default value of type "
                    "PARAMETER_NOT_SET"
                )
        if not ignore_override and name in self._parameter_overrides:
            value = self._parameter_overrides[name].value
        return Parameter(name, value=value), descriptor

    def undeclare_parameter(self, name: str) -> None:
        """Forget a parameter."""
        if name not in self._parameters:
            raise ParameterNotDeclaredException(name)
        if self._descriptors[name].read_only:
            raise ParameterImmutableException(name)
        del self._parameters[name]
        del self._descriptors[name]

    # Reading.

    def has_parameter(self, name: str) -> bool:
        """Whether the parameter is declared."""
        return name in self._parameters

    def get_parameter(self, name: str) -> Parameter:
        """Return a parameter.

        :raises ParameterNotDeclaredException: unless undeclared parameters are allowed
        :raises ParameterUninitializedException: declared with a type, and never set
        """
        parameter = self._parameters.get(name)
        if parameter is None:
            if self._allow_undeclared_parameters:
                return Parameter(name, Parameter.Type.NOT_SET, None)
            raise ParameterNotDeclaredException(name)
        unset = parameter.type_ is Parameter.Type.NOT_SET
        if unset and not self._descriptors[name].dynamic_typing:
            raise ParameterUninitializedException(name)
        return parameter

    def get_parameters(self, names: list[str]) -> list[Parameter]:
        """Return several parameters."""
        if not all(isinstance(name, str) for name in names):
            raise TypeError("All names must be instances of type str")
        return [self.get_parameter(name) for name in names]

    def get_parameter_or(self, name: str, alternative_value: Any = None) -> Parameter:
        """Return a parameter, or the alternative (a Parameter) when it is not there or unset."""
        parameter = self._parameters.get(name)
        if parameter is not None and parameter.type_ is not Parameter.Type.NOT_SET:
            return parameter
        if alternative_value is None:
            return Parameter(name, Parameter.Type.NOT_SET)
        return alternative_value

    def get_parameters_by_prefix(self, prefix: str) -> dict[str, Parameter]:
        """Return the parameters below `prefix`, by their names without it."""
        start = prefix + PARAMETER_SEPARATOR_STRING if prefix else ""
        return {
            name.removeprefix(start): parameter
            for name, parameter in self._parameters.items()
            if name.startswith(start)
        }

    def get_parameter_type(self, name: str) -> Any:
        """Return the number of a parameter's type."""
        if name in self._parameters:
            return self._parameters[name].type_.value
        if self._allow_undeclared_parameters:
            return Parameter.Type.NOT_SET
        raise ParameterNotDeclaredException(name)

    def get_parameter_types(self, names: list[str]) -> list[Any]:
        """Return the numbers of several parameters' types."""
        return [self.get_parameter_type(name) for name in names]

    def describe_parameter(self, name: str) -> Any:
        """Return a parameter's descriptor."""
        if name in self._descriptors:
            return self._descriptors[name]
        if self._allow_undeclared_parameters:
            return message_class("rcl_interfaces/msg/ParameterDescriptor")()
        raise ParameterNotDeclaredException(name)

    def describe_parameters(self, names: list[str]) -> list[Any]:
        """Return several descriptors."""
        return [self.describe_parameter(name) for name in names]

    def set_descriptor(self, name: str, descriptor: Any, alternative_value: Any = None) -> Any:
        """Replace a parameter's descriptor; returns its rcl_interfaces/ParameterValue.

        :param alternative_value: a ParameterValue, for when the new descriptor forbids the present
        :raises ParameterImmutableException: it is read-only
        :raises InvalidParameterValueException: neither value is allowed
        """
        present = self.get_parameter(name)
        if name not in self._parameters:
            return present.get_parameter_value()
        if self._descriptors[name].read_only:
            raise ParameterImmutableException(name)
        values = [present]
        if alternative_value is not None:
            values.append(Parameter(name, value=parameter_value_to_python(alternative_value)))
        for parameter in values:
            result = self._change([parameter], {name: descriptor}, keep_unset=True)
            if result.successful:
                return parameter.get_parameter_value()
        raise InvalidParameterValueException(name, values[-1].value, result.reason)

    def list_parameters(self, prefixes: list[str], depth: int) -> Any:
        """Return names (and their prefixes) below `prefixes`, up to `depth` levels (0: all)."""
        if not isinstance(prefixes, list) or not all(isinstance(p, str) for p in prefixes):
            raise TypeError("The prefixes argument must be a list of str")
        if not isinstance(depth, int):
            raise TypeError("The depth must be instance of type int")
        if depth < 0:
            raise ValueError("The depth must be greater than or equal to zero")
        result = message_class("rcl_interfaces/msg/ListParametersResult")()

        def shallow(name: str) -> bool:
            return depth == 0 or name.count(PARAMETER_SEPARATOR_STRING) < depth

        def wanted(name: str) -> bool:
            if not prefixes:
                return shallow(name)
            return any(
                name == p or (name.startswith(f"{p}.") and shallow(name[len(p) + 1 :]))
                for p in prefixes
            )

        for name in filter(wanted, self._parameters):
            result.names.append(name)
            prefix = name.rpartition(PARAMETER_SEPARATOR_STRING)[0]
            if prefix and prefix not in result.prefixes:
                result.prefixes.append(prefix)
        return result

    # Setting.

    def set_parameters(self, parameter_list: list[Parameter]) -> list[Any]:
        """Set parameters one after the other; returns a SetParametersResult for each."""
        return [self.set_parameters_atomically([p]) for p in parameter_list]

    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> Any:
        """Set all parameters or none; returns one SetParametersResult."""
        if self._pre_set_parameters_callbacks:
            changed: list[Parameter] = []
            for callback in self._pre_set_parameters_callbacks:
                changed.extend(callback(parameter_list))
            parameter_list = changed
            if not parameter_list:
                return _result(
                    "parameter list cannot be empty, this might be due to "
                    "pre_set_parameters_callback modifying the original parameters list."
                )
        if not all(isinstance(p, Parameter) for p in parameter_list):
            raise TypeError(f"parameter must be instance of type '{Parameter!r}'")
        unknown = [p.name for p in parameter_list if p.name not in self._parameters]
        if unknown and not self._allow_undeclared_parameters:
            raise ParameterNotDeclaredException(unknown)
        return self._change(parameter_list, None, keep_unset=False)

    def _change(
        self,
        parameters: list[Parameter],
        descriptors: dict[str, Any] | None,
        *,
        keep_unset: bool,
    ) -> Any:
        """Check, ask the callbacks, store, tell the world.

        :param descriptors: of parameters that are being declared; else the known ones hold
        :param keep_unset: store parameters without a value; else they are undeclared
        """
        for parameter in parameters:
            given = self._descriptors if descriptors is None else descriptors
            problem = self._problem(parameter, given.get(parameter.name), descriptors is None)
            if problem is not None:
                return _result(problem)
        for callback in self._on_set_parameters_callbacks:
            result = callback(parameters)
            if not result.successful:
                return result
        new: list[Any] = []
        changed: list[Any] = []
        gone: list[Any] = []
        for parameter in parameters:
            if not keep_unset and parameter.type_ is Parameter.Type.NOT_SET:
                gone.append(parameter.to_parameter_msg())
                self._parameters.pop(parameter.name, None)
                self._descriptors.pop(parameter.name, None)
                continue
            before = self._parameters.get(parameter.name)
            fresh = before is None or before.type_ is Parameter.Type.NOT_SET
            (new if fresh else changed).append(parameter.to_parameter_msg())
            self._store(parameter, descriptors)
        self._publish_parameter_event(new, changed, gone)
        for callback in self._post_set_parameters_callbacks:
            callback(parameters)
        return _result()

    def _store(self, parameter: Parameter, descriptors: dict[str, Any] | None) -> None:
        name = parameter.name
        if descriptors is not None:
            self._descriptors[name] = descriptors[name]
        elif name not in self._descriptors:
            cls = message_class("rcl_interfaces/msg/ParameterDescriptor")
            self._descriptors[name] = cls(
                name=name, type=parameter.type_.value, dynamic_typing=True
            )
        self._parameters[name] = parameter

    def _problem(self, parameter: Parameter, descriptor: Any, check_read_only: bool) -> str | None:
        """Why the descriptor forbids the value; sets the descriptor's name and type."""
        if descriptor is None:
            return None
        descriptor.name = parameter.name
        if check_read_only and descriptor.read_only:
            return f"Trying to set a read-only parameter: {parameter.name}."
        unset = parameter.type_ is Parameter.Type.NOT_SET
        if descriptor.dynamic_typing:
            descriptor.type = parameter.type_.value
        elif unset and parameter.name in self._parameters:
            return "Static parameter cannot be undeclared"
        elif not unset and parameter.type_.value != descriptor.type:
            return (
                f"Wrong parameter type, expected '{Parameter.Type(descriptor.type)}' got "
                f"'{parameter.type_}'"
            )
        if parameter.type_ is Parameter.Type.INTEGER and descriptor.integer_range:
            return _range_problem(parameter, descriptor.integer_range[0], True)
        if parameter.type_ is Parameter.Type.DOUBLE and descriptor.floating_point_range:
            return _range_problem(parameter, descriptor.floating_point_range[0], False)
        return None

    # Callbacks: the last one added is asked first.

    def add_pre_set_parameters_callback(self, callback: Callback) -> None:
        """Have a callback replace the list of parameters before it is checked."""
        self._pre_set_parameters_callbacks.insert(0, callback)

    def add_on_set_parameters_callback(self, callback: Callback) -> None:
        """Have a callback accept or reject changes; it returns a SetParametersResult."""
        self._on_set_parameters_callbacks.insert(0, callback)

    def add_post_set_parameters_callback(self, callback: Callback) -> None:
        """Call back after changes."""
        self._post_set_parameters_callbacks.insert(0, callback)

    def remove_pre_set_parameters_callback(self, callback: Callback) -> None:
        """End what add_pre_set_parameters_callback began."""
        self._pre_set_parameters_callbacks.remove(callback)

    def remove_on_set_parameters_callback(self, callback: Callback) -> None:
        """End what add_on_set_parameters_callback began."""
        self._on_set_parameters_callbacks.remove(callback)

    def remove_post_set_parameters_callback(self, callback: Callback) -> None:
        """End what add_post_set_parameters_callback began."""
        self._post_set_parameters_callbacks.remove(callback)
