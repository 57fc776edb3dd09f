"""Sources of messages other than a live robot: a recording, and a generator for tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rclpy.serialization import deserialize_message
from rog_tasks.errors import DataError
from rog_tasks.sources.bag import Recording

from .contract import Contract, Observation
from .errors import DataFault
from .messages import message_class, write

Event = tuple[float, str, Any]   # (time in seconds, name of the entry, message)


def recorded(contract: Contract, path: str, namespace: str = '') -> Iterator[Event]:
    """Yield the messages of a rosbag2 recording for each entry, in the order of recording.

    :param namespace: namespace of the robot in the recording; topics of the contract are relative
        to it.
    :raises DataFault: the recording is damaged, or lacks a topic.
    """
    entries: dict[str, list[str]] = {}
    types: dict[str, tuple[str, ...]] = {}
    for name, entry in contract.observations.items():
        topic = absolute(entry.topic, namespace)
        entries.setdefault(topic, []).append(name)
        types[topic] = (entry.type,)
    try:
        recording = Recording(path, types, lambda data, kind: deserialize_message(
            bytes(data), message_class(kind)))
        for topic, seconds, message in recording:
            for name in entries[topic]:
                yield seconds, name, message
    except DataError as error:
        raise DataFault(str(error)) from None
    if recording.damaged:
        raise DataFault(f'{path}: {recording.damaged} messages do not fit their type, which is not '
                        f'what was executed; the last: {recording.damage}')


def absolute(topic: str, namespace: str) -> str:
    """Return the full name of a topic of a robot."""
    return topic if topic.startswith('/') else '/'.join(['', *filter(None, [
        namespace.strip('/'), topic])])


def generated(contract: Contract, seconds: float, seed: int = 0) -> Iterator[Event]:
    """Yield random messages of every entry at the contract's rate.

    ``seed`` determines the messages.
    """
    rng = np.random.default_rng(seed)
    for tick in range(int(seconds * contract.rate)):
        for name, entry in contract.observations.items():
            yield tick / contract.rate, name, made_up(entry, rng)


def made_up(entry: Observation, rng: np.random.Generator) -> Any:
    """Return a message with random pixels, or with random numbers from -1 to 1."""
    message = message_class(entry.type)()
    if not entry.is_image:
        return write(message, entry.field, entry.fields, entry.names,
                     rng.uniform(-1, 1, entry.count))
    pixels = rng.integers(0, 256, (entry.height, entry.width, 3), np.uint8)
    if hasattr(message, 'format'):
        import io

        from PIL import Image
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, 'JPEG')
        message.format, message.data = 'jpeg', file.getvalue()
        return message
    message.height, message.width, message.step = entry.height, entry.width, entry.width * 3
    message.encoding, message.data = 'rgb8', pixels.tobytes()
    return message
