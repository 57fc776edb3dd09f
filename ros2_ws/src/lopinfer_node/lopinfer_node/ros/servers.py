"""Shares the inferences of one model with the best of several servers.

Every server gets the model and the plans at the start, and its link is measured, so another one can
take the next inference. The choice is made before each inference, never within one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from fleet_ros.spinning import Spinning
from rclpy.node import Node

from ..errors import RemoteError
from ..model.traced import Traced
from ..runtime.client import OPEN, Report
from ..runtime.server import NAME
from .client_shell import Client, ClientOptions, Tensors

# Another server replaces the present one if it is expected to be faster by this share.
BETTER = 0.2
LAST_WORDS = 0.5   # maximum seconds for which an ending robot waits until its servers know it


class Servers:
    """One `Client` for each server of ``options.server``, which separates them by commas.

    ``node``: any node of the robot, which the caller spins. The first client has its namespace, the
    second one `server2` in it, and so on.
    """

    def __init__(self, node: Node, traced: Traced, options: ClientOptions) -> None:
        names = server_names(options.server)
        self.report = Report()
        self._turn = threading.Lock()   # held during an inference and an update
        changed = threading.Condition()
        self._nodes = [Node('lopinfer', namespace=f'{node.get_namespace().rstrip("/")}/server{k}',
                            context=node.context, start_parameter_services=False,
                            use_global_arguments=False)
                       for k in range(2, len(names) + 1)]
        self._clients = [Client(own, traced, replace(options, server=name), self.report, changed)
                         for own, name in zip([node, *self._nodes], names, strict=True)]
        self._spinning = [Spinning(own) for own in self._nodes]
        self.present = self._clients[0]     # the client of the latest inference
        self._changed = changed
        for client in self._clients[1:]:
            client.machine.standby = True

    def leave(self) -> None:
        """Tell the servers that this robot ends, while the node is spun; see `has_left`."""
        for client in self._clients:
            client.leave()

    @property
    def has_left(self) -> bool:
        """Return whether every server knows that this robot ends."""
        return all(client.has_left for client in self._clients)

    def close(self) -> None:
        """Stop the threads; call this before the node is destroyed."""
        for spinning in self._spinning:
            spinning.close()
        for client in self._clients:
            client.close()
        for node in self._nodes:
            node.destroy_node()

    @property
    def is_open(self) -> bool:
        """Return whether a server is ready."""
        return any(client.machine.state == OPEN for client in self._clients)

    def wait_until(self, done: Callable[[], bool], limit: float) -> bool:
        """Wait until ``done()``, at most until the time ``limit``; return ``done()``."""
        with self._changed:
            return self._changed.wait_for(done, limit - time.monotonic())

    def update(self, traced: Traced) -> None:
        """Infer with another traced model from now on; see `Client.update`."""
        with self._turn:
            for client in self._clients:
                client.update(traced)

    def note_whole(self, reason: str) -> None:
        """Count a request that the robot computes whole; see `Client.note_whole`."""
        self.present.note_whole(reason)

    def infer(self, inputs: Sequence[torch.Tensor], check: float = 0.0,
              traced: Traced | None = None) -> Tensors:
        """Return the outputs of the model; see `Client.infer`."""
        with self._turn:
            if len(self._clients) > 1:
                self._choose(time.monotonic())
            return self.present.infer(inputs, check, traced)

    def _choose(self, now: float) -> None:
        """Give the next inference to the fastest server, if it is faster by `BETTER`."""
        with self._changed:
            expected = {client: client.machine.expected(now) for client in self._clients}
            best = min(self._clients, key=lambda client: expected[client])
            if expected[best] >= (1 - BETTER) * expected[self.present]:
                return
            why = self.present.machine.why_alone(now) or 'it is slower'
            self.present.machine.standby, best.machine.standby = True, False
        best.node.get_logger().info(
            f'inferences go on at {best.options.server}; {self.present.options.server}: {why}')
        self.present = best


def server_names(text: str) -> list[str]:
    """Return the namespaces of servers, separated by commas in `text`, each once.

    Raises RemoteError if there is none, or one is no namespace.
    """
    given = (name.strip() for name in text.split(','))
    names = list(dict.fromkeys(name.rstrip('/') for name in given if name))
    if not names or not all(name and NAME.fullmatch(name.removeprefix('/')) and '__' not in name
                            for name in names):
        raise RemoteError('server must be the namespace of a server, such as /lopinfer, or of '
                          f'several, separated by commas, got {text[:200]!r}')
    return names
