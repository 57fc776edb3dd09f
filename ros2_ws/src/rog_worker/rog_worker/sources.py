"""Passes topic messages to the data sources of a robot's task, and reports the sources' state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from fleet_ros.middleware import several
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from rog_tasks.sources import CameraSource, Report, Source
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import String

IMAGES = {'sensor_msgs/msg/Image': Image, 'sensor_msgs/msg/CompressedImage': CompressedImage}
LABELS = {'std_msgs/msg/String': String}
LEVELS = {'ok': DiagnosticStatus.OK, 'warn': DiagnosticStatus.WARN, 'error': DiagnosticStatus.ERROR}


class Watch:
    """The data sources of a robot; the thread that spins the node calls `look` once a second.

    The type of a topic is known only when somebody publishes it. So `look` subscribes to a topic
    as soon as the topic has a publisher.
    """

    def __init__(self, node: Node, sources: Sequence[Source]) -> None:
        self._node, self._sources = node, tuple(sources)
        self._subscribed: set[tuple[CameraSource, str]] = set()
        self._levels: dict[str, str] = {}

    @property
    def starved(self) -> bool:
        """Whether a source had no data for training when `look` was last called."""
        return 'error' in self._levels.values()

    def close(self) -> None:
        """Close the sources, because the run is over."""
        for source in self._sources:
            source.close()

    def look(self) -> list[Any]:
        """Subscribe to topics that have appeared; return the status of each source."""
        missing = [source for source in self._sources if isinstance(source, CameraSource)
                   and not self._has_all(source)]
        if missing:
            there = dict(self._node.get_topic_names_and_types())
            for source in missing:
                source.hint('; '.join(filter(None, (
                    self._subscribe(source, source.image_topic, IMAGES, source.on_image, there),
                    self._subscribe(source, source.label_topic, LABELS, source.on_label, there)))))
        reports = [self._report(source) for source in self._sources]
        for report in reports:
            self._say(report)
        return [self._status(report) for report in reports]

    def _report(self, source: Source) -> Report:
        """Return the report of a source, with a warning if several publishers share its topics."""
        report = source.report()
        many = [several(self._node, self._node.resolve_topic_name(topic), (*IMAGES, *LABELS))
                for other, topic in sorted(self._subscribed, key=lambda pair: pair[1])
                if other is source]
        if not any(many):
            return report
        warning = '; '.join([report.message, *filter(None, many), 'is one of another robot?'])
        return replace(report, message=warning,
                       level='warn' if report.level == 'ok' else report.level)

    def _has_all(self, source: CameraSource) -> bool:
        wanted = {source.image_topic, source.label_topic} - {''}
        return all((source, topic) in self._subscribed for topic in wanted)

    def _subscribe(self, source: CameraSource, topic: str, types: dict[str, Any],
                   callback: Callable[[Any], None], there: dict[str, list[str]]) -> str:
        """Subscribe to a topic; return why this is not possible yet, or an empty text."""
        if not topic or (source, topic) in self._subscribed:
            return ''
        name = self._node.resolve_topic_name(topic)
        known = [kind for kind in there.get(name, ()) if kind in types]
        if known:
            # A best-effort subscription receives from every publisher, reliable or not.
            self._node.create_subscription(types[known[0]], topic, callback,
                                           qos_profile_sensor_data)
            self._subscribed.add((source, topic))
            self._node.get_logger().info(f'images and labels: subscribed to {name}, {known[0]}')
            return ''
        others = sorted(n for n, kinds in there.items() if set(kinds) & set(types))
        found = f'{name} is of type {", ".join(there[name])}' if name in there else \
            f'nobody publishes {name}'
        return f'{found}; topics of {" or ".join(types)}: {", ".join(others[:10]) or "none"}'

    def _say(self, report: Report) -> None:
        """Log the level of a source if it has changed since the last call."""
        before = self._levels.get(report.name, 'ok')
        self._levels[report.name] = report.level
        if report.level != before:
            log, line = self._node.get_logger(), f'{report.name}: {report.message}'
            # Three calls, because rclpy raises an error if one line of code logs with several
            # severities.
            if report.level == 'ok':
                log.info(line)
            elif report.level == 'warn':
                log.warning(line)
            else:
                log.error(line)

    def _status(self, report: Report) -> Any:
        node = self._node
        return DiagnosticStatus(
            name=f'{node.get_fully_qualified_name()}: {report.name}', level=LEVELS[report.level],
            hardware_id=node.get_namespace().strip('/'), message=report.message,
            values=[KeyValue(key=k, value=str(v)) for k, v in report.values.items()])
