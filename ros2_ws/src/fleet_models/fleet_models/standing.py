"""Offers the versions in the folder of a run that nobody else offers, such as one that is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import rclpy
from fleet_env.errors import VersionError
from fleet_env.versions import Versions
from fleet_link.key import Key
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from .errors import FollowError
from .offer import Offer

LOOK = 1.0         # seconds between two looks for a new version
OTHERS = 2.0       # seconds in which another server of the namespace would be seen
YOUNG = 10.0       # seconds for which it gives way to another one that is seen late


class Standing:
    """A node that offers the version that the folder's owner has chosen, or the newest.

    :param namespace: namespace of the fleet.
    :param say: called with a line for each version that is offered.
    :raises FollowError: a server in this namespace offers a model already.
    """

    def __init__(self, namespace: str, store: Versions, key: Key | None,
                 say: Callable[[str], object]) -> None:
        self._store, self._say, self._said = store, say, ''
        self._namespace = namespace
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node('model_server', namespace=namespace, context=self._context)
        try:
            self._look_for_others()
        except FollowError:
            self._node.destroy_node()
            self._context.try_shutdown()
            raise
        self._young_until, self._other = time.monotonic() + YOUNG, threading.Event()
        self._offer = Offer(self._node, key)
        self._looked = self._node.create_timer(LOOK, self._look)
        self._spinning = Spinning(self._node)

    def run(self) -> None:
        """Offer until a signal raises KeyboardInterrupt.

        :raises FollowError: another server was there before, but was seen late.
        """
        self._other.wait()
        raise self._taken()

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._spinning.close()
        self._offer.close()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _look_for_others(self) -> None:
        end = time.monotonic() + OTHERS
        while time.monotonic() < end:
            if self._servers():
                raise self._taken()
            time.sleep(0.05)

    def _servers(self) -> int:
        return int(self._node.count_publishers(f'{self._namespace}/model_version'))

    def _taken(self) -> FollowError:
        return FollowError(f'a server at {self._namespace} offers a model already; give this one '
                           'another --namespace')

    def _look(self) -> None:
        if time.monotonic() < self._young_until and self._servers() > 1:
            self._other.set()
        try:
            number = self._store.offered()
            version, pinned = self._store.read(number), self._store.pinned() == number
            self._offer.announce(version, self._store.path(number), pinned)
        except VersionError as error:
            line = f'not offered: {error}'
        else:
            accuracy = f', {100 * version.accuracy:.1f} %' if version.measured else ''
            line = f'offers version {number} of {self._store.folder}{accuracy}' \
                + ', which was chosen' * pinned
            if self._offer.unread:
                line = f'not offered: {self._offer.unread}'
        if line != self._said:
            self._said = line
            self._say(line)
