"""The services by which others read and set log levels."""

from __future__ import annotations

from typing import Any

from rclpy import logging
from rclpy._message import message_class, service_class


class LoggingService:
    """`~/get_logger_levels` and `~/set_logger_levels` of one node."""

    def __init__(self, node: Any) -> None:
        for name, answer in (("Get", self._get), ("Set", self._set)):
            cls = service_class(f"rcl_interfaces/srv/{name}LoggerLevels")
            node.create_service(cls, f"{node.get_name()}/{name.lower()}_logger_levels", answer)

    @staticmethod
    def _get(request: Any, response: Any) -> Any:
        cls = message_class("rcl_interfaces/msg/LoggerLevel")
        response.levels = [
            cls(name=name, level=int(logging.get_logger_level(name))) for name in request.names
        ]
        return response

    @staticmethod
    def _set(request: Any, response: Any) -> Any:
        cls = message_class("rcl_interfaces/msg/SetLoggerLevelsResult")
        for wish in request.levels:
            try:
                logging.set_logger_level(wish.name, wish.level)
            except ValueError:
                result = cls(successful=False, reason="Failed reason: Invalid logger level.")
            else:
                result = cls(successful=True)
            response.results.append(result)
        return response
