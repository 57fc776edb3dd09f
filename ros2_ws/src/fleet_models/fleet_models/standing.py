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


class Standing:
    """A node that offers the version that the folder's owner has chosen, or the newest.

    :param namespace: namespace of the fleet.
    :param say: called with a line for each version that is offered.
    :raises FollowError: a server in this namespace offers a model already.
    """

    def __init__(self, namespace: str, store: Versions, key: Key | None,
                 say: Callable[[str], object]) -> None:
        self._store, self._say, self._said = store, say, ''
        self._context = Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node('model_server', namespace=namespace, context=self._context)
        try:
            self._look_for_others(namespace)
        except FollowError:
            self._node.destroy_node()
            self._context.try_shutdown()
            raise
        self._offer = Offer(self._node, key)
        self._looked = self._node.create_timer(LOOK, self._look)
        self._spinning = Spinning(self._node)

    def run(self) -> None:
        """Offer until a signal raises KeyboardInterrupt."""
        threading.Event().wait()

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._spinning.close()
        self._offer.close()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _look_for_others(self, namespace: str) -> None:
        end = time.monotonic() + OTHERS
        while time.monotonic() < end:
            if self._node.count_publishers(f'{namespace}/model_version'):
                raise FollowError(f'a server at {namespace} offers a model already; give this one '
                                  'another --namespace')
            time.sleep(0.05)

    def _look(self) -> None:
        try:
            number = self._store.offered()
            version, pinned = self._store.read(number), self._store.pinned() == number
            self._offer.announce(version, self._store.path(number), pinned)
        except (VersionError, FollowError, OSError) as error:
            line = f'not offered: {error}'
        else:
            accuracy = f', {100 * version.accuracy:.1f} %' if version.measured else ''
            line = f'offers version {number} of {self._store.folder}{accuracy}' \
                + ', which was chosen' * pinned
        if line != self._said:
            self._said = line
            self._say(line)
