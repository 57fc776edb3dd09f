"""The services by which others read and set a node's parameters."""

from __future__ import annotations

import weakref
from typing import Any

from rclpy._message import message_class, service_class
from rclpy.exceptions import (
    ParameterNotDeclaredException,
    ParameterUninitializedException,
)
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_parameters


class ParameterService:
    """`~/get_parameters`, `~/set_parameters` and so on, of one node."""

    def __init__(self, node: Any) -> None:
        self._node = weakref.ref(node)
        for name, type_name, answer in (
            ("describe_parameters", "DescribeParameters", self._describe),
            ("get_parameters", "GetParameters", self._get),
            ("get_parameter_types", "GetParameterTypes", self._types),
            ("list_parameters", "ListParameters", self._list),
            ("set_parameters", "SetParameters", self._set),
            ("set_parameters_atomically", "SetParametersAtomically", self._set_atomically),
        ):
            node.create_service(
                service_class(f"rcl_interfaces/srv/{type_name}"),
                f"~/{name}",
                answer,
                qos_profile=qos_profile_parameters,
            )

    def _get_node(self) -> Any:
        node = self._node()
        if node is None:
            raise ReferenceError("Expected valid node weak reference")
        return node

    # A name that is not declared makes the whole answer empty, as in rclpy.

    def _describe(self, request: Any, response: Any) -> Any:
        try:
            response.descriptors = self._get_node().describe_parameters(request.names)
        except ParameterNotDeclaredException:
            pass
        return response

    def _get(self, request: Any, response: Any) -> Any:
        try:
            parameters = self._get_node().get_parameters(request.names)
        except (ParameterNotDeclaredException, ParameterUninitializedException):
            return response
        response.values = [p.get_parameter_value() for p in parameters]
        return response

    def _types(self, request: Any, response: Any) -> Any:
        try:
            types = self._get_node().get_parameter_types(request.names)
        except ParameterNotDeclaredException:
            return response
        response.types = [t if isinstance(t, int) else t.value for t in types]
        return response

    def _list(self, request: Any, response: Any) -> Any:
        try:
            response.result = self._get_node().list_parameters(request.prefixes, request.depth)
        except (TypeError, ValueError):
            pass  # the request makes no sense: an empty answer
        return response

    def _set(self, request: Any, response: Any) -> Any:
        node = self._get_node()
        cls = message_class("rcl_interfaces/msg/SetParametersResult")
        for message in request.parameters:
            try:
                result = node.set_parameters_atomically([Parameter.from_parameter_msg(message)])
            except (ParameterNotDeclaredException, ValueError) as error:
                result = cls(successful=False, reason=str(error))
            response.results.append(result)
        return response

    def _set_atomically(self, request: Any, response: Any) -> Any:
        node = self._get_node()
        cls = message_class("rcl_interfaces/msg/SetParametersResult")
        try:
            parameters = [Parameter.from_parameter_msg(m) for m in request.parameters]
            response.result = node.set_parameters_atomically(parameters)
        except (ParameterNotDeclaredException, ValueError) as error:
            response.result = cls(successful=False, reason=str(error))
        return response
