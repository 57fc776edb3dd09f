"""Records the statuses of a running fleet as rosbag2 does, without it: `rog fleet up --bag`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fleet_env.errors import SettingError
from fleet_ros.environment import share_of

DIAGNOSTICS = '/diagnostics'


def check_bag(place: Path | None) -> None:
    """Raise SettingError if nothing can be recorded there; None: nothing shall be recorded."""
    if place is not None and place.exists():
        raise SettingError(f'--bag {place} is already there; choose a folder that is not')
    if place is not None and find_spec('rosbags') is None:
        raise SettingError('--bag needs the package rosbags: pip install rosbags')


@contextmanager
def recorded(place: Path | None, namespace: str = '') -> Iterator[None]:
    """Record the statuses of a fleet in the context; this process has the fleet's network.

    The recording is a folder with an MCAP file. The robots' statuses are those that the server
    publishes again, so that they cost the robots' links nothing; they are recorded under the
    topics of the robots. If the recording fails, the fleet goes on, and stderr says why.

    :param place: the folder; None: record nothing.
    :param namespace: that of the fleet.
    """
    if place is None:
        yield
        return
    import rclpy
    from fleet_ros.spinning import Spinning
    from rclpy.context import Context
    from rclpy.signals import SignalHandlerOptions

    recorder, context = Recorder(place), Context()
    rclpy.init(args=[], context=context, signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f'rog_recorder_{os.getpid()}', context=context)
    try:
        recorder.listen(node, namespace)
        spinning = Spinning(node)
        try:
            yield
        finally:
            spinning.close()
    finally:
        recorder.close()
        node.destroy_node()
        context.try_shutdown()


class Recorder:
    """Writes messages as they come from the middleware; :raises OSError: from ``place``."""

    def __init__(self, place: Path) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore

        self._store = get_typestore(Stores.ROS2_JAZZY)
        for path in (share_of('rog_msgs') / 'msg').glob('*.msg'):
            self._store.register(get_types_from_msg(path.read_text(), f'rog_msgs/msg/{path.stem}'))
        self._place, self._connections = place, dict[str, Any]()
        self._writer: Any = Writer(place, version=9, storage_plugin=StoragePlugin.MCAP)
        self._writer.open()

    def listen(self, node: Any, namespace: str) -> None:
        """Subscribe to what is recorded."""
        from diagnostic_msgs.msg import DiagnosticArray
        from rclpy.serialization import deserialize_message
        from rog_msgs.msg import FleetStatus, TrainingStatus
        from rog_ros import qos
        from rog_ros.parameters import SERVER

        status = f'{namespace}/{SERVER}/fleet_status'

        def on_robot(data: bytes) -> None:
            robot = deserialize_message(data, TrainingStatus).robot
            self.write(f'{namespace}/{robot}/training_status', 'rog_msgs/msg/TrainingStatus', data)

        node.create_subscription(
            FleetStatus, status, lambda data: self.write(status, 'rog_msgs/msg/FleetStatus', data),
            qos.STATUS, raw=True)
        node.create_subscription(TrainingStatus, f'{namespace}/{SERVER}/{qos.ROBOTS}', on_robot,
                                 qos.RELAY, raw=True)
        node.create_subscription(
            DiagnosticArray, DIAGNOSTICS,
            lambda data: self.write(DIAGNOSTICS, 'diagnostic_msgs/msg/DiagnosticArray', data),
            qos.DIAGNOSTICS, raw=True)

    def write(self, topic: str, kind: str, data: bytes) -> None:
        """Append a message with the present time; after an error of the disk do nothing."""
        if self._writer is None:
            return
        try:
            if topic not in self._connections:
                self._connections[topic] = self._writer.add_connection(
                    topic, kind, typestore=self._store)
            self._writer.write(self._connections[topic], time.time_ns(), data)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Complete the recording."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._writer = None
        print(f'rog: --bag {self._place}: nothing more is recorded: {error.strerror}',
              file=sys.stderr)
