"""Exceptions of rclpy, with rclpy's names."""

from __future__ import annotations

from typing import Any


class InvalidHandle(Exception):
    """The entity has been destroyed."""


class NotInitializedException(Exception):
    """Something needs rclpy.init() first."""

    def __init__(self, message: str | None = None) -> None:
        more = f" msg:{message}" if message else ""
        super().__init__(f"rclpy.init() has not been called.{more}")


class NoTypeSupportImportedException(Exception):
    """The type is no message class."""

    def __init__(self) -> None:
        super().__init__("no type_support imported")


class NameValidationException(Exception):
    """A topic name, node name or namespace is invalid."""

    def __init__(self, name_type: str, name: str, error_msg: str, invalid_index: int) -> None:
        mark = " " * invalid_index + "^"
        super().__init__(f"Invalid {name_type}: {error_msg}:\n  '{name}'\n   {mark}")


class InvalidNamespaceException(NameValidationException):
    """A namespace is invalid."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("namespace", name, error_msg, invalid_index)


class InvalidNodeNameException(NameValidationException):
    """A node name is invalid."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("node name", name, error_msg, invalid_index)


class InvalidTopicNameException(NameValidationException):
    """A topic name is invalid."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("topic name", name, error_msg, invalid_index)


class InvalidServiceNameException(NameValidationException):
    """A service name is invalid."""

    def __init__(self, name: str, error_msg: str, invalid_index: int) -> None:
        super().__init__("service name", name, error_msg, invalid_index)


class ParameterException(Exception):
    """Base of the exceptions about parameters."""

    def __init__(self, error_msg: str, parameters: str | list[str]) -> None:
        super().__init__(f"{error_msg}: {parameters}")


class ParameterNotDeclaredException(ParameterException):
    """A parameter is used that nobody has declared."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Invalid access to undeclared parameter(s)", parameters)


class ParameterAlreadyDeclaredException(ParameterException):
    """A parameter is declared twice."""

    def __init__(self, parameters: str | list[str]) -> None:
        super().__init__("Parameter(s) already declared", parameters)


class InvalidParameterException(ParameterException):
    """A parameter has an invalid name."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Invalid parameter name", parameter_name)


class InvalidParameterTypeException(ParameterException):
    """A parameter is declared with one type and overridden with another."""

    def __init__(self, desired_parameter: Any, expected_type: Any) -> None:
        super().__init__(
            f"Trying to set parameter '{desired_parameter.name}' to "
            f"'{desired_parameter.value}' of type '{desired_parameter.type_.name}', "
            f"expecting type '{expected_type}'",
            desired_parameter.name,
        )


class InvalidParameterValueException(ParameterException):
    """A callback or a descriptor rejects a parameter's value."""

    def __init__(self, parameter: str, value: Any, reason: str) -> None:
        super().__init__(
            f"Invalid parameter value ({value}) for parameter. Reason: {reason}", parameter
        )


class ParameterImmutableException(ParameterException):
    """A read-only parameter is modified."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__("Attempted to modify read-only parameter", parameter_name)


class ParameterUninitializedException(ParameterException):
    """A parameter that has a type and no value is read."""

    def __init__(self, parameter_name: str) -> None:
        super().__init__(f"The parameter '{parameter_name}' is not initialized", parameter_name)


class ROSInterruptException(Exception):
    """rclpy was shut down while something waited."""

    def __init__(self) -> None:
        super().__init__("rclpy.shutdown() has been called")
