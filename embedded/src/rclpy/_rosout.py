"""/rosout: a node's log messages for everybody."""

from __future__ import annotations

from types import FrameType
from typing import Any

from rclpy import _dds, logging
from rclpy._message import message_class
from rclpy.qos import qos_profile_rosout_default
from rclpy.time import Time


class Rosout:
    """Publishes what a node's logger and its children log."""

    def __init__(self, node: Any, logger_name: str) -> None:
        self._cls = message_class("rcl_interfaces/msg/Log")
        self._name = logger_name
        self.publisher = node.create_publisher(self._cls, "/rosout", qos_profile_rosout_default)
        logging.add_sink(logger_name, self._write)

    def _write(
        self, now: int, severity: logging.LoggingSeverity, name: str, text: str, frame: FrameType
    ) -> None:
        message = self._cls(
            stamp=Time(nanoseconds=now).to_msg(),
            level=int(severity),
            name=name,
            msg=text,
            file=frame.f_code.co_filename,
            function=frame.f_code.co_name,
            line=frame.f_lineno,
        )
        try:
            self.publisher.publish(message)
        except (_dds.DdsError, UnicodeEncodeError):
            pass  # shut down meanwhile; the console has the line

    def close(self) -> None:
        """Stop publishing."""
        logging.remove_sink(self._name)
