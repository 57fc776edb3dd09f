"""Images of two classes, red and blue, that tests put into messages, folders and recordings."""

import io
import itertools
import tarfile
import zipfile
from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

CLASSES = ('blue', 'red')
COLOURS = {'blue': (20, 30, 220), 'red': (220, 30, 20)}


def pixels(name, width=20, height=10, seed=0):
    """Return pixels (height, width, 3) in the colour of a class, with a little noise."""
    noise = np.random.default_rng(seed).integers(-15, 15, (height, width, 3))
    return (np.array(COLOURS[name]) + noise).clip(0, 255).astype(np.uint8)


def encoded(name, form='JPEG', seed=0, **size):
    """Return the bytes of a file with the `pixels` of a class."""
    out = io.BytesIO()
    Image.fromarray(pixels(name, seed=seed, **size)).save(out, form)
    return out.getvalue()


def image(name, seed=0, **changes):
    """Return an object with the fields of the sensor_msgs/Image that a subscriber would receive."""
    rgb = pixels(name, seed=seed)
    fields = {'encoding': 'rgb8', 'width': 20, 'height': 10, 'step': 60,
              'is_bigendian': 0,
              'data': array('B', rgb.tobytes())}
    return SimpleNamespace(**{**fields, **changes})


def compressed(data):
    """Return an object with the fields of a sensor_msgs/CompressedImage."""
    return SimpleNamespace(format='jpeg', data=array('B', data))


def text(data):
    """Return an object with the field of a std_msgs/String."""
    return SimpleNamespace(data=data)


def class_files(count=6, classes=CLASSES):
    """Return the files of class folders: a dict from path to content."""
    return {f'{name}/{number:03}.{"png" if number % 2 else "jpg"}':
            encoded(name, 'PNG' if number % 2 else 'JPEG', number)
            for name, number in itertools.product(classes, range(count))}


def write(path, files):
    """Write files below ``path``.

    ``path`` becomes an archive if its name has the suffix of an archive, otherwise a folder.
    """
    path = Path(path)
    if path.suffix == '.zip':
        with zipfile.ZipFile(path, 'w') as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    elif '.tar' in path.name or path.suffix == '.tgz':
        with tarfile.open(path, 'w' if path.suffix == '.tar' else 'w:gz') as archive:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    else:
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return path


def record(path, messages, storage='mcap'):
    """Write a rosbag2 recording of tuples (topic, time in seconds, message).

    The fields of a message decide the type of its topic.
    """
    pytest.importorskip('rosbags', reason='rosbags is not installed')
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore
    store = get_typestore(Stores.ROS2_JAZZY)
    kinds = store.types
    header = kinds['std_msgs/msg/Header'](kinds['builtin_interfaces/msg/Time'](0, 0), '')
    plugin = StoragePlugin.MCAP if storage == 'mcap' else StoragePlugin.SQLITE3
    with Writer(Path(path), version=9, storage_plugin=plugin) as writer:
        connections = {}
        for topic, seconds, message in messages:
            # a message of type `bytes` is damaged data for a topic that the recording already has
            if isinstance(message, bytes):
                writer.write(connections[topic], int(seconds * 1e9), message)
                continue
            if hasattr(message, 'format'):
                made = kinds['sensor_msgs/msg/CompressedImage'](
                    header, message.format, np.frombuffer(message.data, np.uint8))
            elif hasattr(message, 'encoding'):
                made = kinds['sensor_msgs/msg/Image'](
                    header, message.height, message.width, message.encoding,
                    message.is_bigendian, message.step,
                    np.frombuffer(message.data, np.uint8))
            else:
                made = kinds['std_msgs/msg/String'](message.data)
            kind = made.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], int(seconds * 1e9),
                         store.serialize_cdr(made, kind))
    return path


def right(batch):
    """Return whether the labels of a batch match the colours of its images."""
    images, labels = batch
    return bool(((images[:, 0].mean((1, 2)) > images[:, 2].mean((1, 2))) == labels.bool()).all())
