"""Drives managed nodes as `ros2 lifecycle` and Nav2's lifecycle manager do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from spun_nodes import SpunNodes

Until = Callable[[Callable[[], Any], str], None]


class Driver:
    """Changes the states of managed nodes.

    ``node`` sends the requests. ``until(condition, what)``: function that spins this node until the
    condition holds; ``what`` names the condition in an error.
    """

    def __init__(self, node: Any, until: Until) -> None:
        self.node, self.until = node, until
        self._clients: dict[str, Any] = {}

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        if name not in self._clients:
            client = self._clients[name] = self.node.create_client(kind, name)
            self._meet(client, name, kind.Request())
        future = self._clients[name].call_async(request)
        self.until(future.done, f'{name} answers')
        return future.result()

    def _meet(self, client: Any, name: str, harmless: Any) -> None:
        """Send a request, again and again, until the node answers.

        ``harmless``: the request, which has no effect. A node that has not yet discovered the
        sender cannot answer. With Fast DDS, the node then drops the answer after 100 ms.
        """
        self.until(client.service_is_ready, f'{name} is there')
        answered: list[Any] = []
        asked = [0.0]

        def answers() -> bool:
            if time.monotonic() > asked[0]:
                asked[0] = time.monotonic() + 1.0
                client.call_async(harmless).add_done_callback(answered.append)
            return bool(answered)

        self.until(answers, f'{name} answers for the first time')

    def state(self, name: str) -> str:
        """Return the state of a node."""
        found = self._call(GetState, f'{name}/get_state', GetState.Request())
        return str(found.current_state.label)

    def change(self, name: str, *labels: str) -> bool:
        """Make transitions one after the other; return whether all succeed."""
        return all(self._call(ChangeState, f'{name}/change_state', ChangeState.Request(
            transition=Transition(label=label))).success for label in labels)


@contextmanager
def driving(domain: int) -> Iterator[Driver]:
    """Yield a driver in a DDS domain."""
    with SpunNodes(domain) as nodes:
        yield Driver(nodes.node('driver'), lambda condition, what: nodes.until(
            condition, lambda: what))
