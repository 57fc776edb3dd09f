"""Parameters."""

from __future__ import annotations

import array
from enum import Enum
from typing import Any

import yaml

from rclpy._message import message_class

PARAMETER_SEPARATOR_STRING = "."

_SEQUENCES: Any = (list, tuple)
_NUMBERS: Any = (list, tuple, array.array)


def _all(value: Any, kinds: Any, element: type) -> bool:
    return isinstance(value, kinds) and all(isinstance(v, element) for v in value)


class Parameter:
    """A name, a type and a value.

    :param type_: by default the type of the value
    """

    class Type(Enum):
        """Types of parameters, with the numbers of rcl_interfaces/ParameterType."""

        NOT_SET = 0
        BOOL = 1
        INTEGER = 2
        DOUBLE = 3
        STRING = 4
        BYTE_ARRAY = 5
        BOOL_ARRAY = 6
        INTEGER_ARRAY = 7
        DOUBLE_ARRAY = 8
        STRING_ARRAY = 9

        @classmethod
        def from_parameter_value(cls, parameter_value: Any) -> Parameter.Type:
            """Return the type of a value; an empty list counts as BYTE_ARRAY, as in rclpy."""
            if parameter_value is None:
                return cls.NOT_SET
            if isinstance(parameter_value, _NUMBERS):
                for kind in (cls.BYTE_ARRAY, cls.BOOL_ARRAY, cls.INTEGER_ARRAY, cls.DOUBLE_ARRAY):
                    if all(isinstance(v, _ELEMENTS[kind]) for v in parameter_value):
                        return kind
                if all(isinstance(v, str) for v in parameter_value):
                    return cls.STRING_ARRAY
                raise TypeError(
                    f"The given value is not a list of one of the allowed types "
                    f"'{parameter_value}'."
                )
            for kind in (cls.BOOL, cls.INTEGER, cls.DOUBLE, cls.STRING):
                if isinstance(parameter_value, _ELEMENTS[kind]):
                    return kind
            raise TypeError(f"The given value is not one of the allowed types '{parameter_value}'.")

        def check(self, parameter_value: Any) -> bool:
            """Whether a value has this type."""
            if self is Parameter.Type.NOT_SET:
                return parameter_value is None
            element = _ELEMENTS[self]
            if self.value <= Parameter.Type.STRING.value:
                return isinstance(parameter_value, element)
            if self is Parameter.Type.BYTE_ARRAY:
                return _all(parameter_value, _SEQUENCES, bytes) and all(
                    len(v) == 1 for v in parameter_value
                )
            numbers = self in (Parameter.Type.INTEGER_ARRAY, Parameter.Type.DOUBLE_ARRAY)
            return _all(parameter_value, _NUMBERS if numbers else _SEQUENCES, element)

    def __init__(self, name: str, type_: Parameter.Type | None = None, value: Any = None) -> None:
        if type_ is None:
            type_ = Parameter.Type.from_parameter_value(value)
        if not isinstance(type_, Parameter.Type):
            raise TypeError(f"type must be an instance of '{Parameter.Type!r}'")
        if not type_.check(value):
            raise ValueError(f"Type '{type_}' and value '{value}' do not agree")
        self._type_ = type_
        self._name = name
        self._value = value

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self._name

    @property
    def type_(self) -> Parameter.Type:
        """The parameter's type."""
        return self._type_

    @property
    def value(self) -> Any:
        """The parameter's value, None when it has none."""
        return self._value

    def get_parameter_value(self) -> Any:
        """Return the value as rcl_interfaces/ParameterValue."""
        message = message_class("rcl_interfaces/msg/ParameterValue")(type=self._type_.value)
        if self._type_ is not Parameter.Type.NOT_SET:
            setattr(message, _MEMBERS[self._type_], self._value)
        return message

    def to_parameter_msg(self) -> Any:
        """Return the parameter as rcl_interfaces/Parameter."""
        cls = message_class("rcl_interfaces/msg/Parameter")
        return cls(name=self._name, value=self.get_parameter_value())

    @classmethod
    def from_parameter_msg(cls, param_msg: Any) -> Parameter:
        """Make one from rcl_interfaces/Parameter."""
        type_ = Parameter.Type(param_msg.value.type)
        if type_ is Parameter.Type.NOT_SET:
            return cls(param_msg.name, type_, None)
        return cls(param_msg.name, type_, getattr(param_msg.value, _MEMBERS[type_]))

    def __repr__(self) -> str:
        return f"Parameter({self._name!r}, {self._type_.name}, {self._value!r})"


_ELEMENTS: dict[Parameter.Type, type] = {
    Parameter.Type.BOOL: bool,
    Parameter.Type.INTEGER: int,
    Parameter.Type.DOUBLE: float,
    Parameter.Type.STRING: str,
    Parameter.Type.BYTE_ARRAY: bytes,
    Parameter.Type.BOOL_ARRAY: bool,
    Parameter.Type.INTEGER_ARRAY: int,
    Parameter.Type.DOUBLE_ARRAY: float,
    Parameter.Type.STRING_ARRAY: str,
}
_MEMBERS = {t: f"{t.name.lower()}_value" for t in _ELEMENTS}


def get_parameter_value(string_value: str) -> Any:
    """Return the rcl_interfaces/ParameterValue that a text stands for, as a command line has it.

    The text is YAML; what is no value of a parameter in YAML is a string.
    """
    try:
        value = yaml.safe_load(string_value)
    except yaml.YAMLError:
        value = string_value
    try:
        type_ = Parameter.Type.from_parameter_value(value)
    except TypeError:
        type_ = Parameter.Type.NOT_SET
    if type_ is Parameter.Type.NOT_SET:
        type_, value = Parameter.Type.STRING, string_value
    if value == []:
        type_ = Parameter.Type.BOOL_ARRAY  # as in rclpy: any type would do
    return Parameter("", type_, value).get_parameter_value()


def parameter_value_to_python(parameter_value: Any) -> Any:
    """Return the Python value of rcl_interfaces/ParameterValue."""
    try:
        type_ = Parameter.Type(parameter_value.type)
    except ValueError:
        raise RuntimeError(f"unexpected parameter type {parameter_value.type}") from None
    if type_ is Parameter.Type.NOT_SET:
        return None
    value = getattr(parameter_value, _MEMBERS[type_])
    return list(value) if type_.value >= Parameter.Type.BYTE_ARRAY.value else value
