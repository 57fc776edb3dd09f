"""The server's side on ROS 2: announces versions, and gives their parts to readers."""

from __future__ import annotations

import math
import mmap
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fleet_env.emulated.shaped import ShapedLink
from fleet_env.versions import MODEL_FILE, Version
from fleet_link.key import Key
from fleet_link.seal import Answerer, Call
from fleet_msgs.msg import ModelVersion
from fleet_msgs.srv import Follow
from fleet_ros.alarm import Alarm
from fleet_ros.qos import STATUS
from fleet_ros.sealing import serve
from fleet_ros.session import ENDS, LEASE, Session
from rclpy.node import Node

from . import wire
from .errors import FollowError
from .source import MOST_READERS, Parts, Source, parts_of

MOST_WANTS = 256         # questions of a reader that may wait for its link
_READER = re.compile('[A-Za-z][A-Za-z0-9_]{0,99}')


@dataclass(eq=False)
class _Reader:
    """A reader that has a session; ``says``: what it has last said of itself, for people."""

    session: Session
    number: int                 # the server's number of the session
    robot: str                  # whose key it has; empty: there is no key
    announced: bytes = b''      # the last announcement that was sent to it
    wants: deque[wire.Want] = field(default_factory=deque)    # questions without an answer
    says: dict[str, Any] = field(default_factory=dict)


def said(says: dict[str, Any]) -> str:
    """Return in words what a reader says of itself; it may have sent anything."""
    number, accuracy = says.get('version'), says.get('accuracy')
    if type(number) is not int:
        using = 'no version yet'
    elif isinstance(accuracy, float):
        using = f'version {number}, {100 * accuracy:.1f} %'
    else:
        using = f'version {number}'
    part, reason = says.get('fetched'), str(says.get('reason') or '')[:200]
    if isinstance(part, float):
        using += f'; fetching {says.get("newest")!s:.20}, {100 * part:.0f} %'
    return f'{using}; {reason}' if reason else using


class Offer:
    """Offers the versions of a model in the namespace of a node, whose executor calls it.

    :param key: key of the fleet; with a key only its robots can follow the model.
    :param sign: signs a `ModelVersion`, which everybody may read.
    :param link_of: returns the emulated link to a robot, by its name; None: there is only the real
        one.
    """

    def __init__(self, node: Node, key: Key | None, sign: Callable[[Any], None] | None = None,
                 link_of: Callable[[str], ShapedLink | None] = lambda robot: None) -> None:
        self._node, self._sign, self._keyed = node, sign, key is not None
        self._link_of, self._closed = link_of, False
        self._source = Source()
        self._readers: dict[str, _Reader] = {}
        self._answerer = key and Answerer(key.secret_of, secrets.randbits(63))
        self._publisher = node.create_publisher(ModelVersion, 'model_version', STATUS)
        serve(node, Follow, 'follow', self._on_follow, self._answerer, self._refused)
        self._alarm = Alarm(self._on_time, node)
        self.unread = ''         # why the last version that was to be offered is not
        self._wanted: tuple[Version, Path, bool] | None = None   # to be offered when it is read
        self._read: Parts | str | None = None     # the outcome of the thread that reads a version
        self._reading: Version | None = None
        self._has_read = node.create_guard_condition(self._on_read).trigger

    def announce(self, version: Version, folder: Path, pinned: bool = False) -> None:
        """Offer a version when its file was read, which a thread does, because it may be large.

        Nothing happens if it is offered already. The node's log says if it cannot be read.

        :param folder: the version's folder.
        """
        self._wanted = None
        now = self._source.offered
        if now is not None and (now.version, now.pinned) == (version, pinned):
            return
        if (parts := self._source.kept(version)) is not None:
            self._offer(parts, pinned)
            return
        self._wanted = version, folder, pinned
        if self._reading is None:
            self._begin_to_read()

    def _begin_to_read(self) -> None:
        assert self._wanted is not None
        self._reading, folder, _ = self._wanted
        threading.Thread(target=self._read_parts, args=(self._reading, folder), name='read',
                         daemon=True).start()

    def _read_parts(self, version: Version, folder: Path) -> None:
        try:
            with (folder / MODEL_FILE).open('rb') as file:
                # The map outlives the file's name: a version that is pruned can still be fetched.
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._read = parts_of(version, content)
        except (FollowError, OSError, ValueError) as error:    # ValueError: the file is empty
            self._read = str(error)
        if not self._closed:
            self._has_read()

    def _on_read(self) -> None:
        read, version, self._read, self._reading = self._read, self._reading, None, None
        if self._closed or read is None or self._wanted is None:
            return
        if self._wanted[0] != version:      # another one is wanted meanwhile
            self._begin_to_read()
            return
        pinned, self._wanted = self._wanted[2], None
        before, self.unread = self.unread, '' if isinstance(read, Parts) else read
        if isinstance(read, Parts):
            self._offer(read, pinned)
        elif self.unread != before:
            self._node.get_logger().error(f'followers do not get the new version: {read}')

    def _offer(self, parts: Parts, pinned: bool) -> None:
        self._source.offer(parts, pinned)
        version, offered = parts.version, self._source.offered
        assert offered is not None
        message = ModelVersion(
            number=version.number, parent=version.parent, run=version.run, task=version.task,
            iteration=version.iteration, accuracy=version.accuracy, size=offered.size,
            digest=version.digest, pinned=pinned)
        message.header.stamp = self._node.get_clock().now().to_msg()
        if self._sign is not None:
            self._sign(message)
        self._publisher.publish(message)
        self._on_time()

    @property
    def readers(self) -> dict[str, dict[str, Any]]:
        """What each reader has last said of itself, by its name."""
        return {name: reader.says for name, reader in self._readers.items()}

    def lines(self) -> list[str]:
        """Return a line about each reader, for people."""
        return [f'{name}: {said(reader.says)}' for name, reader in self._readers.items()]

    def close(self) -> None:
        """Tell the readers that this process ends."""
        self._closed = True
        self._alarm.close()
        for reader in self._readers.values():
            reader.session.end(ENDS)
            reader.session.close()
        self._readers.clear()

    def _refused(self, reason: str) -> None:
        self._node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _on_follow(self, request: Any, response: Any, call: Call | None) -> Any:
        name, known = request.reader, self._readers.get(request.reader)
        robot = '' if call is None else call.robot
        if request.protocol != wire.PROTOCOL:
            response.reason = (f'the protocol must be {wire.PROTOCOL}, got {request.protocol}: '
                               'install the same version everywhere')
        elif not _READER.fullmatch(name):
            response.reason = ('the name of a reader must be a letter and at most 99 letters, '
                               'digits and _')
        elif call is not None and not name.startswith(robot.replace('/', '_')[:60] + '_'):
            response.reason = f'this is the key of {robot}, not of {name.rpartition("_")[0]}'
        elif known is not None and known.robot != robot:
            response.reason = f'the name {name} is in use'
        elif known is None and len(self._readers) >= MOST_READERS:
            response.reason = f'{MOST_READERS} processes follow the model already'
        if response.reason:
            return response
        if known is not None and known.session.incarnation != request.incarnation:
            known.session.close()
            known = None
        if known is None:
            known = self._readers[name] = self._opened(name, request.incarnation, call)
        response.accepted, response.lease = True, LEASE
        response.session = known.number if call is not None else 0
        self._on_time()
        return response

    def _opened(self, name: str, incarnation: int, call: Call | None) -> _Reader:
        robot = name.rpartition('_')[0] if call is None else call.robot
        session = Session(self._node, f'model/{name}/', incarnation, True,
                          partial(self._on_message, name), self._on_woken, wire.MOST,
                          self._link_of(robot), self._keyed)
        number = secrets.randbits(63)
        if call is not None and self._answerer is not None:
            seals = self._answerer.session(call, number)
            session.keep(seals.to_robot, seals.to_server)
        return _Reader(session, number, '' if call is None else call.robot)

    def _on_message(self, name: str, message: bytes) -> None:
        reader, what = self._readers[name], wire.read(message)
        if isinstance(what, wire.Want):
            if len(reader.wants) >= MOST_WANTS:
                raise FollowError('a reader must wait for answers before it asks on')
            reader.wants.append(what)
        elif isinstance(what, wire.Drop):
            for one in reader.wants:
                reader.session.send(wire.part(one.digest, one.offset, wire.GONE))
            reader.wants.clear()
        elif isinstance(what, dict):
            reader.says = what
        else:
            raise FollowError('a reader must ask or say, not announce')

    def _answer(self, name: str, reader: _Reader) -> None:
        """Answer as the link carries it, so that an announcement need not wait for all answers."""
        try:
            while reader.wants and not reader.session.ended \
                    and reader.session.waiting < wire.PART_BYTES:
                reader.session.send(self._source.answer(reader.wants.popleft(), name))
        except FollowError as error:
            reader.session.end(str(error))

    def _on_woken(self) -> None:
        for name, reader in self._readers.items():
            self._answer(name, reader)
        over = any(reader.session.ended for reader in self._readers.values())
        self._alarm.set(0.0 if over else self._deadline)

    def _on_time(self) -> None:
        """Announce what is new, send what is due, and forget the sessions that are over."""
        for name, reader in list(self._readers.items()):
            if reader.announced != self._source.message:
                reader.announced = self._source.message
                reader.session.send(reader.announced)
            reader.session.on_time()
            self._answer(name, reader)
            if reader.session.ended:
                reader.session.close()
                del self._readers[name]
        self._alarm.set(self._deadline)

    @property
    def _deadline(self) -> float:
        return min((r.session.deadline for r in self._readers.values()), default=math.inf)
