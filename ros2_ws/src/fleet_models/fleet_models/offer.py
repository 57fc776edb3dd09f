"""The server's side on ROS 2: announces versions, and gives their parts to readers."""

from __future__ import annotations

import math
import mmap
import re
import secrets
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
from rclpy.node import Node

from . import wire
from .errors import FollowError
from .session import ENDS, LEASE, Session
from .source import Source

MOST_READERS = 64
MOST_WAITING = 4 << 20   # bytes of answers that may wait for the link of a reader
_READER = re.compile('[A-Za-z][A-Za-z0-9_]{0,99}')


@dataclass(eq=False)
class _Reader:
    """A reader that has a session; ``says``: what it has last said of itself, for people."""

    session: Session
    number: int                 # the server's number of the session
    robot: str                  # whose key it has; empty: there is no key
    announced: bytes = b''      # the last announcement that was sent to it
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
        self._link_of = link_of
        self._source = Source()
        self._readers: dict[str, _Reader] = {}
        self._answerer = key and Answerer(key.secret_of, secrets.randbits(63))
        self._publisher = node.create_publisher(ModelVersion, 'model_version', STATUS)
        serve(node, Follow, 'follow', self._on_follow, self._answerer, self._refused)
        self._alarm = Alarm(self._on_time, node)

    def announce(self, version: Version, folder: Path, pinned: bool = False) -> None:
        """Offer a version from now on; nothing happens if it is offered already.

        :param folder: the version's folder.
        :raises FollowError: its file was changed. `OSError`: it cannot be read.
        """
        now = self._source.offered
        if now is not None and (now.version, now.pinned) == (version, pinned):
            return
        with (folder / MODEL_FILE).open('rb') as file:
            # The map outlives the file's name: a version that is pruned can still be fetched.
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._source.offer(version, content, pinned)
        offered = self._source.offered
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
        session = Session(self._node, f'model/{name}/', incarnation, True,
                          partial(self._on_message, name), self._on_woken,
                          self._link_of(name.rpartition('_')[0]), self._keyed)
        number = secrets.randbits(63)
        if call is not None and self._answerer is not None:
            seals = self._answerer.session(call, number)
            session.keep(seals.to_robot, seals.to_server)
        return _Reader(session, number, '' if call is None else call.robot)

    def _on_message(self, name: str, message: bytes) -> None:
        reader, what = self._readers[name], wire.read(message)
        if isinstance(what, wire.Want):
            if reader.session.waiting > MOST_WAITING:
                raise FollowError('a reader must wait for answers before it asks on')
            reader.session.send(self._source.answer(what))
        elif isinstance(what, dict):
            reader.says = what
        else:
            raise FollowError('a reader must ask or say, not announce')

    def _on_woken(self) -> None:
        over = any(reader.session.ended for reader in self._readers.values())
        self._alarm.set(0.0 if over else self._deadline)

    def _on_time(self) -> None:
        """Announce what is new, send what is due, and forget the sessions that are over."""
        for name, reader in list(self._readers.items()):
            if reader.announced != self._source.message:
                reader.announced = self._source.message
                reader.session.send(reader.announced)
            reader.session.on_time()
            if reader.session.ended:
                reader.session.close()
                del self._readers[name]
        self._alarm.set(self._deadline)

    @property
    def _deadline(self) -> float:
        return min((r.session.deadline for r in self._readers.values()), default=math.inf)
