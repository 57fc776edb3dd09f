"""Sources of messages other than a live robot: a recording, and a generator for tests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from rclpy.serialization import deserialize_message
from rog_tasks.errors import DataError, some
from rog_tasks.sources.bag import Recording

from .contract import Contract, Numbers, Observation
from .errors import DataFault
from .messages import message_class, write

Event = tuple[float, str, Any]   # (time in seconds, name of the entry, message)
Key = TypeVar('Key', bound=Hashable)


def recorded(contract: Contract, path: str, namespace: str = '') -> Iterator[Event]:
    """Yield the messages of a rosbag2 recording for each entry, in the order of recording.

    :param namespace: namespace of the robot in the recording; topics of the contract are relative
        to it.
    :raises DataFault: the recording is damaged, or lacks a topic.
    """
    return played(contract.observations, path, namespace)


def played(entries: Mapping[Key, Numbers], path: str, namespace: str | None = None
           ) -> Iterator[tuple[float, Key, Any]]:
    """Yield time, key of the entry, and message for each message of a rosbag2 recording.

    :param namespace: see `recorded`; None: the only one that has all topics of the entries.
    :raises DataFault: see `recorded`.
    """
    try:
        if namespace is None:
            namespace = _namespace(entries, path)
        keys: dict[str, list[Key]] = {}
        types: dict[str, tuple[str, ...]] = {}
        for key, entry in entries.items():
            topic = absolute(entry.topic, namespace)
            keys.setdefault(topic, []).append(key)
            types[topic] = (entry.type,)
        recording = Recording(path, types, lambda data, kind: deserialize_message(
            bytes(data), message_class(kind)))
        for topic, seconds, message in recording:
            for key in keys[topic]:
                yield seconds, key, message
    except DataError as error:
        raise DataFault(str(error)) from None
    if recording.damaged:
        raise DataFault(f'{path}: {recording.damaged} messages do not fit their type, which is not '
                        f'what was executed; the last: {recording.damage}')


def _namespace(entries: Mapping[Key, Numbers], path: str) -> str:
    """Return the only namespace of a recording that has all topics of the entries."""
    there = Recording(path, {}).types
    wanted = [entry.topic for entry in entries.values() if not entry.topic.startswith('/')]
    fitting = [{name.removesuffix(f'/{topic}') for name in there if name.endswith(f'/{topic}')}
               for topic in wanted]
    found = set.intersection(*fitting) if fitting else {''}
    if len(found) != 1:
        raise DataError(f'{path} must have all topics of the contract ({some(wanted)}) in one '
                        f'namespace, it has them in {some(sorted(found)) or "none"}; its topics '
                        f'are {some(sorted(there)) or "none"}')
    return found.pop()


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
