"""A rosbag2 recording as a source of images; it is played again and again, without end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fleet_env.errors import PictureError
from fleet_env.pictures import LARGEST, from_message

from rog_tasks.batches import Batch
from rog_tasks.errors import DataError, TaskError
from rog_tasks.sources.frames import Frames
from rog_tasks.sources.source import Report, Source, Wanted
from rog_tasks.sources.spec import Spec

IMAGES = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')
LABELS = ('std_msgs/msg/String',)

Event = tuple[str, float, Any]  # topic, time in seconds, message


class Recording:
    """The messages of some topics of a rosbag2 recording.

    The recording is a folder, or an mcap or sqlite3 file. Types that are not part of ROS 2 are read
    with the definitions in the recording.

    :param topics: maps the name of a topic to the types that the topic may have.
    :param read: function that returns a message from its bytes and its type; by default the
        function of `rosbags`. The default function fails if a message ends with an empty list, such
        as the efforts of a JointState, because Fast DDS writes further bytes after this list.
    :raises DataError: the recording is missing or damaged, or lacks a topic.
    """

    def __init__(self, path: str, topics: dict[str, tuple[str, ...]],
                 read: Callable[[bytes, str], Any] | None = None) -> None:
        try:
            from rosbags.rosbag2 import Reader
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise DataError('to read rosbag2 recordings: pip install rosbags') from error
        if not Path(path).exists():
            raise DataError(f'{Path(path).absolute()} is not there; name the folder of a rosbag2 '
                            'recording, or its .mcap or .db3 file')
        _refuse_others(Path(path))
        self.path, self._reader, self._topics = path, Reader, topics
        self._store = get_typestore(Stores.ROS2_JAZZY)
        self._read = read or self._store.deserialize_cdr
        self.types: dict[str, str] = {}  # maps each topic of the recording to its type
        self.damaged = 0  # number of messages that do not fit their type
        self.damage = ''  # the fault of the last damaged message
        next(self._events(only_look=True), None)

    def __iter__(self) -> Iterator[Event]:
        """Yield topic, time and message in the order of recording."""
        return self._events(only_look=False)

    def _events(self, only_look: bool) -> Iterator[Event]:
        read = 0
        try:
            with self._reader(self.path) as reader:
                chosen = self._choose(reader)
                for connection, nanoseconds, data in () if only_look else reader.messages(chosen):
                    message = self._message(data, connection.msgtype)
                    read += 1
                    if message is not None:
                        yield connection.topic, nanoseconds * 1e-9, message
        except (DataError, GeneratorExit):
            raise
        except Exception as error:  # a damaged file may raise an error of any library used here
            raise DataError(
                f'{self.path} cannot be read as a recording, after {read} messages: '
                f'{type(error).__name__}: {" ".join(str(error).split())[:200]}. To repair a '
                f'recording that was cut off: ros2 bag reindex {_folder(self.path)}') from error

    def _choose(self, reader: Any) -> list[Any]:
        self.types = types = {c.topic: c.msgtype for c in reader.connections}
        for topic, allowed in self._topics.items():
            fitting = sorted(t for t, kind in types.items() if kind in allowed)
            instead = f'topics of that type: {", ".join(fitting[:10])}' if fitting else \
                f'its topics are {", ".join(sorted(types)[:10]) or "none"}'
            if topic not in types:
                raise DataError(f'{self.path} has no topic {topic} ({" or ".join(allowed)}); '
                                f'{instead}')
            if types[topic] not in allowed:
                raise DataError(f'{self.path}: {topic} is of type {types[topic]}, not '
                                f'{" or ".join(allowed)}; {instead}')
        chosen = [c for c in reader.connections if c.topic in self._topics]
        for connection in chosen:
            self._learn(connection)
        return chosen

    def _learn(self, connection: Any) -> None:
        """Register the definition of a type, and of the types that it contains."""
        from rosbags.interfaces import MessageDefinitionFormat
        from rosbags.typesys import get_types_from_idl, get_types_from_msg
        kind, definition = connection.msgtype, connection.msgdef
        if kind in self._store.types:
            return
        if definition.format is MessageDefinitionFormat.NONE:
            raise DataError(f'{self.path} does not say what a {kind} is; it was recorded by a '
                            'ROS 2 before Iron')
        found = get_types_from_idl(definition.data) if \
            definition.format is MessageDefinitionFormat.IDL else \
            get_types_from_msg(definition.data, kind)
        self._store.register({name: fields for name, fields in found.items()
                              if name not in self._store.types})

    def _message(self, data: bytes, kind: str) -> Any:
        try:
            if len(data) > LARGEST + 2**16:
                raise DataError(f'it has {len(data)} bytes')
            return self._read(data, kind)
        except Exception as error:  # numpy, struct and rosbags raise errors of different types
            self.damaged += 1
            self.damage = f'{type(error).__name__}: {" ".join(str(error).split())[:200]}'
            return None


def _refuse_others(path: Path) -> None:
    """Raise DataError if ``path`` is a file, or a folder of files, of another kind.

    The kind is known by the first bytes, because names of files are often changed.
    """
    if path.is_dir():
        files = [] if (path / 'metadata.yaml').exists() else sorted(path.glob('*.*'))
    else:
        files = [path]
    for file in files:
        begin = _begin(file)
        if begin.startswith(b'#ROSBAG V'):
            unfinished = f'rosbag reindex {file}, then ' * (file.suffix == '.active')
            raise DataError(f'{file} is a recording of ROS 1; convert it: {unfinished}'
                            f'rosbags-convert --src {file} --dst {file.with_suffix("")}')
        if begin.startswith(b'\x28\xb5\x2f\xfd'):
            raise DataError(f'{file} is one file of a recording, compressed by zstd; name the '
                            'folder that has its metadata.yaml, or unpack the file: '
                            f'zstd -d {file}')
    if path.is_file() and path.suffix not in ('.mcap', '.db3'):
        raise DataError(f'{path} is not a rosbag2 recording; name the folder of one, or its .mcap '
                        'or .db3 file')


def _begin(path: Path) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    try:
        with path.open('rb') as file:
            return file.read(16)
    except OSError:
        return b''


def _folder(path: str) -> Path:
    return Path(path) if Path(path).is_dir() else Path(path).absolute().parent


class BagSource(Source):
    """A robot's recording; ``{rank}`` in its path stands for the robot's rank."""

    def __init__(self, images: Spec, labels: Spec, wanted: Wanted) -> None:
        super().__init__(images, labels, wanted)
        self._played: list[tuple[Recording, Frames]] = []

    def batches(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Return endless batches, drawn at random from the images that were played last.

        Before the first batch, enough images are played to fill the buffer. Before each later
        batch, ``count`` new images are played. When the recording ends, it begins again.
        """
        path = self._spec.target.replace('{rank}', str(rank))
        if self._played and path == self._spec.target:
            raise TaskError(f'{path} is one recording, which robots cannot share: give each its '
                            'own by {rank} in the path, or use a folder of images')
        topics: dict[str, tuple[str, ...]] = {self._spec.topic: IMAGES}
        if self._label_spec.kind == 'topic':
            topics[self._label_spec.target] = LABELS
        recording = Recording(path, topics)
        self._open_labels()
        self._played.append((recording, self._buffer_for(count)))
        return self._play(*self._played[-1], count, rank)

    def shard(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Raise TaskError, because a recording is played through a buffer, not shard by shard."""
        raise TaskError(f'{self._spec.target} is played through a bounded buffer, never as a whole '
                        'shard; this method of training needs a folder of images')

    def report(self) -> Report:
        """Return how many images of the recordings could be used, and the last fault."""
        name = f'{self._spec.topic} in {self._spec.target}'
        counts: Counter[str] = sum((frames.counts for _, frames in self._played), Counter())
        damaged = sum(recording.damaged for recording, _ in self._played)
        damage = [recording.damage for recording, _ in self._played if recording.damage]
        trouble = [frames.trouble for _, frames in self._played if frames.trouble]
        values = {**counts, 'damaged messages': damaged, **self._label_values()}
        if damaged or trouble:
            return Report(name, 'warn', 'some cannot be used: ' + (
                trouble[-1] if trouble else f'{damaged} damaged messages, last {damage[-1]}'),
                values)
        return Report(name, 'ok', 'all can be used', values)

    def _play(self, recording: Recording, frames: Frames, count: int, rank: int) -> Iterator[Batch]:
        generator = self._generator(rank)
        events = self._fill(recording, frames)
        goal = self._spec.keep
        while True:
            goal += frames.counts['kept']
            while frames.counts['kept'] < goal and not self._is_all(frames) and next(events):
                pass
            goal = count
            if not len(frames):
                raise DataError(self._useless(recording, frames))
            yield self._batch(*frames.draw(count, generator))

    def _is_all(self, frames: Frames) -> bool:
        """Return whether the buffer holds the whole recording, so that no new image can come."""
        return frames.counts['passes'] > 0 and frames.counts['kept'] <= self._spec.keep

    def _fill(self, recording: Recording, frames: Frames) -> Iterator[bool]:
        """Play the recording into the buffer repeatedly; yield False at the end of each pass."""
        while True:
            for topic, time, message in recording:
                if topic != self._spec.topic:
                    frames.label(time, message.data)
                else:
                    self._add(frames, recording.path, time, message)
                self._keep(frames)
                yield True
            frames.rewind()
            self._keep(frames)
            frames.counts['passes'] += 1
            yield False

    def _add(self, frames: Frames, path: str, time: float, message: Any) -> None:
        try:
            frames.add(time, from_message(message, f'{self._spec.topic} at {time:.3f} s in {path}'))
        except PictureError as error:
            frames.refuse(time, str(error))

    def _keep(self, frames: Frames) -> None:
        for frame in frames.take(self._spec.keep):
            frames.keep(frame, *self._decode(frame.picture))

    def _useless(self, recording: Recording, frames: Frames) -> str:
        counts = frames.counts
        why = f'{counts["refused"]} were refused, {recording.damaged} messages were damaged'
        if self._label_spec.kind == 'topic':
            why += (f', {counts["without a label"]} have no label within '
                    f'{self._label_spec.tolerance:g} s on {self._label_spec.target} '
                    f'({counts["labels"]} labels)')
        trouble = frames.trouble or recording.damage
        last = f'; last {trouble}' if trouble else ''
        return (f'{recording.path}: none of the {counts["images"]} images of {self._spec.topic} '
                f'can be used: {why}{last}')
