"""The reader's side on ROS 2: a thread that hears of versions and fetches them."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rclpy
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import AccessConfig
from fleet_link.seal import Caller
from fleet_link.seal import Session as Seals
from fleet_msgs.srv import Follow
from fleet_ros.alarm import Alarm
from fleet_ros.exposure import team_key
from fleet_ros.refusal import without_traceback
from fleet_ros.sealing import ServiceClient
from fleet_ros.services import bound_parameters
from fleet_ros.session import ENDS, Session
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node

from . import wire
from .errors import FollowError
from .fetch import Fetch, Fetched, Questions

MOST = 64 << 30          # maximum bytes of a version
AGAIN = 1.0              # seconds between two requests for a session, at first; it doubles to
LONGEST = 16.0
SAY_PERIOD = 5.0         # seconds between two messages about this reader, for people

_NAMESPACE = re.compile(r'(/[A-Za-z]\w*)+', re.ASCII)


_READERS: weakref.WeakSet[Reader] = weakref.WeakSet()


def _after_fork() -> None:
    """Let a child of this process not speak in its sessions."""
    for reader in _READERS:
        reader._session = None


os.register_at_fork(after_in_child=_after_fork)


@dataclass
class ReaderOptions:
    """Options of a `Reader`.

    ``server``: namespace of the fleet. ``robot``: namespace of this reader's node. ``access``: the
    key. ``link``: the emulated link.
    """

    server: str = '/rog'
    robot: str = ''
    access: AccessConfig = field(default_factory=AccessConfig)
    link: ShapedLink | None = None


class Reader:
    """Follows the versions of a fleet in a thread of its own, until `close`.

    :param refusal: see `Fetch`. ``take(version)``: called for each version that is here whole, in
        the reader's thread. ``says()``: returns what is said of this reader to people.
    :raises SettingError: see `fleet_ros.exposure.require_key`. `ValueError`: ``server`` or
        ``robot`` is no namespace.
    """

    def __init__(self, options: ReaderOptions, refusal: Callable[[wire.Announcement], str],
                 take: Callable[[Fetched], None], says: Callable[[], dict[str, Any]]) -> None:
        if not _NAMESPACE.fullmatch(options.server):
            raise ValueError('the server must be the namespace of a fleet, such as /rog, got '
                             f'{options.server[:200]!r}')
        if options.robot and not _NAMESPACE.fullmatch(f'/{options.robot.strip("/")}'):
            raise ValueError('the robot must be a namespace, such as robot1, got '
                             f'{options.robot[:200]!r}')
        self._options, self._take, self._says = options, take, says
        self.fetch = Fetch(refusal, MOST)
        self.trouble = 'no server was found yet'   # why there is no session; '' if there is one
        with without_traceback('rog'):
            key = team_key(options.access)   # before this process joins the network
        self._context = Context()
        rclpy.init(context=self._context)
        robot = options.robot or (key.robot if key is not None and key.robot else 'robot')
        self._name = f"{robot.strip('/').replace('/', '_')[:60]}_{secrets.token_hex(4)}"
        self._secret = None if key is None else (key if key.robot else key.of(robot)).secret
        self._key_robot = key.robot if key is not None and key.robot else robot
        # The arguments of this process, such as a name by a launch file, are for its own node.
        self._node = Node('model_reader', namespace=robot, context=self._context,
                          use_global_arguments=False)
        bound_parameters(self._node)
        self._session: Session | None = None
        self._client: ServiceClient | None = None
        self._asked: Any = None        # future of the request for a session
        self._ask_at, self._wait = 0.0, AGAIN
        self._say_at = 0.0
        self._closed = threading.Lock()
        self._alarm = Alarm(self._on_time, self._node)
        self._spinning = Spinning(self._node)
        self._alarm.set(time.monotonic())
        _READERS.add(self)

    def say(self) -> None:
        """Say to the server what this reader does, soon; any thread may call this."""
        self._say_at = 0.0
        self._alarm.set(time.monotonic())

    def close(self) -> None:
        """End the session and the thread."""
        if not self._closed.acquire(blocking=False):
            return
        self._alarm.close()
        self._spinning.close()
        if self._session is not None:
            with contextlib.suppress(Exception):   # the context may be shut down already
                self._session.end(ENDS)
                self._session.close()
        self._node.destroy_node()
        self._context.try_shutdown()

    # -- the reader's thread -------------------------------------------------------------------

    def _on_time(self) -> None:
        now = time.monotonic()
        if self._session is not None and self._session.ended:
            self._leave(self._session.ended)
        if self._session is None or self.trouble:
            self._ask(now)
        else:
            if now >= self._say_at:
                self._say_at = now + SAY_PERIOD
                self._session.send(wire.says(self._says()))
            self._session.on_time()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._session is None or self.trouble:
            self._alarm.set(self._ask_at)
        elif self._session.ended:
            self._alarm.set(0.0)
        else:
            self._alarm.set(min(self._session.deadline, self._say_at))

    def _leave(self, reason: str) -> None:
        assert self._session is not None
        self._session.close()
        self._session, self.trouble = None, reason
        self._ask_at, self._wait = time.monotonic() + AGAIN, AGAIN

    def _ask(self, now: float) -> None:
        """Ask for a session, again and again, ever more rarely."""
        if now < self._ask_at:
            return
        self._ask_at = now + self._wait
        if self._client is None or self._session is None:
            self._open()
        assert self._client is not None and self._session is not None
        if not self._client.service_is_ready():
            self._ask_at = now + AGAIN
            return
        self._wait = min(2 * self._wait, LONGEST)
        if self._asked is not None:
            self._client.remove_pending_request(self._asked)
        self._asked = self._client.call_async(Follow.Request(
            protocol=wire.PROTOCOL, reader=self._name, incarnation=self._session.incarnation))
        self._asked.add_done_callback(self._on_answer)

    def _open(self) -> None:
        """Make the topics of a new session, and the client that asks for it."""
        if self._client is not None:
            self._client.close()
        self.fetch.on_new_session()
        incarnation, server = secrets.randbits(63), self._options.server
        caller = None if self._secret is None else Caller(self._secret, self._key_robot,
                                                          incarnation)
        self._client = ServiceClient(self._node, Follow, f'{server}/follow', caller,
                                     self._note_unproved)
        self._session = Session(self._node, f'{server}/model/{self._name}/', incarnation, False,
                                self._on_message, self._set_alarm, wire.MOST, self._options.link,
                                caller is not None)

    def _note_unproved(self, reason: str) -> None:
        self.trouble = reason

    def _on_answer(self, future: Any) -> None:
        if future is not self._asked or self._session is None or not self.trouble:
            return
        answer = future.result()
        if answer is None or not answer.accepted:
            self.trouble = f'the server refuses: {answer.reason}' if answer else 'no answer'
            return
        if self._secret is not None:
            seals = Seals(self._secret, self._session.incarnation, answer.session)
            self._session.keep(seals.to_server, seals.to_robot)
        self._session.begin()
        self.trouble, self._wait, self._say_at = '', AGAIN, 0.0
        self._want(self.fetch.questions())
        self._on_time()

    def _on_message(self, message: bytes) -> None:
        what = wire.read(message)
        if isinstance(what, wire.Announcement):
            self._want(self.fetch.on_announced(what))
            self._say_at = 0.0
        elif isinstance(what, wire.Part):
            fetched, questions = self.fetch.on_part(what)
            self._want(questions)
            if fetched is not None:
                self._take(fetched)
                self._say_at = 0.0
        else:
            raise FollowError('a server must announce or answer, not ask')

    def _want(self, questions: Questions) -> None:
        if self._session is not None:
            for one in questions:
                self._session.send(wire.want(one))
