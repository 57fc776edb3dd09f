"""Runs servers for robots as one process, with one orderly end for all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from .ending import Interruption
from .exposure import look_before
from .managed import ManagedNode
from .process import fail, run, spin_until
from .spinning import Spinning

DRAIN = 2.0  # maximum seconds that an ending server waits for what robots have begun


class AnyServer(Protocol):
    """What a `ServerNode` needs of its server."""

    @property
    def busy(self) -> bool:
        """Whether a robot still needs the ending server, such as for a request that is computed."""

    @property
    def error(self) -> str:
        """Why the server cannot serve any more; '' if it can."""

    def pause(self, paused: bool) -> None:
        """Stop accepting new work if ``paused``, otherwise accept it again."""

    def leave(self) -> None:
        """Tell the robots that the server ends, and accept nothing new; see `busy`."""

    def close(self) -> None:
        """Release everything; called before the node is destroyed."""


class ServerNode(ManagedNode):
    """A managed node around a server, which `configure` of a subclass gives to `keep`.

    An inactive server refuses what is new, but completes what robots have begun; so does an ending
    one, for at most `DRAIN` seconds. ``drained``: see `serve`.
    """

    server: AnyServer | None = None
    _ends_at = math.inf

    def keep(self, server: AnyServer) -> None:
        """Use a server, which stays paused until the node is active."""
        self.server = server
        self.held.callback(self._close)
        server.pause(True)

    def _close(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.close()

    def activate(self) -> None:
        """Accept robots."""
        assert self.server is not None
        self.server.pause(False)

    def deactivate(self) -> None:
        """Refuse what is new."""
        assert self.server is not None
        self.server.pause(True)

    def shutdown(self) -> None:
        """Tell the robots that the server ends, and let the process end when it is `drained`."""
        if self.server is not None and not self.done:
            self.server.leave()
            self._ends_at = time.monotonic() + DRAIN
        super().shutdown()

    @property
    def drained(self) -> bool:
        """Return whether the process may end after `shutdown`."""
        return self.done and (self.server is None or not self.server.busy
                              or time.monotonic() >= self._ends_at)

    @property
    def error(self) -> str:
        """Return why the server cannot serve any more; '' if it can."""
        return '' if self.server is None else self.server.error


@dataclass(frozen=True)
class Kind:
    """A kind of server: the name of its node, the packages of its errors, and how to make it.

    ``build(cli_args=arguments)`` returns the node; ``arguments`` are ROS arguments for it alone.
    ``settings``: see `process.run`.
    """

    node: str
    packages: Sequence[str]
    build: Callable[..., ServerNode]
    settings: str
    arguments: Sequence[str] = ()


def serve(kinds: Sequence[Kind], arguments: Sequence[str] | None) -> int:
    """Run a server of each kind until the process is stopped, and end it with code 0 if clean.

    All nodes share the process, its context and its executor. If one of the servers cannot start,
    or cannot serve any more, the others end, too, and the exit code is 1. ``arguments``: those of
    the process; None: sys.argv.
    """
    def before(given: Sequence[str] | None) -> None:
        for kind in kinds:
            look_before(kind.node, '/', given)

    return run(lambda: _built(kinds), _serve, arguments,
               {package for kind in kinds for package in kind.packages}, before,
               kinds[0].settings, ends=True)


def _built(kinds: Sequence[Kind]) -> list[ServerNode]:
    nodes: list[ServerNode] = []
    with ExitStack() as undo:
        with ExitStack() as spinning:    # a server answers while the next one is made
            for kind in kinds:
                nodes.append(kind.build(cli_args=list(kind.arguments)))
                undo.callback(nodes[-1].destroy_node)
                spinning.callback(Spinning(nodes[-1]).close)
        undo.pop_all()
    return nodes


def _serve(nodes: Sequence[ServerNode], interruption: Interruption) -> int:
    def shut_down() -> None:
        for node in nodes:
            node.shutdown()

    def errors() -> list[str]:
        return [f'{node.get_name()}: {node.error}' for node in nodes if node.error]

    spin_until(nodes, lambda: bool(errors()) or all(node.drained for node in nodes), interruption,
               shut_down)
    if not (found := errors()):
        return 0
    shut_down()    # those that can serve tell their robots, too
    spin_until(nodes, lambda: all(node.drained or node.error for node in nodes), interruption)
    return fail('; '.join(found))
