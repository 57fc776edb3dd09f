"""Guard conditions: run a callback in the executor because some thread asks for it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from rclpy._reader import Entity


class GuardCondition(Entity):
    """Made by Node.create_guard_condition. Several triggers before the callback count as one."""

    def __init__(
        self, callback: Callable[[], Any] | None, callback_group: Any, context: Any = None
    ) -> None:
        self.callback = callback
        self.callback_group = callback_group
        self._triggered = False
        self._node = lambda: None  # type: ignore[assignment]
        self._destroyed = False
        self._keep = weakref.ref(self)

    @property
    def handle(self) -> GuardCondition:
        """The guard condition itself: there is no other handle."""
        return self

    def trigger(self) -> None:
        """Have the callback run; from any thread."""
        if self._destroyed:
            return
        self._triggered = True
        node = self._node()
        executor = None if node is None else node.executor
        if executor is not None:
            executor._trigger(self)

    def _invoke(self, _: Any) -> Any:
        return None if self.callback is None else self.callback()

    def destroy(self) -> None:
        """Delete it; use Node.destroy_guard_condition."""
        self._destroyed = True
